"""Training pairs of a generator: a text with a prompt before or after it, and target texts.

A record is {"_id", "before", "text", "after", "targets"}. Where the whole is too long for the
model only the text is truncated, so a prompt after it is never lost.

AugTriever's four prompts (TQGen) are answered by a large instruction-tuned model. A small model
learns the same four prompts from targets that need no labels:

    topic   an anchor of the text, or its key phrase
    title   the title
    absum   the summary line, or the first sentence; the input is the text without it
    exsum   the sentence that is most similar to the others
"""

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from qac_jax.errors import UserError
from qac_jax.formats.judgements import read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.queries.prompts import PROMPTS
from qac_jax.text.sentences import Splitter


Record = dict[str, Any]

# The fewest and most words of a target sentence, and the fewest that must remain of a text when a
# line of it is the answer.
_SHORTEST, _LONGEST, _LEFT = 4, 40, 12
_PHRASE = 3  # the most words of a key phrase

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


def questions(
    passages: Iterable[Mapping[str, Any]],
    questions_of: Mapping[str, Sequence[str]],
    prefix: str,
    *,
    titled: bool = False,
) -> Iterator[Record]:
    """Passages with the questions that they answer; a docstring's summary line is its question.

    The line is removed from the body, or the generator would learn to copy the first sentence.
    titled: titles stand before texts.
    """
    for passage in passages:
        answers = list(questions_of.get(passage["_id"], ()))
        text = passage["text"]
        if summary := passage.get("summary"):
            text = without(text, summary)
            if len(text.split()) >= _LEFT:
                answers.append(" ".join(summary.split()).rstrip("."))
        if answers:
            title = (passage.get("title") or "").strip() if titled else ""
            yield _record(passage["_id"], prefix, f"{title} {text}" if title else text, "", answers)


def label_free(passages: Sequence[Mapping[str, Any]], splitter: Splitter) -> Iterator[Record]:
    """Passages with each of the four prompts, with targets from the passages alone."""
    frequencies = Frequencies(passage["text"] for passage in passages)
    for passage in passages:
        for name, (text, answer) in targets_of(passage, frequencies, splitter).items():
            prompt = PROMPTS[name]
            yield _record(f"{passage['_id']}#{name}", prompt.before, text, prompt.after, [answer])


def judged_queries(folder: str, splits: Sequence[str]) -> dict[str, list[str]]:
    """passage -> its questions in those of these splits that a BEIR folder has."""
    below = os.path.join(folder, "qrels")
    if not os.path.isdir(below):
        raise UserError(f"{folder} has no folder qrels; expected a collection in BEIR's layout")
    texts = {query.id: query.text for query in read_queries(os.path.join(folder, "queries.jsonl"))}
    questions_of: dict[str, list[str]] = defaultdict(list)
    for file in (os.path.join(below, f"{split}.tsv") for split in splits):
        grades = read_judgements(file, queries=texts) if os.path.exists(file) else iter(())
        for query, passage, grade in grades:
            if grade > 0:
                questions_of[passage].append(texts[query])
    return questions_of


def _record(name: str, before: str, text: str, after: str, answers: Sequence[str]) -> Record:
    return {"_id": name, "before": before, "text": text, "after": after, "targets": list(answers)}


class Frequencies:
    """Document frequencies of words, for key phrases and for the similarity of sentences."""

    def __init__(self, texts: Iterable[str]):
        self.texts = 0
        self._counts: Counter[str] = Counter()
        for text in texts:
            self.texts += 1
            self._counts.update(set(words_of(text)))

    def weight(self, word: str) -> float:
        return math.log((self.texts + 1) / (self._counts[word] + 0.5))

    def vector(self, text: str) -> dict[str, float]:
        """tf-idf of the words without stop words."""
        counts = Counter(w for w in words_of(text) if w not in _STOPWORDS)
        return {word: count * self.weight(word) for word, count in counts.items()}


def words_of(text: str) -> list[str]:
    return [match.group().lower() for match in _WORD.finditer(text)]


def targets_of(
    passage: Mapping[str, Any], frequencies: Frequencies, splitter: Splitter
) -> dict[str, tuple[str, str]]:
    """Prompt -> input text and target answer; prompts without a good answer are left out."""
    text, found = passage["text"], {}
    anchors = [item if isinstance(item, str) else item[-1] for item in passage.get("anchors", ())]
    topic = next((a for a in anchors if a in text), "") or key_phrase(text, frequencies)
    if topic:
        found["topic"] = text, topic
    if passage.get("title"):
        found["title"] = text, passage["title"]
    sentences = splitter.split(text)
    lead = passage.get("summary") or (sentences[0] if sentences else "")
    rest = without(text, lead)
    if _fits(lead) and len(rest.split()) >= _LEFT:
        found["absum"] = rest, " ".join(lead.split())
    if chosen := central_sentence(sentences, frequencies):
        found["exsum"] = text, " ".join(chosen.split())
    return found


def without(text: str, part: str) -> str:
    before, separator, after = text.partition(part)
    return f"{before.rstrip()} {after.lstrip()}".strip() if separator else text


def key_phrase(text: str, frequencies: Frequencies) -> str:
    """The phrase without stop words that is frequent in this text and rare in others."""
    frequency: Counter[str] = Counter()
    as_written: dict[str, str] = {}
    for run in _runs(text):
        for size in range(1, _PHRASE + 1):
            for start in range(len(run) - size + 1):
                piece = run[start : start + size]
                name = " ".join(word.lower() for word in piece)
                frequency[name] += 1
                as_written.setdefault(name, " ".join(piece))

    def telling(name: str) -> tuple[float, str]:
        parts = name.split()
        rare = sum(map(frequencies.weight, parts)) / math.sqrt(len(parts))
        return (math.log1p(frequency[name]) * rare, name)

    return as_written.get(max(frequency, key=telling, default=""), "")


def central_sentence(sentences: Sequence[str], frequencies: Frequencies) -> str:
    """The sentence most similar to all the others; "" where there is none."""
    usable = [number for number, sentence in enumerate(sentences) if _fits(sentence)]
    if len(sentences) < 3 or not usable:
        return ""
    vectors = [frequencies.vector(sentence) for sentence in sentences]
    whole: Counter[str] = Counter()
    for vector in vectors:
        whole.update(vector)

    def likeness(number: int) -> float:
        """The cosine of a sentence and the others together."""
        own = vectors[number]
        others = {word: whole[word] - own.get(word, 0.0) for word in whole}
        shared = sum(value * others.get(word, 0.0) for word, value in own.items())
        norms = math.hypot(*own.values()) * math.hypot(*others.values())
        return shared / norms if norms else 0.0

    best = max(usable, key=lambda number: (likeness(number), -number))
    return sentences[best] if likeness(best) > 0.0 else ""


def _runs(text: str) -> Iterator[list[str]]:
    """Runs of words separated by single spaces, split at stop words."""
    run: list[str] = []
    end = -1
    for match in _WORD.finditer(text):
        word = match.group()
        stops = word.lower() in _STOPWORDS or not any(map(str.isalpha, word))
        if run and (stops or text[end : match.start()] != " "):
            yield run
            run = []
        if not stops:
            run.append(word)
        end = match.end()
    if run:
        yield run


def _fits(sentence: str) -> bool:
    return _SHORTEST <= len(words_of(sentence)) <= _LONGEST
