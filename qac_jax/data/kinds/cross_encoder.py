"""A query and a passage in one sequence, relevant or not."""

from __future__ import annotations

import numpy as np

from qac_jax.data.form import PAIR_TRUNCATIONS, Form, check_name
from qac_jax.data.kind import Example, Feature, Kind, Lengths, Record, Settings


def cross_encoder(
    record: Record,
    rng: np.random.Generator,
    *,
    form: Form,
    lengths: Lengths,
    truncation: str = "pop_longer",
) -> Example:
    """A query and a passage in one sequence with token types, and whether it is relevant."""
    ids, types = form.two(record["query"], record["passage"], lengths["pair"], truncation)
    return {"pair": ids, "pair_types": types, "label": np.int32(record["label"][0])}


def features(settings: Settings) -> dict[str, Feature]:
    del settings
    return {
        "pair": Feature(length=160),
        "pair_types": Feature(like="pair"),
        "label": Feature(axes=()),
    }


def check(settings: Settings) -> None:
    check_name("truncation", settings["truncation"], PAIR_TRUNCATIONS)


KIND = Kind(
    name="cross_encoder",
    function=cross_encoder,
    features=features,
    needs=lambda settings: ("query", "passage", "label"),
    crop="right",
    check=check,
)
