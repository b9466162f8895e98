"""Continuous batching: what a text is continued by does not depend on whose place it took."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from qac_jax.hub import backbones
from qac_jax.inference import refilling
from qac_jax.inference.runner import Runner, coarse
from qac_jax.inference.settings import Inference
from qac_jax.models.decoding.sampling import Rules
from qac_jax.models.decoding.settings import Decoding
from qac_jax.models.decoding.slots import decode
from qac_jax.models.layers import Runtime
from qac_jax.models.pointer import PointerConfig, PointerGenerator
from qac_jax.models.t5 import T5, T5Config


POINTER = PointerConfig(40, 8, 1, 2, 12, 32, num_decoder_layers=1, d_ff=12, start_id=2, eos_id=3)
WRITER = T5Config(40, 8, 4, 12, 1, 2, 2, start_id=2, eos_id=3)
SAMPLED = Decoding(max_tokens=6, samples=3, top_k=20, top_p=0.95)
LONGEST, PAD = 24, 0


@functools.cache
def model(kind: str) -> tuple[Any, Any]:
    config, runtime = (POINTER, Runtime()) if kind == "pointer" else (WRITER, Runtime(scan=True))
    module = (PointerGenerator if kind == "pointer" else T5)(config, runtime)
    shapes = backbones.new_parameters(module, abstract=True)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.normal(0, 0.4, x.shape).astype(np.float32), shapes)
    return module, params


def texts() -> list[refilling.Text]:
    rng = np.random.default_rng(1)
    found = []
    for number in range(19):  # of two padded lengths
        ids = rng.integers(4, 40, rng.integers(2, LONGEST + 1)).tolist()
        bits = rng.integers(0, 2**32, 2, dtype=np.uint32)
        found.append(refilling.Text(ids, [6, 6, 2, 4][number % 4], bits))
    return found


def refilled(
    kind: str, settings: Decoding, slots: int, order: Any = None, devices: int = 1
) -> list[Any]:
    """(tokens, lengths, scores) of every text."""
    module, params = model(kind)
    runner = Runner.of(params, Inference(batch_texts=slots), jax.devices()[:devices])
    given = texts()
    order = list(range(len(given))) if order is None else order
    found: list[Any] = [None] * len(given)

    def take(number: int, *parts: np.ndarray) -> None:
        assert found[order[number]] is None
        found[order[number]] = parts

    rules = Rules(settings, module.config)
    chosen = [given[number] for number in order]
    refilling.generate(module, runner, rules, chosen, take, pad=PAD, longest=LONGEST)
    return found


def at_once(kind: str, settings: Decoding) -> Any:
    """All texts in one batch, which ends with its last text."""
    module, params = model(kind)
    given = texts()
    ids = np.full((len(given), LONGEST), PAD, np.int32)
    for row, text in enumerate(given):
        ids[row, : len(text.ids)] = text.ids
    lengths = np.array([len(text.ids) for text in given], np.int32)
    limits = np.array([text.limit for text in given], np.int32)
    bits = np.stack([text.bits for text in given])
    run = jax.jit(functools.partial(decode, module, settings=settings))
    return run({"params": params}, ids, lengths, limits=limits, keys=bits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings", "devices"),
    [
        ("pointer", SAMPLED, 1),
        ("t5", SAMPLED, 2),
        ("t5", dataclasses.replace(SAMPLED, method="greedy", samples=1, no_repeat_ngram=2), 1),
    ],
    ids=["pointer", "t5", "greedy"],
)
def test_refilled_is_one_batch(kind: str, settings: Decoding, devices: int) -> None:
    expected = at_once(kind, settings)
    assert len({coarse(len(text.ids), LONGEST) for text in texts()}) > 1
    found = refilled(kind, settings, 3, devices=devices)
    for row, (tokens, lengths, scores) in enumerate(found):
        np.testing.assert_array_equal(tokens, expected.tokens[row])
        np.testing.assert_array_equal(lengths, expected.lengths[row])
        np.testing.assert_allclose(scores, expected.scores[row], atol=1e-4)
    assert len({int(count) for _, lengths, _ in found for count in lengths}) > 2


@pytest.mark.slow
def test_the_same_bits_whatever_the_order() -> None:
    """On a CPU without AVX-512 a score was seen to differ in its last bit; texts did not."""
    cpu = Path("/proc/cpuinfo")
    wide = cpu.is_file() and "avx512f" in cpu.read_text()
    rng = np.random.default_rng(2)
    first = refilled("pointer", SAMPLED, 4)
    second = refilled("pointer", SAMPLED, 4, rng.permutation(19).tolist())
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one[:2], other[:2], strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_max_ulp(one[2], other[2], maxulp=0 if wide else 2)
