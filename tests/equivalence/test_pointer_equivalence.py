"""What must not change a pointer-generator's probabilities: the cache, padding, packing, scan."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.hub import backbones, weights
from qac_jax.models import heads
from qac_jax.models.layers import Runtime
from qac_jax.models.pointer import PointerConfig, PointerGenerator
from qac_jax.models.t5 import shift_right


X64 = Runtime(dtype="float64")
CONFIG = PointerConfig(40, 8, 2, 2, 12, 16, d_ff=12, start_id=2, eos_id=3)
IDS = np.array([[2, 7, 9, 11, 9, 3], [2, 20, 30, 3, 0, 0], [2, 3, 0, 0, 0, 0]], np.int32)
LENGTHS = np.array([6, 4, 2], np.int32)
TARGETS = np.array([[9, 11, 30, 3], [20, 5, 3, 0], [8, 6, 3, 0]], np.int32)
TARGETS_IN = np.asarray(shift_right(jnp.asarray(TARGETS), CONFIG.start_id))


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def module(**runtime: Any) -> PointerGenerator:
    return PointerGenerator(CONFIG, dataclasses.replace(X64, **runtime))


@functools.cache
def params() -> Any:
    drawn = backbones.new_parameters(module(), seed=1)
    rng = np.random.default_rng(0)  # biases and what starts as zeros too
    return jax.tree.map(lambda x: x + 0.3 * rng.normal(size=x.shape), drawn)


def log_probabilities(logits: Any) -> np.ndarray:
    return np.asarray(jax.nn.log_softmax(logits, axis=-1))


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    with jax.enable_x64(True):
        run = jax.jit(module().apply)
        return log_probabilities(run({"params": params()}, IDS, LENGTHS, TARGETS_IN))


def test_the_mixture_by_hand(logits: np.ndarray) -> None:
    """See et al. (2017), equation 9: p(w) = g p_words(w) + (1 - g) sum of a_i where x_i = w."""
    bound = module().bind({"params": params()})
    memory = bound.encode(IDS, LENGTHS)
    hidden = bound.decoder.forced(bound._input(TARGETS_IN, memory), memory.states, LENGTHS)
    flat = np.asarray(bound.output.dense(hidden)) @ np.asarray(memory.words).T
    said = np.asarray(jax.nn.softmax(flat + np.asarray(bound.output.bias), axis=-1))
    queries, keys = bound.copy.query(hidden), bound.copy.key(memory.states)
    for text in range(3):
        places = [i for i in range(LENGTHS[text]) if IDS[text, i] not in (0, 2, 3)]
        for t in range(4):
            if not places:  # nothing but [CLS] and [SEP]: nothing to copy
                np.testing.assert_allclose(np.exp(logits[text, t]), said[text, t], atol=1e-9)
                continue
            scores = np.array([float(queries[text, t] @ keys[text, i]) for i in places])
            weights = np.asarray(jax.nn.softmax(scores / np.sqrt(8.0)))
            context = sum(
                w * np.asarray(memory.states[text, i]) for w, i in zip(weights, places, strict=True)
            )
            joined = np.concatenate([hidden[text, t], context])
            share = float(jax.nn.sigmoid(bound.gate(joined))[0])
            expected = said[text, t] * share
            for weight, i in zip(weights, places, strict=True):
                expected[IDS[text, i]] += (1 - share) * weight
            np.testing.assert_allclose(np.exp(logits[text, t]), expected, atol=1e-9)


def test_likelihood_of_targets_is_that_of_the_logits(logits: np.ndarray) -> None:
    bound = module().bind({"params": params()})
    each = bound.likelihood(TARGETS_IN, TARGETS, bound.encode(IDS, LENGTHS), LENGTHS)
    picked = np.take_along_axis(logits, TARGETS[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(each, picked, atol=1e-9)


@pytest.mark.slow
def test_likelihood_of_those_that_count(logits: np.ndarray, monkeypatch: Any) -> None:
    """Two continuations a text, in blocks of five positions."""
    monkeypatch.setattr(heads, "_BLOCK", 5)
    bound = module().bind({"params": params()})
    picked = np.take_along_axis(logits, TARGETS[..., None], axis=-1)[..., 0]
    counted = np.arange(4) < np.array([[4, 1], [3, 0], [2, 4]])[..., None]
    twice = jnp.tile(TARGETS_IN, 2), jnp.tile(TARGETS, 2), jnp.asarray(counted.reshape(3, 8))
    each = bound.counted_likelihood(*twice, bound.encode(IDS, LENGTHS), LENGTHS, 2)
    expected = np.where(counted, picked[:, None], 0.0)
    np.testing.assert_allclose(np.reshape(each, (3, 2, 4)), expected, atol=1e-9)


@pytest.mark.slow
def test_mixed_precision_rounds_products_alone(logits: np.ndarray) -> None:
    """bfloat16 has 8 bits: log-probabilities differ by a few hundredths, and they do differ."""
    single = jax.tree.map(lambda x: np.asarray(x, np.float32), params())
    model = PointerGenerator(CONFIG, Runtime(dtype="mixed"))
    rounded = log_probabilities(model.apply({"params": single}, IDS, LENGTHS, TARGETS_IN))
    assert 1e-5 < np.abs(np.asarray(rounded) - logits).max() < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("copies", "scan"), [(1, False), (2, True)])
def test_one_token_at_a_time(logits: np.ndarray, scan: bool, copies: int) -> None:
    model, tree = module(scan=scan), params()
    variables = {"params": weights.scanned(tree) if scan else tree}
    memory = model.apply(variables, IDS, LENGTHS, method="encode")
    cache = model.apply(variables, memory, LENGTHS, 4, copies, method="init_cache")
    for t in range(4):
        ids = np.repeat(TARGETS_IN[:, t], copies)
        step, cache = model.apply(variables, ids, cache, method="step")
        np.testing.assert_allclose(
            log_probabilities(step), np.repeat(logits[:, t], copies, axis=0), atol=1e-9
        )


def test_several_continuations_in_a_row(logits: np.ndarray) -> None:
    model, variables = module(), {"params": params()}
    memory = model.apply(variables, IDS, LENGTHS, method="encode")
    other = np.roll(TARGETS_IN, 1, axis=0)
    both = np.concatenate([TARGETS_IN, other], axis=1)
    got = model.apply(variables, both, memory, LENGTHS, beside=2, method="decode")
    np.testing.assert_allclose(log_probabilities(got)[:, :4], logits, atol=1e-9)


@pytest.mark.slow
def test_padding_and_packing_change_nothing(logits: np.ndarray) -> None:
    variables = {"params": params()}
    longer = np.pad(IDS, ((0, 0), (0, 4)), constant_values=17)
    got = module().apply(variables, longer, LENGTHS, TARGETS_IN)
    np.testing.assert_allclose(log_probabilities(got), logits, atol=1e-9)
    packed = module(packed=((6, 0.75),)).apply(variables, IDS, LENGTHS, TARGETS_IN)
    np.testing.assert_allclose(log_probabilities(packed), logits, atol=1e-9)
