"""`qac label`: a retriever's candidates, scored by a cross-encoder → positives and negatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.inference.settings import Inference, RerankerOptions
from qac_jax.pipeline import costs
from qac_jax.pipeline.settings import Hosts
from qac_jax.pipeline.sharding import Facts, ShardFile, cut, sharded
from qac_jax.pipeline.stage import (
    FILE,
    MODEL,
    Inputs,
    Ref,
    Stage,
    at_most_one_of,
    input,
    option,
    part,
)
from qac_jax.processes import Place
from qac_jax.retrieval.mining import Labelling


if TYPE_CHECKING:
    from qac_jax.formats.runs import Ranking
    from qac_jax.retrieval.mining import RunLabels


# Queries per file: an interruption loses at most one file.
_TOGETHER = 1024
_FILES = "negatives"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Label(Stage):
    """Labels a retriever's candidates as positives and negatives by a cross-encoder's scores.

    Queries with judgements keep their positives and get confident negatives of the teacher;
    queries without any get both from the teacher, or are left out.
    """

    VERB: ClassVar[str] = "label"
    KIND: ClassVar[str] = "negatives"
    VERSION: ClassVar[int] = 2
    DIVIDED: ClassVar[bool] = True
    EXAMPLE: ClassVar[str] = (
        "qac label --candidates run.trec --queries queries.tsv --passages out/passages "
        "--teacher out/teacher --out out/labels"
    )

    GROUPS = (at_most_one_of("teacher", "scored"), at_most_one_of("qrels", "answers"))

    passages: Ref = input("passages that were searched", kinds=("passages",))
    queries: Ref = input("queries of --candidates", kinds=(FILE,))
    candidates: Ref = input(
        "retriever's run, whose passages become positives and negatives",
        kinds=("run", FILE),
        aliases=("ranked", "searched"),
    )
    teacher: Ref = input(
        "cross-encoder that scores the candidates",
        kinds=("parameters", MODEL),
        default="",
        aliases=("model",),
    )
    scored: Ref = input(
        "or the candidates already scored (a run of qac search --reranker)",
        kinds=("run",),
        default="",
    )
    qrels: Ref = input(
        "relevance judgements of the queries that have any", kinds=(FILE,), default=""
    )
    answers: Ref = input(
        "or questions with answers: the first passage that contains one is the positive",
        kinds=(FILE,),
        default="",
    )
    more: Ref = input(
        "further judgements, whose relevant passages are never negatives", kinds=(FILE,), default=""
    )
    exclude: Ref = input(
        "dev and test queries, which are left out of the training queries",
        kinds=(FILE,),
        many=True,
        default="",
    )
    truth: Ref = input(
        "judgements only used to measure how accurate the labels are", kinds=(FILE,), default=""
    )
    rule: Labelling = part(Labelling)
    lines: str = option(
        "query",
        "one record per query, or per pair of a positive and a negative (released files)",
        choices=("query", "pair"),
    )
    seed: int = option(111, "seed of drawing negatives")
    pairs: RerankerOptions = part(RerankerOptions)
    inference: Inference = part(Inference)
    hosts: Hosts = part(Hosts)

    def place(self) -> Place:
        return self.hosts.place()

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        queries = costs.count_of(inputs, "queries", "candidates")
        known = {"positive above": self.rule.positive, "negative below": self.rule.negative}
        if not self.teacher:
            return known
        tokens = queries and queries * self.rule.depth * costs.PAIR_TOKENS
        return {**known, **costs.of_model(inputs, "teacher", tokens)}

    def check(self) -> None:
        super().check()
        # Without a teacher every candidate that is not a known positive is a negative.
        if not (self.teacher or self.scored or self.qrels or self.answers):
            raise UserError(
                "label needs a teacher's scores, or judgements; give --teacher or --scored (or "
                "--qrels or --answers)"
            )

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats import runs
        from qac_jax.formats.records import shard_name, write_lines, write_offsets
        from qac_jax.formats.runs import open_run
        from qac_jax.retrieval import mining

        (path,) = runs.run_files(inputs.path("candidates")).values()
        run = open_run(path, max(self.rule.depth, self.rule.fill))
        asked, removed = mining.queries_to_label(
            inputs.text("queries"), run, inputs.paths("exclude")
        )
        work, pieces = self._labels(inputs, run), cut(len(asked), _TOGETHER)
        shards = [
            ShardFile(shard_name(_FILES, number, len(pieces)), stop - start, asked[start:stop])
            for number, (start, stop) in enumerate(pieces)
        ]
        with progress.Bar("label", total=len(asked), unit="queries") as bar:

            def label(shard: ShardFile, _: None) -> Facts:
                facts: Facts = {}
                written = write_lines(
                    out.part(shard.name), work.records(shard.job, facts, bar.advance)
                )
                return {**facts, **written}

            made = sharded(out, shards, label, bar)
        if not out.joins:
            return
        write_offsets(out, _FILES, len(shards))
        out.info.update(mining.summed(made, removed, judged=bool(self.truth)))
        counts = out.info["counts"]
        if not (kept := counts.get("queries kept", 0)):
            raise UserError(
                f"none of {counts['queries']:,} queries got labels at positive="
                f"{self.rule.positive} and negative={self.rule.negative}; look at the teacher, or "
                "move the thresholds"
            )
        progress.say(f"label: {kept:,} of {counts['queries']:,} queries kept")

    def summary(self, artifact: Artifact) -> str:
        info = artifact.info
        text = "\n".join(f"{name}: {count:,}" for name, count in info["counts"].items())
        for side in ("positives", "negatives"):
            if side in info.get("accuracy", {}):
                text += f"\n{side} that are right: {info['accuracy'][side]:.1%}"
        return text

    def _labels(self, inputs: Inputs, run: Mapping[str, Ranking]) -> RunLabels:
        from qac_jax.evaluation import answers
        from qac_jax.formats import runs
        from qac_jax.formats.records import Records
        from qac_jax.formats.runs import open_run
        from qac_jax.inference.reranker import Reranker
        from qac_jax.retrieval.mining import RunLabels, judgements, questions

        scores = reranker = None
        if "scored" in inputs:
            (path,) = runs.run_files(inputs.path("scored")).values()
            scores = open_run(path)
        elif "teacher" in inputs:
            reranker = Reranker.load(inputs.path("teacher"), self.pairs, self.inference)
        return RunLabels(
            rule=self.rule,
            seed=self.seed,
            pairs=self.lines == "pair",
            run=run,
            scores=scores,
            reranker=reranker,
            passages=Records(inputs.artifact("passages")),
            judged=judgements(inputs.text("qrels")),
            more=judgements(inputs.text("more")),
            truth=judgements(inputs.text("truth")),
            answers=questions(inputs.text("answers")),
            matcher=answers.matcher,
        )
