"""Texts into records: what `tokenize` stores for each kind of example.

Every builder turns the passages of a document (or the judged passages of a query) into records of
token ids without special tokens and without truncation, because which part of a long text is seen
is drawn anew each epoch. Sibling passages are the exception: as in the released code, they are
drawn once, when they are stored (`siblings` of each sort).
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from qac_jax.data import store
from qac_jax.data.pairs import PASSAGES
from qac_jax.text import sentences, spans, tokenizers
from qac_jax.text.tokenizers import Tokenizer


Record = Mapping[str, Any]
Ids = Sequence[int]

TITLES = ("none", "separate", "space")
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
    sorts: tuple[str, ...] = PASSAGES
    siblings: int = 1
    overlap_tokens: int = 144
    splitter: str = "auto"
    origins: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    teacher: bool = False
    seed: int = 0

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


class DocumentBuilder:
    """Passages of one document, with their contexts, into records; counts what it leaves out."""

    def __init__(self, building: Building):
        self.building = building
        self.tokenizer = tokenizers.load(building.tokenizer)
        self.left_out: dict[str, int] = {}
        self._splitter: sentences.Splitter | None = None
        self._build: Callable[[Sequence[Record], Sequence[Sequence[Record]]], Iterator[Record]]
        task = building.task
        self._build = getattr(self, f"_{task}", self._pretraining)

    def records(
        self, passages: Sequence[Record], contexts: Sequence[Sequence[Record]]
    ) -> Iterator[Record]:
        """The records of a document; `contexts` are those of each passage."""
        return self._build(passages, contexts)

    def _pretraining(
        self, passages: Sequence[Record], contexts: Sequence[Sequence[Record]]
    ) -> Iterator[Record]:
        task = self.building.task
        texts = [text_of(self.tokenizer, p, self.building.title) for p in passages]
        bodies = self.tokenizer.encode_batch(texts)
        queries: Sequence[list[Ids]] = [[]] * len(passages)
        if task in ("passage_query", "mixed"):
            queries = self._contexts(contexts)
        siblings: Sequence[dict[str, list[Ids]]] = [{}] * len(passages)
        if task in ("passage_passage", "mixed"):
            siblings = self._siblings(passages, bodies)
        for body, asked, others in zip(bodies, queries, siblings, strict=True):
            if not body:
                self._leave_out("passages without tokens")
            elif task == "passage_query" and not asked:
                self._leave_out("passages without queries")
            else:
                yield {"passage": body, "contexts": asked, **others}

    def _two_spans(
        self, passages: Sequence[Record], _: Sequence[Sequence[Record]]
    ) -> Iterator[Record]:
        texts = [text_of(self.tokenizer, p, self.building.title) for p in passages]
        found = [ids for ids in self.tokenizer.encode_batch(texts) if ids]
        if len(found) < 2:
            self._leave_out("documents of one passage")
            return
        yield {"spans": found}

    def _augtriever(
        self, passages: Sequence[Record], contexts: Sequence[Sequence[Record]]
    ) -> Iterator[Record]:
        words = [passage["text"].split() for passage in passages]
        encoded = self.tokenizer.backend.encode_batch(
            words, is_pretokenized=True, add_special_tokens=False
        )
        for passage, split, encoding, given in zip(passages, words, encoded, contexts, strict=True):
            if not encoding.ids:
                self._leave_out("passages without tokens")
                continue
            pieces = [0] * len(split)
            for word in encoding.word_ids:
                pieces[word] += 1
            # Words that leave no token (control characters) would make empty crops.
            record = {"text": encoding.ids, "words": [count for count in pieces if count]}
            texts = strategy_texts(passage, given)
            for name in self.building.strategies:
                record[name] = self._nonempty(texts.get(name, []))
            yield record

    def _seq2seq(
        self, passages: Sequence[Record], contexts: Sequence[Sequence[Record]]
    ) -> Iterator[Record]:
        prefix, title = self.building.prefix, self.building.title
        texts = [prefix + text_of(self.tokenizer, p, title) for p in passages]
        inputs = self.tokenizer.encode_batch(texts)
        for ids, targets in zip(inputs, self._contexts(contexts), strict=True):
            if targets:
                yield {"inputs": ids, "targets": targets}
            else:
                self._leave_out("passages without targets")

    def _contexts(self, contexts: Sequence[Sequence[Record]]) -> list[list[Ids]]:
        """The ids of every passage's contexts, empty ones left out."""
        origins = self.building.origins
        texts = [
            [c["text"] for c in given if not origins or c["origin"] in origins]
            for given in contexts
        ]
        flat = self.tokenizer.encode_batch([text for given in texts for text in given])
        found: list[list[Ids]] = []
        start = 0
        for given in texts:
            found.append([ids for ids in flat[start : start + len(given)] if ids])
            start += len(given)
        return found

    def _nonempty(self, texts: Sequence[str]) -> list[Ids]:
        return [ids for ids in self.tokenizer.encode_batch(list(texts)) if ids]

    def _siblings(
        self, passages: Sequence[Record], bodies: Sequence[Ids]
    ) -> list[dict[str, list[Ids]]]:
        """Other passages of the document for each, of every sort; none where it is alone."""
        sorts, count = self.building.sorts, len(passages)
        overlaps = self._overlaps(passages) if "overlap" in sorts else [[]] * count
        found = []
        for number, passage in enumerate(passages):
            rng = random.Random(f"{self.building.seed} {passage['_id']}")
            others: dict[str, list[Ids]] = {}
            for sort, draw in (("random", spans.random_sampled), ("nearby", spans.nearby)):
                if sort in sorts:
                    drawn = (draw(count, number, rng) for _ in range(self.building.siblings))
                    others[sort] = [bodies[i] for i in dict.fromkeys(drawn) if i != number]
            if "overlap" in sorts:
                others["overlap"] = overlaps[number]
            found.append({sort: [ids for ids in texts if ids] for sort, texts in others.items()})
        return found

    def _overlaps(self, passages: Sequence[Record]) -> list[list[Ids]]:
        """Texts that share sentences with each passage and go on after it (B.3)."""
        if self._splitter is None:
            self._splitter = sentences.load(self.building.splitter)
        split = [self._splitter.split(passage["text"]) for passage in passages]
        flat = [sentence for parts in split for sentence in parts]
        counts = self.tokenizer.count(flat)
        groups, start = [], 0
        for parts in split:
            groups.append(list(range(start, start + len(parts))))
            start += len(parts)
        texts: list[str] = []
        limit, each = self.building.overlap_tokens, self.building.siblings
        for number, passage in enumerate(passages):
            rng = random.Random(f"{self.building.seed} {passage['_id']} overlap")
            for _ in range(each):
                chosen = spans.overlap(groups, number, counts, limit, rng) if groups[number] else []
                texts.append(" ".join(flat[i] for i in chosen))
        encoded: list[Ids] = list(self.tokenizer.encode_batch(texts))
        return [encoded[i : i + each] for i in range(0, len(encoded), each)]

    def _leave_out(self, what: str) -> None:
        self.left_out[what] = self.left_out.get(what, 0) + 1


