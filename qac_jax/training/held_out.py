"""Loaders of examples that are not trained: those of a validation and of a probe."""

from __future__ import annotations

import os
from collections.abc import Mapping

from jax.sharding import Mesh

from qac_jax.artifacts import Artifact
from qac_jax.data.loader import Loader, Reading
from qac_jax.errors import UserError
from qac_jax.training import mesh as meshes
from qac_jax.training.settings import Monitoring


_TASK, _BATCH = "triples", 64
# A probe's features: what training calls such texts, and the limit in tokens if it has none.
_LIKE = {"query": ("query", "context"), "passages": ("passages", "passage", "tokens")}
_LENGTHS = {"query": 32, "passages": 144}


def validation(
    examples: Artifact,
    reading: Reading,
    batch_size: int,
    mesh: Mesh,
    fills: bool = False,
    chunk: int = 0,
) -> Loader:
    """Batches as those of training, or smaller ones where there are too few examples.

    Shuffled with a fixed seed: passages of one document would be harder in-batch negatives of each
    other than those of training batches. Where they are encoded in chunks nothing fills them up.
    """
    count = min(examples.count, batch_size)
    return Loader(
        os.fspath(examples.path),
        reading=reading,
        separate_documents=False,
        workers=0,
        batch_size=meshes.largest_batch(mesh, count, fills and not 0 < chunk < count),
        host=meshes.my_part(mesh),
    )


def check_probe(examples: Artifact, trained: Artifact) -> None:
    """Raises UserError for examples that cannot be those of a probe."""
    if (task := examples.info.get("task")) != _TASK:
        raise UserError(
            f"{examples.path} has examples of the task {task!r}; --probe expects questions with "
            f"their passages, as qac tokenize --task {_TASK} writes them"
        )
    if examples.info.get("tokenizer") != trained.info.get("tokenizer"):
        raise UserError(
            f"{examples.path} and {trained.path} have different vocabularies; make the examples of "
            "--probe by qac tokenize with the same --tokenizer"
        )


def probe(
    examples: Artifact, monitoring: Monitoring, lengths: Mapping[str, int], mesh: Mesh
) -> Loader:
    """Questions with one passage each, cut to the lengths of the training's texts."""
    limits = {}
    for name, names in _LIKE.items():
        known = [lengths[other] for other in names if other in lengths]
        limits[name] = known[0] if known else min([_LENGTHS[name], *lengths.values()])
    rows = meshes.largest_batch(mesh, min(examples.count, monitoring.probe_questions, _BATCH))
    reading = Reading(kind=_TASK, settings={"n_passages": 1}, lengths=limits)
    return Loader(
        os.fspath(examples.path),
        reading=reading,
        batch_size=rows,
        shuffle=False,
        host=meshes.my_part(mesh),
    )
