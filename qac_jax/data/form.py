"""How ids become a model input: special tokens and truncation to a length."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.errors import UserError, nearest


if TYPE_CHECKING:
    from qac_jax.text.tokenizers import Tokenizer


Ids = np.ndarray

CROPS = ("random", "right")
PAIR_TRUNCATIONS = ("pop_longer", "longest_first", "only_second")


@dataclasses.dataclass(frozen=True)
class Form:
    """Special tokens of a vocabulary and the truncation rule for texts that are too long.

    BERT: `[CLS] a [SEP]` and `[CLS] a [SEP] b [SEP]`; T5: `a </s>`. `crop` is "random" (a random
    window, as in Condenser's released code; pre-training) or "right" (the end is cut off, as in
    Hugging Face's tokenisers).
    """

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    pad: int = 0
    crop: str = "random"

    def __post_init__(self) -> None:
        for name in ("before", "between", "after"):  # JSON gives lists
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @functools.cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, int, int]:
        before, after = (np.array(p, np.int32) for p in (self.before, self.after))
        return before, after, len(before), len(before) + len(after)

    def one(self, ids: Ids, limit: int, rng: np.random.Generator) -> Ids:
        """A single text, at most `limit` tokens with its special tokens."""
        before, after, head, extra = self._arrays
        n, start = len(ids), 0
        if n > limit - extra:
            if self.crop == "random":
                start = int(rng.random() * (n + extra - limit + 1))
            n = limit - extra
        out = np.empty(n + extra, np.int32)
        out[:head] = before
        out[head : head + n] = ids[start : start + n]
        out[head + n :] = after
        return out

    def two(self, a: Ids, b: Ids, limit: int, truncation: str = "pop_longer") -> tuple[Ids, Ids]:
        """A pair of texts in one sequence, and its token types."""
        extra = len(self.before) + len(self.between) + len(self.after)
        la, lb = pair_lengths(len(a), len(b), limit - extra, truncation)
        out = np.concatenate(
            (self.before, a[:la], self.between, b[:lb], self.after), dtype=np.int32
        )
        types = np.zeros(len(out), np.int32)
        types[len(self.before) + la + len(self.between) :] = 1
        return out, types


def pair_lengths(a: int, b: int, room: int, truncation: str) -> tuple[int, int]:
    """The lengths of two texts after truncation to `room` tokens together.

    "pop_longer": one token at a time is removed from the longer text, from the second on a tie
    (RocketQA's released code). "longest_first": as Hugging Face's fast tokenisers, which differ by
    one token: the text that was longer at first keeps the odd one. "only_second": the first is not
    truncated unless it alone is too long.
    """
    excess = a + b - room
    if excess <= 0:
        return a, b
    if truncation == "only_second":
        return min(a, room), max(room - a, 0)
    if truncation == "longest_first":
        short, long = min(a, b), max(a, b)
        short, long = (short, room - short) if 2 * short <= room else (room // 2, room - room // 2)
        return (short, long) if a <= b else (long, short)
    even = room // 2
    if min(a, b) <= even:  # only the longer text is truncated
        return (a, room - a) if a <= b else (room - b, b)
    return room - even, even


def form_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """The special tokens before, between and after texts, from the tokeniser's template."""
    backend, (a, b) = tokenizer.backend, ("a", "b")
    one = backend.encode(a).ids
    two = backend.encode(a, b).ids
    first, second = (backend.encode(text, add_special_tokens=False).ids for text in (a, b))
    start = _find(one, first)
    before, after = one[:start], one[start + len(first) :]
    if not before and not after:  # the file has no template: BERT's or T5's, by its special tokens
        if tokenizer.has("cls") and tokenizer.has("sep"):
            before, after = [tokenizer.cls_id], [tokenizer.sep_id]
        else:
            after = [tokenizer.eos_id]
        between = after
    else:
        rest = two[len(before) + len(first) :]
        between = rest[: _find(rest, second)]
    return {"before": before, "between": between, "after": after, "pad": tokenizer.pad_id}


def prompt_tokens(tokenizer: Tokenizer, form: Form, prompt: str) -> int:
    """How many of a text's first tokens are its prompt's and those before (0: no prompt)."""
    return len(form.before) + tokenizer.count([prompt])[0] if prompt else 0


def title_and_body(ids: np.ndarray, form: Form, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """`title [SEP] body` as two segments with token types, split at the first separator."""
    places = np.flatnonzero(ids == form.between[0]) if form.between else np.empty(0, np.int64)
    if not places.size:
        return form.two(ids[:0], ids, limit)
    return form.two(ids[: places[0]], ids[places[0] + 1 :], limit)


def check_name(what: str, value: str, valid: Sequence[str]) -> None:
    if value not in valid:
        raise UserError(f"{what} {value!r} is not known; {nearest(value, valid)}")


def _find(ids: Sequence[int], part: Sequence[int]) -> int:
    for start in range(len(ids) - len(part) + 1):
        if list(ids[start : start + len(part)]) == list(part):
            return start
    raise ValueError("the ids of a text are not among those of the text with special tokens")
