"""A passage and another one of its document."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qac_jax.data.building import SORTS
from qac_jax.data.drawing import any_text, check_weights, pair
from qac_jax.data.form import Form
from qac_jax.data.kind import Example, Kind, Lengths, Record, Settings, two_texts
from qac_jax.text.crops import below


def passage_passage(
    record: Record,
    rng: np.random.Generator,
    *,
    form: Form,
    lengths: Lengths,
    sorts: Sequence[str] = SORTS,
) -> Example:
    """A passage and another of its document: "random" (within 100), "nearby" or "overlap".

    A document of one passage has no other: its passage is its own context, as in the released
    code.
    """
    sort = sorts[below(rng, len(sorts))] if len(sorts) > 1 else sorts[0]
    return pair(record["passage"], any_text(record, sort, rng), rng, form, lengths)


def check(settings: Settings) -> None:
    check_weights("sorts", dict.fromkeys(settings["sorts"], 1.0), SORTS)


KIND = Kind(
    name="passage_passage",
    function=passage_passage,
    features=two_texts(144, 144),
    needs=lambda settings: ("passage", *settings["sorts"]),
    check=check,
)
