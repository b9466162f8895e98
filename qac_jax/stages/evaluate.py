"""`qac evaluate`: runs and judgements, or an encoder and BEIR collections → metrics and tests.

Of collections, vectors and indexes are written into a scratch folder, so that an interrupted
evaluation resumes.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from qac_jax import artifacts, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.evaluation import answers, benchmarks, metrics, results, significance
from qac_jax.evaluation.benchmarks import Collection, Judging, SearchFunction
from qac_jax.fields import option, part
from qac_jax.formats import runs as run_files
from qac_jax.inference.settings import EncoderOptions, Inference
from qac_jax.pipeline import costs, stage
from qac_jax.pipeline.inputs import one_of, together
from qac_jax.pipeline.stage import FILE, Inputs, Plan, Plans, Ref, Stage, input, model_input
from qac_jax.report import suites, tables
from qac_jax.retrieval.bm25 import Bm25 as Searcher
from qac_jax.retrieval.corpus import Searchable
from qac_jax.stages.embed import Embed
from qac_jax.stages.index import Bm25, Index


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(Stage):
    """Evaluates runs with relevance judgements, or by the answers of questions.

    Several runs are compared pair by pair: paired t-test and randomisation test, with Holm's
    correction, and the numbers of queries won and lost.
    """

    VERB = "evaluate"
    KIND = "metrics"
    VERSION = 3
    EXAMPLE = "qac evaluate --runs bm25.trec,dense.trec --qrels qrels/test.tsv --out out/metrics"

    GROUPS = (one_of("qrels", "queries"), together("queries", "passages"))

    runs: Ref = input("runs of qac search or qac fuse, or TREC files", "run", FILE, many=True)
    qrels: Ref = input("relevance judgements: a BEIR, TREC or MS MARCO file", FILE, default="")
    queries: Ref = input("or questions with answers", FILE, default="")
    passages: Ref = input("of --queries: passages that may hold answers", "passages", default="")
    rules: Judging = part(Judging)
    answers: str = option("text", "answers' form (CuratedTREC: regex)", choices=("text", "regex"))
    permutations: int = option(100_000, "permutations of the randomisation test", at_least=1)

    def plan(self, inputs: Plans) -> Plan:
        queries = costs.count_of(inputs, "runs", "qrels", "queries")
        return costs.on_cores("evaluate", queries, work=len(self.runs.split(",")))

    def check(self) -> None:
        super().check()
        if self.qrels:
            metrics.check(self._measures())

    def run(self, inputs: Inputs, out: Writer) -> None:
        rules, measures, judged = self.rules.resolved(), self._measures(), []
        approximate = {}
        if self.qrels:
            judge = benchmarks.by_judgements(self.qrels, rules)
            facts = {"protocol": self.rules.protocol, "level": rules.level, "over": rules.over}
        else:
            passages = inputs.artifact("passages")
            judge = answers.by_answers(self.queries, passages, self.answers, measures)
            facts = {"protocol": "answers", "level": None, "over": "judged"}
        for name, path in run_files.run_files(inputs.text("runs")).items():
            folder = os.path.dirname(path)  # of an artefact, or of files of others
            known = artifacts.load(folder).info if artifacts.peek(folder) else {}
            run = run_files.read_run(path, self.rules.depth or None)
            deepest = max(len(ranking.ids) for ranking in run.values())
            if short := [m for m in measures if (metrics.depth_of(m) or 0) > deepest]:
                progress.say(f"{name}: {deepest} passages a query are few for {', '.join(short)}")
            result = judge(name, run)
            if result.missing:
                progress.say(f"{name}: {result.missing:,} queries not in the run count as 0")
            judged.append(result)
            if "approximate" not in known:
                continue
            approximate[name] = known["approximate"]
            if os.path.exists(exact := os.path.join(folder, run_files.EXACT)):
                best = judge(name, run_files.read_run(exact, self.rules.depth or None))
                approximate[name]["loss"] = result.lost(best, run_files.read_run(exact))
        compared = significance.compared(judged, measures, self.permutations, self.seed)
        comparisons = [dataclasses.asdict(comparison) for comparison in compared]
        facts |= {"approximate": approximate, "comparisons": comparisons}
        results.store(out, judged, facts)
        out.count = judged[0].queries

    def summary(self, artifact: Artifact) -> str:
        judged, facts = results.read(artifact)
        return tables.evaluation(judged, facts) + _approximated(facts)

    def _measures(self) -> Sequence[str]:
        if self.queries:
            return self.rules.measures or answers.MEASURES
        return self.rules.resolved().measures


def _approximated(facts: Mapping[str, Any]) -> str:
    """A line for each run or collection that was searched approximately."""
    from qac_jax.retrieval.search import approximated

    found = facts.get("approximate", {}).items()
    return "".join(f"\n{name}: {approximated(info)}" for name, info in found)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateBeir(Stage):
    """Searches each collection with an encoder or BM25 and evaluates the run."""

    VERB = "evaluate"
    KIND = "metrics"
    EXAMPLE = "qac evaluate --encoder out/retriever --beir data/beir --out out/beir"

    GROUPS = (one_of("encoder", "bm25"),)

    beir: Ref = input("folder in BEIR's layout, or a folder of such folders", FILE)
    encoder: Ref = model_input("dual encoder to evaluate", default="")
    bm25: str = option("", "or BM25 with these parameters", choices=("", "anserini", "lucene"))
    method: str = option(
        "exact",
        "how an encoder searches: exact, or auto: from 20,000 passages on by ScaNN, tuned to .999",
        choices=("exact", "auto"),
    )
    split: str = option("", "split of the judgements (default: test; dev for MS MARCO)")
    rules: Judging = part(Judging)
    options: EncoderOptions = part(EncoderOptions)
    inference: Inference = part(Inference)

    def plan(self, inputs: Plans) -> Plan:
        count = 0 if self.bm25 else costs.count_of(inputs, "beir") or 0
        return costs.of_model(inputs, "encoder", count * costs.DOCUMENT_TOKENS["beir"])

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.retrieval.search import approximation

        known: dict[str, Any] = {}  # of collections that are searched approximately

        def searcher(collection: Collection) -> SearchFunction:
            work = out.scratch("searched") / collection.name
            index = self._index(inputs, collection, work)
            if (found := approximation(index.artifact, self._deepest(collection))) is not None:
                known[collection.name] = found
            return lambda queries, k: index.run({query.id: query.text for query in queries}, k)

        judged = []
        for result, run in benchmarks.evaluate_folder(
            inputs.path("beir"),
            searcher,
            split=self.split,
            rules=self.rules.resolved() if self.rules.chosen else None,
            depth=self.rules.depth,
        ):
            judged.append(result)
            with out.open(f"runs/{result.name}.trec") as file:
                run_files.write_lines(file, run)
        judged = benchmarks.with_forums_together(judged)
        averages = suites.facts(judged) if suites.is_known(judged) else {}
        results.store(out, judged, {"comparisons": [], "approximate": known, **averages})

    def summary(self, artifact: Artifact) -> str:
        judged, facts = results.read(artifact)
        return suites.text(judged, facts) + _approximated(facts)

    def _deepest(self, collection: Collection) -> int:
        """The depth that a measure of the collection reads."""
        rules = self.rules.resolved() if self.rules.chosen else collection.rules
        return max(metrics.depth_of(measure) or rules.depth for measure in rules.measures)

    def _index(self, inputs: Inputs, collection: Collection, folder: epath.Path) -> Searchable:
        """The index of a corpus, kept in `folder` until all collections are evaluated."""
        from qac_jax.retrieval import index

        corpus = collection.path
        if self.bm25:
            return Searcher(stage.execute(Bm25(passages=corpus, preset=self.bm25), folder / "bm25"))
        embed = Embed(
            encoder=inputs.text("encoder"),
            passages=corpus,
            options=self.options,
            inference=self.inference,
        )
        vectors = os.fspath(stage.execute(embed, folder / "vectors").path)
        settings: dict[str, Any] = {"method": self.method}
        if self.method == "auto":
            depth = self._deepest(collection)
            settings |= {"queries": os.path.join(corpus, "queries.jsonl")}
            settings |= {"recall_at": (depth,), "target_recall": (0.999,)}
        made = stage.execute(Index(vectors=vectors, **settings), folder / "index")
        return index.Index(made)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite(Stage):
    """Combines one system's metrics of qac evaluate into AugTriever's Tables
    1 and 6, with their averages if all collections are present."""

    VERB = "suite"
    KIND = "metrics"
    EXAMPLE = "qac step suite --metrics out/beir,out/nq,out/triviaqa --out out/table"

    metrics: Ref = input("metrics of one system; folders named as sets", "metrics", many=True)

    def run(self, inputs: Inputs, out: Writer) -> None:
        gathered = suites.gathered(inputs.text("metrics"))
        results.store(out, gathered, {"comparisons": [], **suites.facts(gathered)})

    def summary(self, artifact: Artifact) -> str:
        return suites.text(*results.read(artifact))
