"""Training data from rankings: hard negatives, a teacher's labels, groups of similar passages.

Mining is as in Tevatron: the positives are removed from each query's ranking, and negatives are
drawn with a seed from its first 200 passages. A passage with the text of a positive counts as a
positive, whatever its id.

Pseudo-labels are those of PAIR (Ren et al., 2021) and RocketQA (Qu et al., 2021): a candidate that
the teacher scores above s_pos is a positive, one below s_neg a negative. Negatives of judged
queries are denoised, and with `extend` these get positives too.

Groups are for distillation from a hybrid index. TAS-B (Hofstätter et al., SIGIR 2021) makes batches
of queries of one cluster, whose passages are hard to tell apart. Here similar passages are grouped,
and each group comes with all queries of its passages: each is encoded once a step for all of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import operator
import os
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.data.judged import generated_id
from qac_jax.errors import UserError
from qac_jax.fields import Checked, option
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import Query, read_queries
from qac_jax.formats.records import Records
from qac_jax.formats.runs import Ranking
from qac_jax.retrieval import fusion
from qac_jax.retrieval.corpus import Searchable, by_id, passage_text


if TYPE_CHECKING:
    from qac_jax.inference.reranker import Reranker
    from qac_jax.retrieval.hybrid import Hybrid


BINS = 20  # of the histogram of a teacher's probabilities
# Rankings are a little deeper than asked for, since copies of positives are removed from them.
_ROOM = 16
# Groups whose queries are encoded in one call.
_TOGETHER = 16

Record = dict[str, Any]
Judgements = Mapping[str, Mapping[str, int]]
# Answers of a question -> whether a text contains one of them.
Matcher = Callable[[Sequence[str]], Callable[[str], bool]]


@dataclasses.dataclass(frozen=True)
class Mining(Checked):
    """How hard negatives are drawn from rankings."""

    depth: int = option(200, "passages of each ranking that negatives are drawn from", at_least=1)
    keep: int = option(128, "negatives per query", at_least=1)


@dataclasses.dataclass(frozen=True)
class Labelling(Checked):
    """How a teacher's scores become labels."""

    positive: float = option(0.9, "probability above which a candidate is a positive", at_most=1)
    negative: float = option(0.1, "probability below which it is a negative", at_least=0)
    positives: str = option(
        "best",
        "the best candidate above the threshold (released), or all of them (paper)",
        choices=("best", "all"),
    )
    order: str = option(
        "ranked",
        "negatives as the retriever ranks them (released), or drawn at random",
        choices=("ranked", "sampled"),
    )
    count: int = option(4, "negatives per query", at_least=1)
    depth: int = option(50, "candidates per query that the teacher scores", at_least=1)
    extend: bool = option(False, "judged queries get positives by their scores too")
    fill: int = option(
        0,
        "judged queries: add unscored candidates to their negatives, drawn at random from the "
        "ranks after depth up to this one (released, MS MARCO; 0: none)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.negative >= self.positive:
            raise UserError(
                f"negative={self.negative} is not below positive={self.positive}; move one of the "
                "thresholds"
            )
        if self.fill and self.fill <= self.depth:
            raise UserError(f"fill={self.fill} is a rank after depth={self.depth}; raise it")


@dataclasses.dataclass(frozen=True)
class Question:
    """A query and the rows of its positives in the passages."""

    id: str
    text: str
    positives: tuple[int, ...]


class Miner:
    def __init__(
        self, passages: Records, searchers: Mapping[str, Searchable], mining: Mining, seed: int = 42
    ):
        self._passages, self._mining, self._seed = passages, mining, seed
        self._searchers = searchers
        self._rows = {name: _rows_of(s, passages) for name, s in searchers.items()}
        self._texts = np.fromiter(
            (_text_hash(record["text"]) for record in passages), np.uint64, len(passages)
        )

    def mine(self, questions: Sequence[Question]) -> Iterator[Record]:
        """A record for each question: ids of positives and negatives, ranks by each searcher."""
        most = max((len(q.positives) for q in questions), default=0)
        depth = min(self._mining.depth + most + _ROOM, len(self._passages))
        texts = [question.text for question in questions]
        rankings = {}
        for name, searcher in self._searchers.items():
            scores, rows = searcher.find(texts, min(depth, len(searcher)))
            rankings[name] = scores, np.where(rows >= 0, self._rows[name][rows], -1)
        for number, question in enumerate(questions):
            ranks = {
                name: self._ranks(question, scores[number], rows[number])
                for name, (scores, rows) in rankings.items()
            }
            negatives = list(dict.fromkeys(itertools.chain.from_iterable(ranks.values())))
            random.Random(f"{self._seed} {question.id}").shuffle(negatives)
            negatives = negatives[: self._mining.keep]
            none = (0, None)
            yield {
                "_id": question.id,
                "query": question.text,
                "positives": [self._passages[row]["_id"] for row in question.positives],
                "negatives": [self._passages[row]["_id"] for row in negatives],
                "ranks": {n: [r.get(row, none)[0] for row in negatives] for n, r in ranks.items()},
                "scores": {n: [r.get(row, none)[1] for row in negatives] for n, r in ranks.items()},
            }

    def _ranks(
        self, question: Question, scores: np.ndarray, rows: np.ndarray
    ) -> dict[int, tuple[int, float]]:
        """Row -> (rank, score) of what is not a positive; positives count in the ranks."""
        positives = list(question.positives)
        right = np.isin(rows, positives) | np.isin(self._texts[rows], self._texts[positives])
        places = np.flatnonzero((rows >= 0) & ~right)[: self._mining.depth].tolist()
        return {int(rows[i]): (i + 1, round(float(scores[i]), 6)) for i in places}


def _rows_of(searcher: Searchable, passages: Records) -> np.ndarray:
    """For each row of the searcher, the row of the same passage."""
    ids = searcher.ids
    if len(searcher) == len(passages) and all(map(operator.eq, ids, passages.ids())):
        return np.arange(len(passages))
    places = passages.positions(ids)
    if None in places:
        raise UserError(
            f"{searcher.artifact.path} holds passages that are not among the given ones, such as "
            f"{ids[places.index(None)]!r}; give the passages that it was made of"
        )
    return np.array(places, np.int64)


def _text_hash(text: str) -> int:
    """Hash of the words, without regard to case and blanks."""
    words = " ".join(text.split()).casefold()
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "little")


