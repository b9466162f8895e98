"""Two spans of a document (coCondenser)."""

from __future__ import annotations

import numpy as np

from qac_jax.data.drawing import pair
from qac_jax.data.form import Form
from qac_jax.data.kind import Example, Kind, Lengths, Record, two_texts
from qac_jax.text.crops import below


def two_spans(record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths) -> Example:
    """Two different spans of a document (coCondenser; Gao & Callan, 2022, §3.2)."""
    spans = record["spans"]
    first = below(rng, len(spans))
    second = below(rng, len(spans) - 1)
    second += second >= first
    return pair(spans[first], spans[second], rng, form, lengths)


KIND = Kind(
    name="two_spans",
    function=two_spans,
    features=two_texts(128, 128),
    needs=lambda settings: ("spans",),
)
