"""`qac evaluate`: runs and judgements, or an encoder and BEIR collections → metrics and tests.

Of collections, vectors and indexes are written into a scratch folder, so that an interrupted
evaluation resumes.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qac_jax import artifacts, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.evaluation.benchmarks import Judging
from qac_jax.inference.settings import EncoderOptions, Inference
from qac_jax.pipeline import costs
from qac_jax.pipeline.stage import (
    FILE,
    Inputs,
    Ref,
    Stage,
    execute,
    input,
    model_input,
    one_of,
    option,
    part,
)


if TYPE_CHECKING:
    from etils import epath

    from qac_jax.evaluation.benchmarks import Collection, SearchFunction
    from qac_jax.evaluation.results import Judge
    from qac_jax.formats.queries import Query
    from qac_jax.formats.runs import Ranking, Run
    from qac_jax.retrieval.corpus import Searchable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(Stage):
    """Evaluates runs with relevance judgements, or by the answers of questions.

    Several runs are compared pair by pair: paired t-test and randomisation test, with Holm's
    correction, and the numbers of queries won and lost.
    """

    VERB = "evaluate"
    KIND = "metrics"
    VERSION = 2
    EXAMPLE = "qac evaluate --runs bm25.trec,dense.trec --qrels qrels/test.tsv --out out/metrics"

    runs: Ref = input(
        "runs of qac search or qac fuse, or TREC files",
        "run",
        FILE,
        many=True,
        aliases=("run", "searched", "against"),
    )
    qrels: Ref = input("relevance judgements: a BEIR, TREC or MS MARCO file", FILE, default="")
    queries: Ref = input("or questions with answers", FILE, default="")
    passages: Ref = input(
        "with --queries: passages whose texts are searched for answers", "passages", default=""
    )
    rules: Judging = part(Judging)
    answers: str = option(
        "text", "form of the answers (CuratedTREC: regex)", choices=("text", "regex")
    )
    permutations: int = option(100_000, "permutations of the randomisation test", at_least=1)

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        runs = len(self.runs.split(","))
        queries = costs.count_of(inputs, "runs", "qrels", "queries")
        cost = costs.on_cores("evaluate", queries, work=runs)
        return {"runs": runs, "measures": ", ".join(self._measures()), **cost}

    def check(self) -> None:
        from qac_jax.evaluation import metrics

        super().check()
        if bool(self.qrels) == bool(self.queries):
            raise UserError(
                "evaluate needs either judgements or questions with answers; pass --qrels FILE, or "
                "--queries FILE with --passages DIR"
            )
        if self.queries and not self.passages:
            raise UserError(
                "--queries searches passages for answers; pass --passages DIR (an artefact "
                "of qac prepare)"
            )
        if self.qrels:
            metrics.check(self._measures())

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.evaluation import metrics, results, significance
        from qac_jax.formats import runs as run_files

        judge, measures = self._judge(inputs), self._measures()
        judged = []
        paths = run_files.run_files(",".join(map(os.fspath, inputs.paths("runs"))))
        approximate = _approximate(paths)
        for line in _recalls(approximate):
            progress.say(line)
        for name, path in paths.items():
            run = run_files.read_run(path, self.rules.depth or None)
            deepest, short = metrics.too_shallow(
                run, measures, 0 if self.rules.depth else _asked(path)
            )
            if short:
                progress.say(
                    f"{name}: the run holds at most {deepest} passages a query, so "
                    f"{', '.join(short)} may be too low"
                )
            result = judge(name, run)
            if result.missing:
                progress.say(
                    f"{name}: {result.missing:,} queries are missing from the run and count as 0"
                )
            judged.append(result)
        compared = significance.compared(judged, measures, self.permutations, self.seed)
        rules = self.rules.resolved()
        facts = {
            "protocol": self.rules.protocol if self.qrels else "answers",
            "level": rules.level if self.qrels else None,
            "over": rules.over if self.qrels else "judged",
            "approximate": approximate,
            "comparisons": [dataclasses.asdict(comparison) for comparison in compared],
        }
        results.store(out, judged, facts)
        out.count = judged[0].queries

    def summary(self, artifact: Artifact) -> str:
        from qac_jax.evaluation import results
        from qac_jax.evaluation.significance import Comparison
        from qac_jax.report import tables

        judged, facts = results.read(artifact)

        text = tables.figures({result.name: result.mean for result in judged})
        if facts["comparisons"]:
            text += f"\n\n{tables.comparisons(Comparison(**c) for c in facts['comparisons'])}"
        return "\n".join([text, *_recalls(facts.get("approximate", {}))])

    def _measures(self) -> Sequence[str]:
        from qac_jax.evaluation import answers

        if self.queries:
            return self.rules.own_measures() or answers.MEASURES
        return self.rules.resolved().measures

    def _judge(self, inputs: Inputs) -> Judge:
        from qac_jax.evaluation import answers, benchmarks

        if self.qrels:
            return benchmarks.by_judgements(self.qrels, self.rules.resolved())
        return answers.by_answers(
            self.queries, inputs.artifact("passages"), self.answers, self._measures()
        )


def _asked(path: str) -> int:
    """How many passages `qac search` was asked for: with fewer in the run, the index has no more
    that fit. 0 for runs of others."""
    record = artifacts.peek(os.path.dirname(path) or ".") or {}
    settings = record.get("fields", {})
    searched = record.get("stage") == "search" and not settings.get("reranker")
    return int(settings.get("k", 0)) if searched else 0


def _approximate(paths: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Run -> what is known of its index's recall, for runs of approximate indexes."""
    infos = {}
    for name, path in paths.items():
        folder = os.path.dirname(path)
        if os.path.exists(os.path.join(folder, artifacts.COMMIT)):
            infos[name] = artifacts.load(folder).info.get("approximate")
    return {name: info for name, info in infos.items() if info is not None}


