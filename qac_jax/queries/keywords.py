"""Queries by rule: some words of a passage, as one would type what one remembers of it.

A window of a sentence loses most of its common words and some of the others; most often a question
word comes first, sometimes the title last. No model is needed. A teacher that scores passages for
any text (`qac group`) can train a retriever with them; as labelled questions they are too easy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np


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


def queries(passage: Mapping[str, Any], count: int, rng: np.random.Generator) -> list[str]:
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
