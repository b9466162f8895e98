"""Pseudo-queries that a document brings along: its title, its anchors and emphasised words.

Doc-Title and Doc-Anchor of AugTriever (Meng et al., 2022). The readers collect what a source
says: links, bold and italic of Wikipedia's XML and of HTML, "See Also" and linked names of
docstrings (`anchors`, `phrases` and `see_also` of a passage). Documents are cut by line breaks
(Wikipedia: `prepare --cut lines`) or stay whole (Common Crawl: `--cut none`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from qac_jax.errors import UserError, nearest
from qac_jax.fields import option


LINES = ("any", "sentence", "none")
# The first line of other sources is a title only if it says something: more words than this.
_FEW = 3


@dataclasses.dataclass(frozen=True)
class TitleRule:
    """The title that is given, else the first line that is one; cut to `title_words` words.

    first_line: "any" takes the first line that is not blank (Wikipedia, Pile-CC, OpenWebText2),
    "sentence" the first one of more than three words (all other sources), "none" no line at all.
    The line stays in the text.
    """

    first_line: str = option(
        "any", "title: which first line is one where none is given", choices=LINES
    )
    title_words: int = option(64, "words of a title")

    def __post_init__(self) -> None:
        if self.first_line not in LINES:
            raise UserError(
                f"first_line={self.first_line!r} is not known; {nearest(self.first_line, LINES)}"
            )
        if self.title_words < 1:
            raise UserError(f"title_words={self.title_words}; expected 1 or more")

    def of(self, passage: dict[str, Any]) -> str:
        """The title of a passage's document, or nothing."""
        title = " ".join((passage.get("title") or "").split())
        if not title and self.first_line != "none" and not passage.get("position"):
            title = next(self._lines(passage["text"]), "")
        return " ".join(title.split()[: self.title_words])

    def _lines(self, text: str) -> Iterator[str]:
        least = 1 if self.first_line == "any" else _FEW + 1
        for line in text.split("\n"):
            if len(line.split()) >= least:
                yield line


def anchors(passage: dict[str, Any]) -> list[str]:
    """Labels of links, then emphasised words, then names it refers to; each once.

    What stands in the text must stand there as whole words: readers look for letters alone. Names
    that a docstring refers to need not, for its "See Also" is no part of the text; but those of an
    encyclopedia are the whole article's, so a paragraph has only those that it names.
    """
    text = " ".join(passage["text"].lower().split())
    found: dict[str, str] = {}
    for name in ("anchors", "phrases", "see_also"):
        for item in passage.get(name) or ():
            # Anchors are [target, label]; names and phrases are themselves.
            label = " ".join((item if isinstance(item, str) else item[-1]).split())
            key = label.lower()
            elsewhere = name != "see_also" and key not in text
            if label and key not in found and (elsewhere or _stands(key, text)):
                found[key] = label
    return list(found.values())


def _stands(label: str, text: str) -> bool:
    """Whether a label is in a text, and not merely in the middle of a word."""
    start = text.find(label)
    while start >= 0:
        around = text[start - 1 : start] + text[start + len(label) : start + len(label) + 1]
        if not any(character.isalnum() for character in around):
            return True
        start = text.find(label, start + 1)
    return False
