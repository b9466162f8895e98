"""Collections in BEIR's layout, searched with an encoder or BM25 and judged: `evaluate --beir`.

Vectors are made by the stage embed in a folder of the unfinished artefact, so that an interrupted
evaluation goes on where it was; they are removed in the end.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from qac_jax.artifacts import Writer
from qac_jax.evaluation.beir import Collection, SearchFunction, evaluate_folder
from qac_jax.evaluation.benchmarks import Protocol
from qac_jax.evaluation.results import Result
from qac_jax.formats import runs
from qac_jax.formats.queries import Query
from qac_jax.formats.runs import Ranking, Run
from qac_jax.pipeline import stage as stage_lib
from qac_jax.stages.bm25 import Bm25
from qac_jax.stages.embed import Embed


_WORK = ".searched"


@dataclasses.dataclass(frozen=True)
class Engine:
    """What searches: an encoder's folder, or BM25 with the parameters of a preset."""

    model: str = ""
    bm25: str = ""
    embed: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # settings of the stage

    def index(self, corpus: str, folder: epath.Path) -> SearchFunction:
        """Indexes a collection's corpus below `folder`; the result searches it."""
        if self.bm25:
            from qac_jax.retrieval.bm25 import Bm25 as Index

            made = stage_lib.execute(Bm25(input=corpus, preset=self.bm25), folder / "bm25")
            lexical = Index(made)
            return lambda queries, k: lexical.run(_texts(queries), k)
        from qac_jax.retrieval.exact import Exact
        from qac_jax.retrieval.hits import ranking
        from qac_jax.retrieval.ids import Ids
        from qac_jax.retrieval.vectors import Vectors

        stage = Embed(model=self.model, input=corpus, **self.embed)
        made = stage_lib.execute(stage, folder / "vectors")
        exact, ids = Exact(Vectors.of(made)), Ids(made)
        encoder = stage.load(self.model)

        def search(queries: Sequence[Query], k: int) -> Run:
            texts = _texts(queries)
            vectors = encoder.encode(list(texts.values()), "query")
            scores, rows = exact.search(vectors, min(k, len(exact)))
            found = zip(texts, rows, scores, strict=True)
            return {name: ranking(ids, row, score) for name, row, score in found}

        return search


def evaluate(
    folder: str, engine: Engine, out: Writer, *, split: str, rules: Protocol | None, depth: int
) -> list[Result]:
    """Every collection below a folder; their runs become files of the artefact."""

    def searcher(collection: Collection) -> SearchFunction:
        return engine.index(collection.path, out.path / _WORK / collection.name)

    def keep(collection: Collection, run: Mapping[str, Ranking]) -> None:
        with out.open(f"runs/{collection.name}.trec") as file:
            runs.write_lines(file, run)

    results = evaluate_folder(folder, searcher, split=split, rules=rules, depth=depth, keep=keep)
    shutil.rmtree(os.fspath(out.path / _WORK))
    return results


def _texts(queries: Sequence[Query]) -> dict[str, str]:
    return {query.id: query.text for query in queries}
