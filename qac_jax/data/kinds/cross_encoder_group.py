"""A query with one positive and its negatives, each in one sequence."""

from __future__ import annotations

from qac_jax.data.drawing import check_passages, window
from qac_jax.data.form import Form
from qac_jax.data.kind import LENGTH, Example, Feature, JudgedKind, Lengths, Record, Settings
from qac_jax.data.kinds.triples import records, stored
from qac_jax.data.randomness import ExampleRng


def cross_encoder_group(
    record: Record,
    rng: ExampleRng,
    *,
    form: Form,
    lengths: Lengths,
    n_passages: int = 8,
    truncation: str = "pop_longer",
) -> Example:
    """A query with one positive and its negatives, each in one sequence (localised loss)."""
    positives, negatives = record["positives"], record["negatives"]
    place = (rng.seed + rng.index + rng.epoch) % len(positives)
    chosen = window(len(negatives), n_passages - 1, rng, True)
    passages = [positives[place], *(negatives[i] for i in chosen)]
    both = [form.two(record["query"], ids, lengths["pairs"], truncation) for ids in passages]
    return {"pairs": [ids for ids, _ in both], "pairs_types": [types for _, types in both]}


def features(settings: Settings) -> dict[str, Feature]:
    axes = (settings["n_passages"], LENGTH)
    return {
        "pairs": Feature(axes=axes, length=160),
        "pairs_types": Feature(axes=axes, like="pairs"),
    }


KIND = JudgedKind(
    name="cross_encoder_group",
    function=cross_encoder_group,
    features=features,
    needs=lambda settings: ("query", "positives", "negatives"),
    check=check_passages,
    stored=stored,
    records=records,
    crop="right",
    title="space",
)
