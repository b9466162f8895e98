"""An input text and one of its targets: what a generator learns from."""

from __future__ import annotations

import numpy as np

from qac_jax.data.drawing import any_text
from qac_jax.data.form import Form
from qac_jax.data.kind import Example, Feature, Kind, Lengths, Record


def seq2seq(
    record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths, targets: int = 0
) -> Example:
    """An input text and one of its targets at random (of the first `targets`; 0: of all)."""
    return {
        "inputs": form.one(record["inputs"], lengths["inputs"], rng),
        "targets": form.one(any_text(record, "targets", rng, targets), lengths["targets"], rng),
    }


KIND = Kind(
    name="seq2seq",
    function=seq2seq,
    features=lambda settings: {"inputs": Feature(length=192), "targets": Feature(length=64)},
    needs=lambda settings: ("inputs", "targets"),
    crop="right",
)
