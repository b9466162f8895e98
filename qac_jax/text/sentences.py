"""Sentences: NLTK's Punkt with its own English model where that is installed, else with ours.

Ours was learned by NLTK's PunktTrainer and is stored as JSON (nothing is unpickled). Paragraphs
end sentences, and every statement of a doctest is one.
"""

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

from qac_jax.errors import UserError, nearest
from qac_jax.text.spans import SPLITTERS
from qac_jax.text.tokenizers import ASSETS


_SHIPPED = ASSETS / "sentences" / "punkt.json"
_BLANK_LINES = re.compile(r"\n[^\S\n]*(?:\n[^\S\n]*)+")
_STATEMENT = re.compile(r"^(?=>>> )", re.MULTILINE)

Span = tuple[int, int]


class Splitter:
    """Places of the sentences in a text, in characters."""

    def __init__(self, name: str, parameters: Any):
        from nltk.tokenize.punkt import PunktSentenceTokenizer

        self.name = name
        self._punkt = PunktSentenceTokenizer()
        self._punkt._params = parameters

    def spans(self, text: str) -> list[Span]:
        """Every non-blank stretch of the text belongs to one sentence."""
        places: list[Span] = []
        for start, stop in _pieces(text, [m.span() for m in _BLANK_LINES.finditer(text)]):
            part = text[start:stop]
            if part.startswith(">>> ") or "\n>>> " in part:
                cuts = [match.span() for match in _STATEMENT.finditer(part)]
                pieces = list(_pieces(part, cuts))
            else:
                pieces = list(self._punkt.span_tokenize(part))
            places.extend((start + a, start + b) for a, b in pieces)
        return places

    def split(self, text: str) -> list[str]:
        return [text[start:stop] for start, stop in self.spans(text)]


def lines(text: str) -> list[Span]:
    """The places of the lines that are not blank."""
    return list(_pieces(text, [match.span() for match in re.finditer("\n", text)]))


def _pieces(text: str, boundaries: list[Span]) -> Iterator[Span]:
    """The pieces between boundaries, without blank ones and without white space around them."""
    starts, stops = [0, *(b for _, b in boundaries)], [*(a for a, _ in boundaries), len(text)]
    for start, stop in zip(starts, stops, strict=True):
        part = text[start:stop]
        if bare := part.strip():
            left = start + len(part) - len(part.lstrip())
            yield left, left + len(bare)


@functools.lru_cache(maxsize=len(SPLITTERS))
def load(choice: str = "auto") -> Splitter:
    """The splitter of that name; "auto" takes NLTK's punkt_tab where it is installed, else ours."""
    from nltk.tokenize.punkt import PunktParameters, PunktTokenizer

    if choice not in SPLITTERS:
        raise UserError(f"splitter {choice!r} is not known; {nearest(choice, SPLITTERS)}")
    if choice != "shipped":
        try:
            return Splitter("NLTK's punkt_tab", PunktTokenizer("english")._params)
        except LookupError:
            if choice == "punkt_tab":
                raise UserError("NLTK's punkt_tab is missing; use --splitter shipped") from None
    stored = json.loads(_SHIPPED.read_text(encoding="utf-8"))
    parameters = PunktParameters()
    parameters.abbrev_types = set(stored["abbrev_types"])
    parameters.collocations = {(first, second) for first, second in stored["collocations"]}
    parameters.sent_starters = set(stored["sent_starters"])
    parameters.ortho_context.update(stored["ortho_context"])
    return Splitter("the shipped Punkt parameters", parameters)
