"""Sentences: NLTK's Punkt with its own English model where that is installed, else with ours.

Ours was learned by NLTK's PunktTrainer and is stored as JSON (nothing is unpickled). Paragraphs
end sentences, and every statement of a doctest is one.
"""

import functools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from qac_jax.errors import UserError
from qac_jax.text.spans import SPLITTERS
from qac_jax.text.tokenizers import ASSETS


_SHIPPED = ASSETS / "sentences" / "punkt.json"
_FORMAT = "punkt-parameters-1"
_BLANK_LINES = re.compile(r"\n[^\S\n]*(?:\n[^\S\n]*)+")
_STATEMENT = re.compile(r"^(?=>>> )", re.MULTILINE)

_WORD = re.compile(r"[^\W\d_]+(?:['’.-][^\W\d_]+)*")
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof rev gen col capt lt sgt st jr sr hon gov sen rep pres "
    "etc e.g i.e cf vs viz al approx resp ca fig figs eq eqs sec chap vol vols nos pp ed eds "
    "inc ltd co corp dept univ bros jan feb mar apr jun jul aug sep sept oct nov dec "
    "mon tue wed thu fri u.s u.k u.n a.m p.m b.c a.d ph.d d.c m.d b.a m.a i.i.d w.r.t".split()
)

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
        for start, stop in paragraphs(text):
            part = text[start:stop]
            if part.startswith(">>> ") or "\n>>> " in part:
                pieces = list(_divided(part, _STATEMENT))
            else:
                pieces = list(self._punkt.span_tokenize(part))
            places.extend((start + a, start + b) for a, b in pieces)
        return places

    def split(self, text: str) -> list[str]:
        return [text[start:stop] for start, stop in self.spans(text)]


def load(choice: str = "auto") -> Splitter:
    """The splitter of that name, or from a file that `learn` made.

    "auto" takes NLTK's punkt_tab where it is installed, else ours.
    """
    if choice in SPLITTERS:
        return _named(choice)
    if not Path(choice).is_file():
        raise UserError(
            f"splitter {choice!r} is neither {', '.join(SPLITTERS)} nor a file of parameters"
        )
    return Splitter(f"the parameters in {Path(choice).name}", read_parameters(Path(choice)))


def paragraphs(text: str) -> Iterator[Span]:
    """Stretches between blank lines, without white space around them."""
    start = 0
    for blank in [*_BLANK_LINES.finditer(text), None]:
        stop = len(text) if blank is None else blank.start()
        stripped = _stripped(text, start, stop)
        if stripped is not None:
            yield stripped
        start = stop if blank is None else blank.end()


def lines(text: str) -> list[Span]:
    """The places of the lines that are not blank."""
    places, start = [], 0
    for line in text.split("\n"):
        stripped = _stripped(text, start, start + len(line))
        if stripped is not None:
            places.append(stripped)
        start += len(line) + 1
    return places


def learn(texts: Iterable[str]) -> dict[str, Any]:
    """Punkt parameters learned from the prose of texts, in the JSON form that is shipped.

    Common English abbreviations are given; identifiers and numbers are not learned.
    """
    from nltk.tokenize.punkt import PunktTrainer

    trainer = PunktTrainer()
    for text in texts:
        for start, stop in paragraphs(text):
            if _is_prose(text[start:stop]):
                trainer.train(text[start:stop], finalize=False)
    trainer.finalize_training()
    parameters = trainer.get_params()
    pairs = (pair for pair in parameters.collocations if all(map(_is_word, pair)))
    context = {w: c for w, c in parameters.ortho_context.items() if _is_word(w)}
    return {
        "format": _FORMAT,
        "abbrev_types": sorted(filter(_is_word, parameters.abbrev_types | _ABBREVIATIONS)),
        "collocations": sorted(map(list, pairs)),
        "sent_starters": sorted(filter(_is_word, parameters.sent_starters)),
        "ortho_context": dict(sorted(context.items())),
    }


def _is_prose(paragraph: str) -> bool:
    """Full sentences of mostly plain words; no code, no list of parameters."""
    words = paragraph.split()
    plain = sum(word.strip("()[],;:.!?\"'“”‘’").replace("-", "").isalpha() for word in words)
    ends = paragraph.endswith((".", "!", "?", ":", ")"))
    return len(words) >= 6 and ends and paragraph[0].isupper() and plain >= 0.8 * len(words)


def _is_word(word: str) -> bool:
    return word == "##number##" or _WORD.fullmatch(word) is not None


def read_parameters(path: Path) -> Any:
    """PunktParameters from their JSON form."""
    from nltk.tokenize.punkt import PunktParameters

    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["format"] != _FORMAT:
            raise KeyError("format")
        parameters = PunktParameters()
        parameters.abbrev_types = set(stored["abbrev_types"])
        parameters.collocations = {(first, second) for first, second in stored["collocations"]}
        parameters.sent_starters = set(stored["sent_starters"])
        parameters.ortho_context.update(stored["ortho_context"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} holds no sentence parameters ({type(error).__name__}: {error}); "
            f"install the package again"
        ) from error
    return parameters


@functools.lru_cache(maxsize=len(SPLITTERS))
def _named(choice: str) -> Splitter:
    if choice in ("auto", "punkt_tab"):
        try:
            from nltk.tokenize.punkt import PunktTokenizer

            return Splitter("NLTK's punkt_tab", PunktTokenizer("english")._params)
        except LookupError:
            if choice == "punkt_tab":
                raise UserError(
                    "NLTK's punkt_tab is not installed; run `python -m nltk.downloader punkt_tab` "
                    "where there is a network, or use --splitter shipped"
                ) from None
    return Splitter("the shipped Punkt parameters", read_parameters(_SHIPPED))


def _divided(text: str, boundary: re.Pattern[str]) -> Iterator[Span]:
    """The text cut at every match, without white space around the pieces."""
    cuts = [0, *(match.start() for match in boundary.finditer(text) if match.start()), len(text)]
    for start, stop in zip(cuts[:-1], cuts[1:], strict=True):
        stripped = _stripped(text, start, stop)
        if stripped is not None:
            yield stripped


def _stripped(text: str, start: int, stop: int) -> Span | None:
    part = text[start:stop]
    left = len(part) - len(part.lstrip())
    right = len(part.rstrip())
    return (start + left, start + right) if left < right else None
