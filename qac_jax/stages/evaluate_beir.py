"""`qac evaluate-beir`: an encoder (or BM25) and BEIR collections → metrics.

Vectors and indexes are written by the stages embed and bm25 into a scratch folder, so that an
interrupted evaluation resumes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax.artifacts import Artifact, Writer
from qac_jax.evaluation.benchmarks import Judging
from qac_jax.inference.settings import EncoderOptions, Inference
from qac_jax.pipeline.stage import (
    FILE,
    MODEL,
    Inputs,
    Ref,
    Stage,
    execute,
    input,
    one_of,
    option,
    part,
)


if TYPE_CHECKING:
    from etils import epath

    from qac_jax.evaluation.benchmarks import Collection, SearchFunction
    from qac_jax.formats.queries import Query
    from qac_jax.formats.runs import Ranking, Run
    from qac_jax.retrieval.corpus import Searchable


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateBeir(Stage):
    """Searches each collection with an encoder or BM25 and evaluates the run."""

    VERB: ClassVar[str] = "evaluate-beir"
    KIND: ClassVar[str] = "metrics"
    EXAMPLE: ClassVar[str] = (
        "qac evaluate-beir --encoder out/retriever --beir data/beir --out out/beir"
    )

    GROUPS = (one_of("encoder", "bm25"),)

    beir: Ref = input("folder in BEIR's layout, or a folder of such folders", kinds=(FILE,))
    encoder: Ref = input(
        "dual encoder to evaluate",
        kinds=("parameters", MODEL),
        default="",
        aliases=("model",),
    )
    bm25: str = option(
        "", "or evaluate BM25 with these parameters", choices=("", "anserini", "lucene")
    )
    split: str = option("", "split of the judgements (default: test; dev for MS MARCO)")
    keep_runs: bool = option(
        True, "keep the rankings beside the metrics, as runs/NAME.trec", affects_result=False
    )
    rules: Judging = part(Judging)
    options: EncoderOptions = part(EncoderOptions)
    inference: Inference = part(Inference)

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        return {"collections": self.beir, "engine": self.encoder or self.bm25}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.evaluation import benchmarks, results
        from qac_jax.formats import runs
        from qac_jax.report import suites

        work = out.scratch("searched")

        def searcher(collection: Collection) -> SearchFunction:
            index = self._index(inputs, collection.path, work / collection.name)

            def search(queries: Sequence[Query], k: int) -> Run:
                return index.run({query.id: query.text for query in queries}, k)

            return search

        def keep(collection: Collection, run: Mapping[str, Ranking]) -> None:
            with out.open(f"runs/{collection.name}.trec") as file:
                runs.write_lines(file, run)

        judged = benchmarks.evaluate_folder(
            inputs.path("beir"),
            searcher,
            split=self.split,
            rules=self.rules.resolved() if self.rules.chosen else None,
            depth=self.rules.depth,
            keep=keep if self.keep_runs else None,
        )
        averages = suites.facts(judged) if suites.is_known(judged) else {}
        results.store(out, judged, {"comparisons": [], **averages})

    def summary(self, artifact: Artifact) -> str:
        from qac_jax.evaluation import results
        from qac_jax.report import suites

        level = self.rules.resolved().level if self.rules.chosen else 1
        judged, facts = results.read(artifact)
        return suites.text(judged, facts, lambda measure: self.rules.printed(measure, level))

    def _index(self, inputs: Inputs, corpus: str, folder: epath.Path) -> Searchable:
        """The index of a corpus, kept in `folder` until all collections are evaluated."""
        from qac_jax.retrieval import bm25, search
        from qac_jax.stages.embed import Embed

        if self.bm25:
            from qac_jax.stages.bm25 import Bm25

            return bm25.Bm25(execute(Bm25(passages=corpus, preset=self.bm25), folder / "bm25"))
        model = inputs.path("encoder")
        stage = Embed(
            encoder=inputs.text("encoder"),
            passages=corpus,
            options=self.options,
            inference=self.inference,
        )
        return search.ExactSearch(execute(stage, folder / "vectors"), stage.load(model))
