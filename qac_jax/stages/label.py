"""`qac label`: a teacher's scores of a retriever's candidates into positives and negatives."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import Inputs, Stage, artifact_input, option, source


if TYPE_CHECKING:
    from qac_jax.formats.queries import Query
    from qac_jax.formats.runs import Run
    from qac_jax.stages.labels import Work


# Queries of one file: what an interruption loses at most.
_TOGETHER = 1024
_FILES = "negatives"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Label(Stage):
    """Makes negatives (and positives) of a retriever's run by what a cross-encoder says of it.

    Queries with judgements keep their positives, and get negatives that the teacher is sure of;
    queries without any get both from the teacher, or are left out.
    """

    VERB: ClassVar[str] = "label"
    KIND: ClassVar[str] = "negatives"
    EXAMPLE: ClassVar[str] = (
        "qac label --ranked run.trec --queries queries.tsv --passages out/passages "
        "--model out/teacher --out out/labels"
    )

    passages: str = artifact_input("the passages that were searched", kind="passages")
    queries: str = source("queries of the run")
    ranked: str = source("candidates: a TREC run of any retriever", "")
    searched: str = artifact_input("or one made by qac search", kind="run", default="")
    model: str = source("the teacher: a cross-encoder's folder", "")
    teacher: str = artifact_input("or one trained here", kind="parameters", default="")
    scored: str = artifact_input(
        "or the candidates with its scores already (qac search --rerank)", kind="run", default=""
    )
    qrels: str = source("judgements of those queries that have some", "")
    answers: str = source(
        "or questions with answers: the first passage that holds one is the positive", ""
    )
    more: str = source("further judgements, whose passages are never negatives", "")
    exclude: str = source("files of dev and test queries: whatever equals one is left out", "")
    truth: str = source("judgements that decide nothing: how many labels are right", "")

    positive: float = option(0.9, "probability above which a candidate is a positive")
    negative: float = option(0.1, "probability below which it is a negative")
    positives: str = option(
        "best",
        "the best one above the threshold (released), or all (paper)",
        choices=("best", "all"),
    )
    order: str = option(
        "ranked",
        "negatives as the retriever ranks them, or drawn at random",
        choices=("ranked", "sampled"),
    )
    count: int = option(4, "negatives of a query")
    depth: int = option(50, "candidates of a query that the teacher looks at")
    extend: bool = option(False, "judged queries get positives by their scores too")
    fill: int = option(
        0, "judged queries: fill up their negatives at random to this rank, unscored (0: do not)"
    )
    lines: str = option(
        "query",
        "records of a query, or of one positive and one negative each (the released files)",
        choices=("query", "pair"),
    )
    seed: int = option(111, "of drawing negatives")

    max_length: int = option(160, "tokens that the teacher reads of query and passage")
    precision: str = option("auto", "of its matrix products: auto, float32 or bfloat16")
    batch_tokens: int = option(0, "tokens a batch and device (0: by device)", affects_result=False)

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        self._check()
        return {"positive above": self.positive, "negative below": self.negative}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats import runs
        from qac_jax.formats.records import shard_name, write_lines, write_offsets

        self._check()
        (path,) = runs.run_files(self.ranked or self.searched).values()
        run = runs.read_run(path, max(self.depth, self.fill))
        removed: Counter[str] = Counter()
        asked = self._asked(run, removed)
        if not asked:
            raise UserError("no query of the run is left to label; check the queries and --exclude")
        work = self._work(inputs, run)
        shards = -(-len(asked) // _TOGETHER)
        with progress.Bar("label", total=len(asked), unit="queries") as bar:
            for number in range(shards):
                name = shard_name(_FILES, number, shards)
                piece = asked[number * _TOGETHER : (number + 1) * _TOGETHER]
                if name in out.done:
                    bar.skip(len(piece))
                    continue
                facts: dict[str, Any] = {}
                told = write_lines(out.part(name), work.records(piece, facts, bar.advance))
                facts["records"] = told["records"]
                out.keep(name, sha256=told["sha256"], facts=facts)
        write_offsets(out, _FILES, shards)
        told_by = [out.facts(shard_name(_FILES, number, shards)) for number in range(shards)]
        self._tell(out, removed, told_by)

    def summary(self, artifact: Artifact) -> str:
        info = artifact.info
        text = "\n".join(f"{name}: {count:,}" for name, count in info["counts"].items())
        for side in ("positives", "negatives"):
            if side in info.get("accuracy", {}):
                text += f"\n{side} that are right: {info['accuracy'][side]:.1%}"
        return text

    def _check(self) -> None:
        known = bool(self.qrels or self.answers)
        for names, what, needed in (
            (("ranked", "searched"), "candidates", True),
            # Without a teacher all that is not known to be right counts as wrong.
            (("model", "teacher", "scored"), "a teacher's scores", not known),
        ):
            given = [f"--{name}" for name in names if getattr(self, name)]
            if len(given) > 1 or (needed and not given):
                flags = ", ".join(f"--{name}" for name in names)
                raise UserError(
                    f"label needs {what}, and {' and '.join(given) or 'none'} is given; give one "
                    f"of {flags}"
                )
        if self.qrels and self.answers:
            raise UserError("--qrels and --answers both say what is right; give one of them")
        self._rule()

    def _rule(self) -> Any:
        from qac_jax.retrieval.labelling import Rule

        return Rule(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Rule)})

    def _asked(self, run: Run, removed: Counter[str]) -> list[Query]:
        """The queries of the run, without those that are asked in a test."""
        from qac_jax.formats.queries import read_queries
        from qac_jax.retrieval.labelling import plain

        # File by file: DPR's questions are numbered from 0 in each.
        files = [part.strip() for part in self.exclude.split(",") if part.strip()]
        barred = {plain(query.text) for file in files for query in read_queries(file)}
        found = []
        for query in read_queries(self.queries):
            if query.id not in run:
                removed["queries that the run lacks"] += 1
            elif plain(query.text) in barred:
                removed["queries of a dev or test set"] += 1
            else:
                found.append(query)
        return found

    def _work(self, inputs: Inputs, run: Run) -> Work:
        from qac_jax.formats import runs
        from qac_jax.formats.records import Records
        from qac_jax.inference.reranker import Reranker, Settings
        from qac_jax.stages.labels import Work, judgements, questions

        passages = inputs["passages"]
        assert isinstance(passages, Artifact)
        scores = reranker = None
        if self.scored:
            (path,) = runs.run_files(self.scored).values()
            scores = runs.read_run(path)
        elif folder := self.model or self.teacher:
            settings = Settings(
                self.max_length, precision=self.precision, batch_tokens=self.batch_tokens
            )
            reranker = Reranker.load(folder, settings)
        return Work(
            rule=self._rule(),
            pairs=self.lines == "pair",
            run=run,
            scores=scores,
            reranker=reranker,
            passages=Records(passages),
            judged=judgements(self.qrels),
            more=judgements(self.more),
            truth=judgements(self.truth),
            answers=questions(self.answers),
        )

    def _tell(self, out: Writer, removed: Counter[str], facts: Sequence[Mapping[str, Any]]) -> None:
        """Counts, histogram and accuracy of all pieces."""
        from qac_jax.retrieval.labelling import shares

        counts: Counter[str] = Counter(removed)
        right: Counter[str] = Counter()
        for told in facts:
            counts.update(told["counts"])
            right.update(told["accuracy"])
        histogram = zip(*(told["histogram"] for told in facts), strict=True)
        out.info["counts"] = dict(counts)
        out.info["histogram"] = [sum(column) for column in histogram]
        if self.truth:
            out.info["accuracy"] = shares(right)
        kept = counts["queries kept"]
        if not kept:
            raise UserError(
                f"none of {counts['queries']:,} queries got labels at positive={self.positive} and "
                f"negative={self.negative}; look at the teacher, or move the thresholds"
            )
        progress.say(f"label: {kept:,} of {counts['queries']:,} queries kept")