def judged_queries(
    queries: str | os.PathLike[str], qrels: str | os.PathLike[str], passages: Records
) -> list[Question]:
    texts = {query.id: query.text for query in read_queries(queries)}
    return questions_of(texts, by_query(read_judgements(qrels, queries=texts)), passages)


def generated_queries(contexts: Records, passages: Records) -> list[Question]:
    """The queries of an artefact of contexts: the positive of each is its own passage."""
    texts: dict[str, str] = {}
    judged: dict[str, dict[str, int]] = {}
    for record in contexts:
        for place, query in enumerate(record["contexts"]):
            name = generated_id(record["_id"], place)
            texts[name], judged[name] = query["text"], {record["_id"]: 1}
    return questions_of(texts, judged, passages)


def questions_of(texts: Mapping[str, str], judged: Judgements, passages: Records) -> list[Question]:
    """Judged queries with positives; all positives must be among the passages."""
    wanted = {
        name: [passage for passage, grade in grades.items() if grade > 0]
        for name, grades in judged.items()
        if name in texts
    }
    known = list(dict.fromkeys(passage for positives in wanted.values() for passage in positives))
    rows = dict(zip(known, passages.positions(known), strict=True))
    if absent := [passage for passage, row in rows.items() if row is None]:
        raise UserError(
            f"{len(absent)} judged passages are not among the passages, such as {absent[0]!r}; "
            "give the passages that were judged"
        )
    return [
        Question(name, texts[name], tuple(rows[passage] or 0 for passage in positives))
        for name, positives in wanted.items()
        if positives
    ]


