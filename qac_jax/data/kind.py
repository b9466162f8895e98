"""The contract of a kind of example; each kind is one file in `data/kinds/`.

A pair function is pure: (record, rng, settings) -> example. A record maps the stored features'
names to arrays: token ids without special tokens, or lists of them. `rng` is numpy's Generator for
(seed, epoch, example). `form` adds special tokens and truncates; `lengths` are the limits, special
tokens included. The seqio tasks (`data/tasks.py`) and the loader wrap this function.

`tokenize` calls `records` to make the records, without truncation, because the crop of a long text
is drawn anew each epoch. What it stores is chosen by the settings of a `Building`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qac_jax.data.form import Form, check_name
from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.text.spans import SPLITTERS


if TYPE_CHECKING:
    from qac_jax.data.judged import Judged
    from qac_jax.data.shards import DocumentContexts, DocumentTexts, JudgedTexts
    from qac_jax.formats.records import Records
    from qac_jax.text.tokenizers import Tokenizer


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


@dataclasses.dataclass(frozen=True)
class Siblings:
    """Other passages of a document, stored as contexts of a passage."""

    sorts: tuple[str, ...] = option(
        SORTS, "kinds of sibling passages to store as contexts", choices=SORTS
    )
    siblings: int = option(1, "siblings of each kind per passage (released code: 1)", at_least=1)
    overlap_tokens: int = option(144, "minimum length of an overlapping sibling")
    splitter: str = option("auto", "sentence splitter", choices=SPLITTERS)


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


Example = dict[str, Any]
Lengths = Mapping[str, int]
Settings = Mapping[str, Any]

LENGTH = "length"  # the axis that is padded


@dataclasses.dataclass(frozen=True)
class Feature:
    """One array of a batch: its axes after the batch axis, padded to `length`."""

    axes: tuple[str | int, ...] = (LENGTH,)
    length: int = 0  # the default limit
    dtype: str = "int32"
    like: str = ""  # another feature with the same padding, so no `_length` of its own

    @property
    def padded(self) -> bool:
        return LENGTH in self.axes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of example: how it is stored, and how it is read."""

    name: str
    # The pair function; its keyword arguments are the kind's settings.
    function: Callable[..., Example]
    # The arrays of a batch.
    features: Callable[[Settings], dict[str, Feature]]
    # The features that a record must have to be read as this kind.
    needs: Callable[[Settings], tuple[str, ...]]
    # The features that `tokenize` stores.
    stored: Callable[[Building], Stored]
    # The defaults of how long texts are truncated and of how a title joins its text.
    crop: str = "random"
    title: str = "none"
    # Raises UserError for invalid settings of the pair function.
    check: Callable[[Settings], None] = lambda settings: None
    # Settings of the pair function that follow from what is stored.
    settings: Callable[[Building, Tokenizer], dict[str, Any]] = lambda building, tokenizer: {}
    # Whether a model trained on it reads other texts with their prompts and titles, too.
    prompted: bool = False
    # The building, completed by what depends on the contexts.
    completed: Callable[[Building, Records | None], Building] = lambda building, contexts: building

    def __reduce__(self) -> tuple[Callable[[str], Kind], tuple[str]]:
        return _by_name, (self.name,)

    @property
    def defaults(self) -> dict[str, Any]:
        """Settings and their default values; `...` marks a required one."""
        parameters = inspect.signature(self.function).parameters.values()
        return {
            p.name: ... if p.default is p.empty else p.default
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.name not in ("form", "lengths")
        }

    def how_to_read(self, building: Building) -> dict[str, Any]:
        """How a model trained on the examples must read other texts."""
        names = ("title", "query_prompt", "passage_prompt") if self.prompted else ()
        options: dict[str, Any] = {name: getattr(building.texts, name) for name in names}
        return options | ({"scores": True} if building.negatives.scores else {})

    def check_inputs(self, given: Collection[str], building: Building) -> None:
        """Raises UserError for inputs of `tokenize` that do not fit this kind."""
        if building.negatives.scores:
            alone = not building.negatives.random_negatives and "negatives" in given
            if not alone or self.name != "cross_encoder":
                raise UserError(
                    f"--task {self.name}: --scores are for cross_encoder with --negatives that "
                    "have scores (a run) and no random ones"
                )
        if not self.reads(set(given), building):
            raise UserError(f"--task {self.name} reads {self.inputs}; give these and no others")

    @property
    def inputs(self) -> str:
        raise NotImplementedError

    def reads(self, given: set[str], building: Building) -> bool:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocumentKind(Kind):
    """A kind whose records are made from the passages of documents and their contexts."""

    # The records of each document (None: of pairs alone).
    records: (
        Callable[[DocumentTexts, Sequence[DocumentContexts]], Iterator[list[Record]]] | None
    ) = None
    # Whether passages need contexts: generated or judged queries.
    asks: bool = False
    # Whether every passage gives exactly one record, so that their number is known in advance.
    one_each: bool = True
    # Makes records from a generator's pairs or from groups, where these are a possible input.
    of_pairs: Callable[[DocumentTexts, Sequence[Record]], Iterator[Record]] | None = None

    @property
    def inputs(self) -> str:
        if self.records is None:
            return "--pairs"
        asked = "--passages with --contexts, or with --queries and --qrels"
        asked = asked if self.asks else f"--passages, or {asked}"
        return f"{asked}, or --pairs" if self.of_pairs else asked

    def reads(self, given: set[str], building: Building) -> bool:
        if "pairs" in given or self.records is None:
            return self.of_pairs is not None and given == {"pairs"}
        asked = given & {"contexts", "queries", "qrels"}
        few = [{"contexts"}, {"queries", "qrels"}, *([] if self.asks else [set()])]
        return "passages" in given and asked in few


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgedKind(Kind):
    """A kind whose records are made from queries with judged passages."""

    records: Callable[[JudgedTexts, Sequence[Judged]], Iterator[Record]]
    prompted: bool = True

    @property
    def inputs(self) -> str:
        return (
            "--training, or --passages with --queries and --qrels, --contexts or --negatives that "
            "hold queries, and all passages (no --part)"
        )

    def reads(self, given: set[str], building: Building) -> bool:
        asked = given & {"contexts", "negatives"} or given >= {"queries", "qrels"}
        texts = "training" in given or "passages" in given and bool(asked)
        return texts and "pairs" not in given and building.selection.part == "all"


