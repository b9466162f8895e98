"""Texts into records: what `tokenize` stores for each kind of example.

Every builder turns the passages of a document (or the judged passages of a query) into records of
token ids without special tokens and without truncation, because which part of a long text is seen
is drawn anew each epoch. Sibling passages are the exception: as in the released code, they are
drawn once, when they are stored (`siblings` of each sort).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from qac_jax.data import store
from qac_jax.data.building import SORTS
from qac_jax.text import sentences, spans, tokenizers
from qac_jax.text.titles import text_of
from qac_jax.text.tokenizers import Tokenizer


Record = Mapping[str, Any]
Ids = Sequence[int]

# Tasks whose records come from the passages of documents, and those of judged queries.
DOCUMENT_TASKS = (
    "passage_query",
    "passage_passage",
    "mixed",
    "two_spans",
    "augtriever",
    "mlm",
    "seq2seq",
)
RANKING_TASKS = ("triples", "cross_encoder", "cross_encoder_group")


@dataclasses.dataclass(frozen=True)
class Building:
    """The settings of `tokenize` that decide what is stored."""

    task: str
    tokenizer: str
    title: str = "none"
    prefix: str = ""
    query_prompt: str = ""
    passage_prompt: str = ""
    sorts: tuple[str, ...] = SORTS
    siblings: int = 1
    overlap_tokens: int = 144
    splitter: str = "auto"
    origins: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    teacher: bool = False
    scores: bool = False
    part: str = "all"
    input_tokens: int = 0  # seq2seq pairs: what is read, without special tokens (0: all)
    seed: int = 0

    def takes(self, passage: Record) -> bool:
        """Whether this passage belongs to the part of the corpus that is asked for."""
        if self.part == "all":
            return True
        return bool(passage.get("held_out")) == (self.part == "held_out")

    def schema(self, vocab_size: int) -> dict[str, str]:
        """Stored features and their dtypes."""
        make = functools.partial(store.schema_of, vocab_size)
        scores = ("positives_scores", "negatives_scores") if self.teacher else ()
        judged = make(["query"], ["positives", "negatives"], **dict.fromkeys(scores, "float32"))
        return {
            "passage_query": make(["passage"], ["contexts"]),
            "passage_passage": make(["passage"], self.sorts),
            "mixed": make(["passage"], ["contexts", *self.sorts]),
            "mlm": make(["passage"], []),
            "two_spans": make([], ["spans"]),
            "augtriever": make(["text"], self.strategies, words="int32"),
            "seq2seq": make(["inputs"], ["targets"]),
            "triples": judged,
            "cross_encoder_group": judged,
            "cross_encoder": make(["query", "passage"], [], label="int32"),
        }[self.task]


@dataclasses.dataclass(frozen=True)
class Document:
    """The passages of a document, and the contexts of each."""

    passages: Sequence[Record]
    contexts: Sequence[Sequence[Record]]


class DocumentBuilder:
    """Documents into records, many at a time; counts what it leaves out."""

    def __init__(self, building: Building):
        self.building = building
        self.tokenizer = tokenizers.load(building.tokenizer)
        self.left_out: dict[str, int] = {}
        self._splitter: sentences.Splitter | None = None
        self._build: Callable[[Sequence[Document]], Iterator[list[Record]]]
        self._build = getattr(self, f"_{building.task}", self._pretraining)

    def records(self, documents: Sequence[Document]) -> Iterator[list[Record]]:
        """The records of each document."""
        return self._build(documents)

    def _pretraining(self, documents: Sequence[Document]) -> Iterator[list[Record]]:
        task = self.building.task
        bodies = self._bodies(documents)
        queries, siblings = _nothing(documents, list), _nothing(documents, dict)
        if task in ("passage_query", "mixed"):
            queries = self._contexts(documents)
        if task in ("passage_passage", "mixed"):
            siblings = self._siblings(documents, bodies)
        for body, asked, others in zip(bodies, queries, siblings, strict=True):
            found: list[Record] = []
            for ids, contexts, more in zip(body, asked, others, strict=True):
                if not ids:
                    self._leave_out("passages without tokens")
                elif task == "passage_query" and not contexts:
                    self._leave_out("passages without queries")
                else:
                    found.append({"passage": ids, "contexts": contexts, **more})
            yield found

    def _two_spans(self, documents: Sequence[Document]) -> Iterator[list[Record]]:
        for body in self._bodies(documents):
            found = [ids for ids in body if ids]
            if len(found) < 2:
                self._leave_out("documents of one passage")
            yield [{"spans": found}] if len(found) > 1 else []

    def _augtriever(self, documents: Sequence[Document]) -> Iterator[list[Record]]:
        words = [[p["text"].split() for p in d.passages] for d in documents]
        encoded = self.tokenizer.backend.encode_batch(
            _flat(words), is_pretokenized=True, add_special_tokens=False
        )
        names = self.building.strategies
        texts = [
            [strategy_texts(p, c) for p, c in zip(d.passages, d.contexts, strict=True)]
            for d in documents
        ]
        by_name = {
            name: self._encoded([[t.get(name, []) for t in of] for of in texts]) for name in names
        }
        stream = iter(encoded)
        for number, document in enumerate(words):
            found: list[Record] = []
            for place, split in enumerate(document):
                encoding = next(stream)
                if not encoding.ids:
                    self._leave_out("passages without tokens")
                    continue
                pieces = [0] * len(split)
                for word in encoding.word_ids:
                    pieces[word] += 1
                # Words that leave no token (control characters) would make empty crops.
                record = {"text": encoding.ids, "words": [count for count in pieces if count]}
                found.append({**record, **{n: by_name[n][number][place] for n in names}})
            yield found

    def _seq2seq(self, documents: Sequence[Document]) -> Iterator[list[Record]]:
        bodies = self._bodies(documents)
        for body, asked in zip(bodies, self._contexts(documents), strict=True):
            pairs = list(zip(body, asked, strict=True))
            for _, targets in pairs:
                if not targets:
                    self._leave_out("passages without targets")
            yield [{"inputs": ids, "targets": targets} for ids, targets in pairs if targets]

    def _bodies(self, documents: Sequence[Document]) -> list[list[Ids]]:
        """The ids of all passages, of each document."""
        prefix, title = self.building.prefix, self.building.title
        texts = [
            [prefix + text_of(self.tokenizer, p, title) for p in d.passages] for d in documents
        ]
        stream = iter(self.tokenizer.encode_batch(_flat(texts)))
        return [[next(stream) for _ in of] for of in texts]

    def _contexts(self, documents: Sequence[Document]) -> list[list[list[Ids]]]:
        """The ids of every passage's contexts."""
        origins = self.building.origins
        return self._encoded(
            [
                [
                    [c["text"] for c in given if not origins or c["origin"] in origins]
                    for given in of
                ]
                for of in (d.contexts for d in documents)
            ]
        )

    def _encoded(self, texts: Sequence[Sequence[Sequence[str]]]) -> list[list[list[Ids]]]:
        """Ids of the texts of every passage of every document, empty ones left out."""
        stream = iter(self.tokenizer.encode_batch(_flat(_flat(texts))))
        return [[[ids for ids in (next(stream) for _ in of) if ids] for of in d] for d in texts]

    def _siblings(
        self, documents: Sequence[Document], bodies: Sequence[Sequence[Ids]]
    ) -> list[list[dict[str, list[Ids]]]]:
        """Other passages of the document for each passage, of every sort; none for a lone one."""
        sorts, draws = (
            self.building.sorts,
            (("random", spans.random_sampled), ("nearby", spans.nearby)),
        )
        overlaps = self._overlaps(documents) if "overlap" in sorts else None
        found = []
        for d, (document, body) in enumerate(zip(documents, bodies, strict=True)):
            of_passages = []
            for number, passage in enumerate(document.passages):
                rng = random.Random(f"{self.building.seed} {passage['_id']}")
                others: dict[str, list[Ids]] = {}
                for sort, draw in draws:
                    if sort in sorts:
                        drawn = (
                            draw(len(body), number, rng) for _ in range(self.building.siblings)
                        )
                        different = [body[i] for i in dict.fromkeys(drawn) if i != number]
                        others[sort] = [ids for ids in different if ids]
                if overlaps is not None:
                    others["overlap"] = overlaps[d][number]
                of_passages.append(others)
            found.append(of_passages)
        return found

    def _overlaps(self, documents: Sequence[Document]) -> list[list[list[Ids]]]:
        """Texts that share sentences with each passage and go on after it (CoT-MAE's `overlap`)."""
        if self._splitter is None:
            self._splitter = sentences.load(self.building.splitter)
        split = [[self._splitter.split(p["text"]) for p in d.passages] for d in documents]
        counts = iter(self.tokenizer.count(_flat(_flat(split))))
        limit, each = self.building.overlap_tokens, self.building.siblings
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
                    spans.overlap(groups, number, sizes, limit, rng)
                    for _ in range(each if groups[number] else 0)
                )
                chosen = dict.fromkeys(" ".join(together[i] for i in of) for of in drawn)
                of_passages.append(list(chosen))
            texts.append(of_passages)
        return self._encoded(texts)

    def _leave_out(self, what: str) -> None:
        self.left_out[what] = self.left_out.get(what, 0) + 1


def _flat(nested: Iterable[Iterable[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(nested))


def _nothing(documents: Sequence[Document], kind: type) -> list[list[Any]]:
    return [[kind() for _ in document.passages] for document in documents]


def strategy_texts(passage: Record, contexts: Sequence[Record]) -> dict[str, list[str]]:
    """What may be AugTriever's query, by strategy: title, anchors, phrases, and contexts."""
    texts: dict[str, list[str]] = {
        "title": [passage["title"]] if passage.get("title") else [],
        "anchor": [_label(item) for item in passage.get("anchors", ())],
        "phrase": [_label(item) for item in passage.get("phrases", ())],
    }
    for context in contexts:
        texts.setdefault(context["origin"], []).append(context["text"])
    return texts


def separator_ids(tokenizer: Tokenizer) -> list[int]:
    """What ", " adds between two phrases."""
    alone, joined = tokenizer.encode("a"), tokenizer.encode("a, a")
    return joined[len(alone) : len(joined) - len(alone)]


def _label(item: Any) -> str:
    """Anchors are [target, label]."""
    return item if isinstance(item, str) else item[-1]
