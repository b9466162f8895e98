"""`qac bench search`: ScaNN and exact search, beside FAISS at the same recall."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.bench import peer
from qac_jax.fields import option


if TYPE_CHECKING:
    from qac_jax.artifacts import Artifact


# Settings of `qac index`, each tuned to the recall; the fastest of FAISS is ScaNN's peer.
_TUNED: dict[str, dict[str, Any]] = {
    "qac_jax": {"method": "scann"},
    "faiss_ivf": {"method": "faiss"},
    "faiss_ivf_short_codes": {"method": "faiss", "dims_per_block": 4},
}
_CLUSTER = 1000  # more than k, so that the top k lie in one cluster
_SPREAD, _WIDTH = 0.7, 384


@dataclasses.dataclass(frozen=True)
class Search:
    """Queries/s: ScaNN over the fastest FAISS index of the same recall, or exact over FAISS's flat.

    Vectors are generated in clusters, as those of texts lie; queries that tune are others than
    those that are timed. All of them are searched in one call, on all cores. Repetitions alternate,
    figures are medians.
    """

    EXAMPLE = "qac bench search --rows 200000"

    system: str = option("scann", "what is measured", choices=("scann", "exact"))
    rows: int = option(200_000, "number of vectors in the index", at_least=1)
    queries: int = option(1000, "queries to time; as many more are used for tuning", at_least=2)
    k: int = option(100, "top k passages per query", at_least=1)
    recall: float = option(0.985, "minimum recall of the top k", above=0, below=1)
    repetitions: int = option(5, "repetitions of each side", at_least=1)

    def run(self) -> dict[str, Any]:
        from qac_jax.retrieval import approximate, tuning
        from qac_jax.retrieval.exact import Exact
        from qac_jax.retrieval.vectors import Vectors

        faiss = approximate.faiss_library("the peer")
        vectors, queries = self._generated()
        timed, others = queries[: self.queries], queries[self.queries : 2 * self.queries]
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            made = _stored(work / "vectors", vectors, "passage")
            exact = Exact(Vectors.of(made))
            figures: dict[str, Any] = {"vectors": len(vectors)}
            if self.system == "scann":
                settings, sides = self._tuned(work, made, _stored(work / "t", others, "query"))
                figures |= settings
            else:
                flat = faiss.IndexFlatIP(vectors.shape[1])
                flat.add(vectors)
                sides = {"qac_jax": exact.search, "faiss_flat": flat.search}
            truth = exact.search(timed, self.k)[1]
            calls = {n: functools.partial(side, timed, self.k) for n, side in sides.items()}
            for name, call in calls.items():
                figures[f"{name}_recall"] = float(tuning.recall(call()[1], truth).mean())
            return figures | peer.compared(calls, len(timed), "queries", self.repetitions)

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
                target_recall=(self.recall,),
                recall_at=(self.k,),
                **options,
            )
            found = Index(stage.execute(wanted, work / name, replace=True))
            effort = found.artifact.info["tunings"][0]["effort"]
            settings[f"{name}_settings"] = f"{effort['leaves']} leaves, {effort['reorder']} reorder"
            sides[name] = found.search
        return settings, sides

    def _generated(self) -> tuple[np.ndarray, np.ndarray]:
        """Vectors, and twice as many queries as are timed."""
        rng = np.random.default_rng(0)
        centres = rng.normal(size=(max(self.rows // _CLUSTER, 1), _WIDTH))

        def drawn(count: int) -> np.ndarray:
            near = centres[rng.integers(0, len(centres), count)]
            near = near + _SPREAD * rng.normal(size=near.shape)
            return (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)

        return drawn(self.rows), drawn(2 * self.queries)


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
