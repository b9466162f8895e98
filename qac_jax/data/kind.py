"""What a kind of example declares; each kind is one file in `data/kinds/`.

A pair function is pure: (record, rng, settings) -> example. A record is a mapping from the stored
features' names to arrays: token ids without special tokens, or lists of them. It comes from an
examples artefact (`data/examples.py`) or is a plain dict of arrays and lists. `rng` is numpy's
Generator for (seed, epoch, example), so an example is a function of its record and these three
numbers. `form` adds special tokens and truncates; `lengths` are the limits, special tokens
included. The seqio tasks (`data/tasks.py`) and the loader (`data/loader.py`) wrap this function.

`tokenize` calls `records` to make the records: token ids without special tokens and without
truncation, because the crop of a long text is drawn anew each epoch.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qac_jax.data.building import Building, Record, Stored
from qac_jax.errors import UserError


if TYPE_CHECKING:
    from qac_jax.data.encoding import DocumentContexts, DocumentTexts, JudgedTexts
    from qac_jax.data.judged import Judged
    from qac_jax.formats.records import Records
    from qac_jax.text.tokenizers import Tokenizer


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
    # The building, completed by what depends on the contexts.
    completed: Callable[[Building, Records | None], Building] = lambda building, contexts: building

    def __reduce__(self) -> tuple[Callable[[str], Kind], tuple[str]]:
        """Is pickled by its name."""
        return by_name, (self.name,)

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
        del building
        return {}

    def check_inputs(self, inputs: Collection[str], building: Building) -> None:
        """Raises UserError for inputs of `tokenize` that do not fit this kind."""
        raise NotImplementedError

    def _check_questions(self, inputs: Collection[str], judged: bool) -> None:
        if "queries" in inputs and "qrels" not in inputs and not judged:
            raise UserError("--queries needs judgements; give --qrels too")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocumentKind(Kind):
    """A kind whose records are made from the passages of documents and their contexts."""

    # The records of each document.
    records: Callable[[DocumentTexts, Sequence[DocumentContexts]], Iterator[list[Record]]]
    # Whether passages need contexts: generated or judged queries.
    asks: bool = False
    # Whether every passage gives exactly one record, so that their number is known in advance.
    one_each: bool = True
    # Makes records from a generator's pairs, where these are a possible input.
    of_pairs: Callable[[DocumentTexts, Sequence[Record]], Iterator[Record]] | None = None

    def check_inputs(self, inputs: Collection[str], building: Building) -> None:
        if "pairs" in inputs:
            if self.of_pairs is None:
                raise UserError(f"--pairs are for --task seq2seq, not for {self.name}; change one")
            if not {"passages", "contexts", "queries"}.isdisjoint(inputs):
                raise UserError("--pairs have texts and targets; leave passages and queries out")
            return
        if "passages" not in inputs:
            raise UserError(
                f"--task {self.name} needs --passages; give the folder that prepare made"
            )
        if "queries" in inputs and "contexts" in inputs:
            raise UserError("--queries and --contexts both give contexts; leave one of them out")
        if self.asks and {"queries", "contexts"}.isdisjoint(inputs):
            raise UserError(
                f"--task {self.name} needs queries; give --contexts, or --queries and --qrels"
            )
        if building.negatives.scores:
            raise UserError(_no_scores(self.name, inputs))
        self._check_questions(inputs, judged=False)
        building.siblings.check()


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgedKind(Kind):
    """A kind whose records are made from queries with judged passages."""

    records: Callable[[JudgedTexts, Sequence[Judged]], Iterator[Record]]
    # Whether a query may begin with the score of its passage.
    takes_scores: bool = False

    def how_to_read(self, building: Building) -> dict[str, Any]:
        texts = building.texts
        options: dict[str, Any] = {
            name: getattr(texts, name) for name in ("title", "query_prompt", "passage_prompt")
        }
        return options | ({"scores": True} if building.negatives.scores else {})

    def check_inputs(self, inputs: Collection[str], building: Building) -> None:
        if "pairs" in inputs:
            raise UserError(f"--pairs are for --task seq2seq, not for {self.name}; change one")
        if {"passages", "training"}.isdisjoint(inputs):
            raise UserError(
                f"--task {self.name} needs --passages; give the folder that prepare made, or "
                f"--training, a file that contains the texts"
            )
        if {"contexts", "queries", "training", "negatives"}.isdisjoint(inputs):
            raise UserError(
                f"--task {self.name} needs queries; give --queries and --qrels, --contexts, "
                f"--training, or an artefact of negatives that contains them"
            )
        self._check_questions(inputs, judged="negatives" in inputs)
        if building.selection.part != "all":
            raise UserError(
                f"--part {building.selection.part} is for tasks made of passages, not {self.name}"
            )
        if building.negatives.scores:
            if not self.takes_scores or "negatives" not in inputs:
                raise UserError(_no_scores(self.name, inputs))
            if building.negatives.random_negatives:
                raise UserError("random negatives have no score; leave them or --scores out")
        building.siblings.check()


def _no_scores(name: str, inputs: Collection[str]) -> str:
    return (
        f"--scores are for --task cross_encoder with --negatives that have some (a run); this is "
        f"{name} {'with' if 'negatives' in inputs else 'without'} negatives"
    )


def by_name(name: str) -> Kind:
    """The kind of this name, for unpickling."""
    from qac_jax.data.kinds import KINDS

    return KINDS[name]


def two_texts(passage: int, context: int) -> Callable[[Settings], dict[str, Feature]]:
    """The features of a passage and its context, with these limits."""
    features = {"passage": Feature(length=passage), "context": Feature(length=context)}
    return lambda settings: dict(features)
