"""`qac evaluate`: runs and relevance judgements, or answers → metrics and significance tests."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import artifacts, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.evaluation.benchmarks import Judging
from qac_jax.pipeline import costs
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, option, part


if TYPE_CHECKING:
    from qac_jax.evaluation.results import Judge


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(Stage):
    """Evaluates runs with relevance judgements, or by the answers of questions.

    Several runs are compared pair by pair: paired t-test and randomisation test, with Holm's
    correction, and the numbers of queries won and lost.
    """

    VERB: ClassVar[str] = "evaluate"
    KIND: ClassVar[str] = "metrics"
    VERSION: ClassVar[int] = 2
    EXAMPLE: ClassVar[str] = (
        "qac evaluate --runs bm25.trec,dense.trec --qrels qrels/test.tsv --out out/metrics"
    )

    runs: Ref = input(
        "runs of qac search or qac fuse, or TREC files",
        kinds=("run", FILE),
        many=True,
        aliases=("run", "searched", "against"),
    )
    qrels: Ref = input(
        "relevance judgements: a BEIR, TREC or MS MARCO file", kinds=(FILE,), default=""
    )
    queries: Ref = input("or questions with answers", kinds=(FILE,), default="")
    passages: Ref = input(
        "with --queries: passages whose texts are searched for answers",
        kinds=("passages",),
        default="",
    )
    rules: Judging = part(Judging)
    answers: str = option(
        "text", "form of the answers (CuratedTREC: regex)", choices=("text", "regex")
    )
    permutations: int = option(100_000, "permutations of the randomisation test")

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

        def printed(measure: str) -> str:
            bare = measure.removeprefix(results.MACRO)
            prefix = measure[: len(measure) - len(bare)]
            return prefix + self.rules.printed(bare, facts.get("level") or 1)

        text = tables.figures(
            {result.name: {printed(m): v for m, v in result.mean.items()} for result in judged}
        )
        if facts["comparisons"]:
            pairs = [Comparison(**c) for c in facts["comparisons"]]
            pairs = [dataclasses.replace(c, measure=printed(c.measure)) for c in pairs]
            text += f"\n\n{tables.comparisons(pairs)}"
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