def text_of(tokenizer: Tokenizer, passage: Record, title: str) -> str:
    """A passage with its title: left out, before a separator token, or before a space.

    The separator is written as text: tokenisers know their own special tokens.
    """
    name = passage.get("title") or ""
    if title == "none" or not name:
        return passage["text"]
    if title == "space":
        return f"{name} {passage['text']}"
    role = "sep" if tokenizer.has("sep") else "eos"
    return f"{name}{tokenizer.special_tokens[role]}{passage['text']}"


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


def form_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """Which special tokens stand before, between and after texts, as the tokeniser has it."""
    backend, (a, b) = tokenizer.backend, ("a", "b")
    one = backend.encode(a).ids
    two = backend.encode(a, b).ids
    first, second = (backend.encode(text, add_special_tokens=False).ids for text in (a, b))
    start = _find(one, first)
    before, after = one[:start], one[start + len(first) :]
    if not before and not after:  # no template in its file: BERT's or T5's, by what it has
        if tokenizer.has("cls") and tokenizer.has("sep"):
            before, after = [tokenizer.cls_id], [tokenizer.sep_id]
        else:
            after = [tokenizer.eos_id]
        between = after
    else:
        rest = two[len(before) + len(first) :]
        between = rest[: _find(rest, second)]
    return {"before": before, "between": between, "after": after, "pad": tokenizer.pad_id}


def separator_ids(tokenizer: Tokenizer) -> list[int]:
    """What ", " adds between two phrases."""
    alone, joined = tokenizer.encode("a"), tokenizer.encode("a, a")
    return joined[len(alone) : len(joined) - len(alone)]


def _find(ids: Sequence[int], part: Sequence[int]) -> int:
    for start in range(len(ids) - len(part) + 1):
        if list(ids[start : start + len(part)]) == list(part):
            return start
    raise ValueError("a text's ids are not found between its special tokens")


def _label(item: Any) -> str:
    """Anchors are [target, label]."""
    return item if isinstance(item, str) else item[-1]
