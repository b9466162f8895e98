"""Pseudo-queries from a document's structure: its title, anchors and emphasised words.

Doc-Title and Doc-Anchor of AugTriever (Meng et al., 2022). The readers collect them: links, bold
and italic of Wikipedia's XML and of HTML, "See Also" and linked names of docstrings (`anchors`,
`phrases` and `see_also` of a passage). Documents are cut by line breaks (Wikipedia: `prepare --cut
lines`) or stay whole (Common Crawl: `--cut none`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from qac_jax.errors import UserError, nearest
from qac_jax.fields import option


LINES = ("any", "sentence", "none")
# The first line of other sources is a title only if it has more words than this.
_FEW = 3


@dataclasses.dataclass(frozen=True)
class TitleRule:
    """The title of the document, else a first line; truncated to `title_words` words.

    first_line: "any" takes the first line that is not blank (Wikipedia, Pile-CC, OpenWebText2),
    "sentence" the first one of more than three words (all other sources), "none" no line at all.
    The line stays in the text.
    """

    first_line: str = option(
        "any", "title: which first line replaces a missing title", choices=LINES
    )
    title_words: int = option(64, "maximum words of a title")

    def __post_init__(self) -> None:
        if self.first_line not in LINES:
            raise UserError(
                f"first_line={self.first_line!r} is not known; {nearest(self.first_line, LINES)}"
            )
        if self.title_words < 1:
            raise UserError(f"title_words={self.title_words}; expected 1 or more")

    def of(self, passage: dict[str, Any]) -> str:
        """The title of a passage's document, or an empty text."""
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

    Labels that are in the text must be whole words of it, since the readers compare letters alone.
    Names in the "See Also" of a docstring need not be in the text. Those of an encyclopedia belong
    to the whole article, so a paragraph has only the ones that it contains.
    """
    text = " ".join(passage["text"].lower().split())
    labels: dict[str, str] = {}
    for name in ("anchors", "phrases", "see_also"):
        for item in passage.get(name) or ():
            # Anchors are [target, label]; names and phrases are plain texts.
            label = " ".join((item if isinstance(item, str) else item[-1]).split())
            key = label.lower()
            elsewhere = name != "see_also" and key not in text
            if label and key not in labels and (elsewhere or _stands(key, text)):
                labels[key] = label
    return list(labels.values())


def _stands(label: str, text: str) -> bool:
    """Whether a label is in a text as whole words."""
    start = text.find(label)
    while start >= 0:
        around = text[start - 1 : start] + text[start + len(label) : start + len(label) + 1]
        if not any(character.isalnum() for character in around):
            return True
        start = text.find(label, start + 1)
    return False