def _by_name(name: str) -> Kind:
    from qac_jax.data.kinds import KINDS

    return KINDS[name]


def two_texts(passage: int, context: int) -> Callable[[Settings], dict[str, Feature]]:
    """The features of a passage and its context, with these limits."""
    features = {"passage": Feature(length=passage), "context": Feature(length=context)}
    return lambda settings: dict(features)


# For pair functions.


def pick(probabilities: Mapping[str, float], rng: np.random.Generator) -> str:
    """One of the names; the weights need not sum to one."""
    left, chosen = rng.random() * sum(probabilities.values()), ""
    for name, weight in probabilities.items():
        chosen, left = (name, left - weight) if weight > 0 else (chosen, left)
        if left < 0:
            break
    return chosen


def check_weights(what: str, weights: Mapping[str, float], valid: Sequence[str]) -> None:
    """Raises UserError for unknown names, negative weights, and weights that are all zero."""
    for name in weights:
        check_name(what, name, valid)
    if min(weights.values(), default=0) < 0 or not sum(weights.values()):
        raise UserError(f"{what}: the weights {dict(weights)} must be 0 or more, and one above 0")


def pair(
    passage: np.ndarray, context: np.ndarray, rng: np.random.Generator, form: Form, lengths: Lengths
) -> Example:
    """A passage and its context, with special tokens and truncated."""
    return {
        "passage": form.one(passage, lengths["passage"], rng),
        "context": form.one(context, lengths["context"], rng),
    }


def any_text(record: Record, name: str, rng: np.random.Generator, first: int = 0) -> np.ndarray:
    """One of the (first) texts of a list; the passage itself if the list is empty."""
    texts = record[name]
    count = min(len(texts), first or len(texts))
    return texts[int(rng.random() * count)] if count else record["passage"]
