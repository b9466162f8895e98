"""Batched tokenisation of texts, with which the kinds of `data/kinds/` make their records.

Sibling passages are drawn once, when they are stored (as in CoT-MAE's released code); all other
random choices are made in training.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from qac_jax.data.building import Building, Record
from qac_jax.data.judged import Judged
from qac_jax.formats.records import Records
from qac_jax.text import sentences, spans, tokenizers
from qac_jax.text.titles import text_of


Ids = Sequence[int]

# Queries that are tokenised in one call, with their passages.
_QUERIES = 64


@dataclasses.dataclass(frozen=True)
class DocumentContexts:
    """The passages of a document, and the contexts of each."""

    passages: Sequence[Record]
    contexts: Sequence[Sequence[Record]]


class _Encoder:
    """A tokeniser with the settings of a stage; counts what is left out."""

    def __init__(self, building: Building):
        self.building = building
        self.tokenizer = tokenizers.load(building.tokenizer)
        self.left_out: dict[str, int] = {}

    def has(self, ids: Sequence[Any], otherwise: str) -> bool:
        """Whether `ids` is not empty; if it is, it is counted as left out."""
        if not ids:
            self.left_out[otherwise] = self.left_out.get(otherwise, 0) + 1
        return bool(ids)


class DocumentTexts(_Encoder):
    """The ids of documents' passages, contexts and siblings."""

    _splitter: sentences.Splitter | None = None

    def passages(self, documents: Sequence[DocumentContexts]) -> list[list[Ids]]:
        """The ids of the passages of each document."""
        prefix, title = self.building.texts.prefix, self.building.texts.title
        texts = [
            [prefix + text_of(self.tokenizer, p, title) for p in d.passages] for d in documents
        ]
        stream = iter(self.tokenizer.encode_batch(_flat(texts)))
        return [[next(stream) for _ in of] for of in texts]

    def contexts(self, documents: Sequence[DocumentContexts]) -> list[list[list[Ids]]]:
        """The ids of the contexts of every passage."""
        origins = self.building.selection.origins
        return self.lists(
            [
                [
                    [c["text"] for c in contexts if not origins or c["origin"] in origins]
                    for contexts in of
                ]
                for of in (d.contexts for d in documents)
            ]
        )

    def lists(self, texts: Sequence[Sequence[Sequence[str]]]) -> list[list[list[Ids]]]:
        """Ids of the texts of every passage of every document, empty ones left out."""
        stream = iter(self.tokenizer.encode_batch(_flat(_flat(texts))))
        return [[[ids for ids in (next(stream) for _ in of) if ids] for of in d] for d in texts]

    def sentences(self, documents: Sequence[DocumentContexts]) -> list[list[list[str]]]:
        """The sentences of the passages of each document."""
        if self._splitter is None:
            self._splitter = sentences.load(self.building.siblings.splitter)
        return [[self._splitter.split(p["text"]) for p in d.passages] for d in documents]

    def siblings(
        self, documents: Sequence[DocumentContexts], bodies: Sequence[Sequence[Ids]]
    ) -> list[list[dict[str, list[Ids]]]]:
        """Other passages of the document for each passage, of every sort; none for a single one."""
        sorts, each = self.building.siblings.sorts, self.building.siblings.siblings
        draws = {"random": spans.random_sampled, "nearby": spans.nearby}
        overlaps = self._overlaps(documents) if "overlap" in sorts else None
        siblings = []
        for d, (document, body) in enumerate(zip(documents, bodies, strict=True)):
            of_passages = []
            for number, passage in enumerate(document.passages):
                rng = random.Random(f"{self.building.seed} {passage['_id']}")
                others: dict[str, list[Ids]] = {}
                for sort, draw in draws.items():
                    if sort in sorts:
                        drawn = (draw(len(body), number, rng) for _ in range(each))
                        different = [body[i] for i in dict.fromkeys(drawn) if i != number]
                        others[sort] = [ids for ids in different if ids]
                if overlaps is not None:
                    others["overlap"] = overlaps[d][number]
                of_passages.append(others)
            siblings.append(of_passages)
        return siblings

    def _overlaps(self, documents: Sequence[DocumentContexts]) -> list[list[list[Ids]]]:
        """Texts that overlap each passage in whole sentences (CoT-MAE's `overlap`)."""
        chosen = self.building.siblings
        split = self.sentences(documents)
        counts = iter(self.tokenizer.count(_flat(_flat(split))))
        texts = []
        for document, parts in zip(documents, split, strict=True):
            together = _flat(parts)
            sizes = [next(counts) for _ in together]
            numbers = iter(range(len(together)))
            groups = [[next(numbers) for _ in part] for part in parts]
            of_passages = []
            for number, passage in enumerate(document.passages):
                rng = random.Random(f"{self.building.seed} {passage['_id']} overlap")
                drawn = (
                    spans.overlap(groups, number, sizes, chosen.overlap_tokens, rng)
                    for _ in range(chosen.siblings if groups[number] else 0)
                )
                different = dict.fromkeys(" ".join(together[i] for i in of) for of in drawn)
                of_passages.append(list(different))
            texts.append(of_passages)
        return self.lists(texts)


class JudgedTexts(_Encoder):
    """The ids of queries and their passages; a passage that repeats is tokenised once."""

    def __init__(self, building: Building, passages: Records | None):
        super().__init__(building)
        self._passages = passages
        self._known: dict[Any, np.ndarray] = {}

    def queries(
        self,
        queries: Sequence[Judged],
        change: Callable[[Judged], Judged] = lambda judged: judged,
    ) -> Iterator[tuple[Judged, Ids]]:
        """The queries (after `change`) with their ids; the ids of their passages are cached."""
        prompt = self.building.texts.query_prompt
        for start in range(0, len(queries), _QUERIES):
            together = [change(judged) for judged in queries[start : start + _QUERIES]]
            self._learn(judged.positives for judged in together)
            self._learn(judged.negatives for judged in together)
            encoded = self.tokenizer.encode_batch([prompt + j.query for j in together])
            for judged, ids in zip(together, encoded, strict=True):
                if self.has(ids, "queries without tokens"):
                    yield judged, ids

    def ids(self, passages: Sequence[Any] | np.ndarray) -> list[np.ndarray]:
        """The ids of passages of a query that `queries` gave."""
        return [self._known[passage] for passage in passages]

    def _learn(self, lists: Iterable[Sequence[Any] | np.ndarray]) -> None:
        """Reads and tokenises the passages that are new."""
        new = dict.fromkeys(p for passages in lists for p in passages)
        names = [passage for passage in new if passage not in self._known]
        prompt, title = self.building.texts.passage_prompt, self.building.texts.title
        texts = [prompt + text_of(self.tokenizer, self._record(p), title) for p in names]
        for passage, ids in zip(names, self.tokenizer.encode_batch(texts), strict=True):
            self._known[passage] = np.array(ids, np.int32)

    def _record(self, passage: Any) -> Record:
        if not isinstance(passage, np.integer):
            return {"title": passage.title, "text": passage.text}
        assert self._passages is not None, "numbers of passages come with the passages"
        return self._passages[int(passage)]


def _flat(nested: Iterable[Iterable[Any]]) -> list[Any]:
    """The list with one level of nesting removed."""
    return list(itertools.chain.from_iterable(nested))
