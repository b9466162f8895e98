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
from qac_jax.formats.identities import id_hashes
from qac_jax.formats.queries import Query, read_queries
from qac_jax.formats.records import Records
from qac_jax.formats.runs import Ranking
from qac_jax.retrieval import fusion
from qac_jax.retrieval.corpus import Searchable, by_id, passage_text


if TYPE_CHECKING:
    from qac_jax.inference.asking import Judge
    from qac_jax.inference.reranker import Reranker
    from qac_jax.retrieval.hybrid import Hybrid


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
            raise UserError(f"negative={self.negative} is not below positive={self.positive}")
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
        # Of the words, without regard to case and blanks.
        self._texts = id_hashes(" ".join(r["text"].split()).casefold() for r in passages)

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
            positives, found = list(question.positives), {}
            for name, (scores, every) in rankings.items():
                rows = every[number]
                right = np.isin(rows, positives)
                right |= np.isin(self._texts[rows], self._texts[positives])
                # Positives count in the ranks.
                places = np.flatnonzero((rows >= 0) & ~right)[: self._mining.depth].tolist()
                found[name] = {
                    int(rows[i]): (i + 1, round(float(scores[number, i]), 6)) for i in places
                }
            negatives = list(dict.fromkeys(itertools.chain.from_iterable(found.values())))
            random.Random(f"{self._seed} {question.id}").shuffle(negatives)
            negatives = negatives[: self._mining.keep]
            noted = {n: [of.get(row, (0, None)) for row in negatives] for n, of in found.items()}
            yield {
                "_id": question.id,
                "query": question.text,
                "positives": [self._passages[row]["_id"] for row in positives],
                "negatives": [self._passages[row]["_id"] for row in negatives],
                "ranks": {name: [rank for rank, _ in of] for name, of in noted.items()},
                "scores": {name: [score for _, score in of] for name, of in noted.items()},
            }


def _rows_of(searcher: Searchable, passages: Records) -> np.ndarray:
    """For each row of the searcher, the row of the same passage."""
    ids = searcher.ids
    if len(searcher) == len(passages) and all(map(operator.eq, ids, passages.ids())):
        return np.arange(len(passages))
    places = passages.positions(ids)
    if None in places:
        raise UserError(f"{searcher.artifact.path} holds passages that are not among those given")
    return np.array(places, np.int64)


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
        raise UserError(f"judged passages are not among the passages, such as {absent[0]!r}")
    return [
        Question(name, texts[name], tuple(rows[passage] or 0 for passage in positives))
        for name, positives in wanted.items()
        if positives
    ]


