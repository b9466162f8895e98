"""A T5 that starts by copying says the next word of its text before it was trained at all."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.models.layers import Runtime
from qac_jax.models.t5 import T5, T5Config, shift_right
from qac_jax.objectives.seq2seq import Seq2Seq


CONFIG = T5Config(
    600, 96, 24, 64, 2, num_decoder_layers=2, num_heads=4, dropout=0.0, start_id=2, eos_id=3
)


def first(objective: Seq2Seq) -> tuple[float, float]:
    """How often the text's next token is the likeliest, and how often the one just said."""
    rng = np.random.default_rng(0)
    text = np.stack([rng.permutation(590)[:24] + 5 for _ in range(16)])
    targets = jnp.asarray(text[:, 6:16], jnp.int32)
    variables = nn.meta.unbox(jax.jit(objective.init)(jax.random.key(0)))
    logits = jax.jit(objective.model.apply)(
        variables, jnp.asarray(text, jnp.int32), jnp.full(16, 24), shift_right(targets, 2)
    )
    likeliest = jnp.argmax(logits, -1)[:, 1:]  # the first token has none before it
    copied, again = likeliest == targets[:, 1:], likeliest == targets[:, :-1]
    return float(jnp.mean(copied)), float(jnp.mean(again))


@pytest.mark.slow
def test_it_copies_where_a_random_start_does_not():
    for scan in (False, True):
        copied, again = first(Seq2Seq(T5(CONFIG, Runtime(scan=scan)), start="copying"))
        assert copied > 0.85 and again < 0.1
    copied, again = first(Seq2Seq(T5(CONFIG)))
    assert copied < 0.1 and again > 0.5  # the tied output matrix says what it has heard


def test_shapes_that_cannot_start_so_are_refused():
    objective = Seq2Seq(T5(dataclasses.replace(CONFIG, tied=False)), start="copying")
    with pytest.raises(UserError, match="start='copying' is not for this T5"):
        jax.eval_shape(objective.init, jax.random.key(0))
