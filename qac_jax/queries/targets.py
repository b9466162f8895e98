"""What a small generator can learn to say about a text when nobody has asked about it yet.

AugTriever's four prompts (TQGen) are answered by a large instruction-tuned model. A small model
of our own learns the same four from the documents alone, by targets that need no questions:

    topic   an anchor that others gave the text, or its most telling phrase
    title   the title
    absum   the summary line, or the sentence that leads the text, shown without it
    exsum   the sentence that is most like the rest
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from qac_jax.text.sentences import Splitter


Record = Mapping[str, Any]

# Words of a sentence that can be a target, and of the text that must be left to read.
_SHORTEST, _LONGEST, _LEFT = 4, 40, 12
_PHRASE = 3  # words of a key phrase at most

_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_STOPWORDS = frozenset(
    "a about above after again against all also am an and any are as at be because been before "
    "being below between both but by can cannot could did do does doing down during each few for "
    "from further had has have having he her here hers him his how i if in into is it its itself "
    "just may me might more most must my no nor not now of off on once one only or other our out "
    "over own same shall she should so some such than that the their them then there these they "
    "this those through to too two under until up upon us use used using very was we were what "
    "when where which while who whom why will with would you your".split()
)


class Target(NamedTuple):
    """Which prompt is answered, after reading which text, by what."""

    prompt: str
    text: str
    answer: str


class Frequencies:
    """In how many texts each word stands: what makes a phrase telling, and sentences alike."""

    def __init__(self, texts: Iterable[str]):
        self.texts = 0
        self._counts: Counter[str] = Counter()
        for text in texts:
            self.texts += 1
            self._counts.update(set(words(text)))

    def weight(self, word: str) -> float:
        return math.log((self.texts + 1) / (self._counts[word] + 0.5))

    def vector(self, text: str) -> dict[str, float]:
        """tf-idf of the words, stop words left out."""
        counts = Counter(w for w in words(text) if w not in _STOPWORDS)
        return {word: count * self.weight(word) for word, count in counts.items()}


def words(text: str) -> list[str]:
    return [match.group().lower() for match in _WORD.finditer(text)]


def label_free(passage: Record, frequencies: Frequencies, splitter: Splitter) -> Iterator[Target]:
    """The targets that a passage offers; those it has no good answer to are left out."""
    text = passage["text"]
    anchors = [item if isinstance(item, str) else item[-1] for item in passage.get("anchors", ())]
    topic = next((a for a in anchors if a in text), "") or key_phrase(text, frequencies)
    if topic:
        yield Target("topic", text, topic)
    if passage.get("title"):
        yield Target("title", text, passage["title"])
    sentences = splitter.split(text)
    lead = passage.get("summary") or (sentences[0] if sentences else "")
    rest = without(text, lead)
    if _fits(lead) and len(rest.split()) >= _LEFT:
        yield Target("absum", rest, _line(lead))
    if chosen := central_sentence(sentences, frequencies):
        yield Target("exsum", text, _line(chosen))


def without(text: str, part: str) -> str:
    """The text with the first occurrence of the part taken out."""
    before, found, after = text.partition(part)
    return f"{before.rstrip()} {after.lstrip()}".strip() if found else text


def key_phrase(text: str, frequencies: Frequencies) -> str:
    """The run of words without stop words that is rare elsewhere and frequent here."""
    found: Counter[str] = Counter()
    as_written: dict[str, str] = {}
    for run in _runs(text):
        for size in range(1, _PHRASE + 1):
            for start in range(len(run) - size + 1):
                piece = run[start : start + size]
                name = " ".join(word.lower() for word in piece)
                found[name] += 1
                as_written.setdefault(name, " ".join(piece))

    def telling(name: str) -> tuple[float, str]:
        parts = name.split()
        rare = sum(map(frequencies.weight, parts)) / math.sqrt(len(parts))
        return (math.log1p(found[name]) * rare, name)

    best = max(found, key=telling, default="")
    return as_written.get(best, "")


def central_sentence(sentences: Sequence[str], frequencies: Frequencies) -> str:
    """The sentence whose words are most like those of all the others; "" where no one is."""
    usable = [number for number, sentence in enumerate(sentences) if _fits(sentence)]
    if len(sentences) < 3 or not usable:
        return ""
    vectors = [frequencies.vector(sentence) for sentence in sentences]
    whole: Counter[str] = Counter()
    for vector in vectors:
        whole.update(vector)

    def likeness(number: int) -> float:
        own = vectors[number]
        others = {word: whole[word] - own.get(word, 0.0) for word in whole}
        return _cosine(own, others)

    best = max(usable, key=lambda number: (likeness(number), -number))
    return sentences[best] if likeness(best) > 0.0 else ""


def _cosine(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    shared = sum(value * b.get(word, 0.0) for word, value in a.items())
    norms = math.hypot(*a.values()) * math.hypot(*b.values())
    return shared / norms if norms else 0.0


def _runs(text: str) -> Iterator[list[str]]:
    """Words that follow one another with nothing but a space between, stop words apart."""
    run: list[str] = []
    end = -1
    for match in _WORD.finditer(text):
        word = match.group()
        if run and text[end : match.start()] != " ":
            yield run
            run = []
        if word.lower() in _STOPWORDS or not any(map(str.isalpha, word)):
            if run:
                yield run
            run = []
        else:
            run.append(word)
        end = match.end()
    if run:
        yield run


def _fits(sentence: str) -> bool:
    return _SHORTEST <= len(words(sentence)) <= _LONGEST


def _line(text: str) -> str:
    return " ".join(text.split())