def label(
    rule: Labelling,
    query: Query,
    ids: Sequence[str],
    odds: np.ndarray | None,
    relevant: Mapping[str, float] | None = None,
    excluded: Collection[str] = (),
    *,
    seed: int = 111,
    counts: Counter[str],
) -> Record | None:
    """A record of an artefact of negatives; None for a query without a positive or negative.

    ids: the query's passages in the retriever's order. odds: the teacher's log-odds of the first
    ones (None: without a teacher, all that are not relevant are negatives). relevant: the judged
    positives (None: the query has no judgements). excluded: unlabelled passages that may be
    relevant, which are never negatives. counts: what is kept, and why the rest is left out.
    """
    from qac_jax.inference.reranker import probability

    def drawn(from_these: Sequence[Any], count: int) -> list[Any]:
        rng = random.Random(f"{seed} {query.id}")
        return rng.sample(list(from_these), min(count, len(from_these)))

    first = ids[: rule.depth]
    if odds is None:
        odds = sure = np.zeros(len(first))
    else:
        odds = odds[: rule.depth]
        sure = probability(odds)
    counts["queries"] += 1
    positives = dict(relevant or {})
    if relevant is None or rule.extend:
        above = [int(i) for i in np.argsort(-odds, kind="stable") if sure[i] > rule.positive]
        for i in above[:1] if rule.positives == "best" else above:
            if first[i] not in positives:
                positives[first[i]] = float(odds[i])
                counts["positives by score"] += 1
    if not positives:
        counts["queries without a positive"] += 1
        return None
    barred = {*positives, *excluded, *(relevant or ())}
    below = [i for i, name in enumerate(first) if sure[i] < rule.negative and name not in barred]
    if rule.order == "sampled":
        below = drawn(below, rule.count)
    negatives = {first[i]: float(odds[i]) for i in below[: rule.count]}
    counts["negatives"] += len(negatives)
    wanted = rule.count - len(negatives)
    if wanted > 0 and rule.fill and relevant is not None:
        # Candidates of later ranks, which the teacher did not score.
        later = [name for name in ids[rule.depth : rule.fill] if name not in barred]
        more = drawn(later, wanted)
        counts["negatives not scored"] += len(more)
        negatives.update(dict.fromkeys(more, 0.0))
    if not negatives:
        counts["queries without a negative"] += 1
        return None
    counts["queries kept"] += 1
    counts["positives"] += len(positives)
    return {
        "_id": query.id,
        "query": query.text,
        "positives": list(positives),
        "negatives": list(negatives),
        "positives_scores": [round(value, 6) for value in positives.values()],
        "negatives_scores": [round(value, 6) for value in negatives.values()],
    }


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
    reranker: Reranker | Judge | None
    passages: Records
    judged: Judgements
    more: Judgements
    truth: Judgements  # not used for labelling: how accurate the labels are (PAIR, Table 5)
    answers: Mapping[str, Sequence[str]]
    matcher: Matcher

    def records(
        self, queries: Sequence[Query], facts: dict[str, Any], advance: Callable[[int], None]
    ) -> Iterator[Record]:
        """Labelled records; afterwards `facts` has the counts, and how many labels are right."""
        counts, right = Counter[str](), Counter[str]()
        # Passages that are positives whatever the teacher's score; none: nothing is known.
        relevant: dict[str, list[str]] = {}
        doubtful: dict[str, list[str]] = {}  # candidates that hold an answer
        for name in (query.id for query in queries):
            if name in self.answers:
                has_answer = self.matcher(self.answers[name])
                records = by_id([self.passages], self._first(name))
                doubtful[name] = [r["_id"] for r in records if has_answer(r["text"])]
                relevant[name] = doubtful[name][:1]
            if name in self.judged:
                relevant[name] = [p for p, grade in self.judged[name].items() if grade > 0]
        scored = self._scored(queries, relevant)
        for query in queries:
            odds, known = scored[query.id], relevant.get(query.id)
            record = label(
                self.rule,
                query,
                self.run[query.id].ids,
                np.array([odds[name] for name in self._first(query.id)]) if odds else None,
                None if known is None else {name: odds.get(name, 0.0) for name in known},
                {*self.more.get(query.id, ()), *doubtful.get(query.id, ())},
                seed=self.seed,
                counts=counts,
            )
            if record is not None:
                if (judged := self.truth.get(query.id)) is not None:
                    for side, wanted in (("positives", True), ("negatives", False)):
                        grades = [judged.get(name, 0) > 0 for name in record[side]]
                        right[side] += grades.count(wanted)
                        right[f"{side} compared"] += len(grades)
                yield from lines_of(record) if self.pairs else [record]
            advance(1)
        facts.update(counts=dict(counts), right=dict(right))

    def _first(self, query: str) -> tuple[str, ...]:
        return self.run[query].ids[: self.rule.depth]

    def _scored(
        self, queries: Sequence[Query], relevant: Mapping[str, list[str]]
    ) -> dict[str, dict[str, float]]:
        """Log-odds of every query's first candidates, and of its known positives."""
        if self.scores is not None:
            known: dict[str, dict[str, float]] = {}
            for query in queries:
                ranking = self.scores.get(query.id, Ranking((), np.zeros(0)))
                known[query.id] = dict(zip(ranking.ids, ranking.scores.tolist(), strict=True))
                if absent := [n for n in self._first(query.id) if n not in known[query.id]]:
                    raise UserError(f"{absent[0]!r} of query {query.id!r} has no score in --scored")
            return known
        if self.reranker is None:
            return {query.id: {} for query in queries}
        wanted = {
            q.id: list(dict.fromkeys([*self._first(q.id), *relevant.get(q.id, ())]))
            for q in queries
        }
        names = list(dict.fromkeys(itertools.chain.from_iterable(wanted.values())))
        texts = dict(zip(names, map(passage_text, by_id([self.passages], names)), strict=True))
        pairs = [(query.text, texts[name]) for query in queries for name in wanted[query.id]]
        odds = iter(self.reranker.score([q for q, _ in pairs], [p for _, p in pairs]).tolist())
        return {query: {name: next(odds) for name in ids} for query, ids in wanted.items()}


def plain(query: str) -> str:
    """A query for comparison: without regard to case, blanks and a mark at the end."""
    return " ".join(query.split()).casefold().rstrip(" ?.!")


