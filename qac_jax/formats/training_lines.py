"""Training files that hold their texts: Tevatron's, RocketQA's, DPR's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import Passage
from qac_jax.formats.files import expand
from qac_jax.formats.registry import TRAINING


class TrainingLine(NamedTuple):
    """A question with passages. Ids are empty where a format has none (RocketQA's)."""

    query_id: str
    query: str
    positives: tuple[Passage, ...]
    negatives: tuple[Passage, ...]


@dataclass(frozen=True)
class TrainingFormat:
    """A way to store training lines; a file of `readers/training` declares one as FORMAT."""

    suffixes: tuple[str, ...]
    read: Callable[[str, BadLines], Iterator[TrainingLine]]


def read_training_lines(
    path: str | os.PathLike[str],
    format: str = "tevatron",
    *,
    skip_bad: int | None = None,
    bad: BadLines | None = None,
) -> Iterator[TrainingLine]:
    """All training lines of a file, folder or pattern."""
    reader = TRAINING.get(format)
    bad = BadLines(skip_bad) if bad is None else bad
    for file in expand(path, reader.suffixes):
        yield from reader.read(file, bad)