class Labeller:
    """Candidates to records, counting what is kept and why the rest is left out."""

    def __init__(self, rule: Labelling, seed: int = 111):
        self.rule, self._seed = rule, seed
        self.counts: Counter[str] = Counter()
        self.histogram = np.zeros(BINS, np.int64)

    def label(
        self,
        query: Query,
        ids: Sequence[str],
        odds: np.ndarray | None,
        relevant: Mapping[str, float] | None = None,
        excluded: Collection[str] = (),
    ) -> Record | None:
        """A record of an artefact of negatives; None for a query without a positive or negative.

        ids: the query's passages in the retriever's order. odds: the teacher's log-odds of the
        first ones (None: without a teacher, all that are not relevant are negatives). relevant: the
        judged positives (None: the query has no judgements). excluded: unlabelled passages that may
        be relevant, which are never negatives.
        """
        from qac_jax.inference.reranker import probability

        rule, first = self.rule, ids[: self.rule.depth]
        if odds is None:
            odds = sure = np.zeros(len(first))
        else:
            odds = odds[: rule.depth]
            sure = probability(odds)
            self.histogram += np.histogram(sure, BINS, (0.0, 1.0))[0]
        self.counts["queries"] += 1
        positives = dict(relevant or {})
        if relevant is None or rule.extend:
            above = [int(i) for i in np.argsort(-odds, kind="stable") if sure[i] > rule.positive]
            for i in above[:1] if rule.positives == "best" else above:
                if first[i] not in positives:
                    positives[first[i]] = float(odds[i])
                    self.counts["positives by score"] += 1
        if not positives:
            self.counts["queries without a positive"] += 1
            return None
        barred = {*positives, *excluded, *(relevant or ())}
        below = [
            i for i, name in enumerate(first) if sure[i] < rule.negative and name not in barred
        ]
        if rule.order == "sampled":
            below = self._drawn(query.id, below, rule.count)
        negatives = {first[i]: float(odds[i]) for i in below[: rule.count]}
        self.counts["negatives"] += len(negatives)
        wanted = rule.count - len(negatives)
        if wanted > 0 and rule.fill and relevant is not None:
            # Candidates of later ranks, which the teacher did not score.
            later = [name for name in ids[rule.depth : rule.fill] if name not in barred]
            more = self._drawn(query.id, later, wanted)
            self.counts["negatives not scored"] += len(more)
            negatives.update(dict.fromkeys(more, 0.0))
        if not negatives:
            self.counts["queries without a negative"] += 1
            return None
        self.counts["queries kept"] += 1
        self.counts["positives"] += len(positives)
        return {
            "_id": query.id,
            "query": query.text,
            "positives": list(positives),
            "negatives": list(negatives),
            "positives_scores": [round(value, 6) for value in positives.values()],
            "negatives_scores": [round(value, 6) for value in negatives.values()],
        }

    def _drawn(self, query: str, from_these: Sequence[Any], count: int) -> list[Any]:
        rng = random.Random(f"{self._seed} {query}")
        return rng.sample(list(from_these), min(count, len(from_these)))


def lines_of(record: Mapping[str, Any]) -> list[Record]:
    """Records with one positive and one negative each, as in the released files."""
    sides = [
        [
            {side: [name], f"{side}_scores": [score]}
            for name, score in zip(record[side], record[f"{side}_scores"], strict=True)
        ]
        for side in ("positives", "negatives")
    ]
    return [{**record, **positive, **negative} for positive, negative in itertools.product(*sides)]


