"""Documents into passages of at most `max_tokens` tokens of the target vocabulary.

Sentences (or lines) are grouped by one of the two published rules, see `spans.py`. Every piece of
text goes into exactly one passage, as it stands in the document. What is random (which spans are
short) comes from (seed, document id) alone, so neither shards nor processes change a passage.
"""

from __future__ import annotations

import hashlib
import os
import random
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qac_jax.fields import option
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import LOCAL, Document, Shard, id_rows, read_shard
from qac_jax.formats.records import Record, write_lines
from qac_jax.text import sentences, spans, tokenizers
from qac_jax.text.sentences import Span
from qac_jax.text.tokenizers import Tokenizer


_RESERVED = ("_id", "doc", "position", "title", "text")
# Every passage is searched for each: more of them would make the time grow with the length squared.
_MOST_LOCAL = 4096

# Characters that are looked at for each token of a piece.
_SMALL_WINDOW, _WINDOW = 8, 64


class Cutter:
    """Cuts documents; the splitter, by its name, is loaded on first use: collections that come as
    passages need none, and NLTK is slow to load."""

    def __init__(
        self,
        cutting: Cutting,
        tokenizer: Tokenizer | None = None,
        splitter: str = "auto",
        *,
        seed: int = 0,
    ):
        self.cutting, self.tokenizer, self.splitter, self.seed = cutting, tokenizer, splitter, seed
        self.sentences_by = ""  # the splitter's own name, once it was used

    def records(self, document: Document) -> Iterator[Record]:
        """The passages of a document, with its identity and what it says about itself."""
        meta = dict(document.meta)
        parts: Sequence[dict[str, Any]] = meta.pop("parts", ())
        local = {key: meta.pop(key)[:_MOST_LOCAL] for key in LOCAL if key in meta}

        def record(
            name: str, position: int, title: str, text: str, about: Mapping[str, Any]
        ) -> Record:
            own = {"_id": name, "doc": document.id, "position": position, "title": title}
            return {**own, "text": text, **_further({**meta, **about}, local, text)}

        if document.passages and self.cutting.cut in ("auto", "none"):
            for position, (name, title, text) in enumerate(document.passages):
                yield record(name, position, title or document.title, text, {})
            return
        position = 0
        sections = [("", p.text) for p in document.passages] or document.sections
        texts = self.cut([text for _, text in sections], document.id)
        for index, ((heading, _), pieces) in enumerate(zip(sections, texts, strict=True)):
            about = dict(parts[index]) if index < len(parts) else {}
            title = about.pop("title", document.title)
            if heading:
                about["section"] = heading
            for text in pieces:
                yield record(f"{document.id}#{position}", position, title, text, about)
                position += 1

    def cut(self, texts: Sequence[str], key: str) -> list[list[str]]:
        """The passages of each text; `key` (the document's id) decides all that is random."""
        if self.cutting.cut == "none":
            return [[text] if text.strip() else [] for text in texts]
        units = [self._units(text) for text in texts]
        counts = self._counts(
            [text[a:b] for text, places in zip(texts, units, strict=True) for a, b in places]
        )
        digest = hashlib.blake2b(f"{self.seed}\n{key}".encode(), digest_size=16).digest()
        rng = random.Random(int.from_bytes(digest, "little"))
        cut, start = [], 0
        for text, places in zip(texts, units, strict=True):
            stop = start + len(places)
            cut.append(self._passages(text, places, counts[start:stop], rng))
            start = stop
        return cut

    def _counts(self, texts: Sequence[str]) -> list[int]:
        assert self.tokenizer is not None, "cutting into sentences or lines needs a tokenizer"
        return self.tokenizer.count(texts)

    def _units(self, text: str) -> list[Span]:
        if self.cutting.cut == "lines":
            return sentences.lines(text)
        splitter = sentences.load(self.splitter)
        self.sentences_by = splitter.name
        return splitter.spans(text)

    def _passages(
        self, text: str, units: list[Span], counts: list[int], rng: random.Random
    ) -> list[str]:
        limit, probability = self.cutting.max_tokens, self.cutting.short_span_probability
        targets = spans.target_lengths(limit, probability, rng)
        if self.cutting.overshoot:
            groups = spans.spans_overshooting(counts, targets)
            return [text[a:b] for a, b in _slices(text, units, groups)]
        if any(count > limit for count in counts):
            units = self._divided(text, units, counts)
            counts = self._counts([text[a:b] for a, b in units])
        places = _slices(text, units, spans.spans_within(counts, targets))
        assert self.tokenizer is not None
        if not self.tokenizer.splits_at_spaces:  # lengths do not add up, so they are measured again
            places = self._divided(text, places, self._counts([text[a:b] for a, b in places]))
        return [text[a:b] for a, b in places]

    def _divided(self, text: str, places: list[Span], counts: list[int]) -> list[Span]:
        """Stretches that are longer than a passage, in pieces that are not."""
        assert self.tokenizer is not None
        limit, found = self.cutting.max_tokens, list[Span]()
        for place, count in zip(places, counts, strict=True):
            found.extend([place] if count <= limit else _pieces(self.tokenizer, text, place, limit))
        return found


