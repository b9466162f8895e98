"""`qac evaluate`: runs and judgements (or questions with answers) into figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import Inputs, artifact_input, option, source
from qac_jax.stages.relatedness import Relatedness


if TYPE_CHECKING:
    from qac_jax.evaluation.benchmarks import Protocol
    from qac_jax.evaluation.results import Result
    from qac_jax.formats.runs import Run
    from qac_jax.stages.collections import Engine


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(Relatedness):
    """Judges runs with relevance judgements, or by the answers of questions; or makes the runs
    itself, with an encoder (or BM25) on collections in BEIR's layout. With --pairs it judges how
    related contexts are to their passages, instead.

    Several runs are compared pair by pair: paired t-test and randomisation test, corrected by
    Holm, with the queries won and lost.
    """

    VERB: ClassVar[str] = "evaluate"
    KIND: ClassVar[str] = "metrics"
    EXAMPLE: ClassVar[str] = (
        "qac evaluate --run bm25.trec,dense.trec --qrels qrels/test.tsv --out out/metrics"
    )

    runs: str = source("TREC run files (or folders with one), joined by commas", "", flag="run")
    searched: str = artifact_input("or a run made by qac search", kind="run", default="")
    against: str = artifact_input("another one, to compare with", kind="run", default="")
    qrels: str = source("judgements: a BEIR, TREC or MS MARCO file", "")
    queries: str = source("questions with answers, instead of judgements", "")
    passages: str = artifact_input(
        "where the texts are that answers are looked for in", kind="passages", default=""
    )
    beir: str = source("or a BEIR folder, or a folder of them, to search and judge", "")
    model: str = source("--beir is searched with this encoder's folder", "")
    encoder: str = artifact_input("or an encoder trained here", kind="parameters", default="")
    bm25: str = option("", "or by BM25, with these parameters", choices=("", "anserini", "lucene"))
    suite: str = source(
        "or figures made before, of --beir and of question sets, joined by commas: the papers' "
        "table with its averages",
        "",
    )
    split: str = option("", "whose judgements (default: test; MS MARCO's dev)")
    embed: Mapping[str, Any] | None = option(
        None, "settings of the stage embed, such as max_length"
    )
    protocol: str = option(
        "own",
        "whose rules hold: own, msmarco, trec_dl or beir",
        choices=("own", "msmarco", "trec_dl", "beir"),
    )
    measures: tuple[str, ...] = option((), "instead of the protocol's, such as ndcg@10,mrr@10,map")
    level: int = option(0, "from which grade a passage is relevant (0: as the protocol says)")
    over: str = option(
        "",
        "queries a mean is over: all judged, those of them retrieved, or those answerable",
        choices=("", "judged", "retrieved", "answerable"),
    )
    depth: int = option(
        0,
        "look at this many passages of each ranking only (0: all; of --beir the protocol's number)",
    )
    answers: str = option(
        "text", "what answers are (CuratedTREC: regex)", choices=("text", "regex")
    )
    permutations: int = option(100_000, "draws of the randomisation test")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        if self.about_pairs:
            return self.plan_pairs()
        self._check()
        if self.suite:
            return {"table of": self.suite}
        if self.beir:
            self._engine()
            return {"collections": self.beir, "engine": self.model or self.encoder or self.bm25}
        return {"runs": len(self._runs().split(",")), "measures": ", ".join(self._measures())}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.evaluation import results
        from qac_jax.formats import runs as run_files

        if self.about_pairs:
            self.run_pairs(inputs, out)
            return
        self._check()
        if self.beir or self.suite:
            self._of_collections(out)
            return
        judge = self._judge(inputs)
        found = []
        for name, path in run_files.run_files(self._runs()).items():
            run = run_files.read_run(path, self.depth or None)
            self._warn(name, run)
            result = judge(name, run)
            if result.missing:
                progress.say(
                    f"{name}: queries that the run lacks and that count 0: {result.missing:,}"
                )
            found.append(result)
        facts = {
            "protocol": self.protocol if self.qrels else "answers",
            "level": self._rules().level if self.qrels else None,
            "over": self._rules().over if self.qrels else "judged",
            "comparisons": [dataclasses.asdict(c) for c in self._compared(found)],
        }
        with out.open(results.FILE) as file:
            results.write(file, found, facts)
        out.count = found[0].queries
        out.info["mean"] = {result.name: result.mean for result in found}

    def summary(self, artifact: Artifact) -> str:
        from qac_jax.evaluation import results
        from qac_jax.evaluation.significance import Comparison
        from qac_jax.report import suites, tables

        if self.about_pairs:
            return self.summary_of_pairs(artifact)
        found, facts = results.read(artifact)
        what = "collection" if self.beir or self.suite else "run"
        text = tables.figures({result.name: result.mean for result in found}, what)
        if "averages" in facts:
            text += f"\n\n{tables.suites({'': suites.suite(found)})}"
        if facts["comparisons"]:
            compared = tables.comparisons([Comparison(**c) for c in facts["comparisons"]])
            text += f"\n\n{compared}"
        return text

    def _runs(self) -> str:
        given = [self.runs, self.searched, self.against]
        if not any(given):
            raise UserError(
                "evaluate needs something to judge; pass --run FILES, or --beir DIR and --model DIR"
            )
        return ",".join(filter(None, given))

    def _engine(self) -> Engine:
        from qac_jax.stages.collections import Engine

        model = self.model or self.encoder
        if sum(map(bool, (self.model, self.encoder, self.bm25))) != 1 or self._given():
            raise UserError(
                "--beir searches collections itself and takes their judgements; it goes with one "
                "of --model, --encoder and --bm25, and with no --run, --qrels or --queries"
            )
        return Engine(model, self.bm25, self.embed or {})

    def _check(self) -> None:
        if self.suite and (self.beir or self.model or self.encoder or self.bm25 or self._given()):
            raise UserError("--suite gathers figures that were made before; it stands alone")

    def _given(self) -> bool:
        return any((self.runs, self.searched, self.against, self.qrels, self.queries))

    def _of_collections(self, out: Writer) -> None:
        """Figures of many collections, searched here or gathered, and the papers' averages."""
        from qac_jax.evaluation import results
        from qac_jax.report import suites
        from qac_jax.stages import collections

        if self.suite:
            found = suites.gathered(self.suite)
        else:
            chosen = self.protocol != "own" or self.measures or self.level or self.over
            rules = self._rules() if chosen else None
            engine = self._engine()
            found = collections.evaluate(
                self.beir, engine, out, split=self.split, rules=rules, depth=self.depth
            )
        facts: dict[str, Any] = {"comparisons": []}
        if self.suite or suites.is_known(found):
            figures = suites.suite(found)
            facts |= {"averages": figures.summary(), "missing_sets": figures.missing()}
            facts |= {"table": figures.columns(), "groups": figures.groups()}
        with out.open(results.FILE) as file:
            results.write(file, found, facts)
        out.count = sum(result.queries for result in found)
        out.info["mean"] = {result.name: result.mean for result in found}

    def _rules(self) -> Protocol:
        from qac_jax.evaluation import benchmarks

        rules = benchmarks.protocol(self.protocol)
        return dataclasses.replace(
            rules,
            measures=tuple(self.measures) or rules.measures,
            level=self.level or rules.level,
            over=self.over or rules.over,
        )

    def _measures(self) -> Sequence[str]:
        from qac_jax.evaluation import answers, metrics

        if bool(self.qrels) == bool(self.queries):
            raise UserError(
                "evaluate needs either judgements or questions with answers; pass --qrels FILE, or "
                "--queries FILE with --passages DIR"
            )
        if self.queries and not self.passages:
            raise UserError(
                "answers are looked for in the passages' texts; pass --passages DIR (an artefact "
                "of qac prepare)"
            )
        if self.queries:
            return tuple(self.measures) or answers.MEASURES
        measures = self._rules().measures
        metrics.check(measures)
        return measures

    def _judge(self, inputs: Inputs) -> Callable[[str, Run], Result]:
        """How one run is judged; what all runs need is read once."""
        from qac_jax.evaluation import answers, benchmarks
        from qac_jax.evaluation.results import MACRO, Result
        from qac_jax.formats.judgements import by_query, read_judgements
        from qac_jax.formats.queries import read_queries

        measures = self._measures()
        if self.qrels:
            judgements = by_query(read_judgements(self.qrels))
            rules = self._rules()
            return lambda name, run: benchmarks.judge(name, run, judgements, rules)

        questions = list(read_queries(self.queries))
        relations = answers.relations(questions)
        texts = _texts(inputs["passages"])

        def by_answers(name: str, run: Run) -> Result:
            scores = answers.evaluate(run, questions, texts, form=self.answers, measures=measures)
            result = Result.of(name, scores, "judged")
            if relations:
                macro = answers.macro_means(scores, relations)
                result.mean.update({MACRO + measure: value for measure, value in macro.items()})
            return result

        return by_answers

    def _warn(self, name: str, run: Run) -> None:
        from qac_jax.evaluation.metrics import depth_of

        deepest = max(len(ranking.ids) for ranking in run.values())
        short = [m for m in self._measures() if (depth_of(m) or 0) > deepest]
        if short:
            progress.say(
                f"{name}: the run holds at most {deepest} passages a query, so "
                f"{', '.join(short)} may be too low"
            )

    def _compared(self, found: Sequence[Result]) -> list[Any]:
        from qac_jax.evaluation import significance

        return [
            comparison
            for measure in self._measures()
            for comparison in significance.compare(
                {result.name: result.values(measure) for result in found},
                measure,
                permutations=self.permutations,
                seed=self.seed,
            )
        ]


def _texts(passages: Any) -> Callable[[Sequence[str]], list[str]]:
    """Ids -> texts of a passages artefact."""
    from qac_jax.formats.records import Records

    records = Records(passages)

    def texts(ids: Sequence[str]) -> list[str]:
        found = []
        for name, position in zip(ids, records.positions(ids), strict=True):
            if position is None:
                raise UserError(
                    f"passage {name!r} of the run is not in {passages.path}; give the passages "
                    f"that were searched"
                )
            found.append(records[position]["text"])
        return found

    return texts
