"""A single text, whose tokens are masked on the device."""

from __future__ import annotations

import numpy as np

from qac_jax.data.form import Form
from qac_jax.data.kind import Example, Feature, Kind, Lengths, Record


def masked_lm(record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths) -> Example:
    """A single text; its tokens are masked on the device."""
    return {"tokens": form.one(record["passage"], lengths["tokens"], rng)}


KIND = Kind(
    name="mlm",
    function=masked_lm,
    features=lambda settings: {"tokens": Feature(length=128)},
    needs=lambda settings: ("passage",),
)
