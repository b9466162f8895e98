"""The fast road of drawing is the plain one: few candidates, the whole vocabulary, ties."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.models.decoding.sampling import draw, kept, row_keys
from qac_jax.models.decoding.settings import Decoding, Sampling


ROWS, SIZE = 6, 3000
LOGITS = np.random.default_rng(0).normal(0.0, 3.0, (ROWS, SIZE)).astype(np.float32)


drawn_by = functools.partial(jax.jit, static_argnums=3)(draw)


def keys() -> jax.Array:
    words = np.random.default_rng(1).integers(0, 2**32, (ROWS // 2, 2), dtype=np.uint32)
    return row_keys(jnp.asarray(words), 2)


def kept_by_sorting(scores: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The definition, one row at a time."""
    found = np.zeros(scores.shape, bool)
    for row, values in enumerate(scores.astype(np.float64)):
        order = np.argsort(-values, kind="stable")
        least = values[order[sampling.top_k - 1]] if sampling.top_k else -np.inf
        taken = [i for i in order if values[i] >= least]
        weights = np.exp(values[taken] - values[order[0]])
        before = (np.cumsum(weights) - weights) / weights.sum()
        last = min(v for v, b in zip(values[taken], before, strict=True) if b < sampling.top_p)
        found[row] = (values >= last) & (values >= least)
    return found


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0, 25, 0.95), Sampling(1.0, 0, 0.9), Sampling(1.0, 40, 1.0)]
)
def test_kept_is_the_definition(sampling: Sampling) -> None:
    actual = kept(jnp.asarray(LOGITS), sampling)
    np.testing.assert_array_equal(actual, kept_by_sorting(LOGITS, sampling))


def test_ties_and_wide_nuclei_take_the_long_road_to_the_same_draw() -> None:
    """Rows for which the few largest are not enough are drawn over all tokens."""
    sampling, tied = Sampling(1.0, 5, 1.0), LOGITS.copy()
    tied[0, 100:200] = LOGITS[0].max() + 1.0  # a hundred tokens tie at the first place
    drawn = np.array([drawn_by(jnp.asarray(tied), keys(), step, sampling)[0] for step in range(20)])
    assert ((drawn >= 100) & (drawn < 200)).all() and len(set(drawn.tolist())) > 5
    # The other rows are drawn as they are without it.
    alone = drawn_by(jnp.asarray(LOGITS), keys(), 3, sampling)
    np.testing.assert_array_equal(drawn_by(jnp.asarray(tied), keys(), 3, sampling)[1:], alone[1:])
    flat, nucleus = LOGITS * 0.1, Sampling(1.0, 0, 0.9)
    several = [np.asarray(drawn_by(jnp.asarray(flat), keys(), step, nucleus)) for step in range(20)]
    inside = kept_by_sorting(flat, nucleus)
    assert all(inside[np.arange(ROWS), tokens].all() for tokens in several)
    assert inside.sum(-1).min() > 256, "the nuclei are not wide"


def test_noise_depends_on_key_step_and_token() -> None:
    scores, sampling = jnp.asarray(LOGITS), Sampling()
    first = drawn_by(scores, keys(), 0, sampling)
    np.testing.assert_array_equal(first[2:], drawn_by(scores[2:], keys()[2:], 0, sampling))
    assert (np.asarray(first) != np.asarray(drawn_by(scores, keys(), 1, sampling))).any()


def test_wrong_settings_are_told() -> None:
    settings: tuple[tuple[type, dict[str, Any]], ...] = (
        (Sampling, {"top_p": 0.0}),
        (Decoding, {"method": "beam", "samples": 5, "beams": 4}),
    )
    for kind, wrong in settings:
        with pytest.raises(UserError, match="expected|choose|greedy|search|'"):
            kind(**wrong)
