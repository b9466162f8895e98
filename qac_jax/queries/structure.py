"""Pseudo-queries by rule: a document's title, its anchors and emphasised words, and keywords.

Doc-Title and Doc-Anchor of AugTriever (Meng et al., 2022). The readers collect them: links, bold
and italic of Wikipedia's XML and of HTML, "See Also" of docstrings.

Keywords are some words of a passage, as one would type what one remembers of it: a window of a
sentence loses most of its common words and some of the others; most often a question word comes
first, sometimes the title last. As labelled questions they are too easy; a teacher's scores for
them (step group) can train a retriever.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from qac_jax.fields import Checked, option


LINES = ("any", "sentence", "none")
# The first line of other sources is a title only if it has more words than this.
_FEW = 3


@dataclasses.dataclass(frozen=True)
class TitleRule(Checked):
    """The title of the document, else a first line; truncated to `title_words` words.

    first_line: "any" takes the first line that is not blank (Wikipedia, Pile-CC, OpenWebText2),
    "sentence" the first one of more than three words (all other sources), "none" no line at all.
    The line stays in the text.
    """

    first_line: str = option(
        "any", "title: which first line replaces a missing title", choices=LINES
    )
    title_words: int = option(64, "maximum words of a title", at_least=1)

    def of(self, passage: dict[str, Any]) -> str:
        title = " ".join((passage.get("title") or "").split())
        if not title and self.first_line != "none" and not passage.get("position"):
            least = 1 if self.first_line == "any" else _FEW + 1
            lines = passage["text"].split("\n")
            title = next((line for line in lines if len(line.split()) >= least), "")
        return " ".join(title.split()[: self.title_words])


def anchors(passage: dict[str, Any]) -> list[str]:
    """Labels of links, then emphasised words, each once; those that are in the text must be whole
    words of it, since the readers compare letters alone."""
    text = " ".join(passage["text"].lower().split())
    labels: dict[str, str] = {}
    for name in ("anchors", "phrases"):
        for item in passage.get(name) or ():
            # Anchors are [target, label]; phrases are plain texts.
            label = " ".join((item if isinstance(item, str) else item[-1]).split())
            key = label.lower()
            # As whole words: an alphanumeric character stands neither before nor behind it.
            stands = re.search(rf"(?<![^\W_]){re.escape(key)}(?![^\W_])", text)
            if label and key not in labels and (key not in text or stands):
                labels[key] = label
    return list(labels.values())


_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"[\w'-]+")
# The words of a window, of which some stay.
_WINDOW = (6, 14)
_KEPT = (2, 6)
_COMMON_SHARE, _QUESTION_SHARE, _TITLE_SHARE = 0.5, 0.6, 0.1
COMMON = frozenset(
    "a an and are as at be been but by can could did do does for from had has have he her his how "
    "i if in into is it its me more most my no not of on one or other our she should so some such "
    "than that the their them then there these they this to up was we were what when where which "
    "who why will with would you your".split()
)
BEGINNINGS = (
    *("what", "who", "how", "when", "where", "why", "which"),
    *("what is", "what was", "what did", "who was", "how did", "how many", "why did", "where did"),
)


def keywords(passage: Mapping[str, Any], count: int, rng: np.random.Generator) -> list[str]:
    """At most `count` different queries; fewer of a passage with few words."""
    sentences = [s for s in _SENTENCE.split(passage["text"]) if len(s.split()) >= 4]
    sentences = sentences or [passage["text"]]
    title = (passage.get("title") or "").lower()
    drawn = (_query(sentences[rng.integers(len(sentences))], title, rng) for _ in range(2 * count))
    return list(dict.fromkeys(query for query in drawn if query))[:count]


def _query(sentence: str, title: str, rng: np.random.Generator) -> str:
    words = _WORD.findall(sentence)
    start = int(rng.integers(max(1, len(words) - _WINDOW[0])))
    words = words[start : start + int(rng.integers(*_WINDOW, endpoint=True))]
    content = [place for place, word in enumerate(words) if word.lower() not in COMMON]
    if len(content) < _KEPT[0]:
        return ""
    # Longer words are rarer, and people remember rare ones.
    weights = np.array([min(len(words[place]), 12) for place in content], float)
    size = min(int(rng.integers(*_KEPT, endpoint=True)), len(content))
    chosen = rng.choice(content, size, replace=False, p=weights / weights.sum())
    kept = set(chosen.tolist())
    common = set(range(len(words))) - set(content)
    kept |= {place for place in sorted(common) if rng.random() < _COMMON_SHARE}
    text = " ".join(words[place] for place in sorted(kept)).lower()
    share = rng.random()
    if share < _QUESTION_SHARE:
        return f"{BEGINNINGS[rng.integers(len(BEGINNINGS))]} {text}?"
    return f"{text} {title}".strip() if share < _QUESTION_SHARE + _TITLE_SHARE else text
