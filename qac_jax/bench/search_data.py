"""Data of `qac bench search`: vectors of real passages with copies, or generated vectors."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qac_jax import progress
from qac_jax.errors import UserError


if TYPE_CHECKING:
    from qac_jax.artifacts import Artifact
    from qac_jax.bench.search import Search


# Generated vectors lie in clusters, as those of texts do.
_CLUSTER = 1000  # more than k, so that the top k lie in one cluster
_SPREAD = 0.7


@dataclasses.dataclass(frozen=True)
class Data:
    """Passages and queries of a benchmark."""

    description: str
    vectors: np.ndarray
    queries: np.ndarray
    tuning: np.ndarray
    questions: list[str] = dataclasses.field(default_factory=list)
    corpus: Path | None = None

    def texts(self) -> list[str]:
        """The passages as BM25 reads them."""
        from qac_jax.retrieval.corpus import passage_text, read_passages

        return [passage_text(record) for record in read_passages(str(self.corpus))]


def generated(bench: Search) -> Data:
    """Vectors in clusters, like those of texts."""
    rng = np.random.default_rng(bench.seed)
    centres = rng.normal(size=(max(bench.rows // _CLUSTER, 1), bench.width))

    def drawn(count: int) -> np.ndarray:
        near = centres[rng.integers(0, len(centres), count)]
        return _unit(near + _SPREAD * rng.normal(size=near.shape), bench.dtype)

    return Data(
        f"{bench.rows:,} generated vectors in {len(centres):,} clusters",
        drawn(bench.rows),
        drawn(bench.queries).astype(np.float32),
        drawn(bench.queries).astype(np.float32),
    )


def real(bench: Search, work: Path) -> Data:
    """Embeds folders in BEIR's layout, once for each `work`."""
    from qac_jax import artifacts
    from qac_jax.bench.encode import model_folder
    from qac_jax.formats.queries import read_queries
    from qac_jax.inference.encoder import Encoder
    from qac_jax.pipeline import stage
    from qac_jax.retrieval.vectors import KIND, Vectors
    from qac_jax.stages import embed

    model = str(model_folder(bench.model))
    corpus = work / "corpus.jsonl"
    work.mkdir(parents=True, exist_ok=True)
    _join(bench.data_dir.split(","), corpus)
    if bench.vectors:
        made = [artifacts.load(folder.strip(), KIND) for folder in bench.vectors.split(",")]
    else:
        wanted = embed.Embed(encoder=model, passages=str(corpus))
        made = [stage.execute(wanted, work / "embedded", replace=True)]
    every = [Vectors.of(artifact) for artifact in made]
    passage_vectors = np.concatenate([vectors.read(0, len(vectors)) for vectors in every])
    rng = np.random.default_rng(bench.seed)
    passages = passage_vectors[rng.permutation(len(passage_vectors))[: bench.rows]]
    copies = passages[rng.integers(0, len(passages), bench.rows - len(passages))]
    shift = rng.normal(size=copies.shape) * (bench.noise / copies.shape[1] ** 0.5)
    length = np.linalg.norm(copies, axis=1, keepdims=True)
    texts = [q.text for f in bench.data_dir.split(",") for q in read_queries(f.strip())]
    if len(texts) < 2 * bench.queries:
        raise UserError(
            f"{bench.data_dir} holds {len(texts):,} queries; --queries={bench.queries} needs "
            "twice as many, half of them for tuning"
        )
    asked = [texts[i] for i in rng.permutation(len(texts))[: 2 * bench.queries]]
    encoded = Encoder.load(model).encode(asked, "query")
    return Data(
        f"{len(passages):,} real passages and {len(copies):,} copies of them, perturbed by "
        f"{bench.noise:g} of their length; real questions",
        np.concatenate([passages, _unit(copies + shift * length, bench.dtype)]),
        encoded[: bench.queries],
        encoded[bench.queries :],
        asked[: bench.queries],
        corpus,
    )


def _join(folders: Sequence[str], target: Path) -> None:
    """One corpus of several; ids begin with their folder's number."""
    from qac_jax.retrieval.corpus import read_passages

    part = target.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        for number, folder in enumerate(folders):
            for record in read_passages(folder.strip()):
                file.write(json.dumps({**record, "_id": f"{number}:{record['_id']}"}) + "\n")
    part.replace(target)


def stored(folder: Path, vectors: np.ndarray, side: str) -> Artifact:
    """Vectors as an artefact without texts."""
    from qac_jax import artifacts
    from qac_jax.retrieval import corpus
    from qac_jax.retrieval.vectors import KIND, shard_name

    with artifacts.create(folder, kind=KIND, replace=True) as out:
        with out.temporary(shard_name(0, 1)) as path:
            np.save(os.fspath(path), vectors)
        out.count = corpus.write_ids(out, map(str, range(len(vectors))))
        nowhere = {"path": "", "relative": "", "identity": ""}
        encoder = {"path": "", "settings": {}}
        out.info.update(side=side, texts=nowhere, encoder=encoder, dimension=vectors.shape[1])
    progress.say(f"bench: {len(vectors):,} vectors in {folder}")
    return artifacts.load(folder)


def _unit(vectors: np.ndarray, dtype: str) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(dtype)
