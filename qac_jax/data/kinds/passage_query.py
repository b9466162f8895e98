"""A passage and one of its queries (query-as-context)."""

from __future__ import annotations

import numpy as np

from qac_jax.data.drawing import any_text, pair
from qac_jax.data.form import Form
from qac_jax.data.kind import Example, Kind, Lengths, Record, two_texts


def passage_query(
    record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths, queries: int = 0
) -> Example:
    """A passage and one of its queries at random (of the first `queries`; 0: of all)."""
    context = any_text(record, "contexts", rng, queries)
    return pair(record["passage"], context, rng, form, lengths)


KIND = Kind(
    name="passage_query",
    function=passage_query,
    features=two_texts(144, 32),
    needs=lambda settings: ("passage", "contexts"),
)