@dataclasses.dataclass(frozen=True)
class RunLabels:
    """A run and what is known about its queries; at most one of `scores` and `reranker`."""

    rule: Labelling
    seed: int
    pairs: bool  # one positive and one negative a record
    run: Mapping[str, Ranking]
    scores: Mapping[str, Ranking] | None
    reranker: Reranker | None
    passages: Records
    judged: Judgements
    more: Judgements
    truth: Judgements  # not used for labelling: how accurate the labels are (PAIR, Table 5)
    answers: Mapping[str, Sequence[str]]
    matcher: Matcher

    def records(
        self, queries: Sequence[Query], facts: dict[str, Any], advance: Callable[[int], None]
    ) -> Iterator[Record]:
        """Labelled records; afterwards `facts` has counts, histogram and accuracy."""
        labeller, right = Labeller(self.rule, self.seed), Counter[str]()
        holding = {q.id: self._holding(q.id) for q in queries if q.id in self.answers}
        # Passages that are positives whatever the teacher's score; None: nothing is known.
        relevant: dict[str, list[str] | None] = {}
        for name in (query.id for query in queries):
            relevant[name] = holding[name][:1] if name in holding else None
            if name in self.judged:
                relevant[name] = [p for p, grade in self.judged[name].items() if grade > 0]
        scored = self._scored(queries, relevant)
        for query in queries:
            ids, odds = self.run[query.id].ids, scored[query.id]
            known = relevant[query.id]
            record = labeller.label(
                query,
                ids,
                np.array([odds[name] for name in ids[: self.rule.depth]]) if odds else None,
                None if known is None else {name: odds.get(name, 0.0) for name in known},
                {*self.more.get(query.id, ()), *holding.get(query.id, ())},
            )
            if record is not None:
                right.update(accuracy(record, self.truth))
                yield from lines_of(record) if self.pairs else [record]
            advance(1)
        facts["counts"] = dict(labeller.counts)
        facts["histogram"] = labeller.histogram.tolist()
        facts["accuracy"] = dict(right)

    def _holding(self, query: str) -> list[str]:
        """Candidates whose text contains an answer, in order."""
        has_answer = self.matcher(self.answers[query])
        ids = self.run[query].ids[: self.rule.depth]
        records = zip(ids, by_id([self.passages], ids), strict=True)
        return [name for name, record in records if has_answer(record["text"])]

    def _scored(
        self, queries: Sequence[Query], relevant: Mapping[str, list[str] | None]
    ) -> dict[str, dict[str, float]]:
        """Log-odds of every query's first candidates, and of its known positives."""
        if self.scores is not None:
            return {query.id: self._known(query.id, self.scores) for query in queries}
        if self.reranker is None:
            return {query.id: {} for query in queries}
        wanted = {
            q.id: list(
                dict.fromkeys([*self.run[q.id].ids[: self.rule.depth], *(relevant[q.id] or ())])
            )
            for q in queries
        }
        names = list(dict.fromkeys(itertools.chain.from_iterable(wanted.values())))
        texts = dict(zip(names, map(passage_text, by_id([self.passages], names)), strict=True))
        pairs = [(query.text, texts[name]) for query in queries for name in wanted[query.id]]
        odds = iter(self.reranker.score([q for q, _ in pairs], [p for _, p in pairs]).tolist())
        return {query: {name: next(odds) for name in ids} for query, ids in wanted.items()}

    def _known(self, query: str, reranked: Mapping[str, Ranking]) -> dict[str, float]:
        candidates = self.run[query].ids[: self.rule.depth]
        scores: dict[str, float] = {}
        if query in reranked:
            scores = dict(zip(reranked[query].ids, reranked[query].scores.tolist(), strict=True))
        if absent := [name for name in candidates if name not in scores]:
            raise UserError(
                f"passage {absent[0]!r} of query {query!r} has no score in --scored; reorder the "
                f"same run with the teacher, to rank {len(candidates)} at least"
            )
        return scores


def judgements(path: str) -> dict[str, dict[str, int]]:
    return by_query(read_judgements(path)) if path else {}