def queries_to_label(
    queries: str, run: Collection[str], exclude: Sequence[os.PathLike[str]]
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


def summed(
    pieces: Sequence[Mapping[str, Any]], removed: Mapping[str, int], *, judged: bool
) -> dict[str, Any]:
    """Counts and, where there is something to compare with, the shares of right labels."""
    counts, right = Counter(removed), Counter[str]()
    for facts in pieces:
        counts.update(facts["counts"])
        right.update(facts["right"])
    sides = (side for side in ("positives", "negatives") if right[f"{side} compared"])
    shares = {side: right[side] / right[f"{side} compared"] for side in sides}
    return {"counts": dict(counts), **({"accuracy": shares} if judged else {})}


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


def groups(
    teacher: Hybrid,
    passages: Records,
    queries: Mapping[str, Sequence[Query]],
    size: int,
    per_passage: int,
    seed: Sequence[int],
    reranker: Reranker | None = None,
    reranked: int = 8,
) -> Iterator[Record]:
    """All passages grouped, each with some of its queries, and scored; `seed` ends in the number of
    the grouping. Groups without queries are left out. With a cross-encoder the scores are its
    log-odds of the teacher's best passages of the group; the others have none. `lexical` is BM25's
    part of the teacher's scores before its weight, `own` the place of each query's passage.
    """
    rng = np.random.default_rng(seed)
    dense = teacher.parts.dense
    vectors = dense.vectors.take(np.arange(len(dense))).astype(np.float32)
    grouped = similar_groups(vectors, size, rng)

    def drawn(name: str) -> list[Query]:
        own = queries.get(name, ())
        return [own[place] for place in sorted(rng.permutation(len(own))[:per_passage].tolist())]

    for start in range(0, len(grouped), _TOGETHER):
        some = grouped[start : start + _TOGETHER]
        names = [[dense.ids[row] for row in rows.tolist()] for rows in some]
        pairs = [[(n, query) for n, name in enumerate(of) for query in drawn(name)] for of in names]
        asked = [[query for _, query in of] for of in pairs]
        texts = [query.text for of in asked for query in of]
        rows = [of for of, its in zip(some, asked, strict=True) for _ in its]
        scores = iter(scores_of(teacher, texts, rows) if texts else ())
        for number, (ids, its, paired) in enumerate(zip(names, asked, pairs, strict=True), start):
            if its:
                records = by_id([passages], ids)
                of, lexical = np.stack([next(scores) for _ in its], axis=1)
                if reranker:
                    of = rescored(of, its, records, reranker, reranked)
                yield {
                    "_id": f"{seed[-1]}-{number}",
                    "query_ids": [query.id for query in its],
                    "queries": [query.text for query in its],
                    "passages": [
                        {"title": r.get("title") or "", "text": r["text"]} for r in records
                    ],
                    "scores": np.where(np.isnan(of), np.array(None), of.round(6)).tolist(),
                    "lexical": lexical.round(6).tolist(),
                    "own": [place for place, _ in paired],
                }


def rescored(
    scores: np.ndarray,
    queries: Sequence[Query],
    passages: Sequence[Mapping[str, Any]],
    reranker: Reranker,
    count: int,
) -> np.ndarray:
    """A cross-encoder's log-odds where a query's scores are its `count` best, elsewhere NaN."""
    best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    asked = [query.text for query in queries for _ in best[0]]
    odds = reranker.score(asked, [passage_text(passages[place]) for place in best.ravel().tolist()])
    found = np.full(scores.shape, np.nan, np.float32)
    np.put_along_axis(found, best, odds.reshape(best.shape), 1)
    return found


def scores_of(
    teacher: Hybrid, questions: Sequence[str], rows: Sequence[np.ndarray]
) -> Iterator[np.ndarray]:
    """[2, rows]: the teacher's score of each question's rows, and BM25's part, on their scale."""
    parts, weight = teacher.parts, teacher.settings.weight
    vectors = teacher.encoder.encode(list(questions), "query")
    highest = parts.dense.search(vectors, 1)[0][:, 0]
    if parts.settings.normalization == fusion.INFORMATION:
        by_words = np.array([parts.bm25.information(question) for question in questions])
    else:
        by_words = parts.by_words(questions, 1)[0][:, 0]
    words = parts.scores_by_words(questions, rows)
    for place, mine in enumerate(parts.dense.vectors.take_each(rows)):
        near = mine @ vectors[place]
        low = fusion.COSINE if parts.cosine else float(near.min())
        unit = max(float(highest[place]) - low, 1e-6)
        both = np.stack([(near - low) / unit, words[place] / max(float(by_words[place]), 1e-6)])
        yield np.stack([fusion.mixed(both, weight), both[1].astype(np.float32)])


def by_passage(
    queries: Sequence[Query], judged: Judgements, teacher: Hybrid
) -> dict[str, list[Query]]:
    """The queries of each passage that it answers; one without judgements, as of a log, goes to
    the passage that the teacher ranks first.
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
