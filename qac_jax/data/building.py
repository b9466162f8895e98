"""Settings of what `tokenize` stores, without heavy imports, for stages that list them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.text.cutting import SPLITTERS


Record = Mapping[str, Any]

# How a sibling passage is drawn: within 100 passages, an adjacent one, or a text that shares
# sentences with the passage.
SORTS = ("random", "nearby", "overlap")


@dataclasses.dataclass(frozen=True)
class Texts:
    """How texts are formatted before tokenisation."""

    title: str = option(
        "auto",
        "how a passage's title is put before its text",
        choices=("auto", "none", "separate", "space"),
    )
    prefix: str = option("", "seq2seq: text before every input, such as 'text2query: '")
    query_prompt: str = option("", "judged queries: text before each, such as 'query: '")
    passage_prompt: str = option("", "judged queries: text before each passage")
    input_tokens: int = option(
        0, "seq2seq: maximum length of prompt and text in tokens (0: unlimited)"
    )


@dataclasses.dataclass(frozen=True)
class PassageSelection:
    """Which passages and contexts are used."""

    part: str = option(
        "all",
        "passages to use: all, those that qac prepare held out, or the others (train)",
        choices=("all", "train", "held_out"),
    )
    origins: tuple[str, ...] = option((), "use only contexts of these origins (default: all)")
    strategies: tuple[str, ...] = option(
        (),
        "augtriever: strategies to store (default: all)",
        shown=("title", "anchor", "phrase", "ORIGIN of contexts"),
    )

    def takes(self, passage: Record) -> bool:
        """Whether this passage is in the selected part of the corpus."""
        if self.part == "all":
            return True
        return bool(passage.get("held_out")) == (self.part == "held_out")


@dataclasses.dataclass(frozen=True)
class Siblings:
    """Other passages of a document, stored as contexts of a passage."""

    sorts: tuple[str, ...] = option(
        SORTS, "kinds of sibling passages to store as contexts", shown=SORTS
    )
    siblings: int = option(1, "siblings of each kind per passage (released code: 1)")
    overlap_tokens: int = option(144, "minimum length of an overlapping sibling")
    splitter: str = option(
        "auto", "sentence splitter, or a file of learned parameters", shown=SPLITTERS
    )

    def check(self) -> None:
        """Raises UserError for unknown sorts, and for fewer than one sibling."""
        for sort in self.sorts:
            if sort not in SORTS:
                raise UserError(
                    f"sorts: {sort!r} is not known; expected some of {', '.join(SORTS)}"
                )
        if self.siblings < 1:
            raise UserError(f"siblings={self.siblings} is too few; expected 1 or more")


@dataclasses.dataclass(frozen=True)
class Negatives:
    """Which negatives of a judged query are stored, and with which scores."""

    depth: int = option(200, "negatives are taken from the top k of a run")
    keep: int = option(128, "negatives stored per query")
    random_negatives: int = option(0, "uniformly random negatives added per query")
    negatives_per_query: int = option(4, "cross_encoder: negatives per query")
    teacher: bool = option(False, "store the teacher's scores of --negatives")
    scores: bool = option(
        False, "cross_encoder: prefix each query with its passage's score in --negatives"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Building:
    """The settings of `tokenize` that its workers need."""

    tokenizer: str
    seed: int = 0
    texts: Texts = Texts()
    selection: PassageSelection = PassageSelection()
    siblings: Siblings = Siblings()
    negatives: Negatives = Negatives()


class Stored(NamedTuple):
    """The features of a record: single texts, lists of texts, and others with their dtypes."""

    texts: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    others: Mapping[str, str] = {}