def questions(path: str) -> dict[str, tuple[str, ...]]:
    answers = {query.id: query.answers for query in read_queries(path)} if path else {}
    if path and not any(answers.values()):
        raise UserError(f"the questions of {path} lack answers; give a file with answers")
    return answers


def plain(query: str) -> str:
    """A query for comparison: without regard to case, blanks and a mark at the end."""
    return " ".join(query.split()).casefold().rstrip(" ?.!")


def queries_to_label(
    queries: str, run: Collection[str], exclude: Sequence[str | os.PathLike[str]]
) -> tuple[list[Query], Counter[str]]:
    """The queries of the run, without those of test files; and how many are left out, and why."""
    # File by file: DPR's questions are numbered from 0 in each.
    barred = {plain(query.text) for file in exclude for query in read_queries(file)}
    kept: list[Query] = []
    removed: Counter[str] = Counter()
    for query in read_queries(queries):
        if query.id not in run:
            removed["queries that the run lacks"] += 1
        elif plain(query.text) in barred:
            removed["queries of a dev or test set"] += 1
        else:
            kept.append(query)
    if not kept:
        raise UserError("no query of the run is left to label; check the queries and --exclude")
    return kept, removed


def accuracy(record: Mapping[str, Any], truth: Judgements) -> dict[str, int]:
    """How many labels of a record are right; nothing for a query without judgements."""
    counts: dict[str, int] = {}
    if (judged := truth.get(record["_id"])) is not None:
        for side, relevant in (("positives", True), ("negatives", False)):
            right = sum((judged.get(name, 0) > 0) == relevant for name in record[side])
            counts |= {f"{side}_right": right, f"{side}_looked_at": len(record[side])}
    return counts


def summed(
    pieces: Sequence[Mapping[str, Any]], removed: Mapping[str, int], *, judged: bool
) -> dict[str, Any]:
    """Counts, histogram and (where there are judgements to compare with) accuracy of all pieces."""
    counts: Counter[str] = Counter(removed)
    right: Counter[str] = Counter()
    for facts in pieces:
        counts.update(facts["counts"])
        right.update(facts["accuracy"])
    histogram = zip(*(facts["histogram"] for facts in pieces), strict=True)
    info = {"counts": dict(counts), "histogram": [sum(column) for column in histogram]}
    shares: dict[str, float | int] = {}
    for side in ("positives", "negatives"):
        if looked := right[f"{side}_looked_at"]:
            shares[side] = right[f"{side}_right"] / looked
            shares[f"{side}_looked_at"] = looked
    return {**info, "accuracy": shares} if judged else info