def _recalls(approximate: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each run of an approximate index."""
    return [
        f"{name}: approximate search, recall@{info['k']} {info['recall']:.4f}"
        if info
        else f"{name}: approximate search, recall not measured (qac index --target_recall measures "
        "it; --method exact has none to lose)"
        for name, info in approximate.items()
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateBeir(Stage):
    """Searches each collection with an encoder or BM25 and evaluates the run."""

    VERB = "evaluate"
    KIND = "metrics"
    EXAMPLE = "qac evaluate --encoder out/retriever --beir data/beir --out out/beir"

    GROUPS = (one_of("encoder", "bm25"),)

    beir: Ref = input("folder in BEIR's layout, or a folder of such folders", FILE)
    encoder: Ref = model_input("dual encoder to evaluate", default="", aliases=("model",))
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

        return suites.text(*results.read(artifact))

    def _index(self, inputs: Inputs, corpus: str, folder: epath.Path) -> Searchable:
        """The index of a corpus, kept in `folder` until all collections are evaluated."""
        from qac_jax.retrieval import search
        from qac_jax.stages.embed import Embed

        if self.bm25:
            from qac_jax.retrieval import bm25
            from qac_jax.stages.index import Bm25

            made = execute(Bm25(passages=corpus, preset=self.bm25), folder / "bm25")
            return bm25.Bm25(made)
        model = inputs.path("encoder")
        stage = Embed(
            encoder=inputs.text("encoder"),
            passages=corpus,
            options=self.options,
            inference=self.inference,
        )
        return search.ExactSearch(execute(stage, folder / "vectors"), stage.load(model))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite(Stage):
    """Combines one system's metrics of qac evaluate into AugTriever's Tables
    1 and 6, with their averages if all collections are present."""

    VERB = "suite"
    KIND = "metrics"
    EXAMPLE = "qac step suite --metrics out/beir,out/nq,out/triviaqa --out out/table"

    metrics: Ref = input(
        "metrics of one system; those of a question set in a folder with the set's name",
        "metrics",
        many=True,
        aliases=("suite",),
    )

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        return {"table of": self.metrics}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.evaluation import results
        from qac_jax.report import suites

        gathered = suites.gathered(",".join(map(os.fspath, inputs.paths("metrics"))))
        results.store(out, gathered, {"comparisons": [], **suites.facts(gathered)})

    def summary(self, artifact: Artifact) -> str:
        from qac_jax.evaluation import results
        from qac_jax.report import suites

        return suites.text(*results.read(artifact))
