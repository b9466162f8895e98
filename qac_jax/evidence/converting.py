"""Artefacts in forms that need no further packages: examples as plain files, rankings of BM25."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax import artifacts
from qac_jax.artifacts import Artifact
from qac_jax.data import examples as examples_lib
from qac_jax.data import plain
from qac_jax.pipeline import inputs
from qac_jax.stages.mine import Mine


# Records that are read at a time.
_TOGETHER = 8192


def examples(artifact: Artifact, target: Path) -> None:
    """The same records, in the same order and the same number of files, as plain files."""
    source = examples_lib.Examples(artifact)
    sizes = artifact.info["shards"]
    with _created(target, artifact) as out:
        first = 0
        for number, size in enumerate(sizes):
            name = f"{plain.PREFIX}-{number:05d}-of-{len(sizes):05d}"
            numbers = np.arange(first, first + size)
            pieces = np.array_split(numbers, max(1, size // _TOGETHER))
            with out.temporary(name) as path:
                plain.write(path, (r for some in pieces for r in source.read_bytes(some)))
            first += size
        if examples_lib.DOCUMENTS in artifact.files:
            with out.temporary(examples_lib.DOCUMENTS) as path:
                shutil.copyfile(os.fspath(artifact.path / examples_lib.DOCUMENTS), path)
        tokenizer = examples_lib.TOKENIZER
        shutil.copytree(os.fspath(artifact.path / tokenizer), os.fspath(out.path / tokenizer))
        out.adopt(tokenizer)
        out.count = artifact.count
        out.info.update(artifact.info)


def rankings(stage: Mine, target: Path) -> None:
    """BM25's rankings of the questions that a stage mines negatives for, as deep as it looks."""
    from qac_jax.retrieval import mining, search
    from qac_jax.retrieval import rankings as rankings_lib

    opened = inputs.opened(stage)
    questions, passages = stage.questions(opened)
    index = search.open_index(opened.path("bm25"))
    most = max((len(question.positives) for question in questions), default=0)
    depth = mining.depth_for(stage.mining, most, len(passages))
    with _created(target, index.artifact, kind=rankings_lib.KIND) as out:
        rankings_lib.write(out, index, [question.text for question in questions], depth)


def _created(target: Path, of: Artifact, kind: str = "") -> Any:
    """A new artefact that says what it was made of."""
    return artifacts.create(
        target,
        kind=kind or of.kind,
        schema=of.schema,
        key=of.key,
        stage=of.stage,
        fields=of.fields,
        inputs={"converted": of.identity},
        seed=of.seed,
    )
