"""`qac mine` and `qac label`, and the step group: rankings → negatives, pseudo-labels, groups."""

import dataclasses
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.evaluation import answers
from qac_jax.fields import option, part
from qac_jax.formats import runs
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records, write_lines, write_offsets, write_records
from qac_jax.formats.runs import Ranking
from qac_jax.inference import endpoint
from qac_jax.inference.asking import Judge, Judging
from qac_jax.inference.endpoint import Calls
from qac_jax.inference.settings import Inference, RerankerOptions
from qac_jax.pipeline import costs
from qac_jax.pipeline.engines import Loaded
from qac_jax.pipeline.inputs import at_most_one_of, one_of, together
from qac_jax.pipeline.sharding import Facts, ShardFile, cut, record_files, sharded
from qac_jax.pipeline.stage import FILE, Inputs, Plan, Plans, Ref, Stage, input, model_input
from qac_jax.retrieval import mining
from qac_jax.retrieval.mining import Labelling, Miner, Mining, Question, RunLabels


# Queries per file (an interruption loses at most one file) of mine and of label, and per search.
_MINED, _LABELLED, _SEARCHED = 8192, 1024, 512
_FILES = "negatives"
# System -> the input with its index.
_INPUTS = {"mined": "index", "bm25": "bm25"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(Stage):
    """Draws hard negatives from the rankings of an encoder, of BM25, or of both."""

    VERB = "mine"
    KIND = "negatives"
    VERSION = 3
    DIVIDED = True
    EXAMPLE = (
        "qac mine --index out/index --passages out/passages --queries queries.jsonl "
        "--qrels qrels/train.tsv --out out/negatives"
    )

    GROUPS = (one_of("contexts", "queries"), together("queries", "qrels"))

    passages: Ref = input("indexed passages", "passages")
    index: Ref = input("dense index, or hybrid", "index", "hybrid", default="")
    encoder: Ref = model_input("encoder of --index, if it was moved", default="")
    bm25: Ref = input("BM25 index", "bm25", "rankings", default="")
    negatives: str = option(
        "all",
        "rankings to draw from: mined (the encoder's), bm25, mined+bm25, or all that are given",
        choices=("all", "mined", "bm25", "mined+bm25"),
    )
    queries: Ref = input("queries", FILE, default="")
    qrels: Ref = input("relevance judgements of --queries", FILE, default="")
    contexts: Ref = input("or generated queries of the passages", "contexts", default="")
    mining: Mining = part(Mining)
    seed: int = option(42, "seed of drawing negatives")

    def plan(self, inputs: Plans) -> Plan:
        queries = costs.count_of(inputs, "queries", "contexts")
        found = [costs.searching(inputs, _INPUTS[name], queries) for name in self._systems()]
        return costs.summed(found)

    def check(self) -> None:
        super().check()
        if not self._systems() or not all(getattr(self, _INPUTS[n]) for n in self._systems()):
            raise UserError(f"negatives={self.negatives!r} needs an index; pass --index or --bm25")

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.retrieval import search

        passages = inputs.records("passages")
        if "contexts" in inputs:
            questions = mining.generated_queries(inputs.records("contexts"), passages)
        else:
            texts = {query.id: query.text for query in read_queries(inputs.text("queries"))}
            judged = by_query(read_judgements(inputs.text("qrels"), queries=texts))
            questions = mining.questions_of(texts, judged, passages)
        if not questions:
            raise UserError("no query has a positive passage; check the queries and judgements")

        def load() -> Loaded:
            encoder, systems = inputs.text("encoder"), self._systems()
            opened = {n: search.open_index(inputs.path(_INPUTS[n]), encoder) for n in systems}
            miner = Miner(passages, opened, self.mining, self.seed)

            def mined(asked: Sequence[Question], bar: progress.Bar) -> Iterator[Any]:
                for start, stop in cut(len(asked), _SEARCHED):
                    yield from miner.mine(asked[start:stop])
                    bar.advance(stop - start)

            def write(shard: ShardFile, bar: progress.Bar) -> Facts:
                return write_lines(out.part(shard.name), mined(shard.job, bar))

            return Loaded(write)

        pieces = cut(len(questions), _MINED)
        shards = record_files(_FILES, pieces, lambda start, stop: questions[start:stop])
        sharded(out, shards, load, "mine", "queries")
        write_offsets(out, _FILES, len(shards))
        out.info["systems"] = {}
        for name in self._systems():
            index = inputs.artifact(_INPUTS[name])
            out.info["systems"][name] = {"path": str(index.path), "identity": index.identity}
            if (known := search.approximation(index, self.mining.depth)) is not None:
                out.info["systems"][name]["approximate"] = known
                progress.say(f"mine: {name} by {search.approximated(known)}")

    def _systems(self) -> list[str]:
        given = [name for name, field in _INPUTS.items() if getattr(self, field)]
        return given if self.negatives == "all" else self.negatives.split("+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group(Stage):
    """Groups similar passages with their queries; a hybrid index scores each query's group.

    A retriever learns these scores with the objective of objectives/listwise.gin. With --reranker
    they are a cross-encoder's log-odds: learn them with teacher_temperature 1.
    """

    VERB = "group"
    KIND = "groups"
    VERSION = 2
    EXAMPLE = "qac step group --passages P --contexts C --teacher out/hybrid --out out/groups"

    GROUPS = (one_of("contexts", "queries"), together("queries", "qrels"))

    passages: Ref = input("indexed passages", "passages")
    contexts: Ref = input("queries of the passages", "contexts", default="", many=True)
    queries: Ref = input("or queries with judgements", FILE, default="")
    qrels: Ref = input("judgements; without: the teacher's first passage", FILE, default="")
    teacher: Ref = input("hybrid index whose scores are learned", "hybrid")
    reranker: Ref = model_input("cross-encoder whose scores are learned instead", default="")
    reranked: int = option(
        8, "--reranker: passages that it scores for a query, the best by the teacher", at_least=2
    )
    size: int = option(32, "passages of a group", at_least=2)
    per_passage: int = option(8, "queries drawn of a passage, for each of its groups", at_least=1)
    turns: int = option(1, "how often the passages are grouped, each time anew", at_least=1)
    at_most: int = option(0, "groups, drawn at random (0: all)", at_least=0)
    pairs: RerankerOptions = part(RerankerOptions)
    inference: Inference = part(Inference)

    def plan(self, inputs: Plans) -> Plan:
        count = inputs.get("passages", {}).get("count")
        if not (self.reranker and count):
            return {}
        passages = min(self.turns * count, self.at_most * self.size or math.inf)
        pairs = passages * self.per_passage * min(self.reranked, self.size)
        return {"pairs": pairs, **costs.of_model(inputs, "reranker", pairs * costs.PAIR_TOKENS)}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.inference.reranker import Reranker
        from qac_jax.retrieval.hybrid import Hybrid

        teacher, passages = Hybrid(inputs.artifact("teacher")), inputs.records("passages")
        if self.contexts:
            queries = mining.of_contexts([Records(artifact) for artifact in inputs["contexts"]])
        else:
            judged = by_query(read_judgements(inputs.text("qrels")))
            asked = list(read_queries(inputs.text("queries")))
            queries = mining.by_passage(asked, judged, teacher)
        given = teacher, passages, queries, self.size, self.per_passage
        reranker = None
        if self.reranker:
            reranker = Reranker.load(inputs.path("reranker"), self.pairs, self.inference)
        count, total = 0, self.turns * -(-len(passages) // self.size)
        with progress.Bar("group", total=min(total, self.at_most or total)) as bar:

            def made() -> Iterator[dict[str, Any]]:
                nonlocal count
                for turn in range(self.turns):
                    for group in mining.groups(*given, (self.seed, turn), reranker, self.reranked):
                        count += len(group["queries"])
                        bar.advance(1)
                        yield group

            write_records(out, itertools.islice(made(), self.at_most or None), "groups")
        if not out.count:
            raise UserError("no passage of the index has a query; check --contexts or --queries")
        out.info.update(queries=count, weight=teacher.settings.weight, size=self.size)
        progress.say(f"group: {count:,} queries in {out.count:,} groups")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Label(Stage):
    """Labels a retriever's candidates as positives and negatives by a cross-encoder's scores.

    Queries with judgements keep their positives and get confident negatives of the teacher;
    queries without any get both from the teacher, or are left out. A language model behind an
    address grades each pair from 0 to 3: a 3 is a probability of .99, a 0 of .01.
    """

    VERB = "label"
    KIND = "negatives"
    VERSION = 2
    DIVIDED = True
    EXAMPLE = (
        "qac label --candidates run.trec --queries queries.tsv --passages out/passages "
        "--teacher out/teacher --out out/labels"
    )

    GROUPS = (at_most_one_of("teacher", "scored"),)

    passages: Ref = input("passages that were searched", "passages")
    queries: Ref = input("queries of --candidates", FILE)
    candidates: Ref = input("retriever's run, which is labelled", "run", FILE)
    teacher: Ref = model_input(
        "cross-encoder that scores the candidates, or openai:BASE_URL#MODEL", default=""
    )
    scored: Ref = input("or the run of qac search --reranker", "run", default="")
    qrels: Ref = input(
        "relevance judgements of the queries that have any, or DPR's training file",
        FILE,
        default="",
    )
    answers: Ref = input(
        "questions with answers: what holds one is no negative, and the first of them the positive "
        "where --qrels has none",
        FILE,
        default="",
    )
    more: Ref = input("judgements of further passages that are not negatives", FILE, default="")
    exclude: Ref = input("dev and test queries, to be left out", FILE, default="", many=True)
    truth: Ref = input("judgements that only measure the labels", FILE, default="")
    rule: Labelling = part(Labelling)
    lines: str = option(
        "query",
        "one record per query, or per pair of a positive and a negative (released files)",
        choices=("query", "pair"),
    )
    seed: int = option(111, "seed of drawing negatives")
    pairs: RerankerOptions = part(RerankerOptions)
    judging: Judging = part(Judging)
    calls: Calls = part(Calls)
    inference: Inference = part(Inference)

    def plan(self, inputs: Plans) -> Plan:
        queries = costs.count_of(inputs, "queries", "candidates")
        if endpoint.is_named(self.teacher):
            if not queries and os.path.exists(self.queries):
                queries = sum(1 for _ in read_queries(self.queries))
            pairs = (queries or 0) * self.rule.depth
            read = pairs * (costs.PAIR_TOKENS + endpoint.tokens(self.judging.instruction))
            return {"pairs": pairs, "tokens_read": read, "tokens_written": pairs}
        tokens = queries and queries * self.rule.depth * costs.PAIR_TOKENS
        return costs.of_model(inputs, "teacher", tokens) if self.teacher else {}

    def check(self) -> None:
        super().check()
        # Without a teacher every candidate that is not a known positive is a negative.
        if not (self.teacher or self.scored or self.qrels or self.answers):
            raise UserError("label needs --teacher or --scored, or --qrels or --answers")

    def run(self, inputs: Inputs, out: Writer) -> None:
        (path,) = runs.run_files(inputs.path("candidates")).values()
        run = runs.read_run(path, max(self.rule.depth, self.rule.fill))
        asked, removed = mining.queries_to_label(
            inputs.text("queries"), run, inputs.paths("exclude")
        )
        judge = self._judge(out) if endpoint.is_named(self.teacher) else None

        def load() -> Loaded:
            labels = self._labels(inputs, run, judge)

            def write(shard: ShardFile, bar: progress.Bar) -> Facts:
                facts: Facts = {}
                records = labels.records(shard.job, facts, bar.advance)
                return write_lines(out.part(shard.name), records) | facts

            return Loaded(write)

        pieces = cut(len(asked), _LABELLED)
        shards = record_files(_FILES, pieces, lambda start, stop: asked[start:stop])
        made = sharded(out, shards, load, "label", "queries", here=judge is not None)
        write_offsets(out, _FILES, len(shards))
        out.info.update(mining.summed(made, removed, judged=bool(self.truth)))
        counts = out.info["counts"]
        if not (kept := counts.get("queries kept", 0)):
            raise UserError(
                f"none of {counts['queries']:,} queries got labels at positive="
                f"{self.rule.positive} and negative={self.rule.negative}; move the thresholds"
            )
        progress.say(f"label: {kept:,} of {counts['queries']:,} queries kept")
        if judge is not None:
            out.info["language_model"] = judge.endpoint.record()

    def summary(self, artifact: Artifact) -> str:
        info = artifact.info
        text = "\n".join(f"{name}: {count:,}" for name, count in info["counts"].items())
        for side in ("positives", "negatives"):
            if side in info.get("accuracy", {}):
                text += f"\n{side} that are right: {info['accuracy'][side]:.1%}"
        return text

    def _judge(self, out: Writer) -> Judge:
        body = {"seed": self.seed, "temperature": 0, "logprobs": True, "top_logprobs": 10}
        model = endpoint.Endpoint(self.teacher, self.calls, out.scratch("answers"), body)
        return Judge(model, self.judging, endpoint.CHARACTERS * self.pairs.max_length)

    def _labels(self, inputs: Inputs, run: Mapping[str, Ranking], judge: Judge | None) -> RunLabels:
        from qac_jax.inference.reranker import Reranker

        def judgements(name: str) -> mining.Judgements:
            return by_query(read_judgements(inputs.text(name))) if name in inputs else {}

        asked = read_queries(inputs.text("answers")) if "answers" in inputs else ()
        answered = {query.id: query.answers for query in asked}
        if "answers" in inputs and not any(answered.values()):
            raise UserError(f"the questions of {self.answers} lack answers; give some with answers")
        scores: runs.Run | None = None
        reranker: Reranker | Judge | None = judge
        if "scored" in inputs:
            (path,) = runs.run_files(inputs.path("scored")).values()
            scores = runs.read_run(path)
        elif judge is None and "teacher" in inputs:
            reranker = Reranker.load(inputs.path("teacher"), self.pairs, self.inference)
        return RunLabels(
            rule=self.rule,
            seed=self.seed,
            pairs=self.lines == "pair",
            run=run,
            scores=scores,
            reranker=reranker,
            passages=inputs.records("passages"),
            judged=judgements("qrels"),
            more=judgements("more"),
            truth=judgements("truth"),
            answers=answered,
            matcher=answers.matcher,
        )