def _slices(text: str, units: list[Span], groups: list[list[int]]) -> list[Span]:
    """Where each group stands: up to the next one's beginning, so that nothing is lost, not even
    sentences without a token (zero-width characters), which no group holds.
    """
    if not groups:
        return []
    starts = [0, *(units[group[0]][0] for group in groups[1:])]
    stops = [*starts[1:], len(text)]
    places = []
    for start, stop in zip(starts, stops, strict=True):
        part = text[start:stop]
        places.append((start + len(part) - len(part.lstrip()), start + len(part.rstrip())))
    return places


def _pieces(tokenizer: Tokenizer, text: str, place: Span, limit: int) -> Iterator[Span]:
    """A stretch of text in pieces of at most `limit` tokens, cut between words if it can be."""
    start, stop = place
    while start < stop:
        # No more of the text than is looked at: copies of the rest would cost its length squared.
        rest = text[start : min(stop, start + _WINDOW * limit + 1)]
        end = start + _fitting(tokenizer, rest, limit)
        part = text[start:end]
        yield start, start + len(part.rstrip())
        start = end
        while start < stop and text[start].isspace():
            start += 1


def _beginning(tokenizer: Tokenizer, text: str, limit: int) -> tuple[str, list[tuple[int, int]]]:
    """A beginning of the text with more than `limit` tokens, if it has them, and their places.

    A token stands for at least one character nearly always; a window bounds the work. A smaller one
    does where its end cannot change the first tokens: there is white space between, or as much.
    """
    window = text[: _SMALL_WINDOW * limit]
    offsets = tokenizer.offsets(window)
    if len(window) < len(text):
        rest = window[offsets[limit][1] :] if len(offsets) > limit else ""
        if not (len(offsets) > 2 * limit or any(map(str.isspace, rest))):
            window = text[: _WINDOW * limit]
            offsets = tokenizer.offsets(window)
    return window, offsets


def _fitting(tokenizer: Tokenizer, text: str, limit: int) -> int:
    """Length in characters of a beginning of the text that has at most `limit` tokens."""
    window, offsets = _beginning(tokenizer, text, limit)
    if len(offsets) <= limit:
        if len(window) == len(text):
            return len(text)
        offsets = [*offsets, (len(window), len(window))]
    end = max(1, offsets[min(limit, len(offsets) - 1)][0])
    if not text[end].isspace() and not text[end - 1].isspace():
        space = max(text.rfind(white, 1, end) for white in " \n\t")
        end = space if space > 0 else end
    # A word cut in two may have more tokens than the whole had: take off until it fits.
    while end > 1 and tokenizer.count([text[:end]])[0] > limit:
        end = max(1, end - max(1, end // 16))
    return end


def _further(meta: dict[str, Any], local: dict[str, Sequence[Any]], text: str) -> dict[str, Any]:
    """The rest of a record: all of `meta`, and of `local` what the text contains."""
    found = {key: value for key, value in meta.items() if key not in _RESERVED}
    for key, items in local.items():
        inside = [item for item in items if (item if isinstance(item, str) else item[-1]) in text]
        if inside and key not in found:
            found[key] = inside
    return found


CUTS = ("auto", "sentences", "lines", "none")


@dataclass(frozen=True)
class Cutting:
    """How documents are cut into passages."""

    cut: str = option(
        "auto",
        "where a passage may end; auto: at sentences, but the passages of judged collections "
        "stay whole",
        choices=CUTS,
    )
    max_tokens: int = option(
        144, "maximum passage length in tokens, without special tokens", at_least=8
    )
    overshoot: bool = option(
        False,
        "end a passage after the sentence that exceeds --max_tokens (QAC's released code), "
        "instead of before it",
    )
    short_span_probability: float = option(
        0.15, "share of passages with a random shorter length", at_least=0, at_most=1
    )


@dataclass(frozen=True)
class PrepareJob:
    """All that a worker needs; `ids`: where it notes the ids."""

    shard: Shard
    ids: str
    cutter: Callable[[], Cutter]
    skip_bad: int = 0
    drop: Mapping[int, bool] = field(default_factory=dict)


def prepare_shard(job: PrepareJob, path: str) -> dict[str, Any]:
    """Writes the passages of one shard; returns what the parent has to know, as JSON."""
    bad, cutter, ids = BadLines(job.skip_bad), job.cutter(), array("Q")
    facts: dict[str, Any] = {"documents": 0, "without_passages": 0}

    def records() -> Iterator[Record]:
        for document in read_shard(job.shard, bad, job.drop):
            ids.extend(id_rows(facts["documents"], document))
            facts["documents"] += 1
            cut = list(cutter.records(document))
            yield from cut
            facts["without_passages"] += not cut

    facts.update(write_lines(path, records()))
    facts["sentences_by"] = cutter.sentences_by
    facts.update(bad.facts())
    if not job.drop:
        with open(f"{job.ids}.part", "wb") as file:
            np.save(file, np.frombuffer(ids, np.uint64))
        os.replace(f"{job.ids}.part", job.ids)
    return facts


def cutter_of(cutting: Cutting, seed: int, tokenizer: str, splitter: str) -> Cutter:
    """A cutter with what its way of cutting needs, and no more."""
    read = None if cutting.cut == "none" else tokenizers.load(tokenizer)
    return Cutter(cutting, read, splitter, seed=seed)