def similar_groups(vectors: np.ndarray, size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Rows in groups of `size`, similar ones together; every row is in a group.

    A projection tree (Dasgupta and Freund, 2008): rows are halved by their place on the line
    between two of them. The last groups are filled up with random rows, where there are enough.
    """
    groups: list[np.ndarray] = []
    pieces = [rng.permutation(len(vectors))]
    while pieces:
        rows = pieces.pop()
        if len(rows) <= size:
            others = np.setdiff1d(np.arange(len(vectors)), rows)
            filling = rng.permutation(others)[: size - len(rows)]
            groups.append(np.concatenate([rows, filling]))
            continue
        one, other = vectors[rng.choice(rows, 2, replace=False)]
        rows = rows[np.argsort(vectors[rows] @ (one - other), kind="stable")]
        half = max(1, round(len(rows) / size) // 2) * size
        pieces += [rows[half:], rows[:half]]
    return [groups[place] for place in rng.permutation(len(groups))]


@dataclasses.dataclass(frozen=True)
class Grouper:
    """Passages and their queries, grouped and scored."""

    teacher: Hybrid
    passages: Records
    queries: Mapping[str, Sequence[Query]]  # passage id -> its queries
    size: int
    per_passage: int
    seed: int

    def groups(self, turn: int) -> Iterator[Record]:
        """One grouping of all passages; groups without queries are left out."""
        rng = np.random.default_rng([self.seed, turn])
        dense = self.teacher.parts.dense
        vectors = dense.vectors.take(np.arange(len(dense))).astype(np.float32)
        grouped = similar_groups(vectors, self.size, rng)
        for start in range(0, len(grouped), _TOGETHER):
            some = grouped[start : start + _TOGETHER]
            names = [[dense.ids[row] for row in rows.tolist()] for rows in some]
            asked = [[query for name in of for query in self._drawn(name, rng)] for of in names]
            texts = [query.text for of in asked for query in of]
            rows = [of for of, queries in zip(some, asked, strict=True) for _ in queries]
            scores = iter(self.scores(texts, rows))
            for number, (ids, queries) in enumerate(zip(names, asked, strict=True), start):
                if queries:
                    records = by_id([self.passages], ids)
                    yield {
                        "_id": f"{turn}-{number}",
                        "query_ids": [query.id for query in queries],
                        "queries": [query.text for query in queries],
                        "passages": [
                            {"title": r.get("title") or "", "text": r["text"]} for r in records
                        ],
                        "scores": [next(scores).round(6).tolist() for _ in queries],
                    }

    def scores(self, questions: Sequence[str], rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The teacher's score of each question's rows: 1 is the best passage of both systems."""
        if not questions:
            return []
        parts, weight = self.teacher.parts, self.teacher.settings.weight
        vectors = self.teacher.encoder.encode(list(questions), "query")
        highest = parts.dense.search(vectors, 1)[0][:, 0]
        by_words = parts.by_words(questions, 1)[0][:, 0]
        words = parts.scores_by_words(questions, rows)
        lowest = fusion.COSINE if parts.cosine else None
        found = []
        for place, wanted in enumerate(rows):
            near = parts.dense.vectors.take(wanted).astype(np.float32) @ vectors[place]
            low = float(near.min()) if lowest is None else lowest
            unit = max(float(highest[place]) - low, 1e-6)
            both = np.stack([(near - low) / unit, words[place] / max(float(by_words[place]), 1e-6)])
            found.append(fusion.mixed(both, weight))
        return found

    def _drawn(self, name: str, rng: np.random.Generator) -> list[Query]:
        queries = self.queries.get(name, ())
        chosen = rng.permutation(len(queries))[: self.per_passage]
        return [queries[place] for place in sorted(chosen.tolist())]


def by_passage(
    queries: Sequence[Query], judged: Judgements, teacher: Hybrid
) -> dict[str, list[Query]]:
    """The queries of each passage: those that it answers.

    A query without judgements, such as one of a log, goes to the passage that the teacher ranks
    first. Queries of passages that are not in the index are left out.
    """
    known: dict[str, list[Query]] = {name: [] for name in teacher.parts.dense.ids}
    unjudged = []
    for query in queries:
        relevant = [name for name, grade in judged.get(query.id, {}).items() if grade > 0]
        for name in relevant:
            if name in known:
                known[name].append(query)
        if query.id not in judged:
            unjudged.append(query)
    if unjudged:
        _, rows = teacher.find([query.text for query in unjudged], 1)
        for query, row in zip(unjudged, rows[:, 0].tolist(), strict=True):
            if row >= 0:
                known[teacher.parts.dense.ids[row]].append(query)
    return known


def of_contexts(contexts: Sequence[Records]) -> dict[str, list[Query]]:
    """The different queries of each passage, of all artefacts of contexts."""
    found: dict[str, dict[str, None]] = {}
    for records in contexts:
        for record in records:
            known = found.setdefault(record["_id"], {})
            known.update(dict.fromkeys(context["text"] for context in record["contexts"]))
    return {
        name: [Query(generated_id(name, number), text) for number, text in enumerate(texts)]
        for name, texts in found.items()
    }
