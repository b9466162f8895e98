"""Hard negatives: passages that a searcher ranks high and that are not judged relevant.

As in Tevatron: the positives are removed from each query's ranking, and negatives are drawn with a
seed from its first 200 passages. A passage with the text of a positive counts as a positive,
whatever its id.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.data.judged import generated_id
from qac_jax.errors import UserError
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.retrieval.hits import Searchable
from qac_jax.retrieval.settings import Mining


# Rankings are a little deeper, since copies of positives are removed from them.
_ROOM = 16


@dataclasses.dataclass(frozen=True)
class Question:
    """A query and the rows of its positives in the passages."""

    id: str
    text: str
    positives: tuple[int, ...]


class Miner:
    """Several searchers over the same passages."""

    def __init__(
        self,
        passages: Records,
        searchers: Mapping[str, Searchable],
        mining: Mining,
        seed: int = 42,
    ):
        self._passages, self._mining, self._seed = passages, mining, seed
        self._searchers = searchers
        self._rows = {name: _rows_of(s, passages) for name, s in searchers.items()}
        self._texts = np.fromiter(
            (_text_hash(record["text"]) for record in passages), np.uint64, len(passages)
        )

    def mine(self, questions: Sequence[Question]) -> list[dict[str, Any]]:
        """A record for each question: ids of positives and negatives, ranks by each searcher."""
        most = max((len(q.positives) for q in questions), default=0)
        depth = depth_for(self._mining, most, len(self._passages))
        texts = [question.text for question in questions]
        rankings = {}
        for name, searcher in self._searchers.items():
            scores, rows = searcher.find(texts, min(depth, len(searcher)))
            rankings[name] = (scores, np.where(rows >= 0, self._rows[name][rows], -1))
        return [
            self._record(question, {n: (s[i], r[i]) for n, (s, r) in rankings.items()})
            for i, question in enumerate(questions)
        ]

    def _record(
        self, question: Question, rankings: Mapping[str, tuple[np.ndarray, np.ndarray]]
    ) -> dict[str, Any]:
        positives = list(question.positives)
        ranks: dict[str, dict[int, tuple[int, float]]] = {}
        for name, (scores, rows) in rankings.items():
            right = np.isin(rows, positives) | np.isin(self._texts[rows], self._texts[positives])
            places = np.flatnonzero((rows >= 0) & ~right)[: self._mining.depth]
            # Ranks are those of the whole ranking, positives included.
            ranks[name] = {
                int(rows[place]): (int(place) + 1, round(float(scores[place]), 6))
                for place in places
            }
        negatives = list(dict.fromkeys(row for ranked in ranks.values() for row in ranked))
        random.Random(f"{self._seed} {question.id}").shuffle(negatives)
        negatives = negatives[: self._mining.keep]
        none = (0, None)
        return {
            "_id": question.id,
            "query": question.text,
            "positives": [self._passages[row]["_id"] for row in positives],
            "negatives": [self._passages[row]["_id"] for row in negatives],
            "ranks": {n: [r.get(row, none)[0] for row in negatives] for n, r in ranks.items()},
            "scores": {n: [r.get(row, none)[1] for row in negatives] for n, r in ranks.items()},
        }


def depth_for(mining: Mining, positives: int, passages: int) -> int:
    """How deep rankings are searched for questions with at most this number of positives."""
    return min(mining.depth + positives + _ROOM, passages)


def questions_of(
    texts: Mapping[str, str], judged: Mapping[str, Mapping[str, int]], passages: Records
) -> list[Question]:
    """Judged queries with positives; all positives must be among the passages."""
    names = [name for name in judged if name in texts]
    wanted = {
        name: [passage for passage, grade in judged[name].items() if grade > 0] for name in names
    }
    known = list(dict.fromkeys(passage for positives in wanted.values() for passage in positives))
    rows = dict(zip(known, passages.positions(known), strict=True))
    absent = [passage for passage, row in rows.items() if row is None]
    if absent:
        raise UserError(
            f"{len(absent)} judged passages are not among the passages, such as {absent[0]!r}; "
            "give the passages that were judged"
        )
    return [
        Question(name, texts[name], tuple(rows[passage] or 0 for passage in positives))
        for name, positives in wanted.items()
        if positives
    ]


def _rows_of(searcher: Searchable, passages: Records) -> np.ndarray:
    """For each row of the searcher, the row of the same passage."""
    ids: Iterable[str] = searcher.ids
    if len(searcher) == len(passages) and all(
        ours == theirs for ours, theirs in zip(ids, passages.ids(), strict=True)
    ):
        return np.arange(len(passages))
    places = passages.positions(searcher.ids)
    if None in places:
        raise UserError(
            f"{searcher.artifact.path} holds passages that are not among the given ones, such as "
            f"{searcher.ids[places.index(None)]!r}; give the passages that it was made of"
        )
    return np.array(places, np.int64)


def _text_hash(text: str) -> int:
    """Hash of the words, without regard to case and blanks."""
    plain = " ".join(text.split()).casefold()
    return int.from_bytes(hashlib.blake2b(plain.encode(), digest_size=8).digest(), "little")


def judged_queries(
    queries: str | os.PathLike[str], qrels: str | os.PathLike[str], passages: Records
) -> list[Question]:
    """The queries of a file, with positives from judgements."""
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
