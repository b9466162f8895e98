"""Batches that eight devices do not share equally: every objective's step and figures as on one."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest
from toy_pretraining import VOCABULARY

from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.models.t5 import T5, T5Config
from qac_jax.objectives.augtriever import InBatch, MoCo
from qac_jax.objectives.cocondenser import CoCondenser
from qac_jax.objectives.condenser import Condenser
from qac_jax.objectives.cotmae import CotMae
from qac_jax.objectives.cross_encoder import Localized, Pointwise
from qac_jax.objectives.dupmae import DupMae
from qac_jax.objectives.listwise import Listwise
from qac_jax.objectives.masking import Masking
from qac_jax.objectives.mlm import Mlm
from qac_jax.objectives.pair import Pair
from qac_jax.objectives.retromae import RetroMae
from qac_jax.objectives.seq2seq import Seq2Seq
from qac_jax.objectives.span_corruption import SpanCorruption
from qac_jax.training import mesh as meshes
from qac_jax.training.step import Engine


SIZE, PER, LENGTH = 11, 2, 8  # on eight devices 16 rows
BERT = BertConfig(64, 16, num_layers=1, num_heads=2, intermediate_size=32, max_positions=LENGTH)


def objectives() -> dict[str, Any]:
    runtime = Runtime(dropout="hash")
    bert, words = BERT.build(runtime), dict[str, Any](vocabulary=VOCABULARY)
    dual = DualEncoder(DualEncoderConfig(BERT, pooling="mean"), runtime)
    cross = CrossEncoder(BERT, runtime, labels=2)
    config = T5Config(64, 16, 8, 32, num_layers=1, num_decoder_layers=1, num_heads=2)
    t5 = T5(config, runtime)
    masking = Masking(0.3)
    return {
        "mlm": Mlm(bert, masking, **words),
        "condenser": Condenser(bert, masking, head_layers=1, **words),
        "cocondenser": CoCondenser(bert, masking, head_layers=1, mlm_group=2, **words),
        "cotmae": CotMae(bert, decoder="both", mlm_layers=1, **words),
        "retromae": RetroMae(bert, **words),
        "retromae_basic": RetroMae(bert, enhanced=False, **words),
        "dupmae": DupMae(bert, bag="context", **words),
        "pair": Pair(dual, alpha=0.3),
        "in_batch": InBatch(dual, temperature=1.0, smoothing=0.1),
        "moco": MoCo(dual, temperature=1.0, queue_size=8 * SIZE),
        "pointwise": Pointwise(cross, adversarial_step=0.5),
        "localized": Localized(cross),
        "listwise": Listwise(dual),
        "seq2seq": Seq2Seq(t5, smoothing=0.1),
        "span_corruption": SpanCorruption(t5),
    }


Shapes = dict[str, tuple[int, ...]]  # of a feature's texts beside the batch
TOKENS, PAIRS = Shapes(tokens=()), Shapes(passage=(), context=())
TRIPLES = Shapes(query=(), passages=(PER,))
FEATURES: dict[str, Shapes] = {
    "mlm": TOKENS,
    "condenser": TOKENS,
    "retromae": TOKENS,
    "retromae_basic": TOKENS,
    "span_corruption": TOKENS,
    "pair": TRIPLES,
    "pointwise": {"pair": ()},
    "localized": {"pairs": (PER,)},
    "listwise": {"query": (3,), "passages": (4,)},
    "seq2seq": {"inputs": (), "targets": ()},
}


def batch_for(name: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    batch: dict[str, np.ndarray] = {}
    if name == "pointwise":
        batch["label"] = rng.integers(0, 2, SIZE).astype(np.int32)
    if name == "listwise":
        batch["scores"] = rng.normal(size=(SIZE, 3, 4)).astype(np.float32)
    for feature, many in FEATURES.get(name, PAIRS).items():
        shape = (SIZE, *many)
        lengths = rng.integers(3, LENGTH + 1, shape).astype(np.int32)
        ids = rng.integers(5, 60, (*shape, LENGTH))
        ids[..., 0] = VOCABULARY.cls
        ids = np.where(np.arange(LENGTH) < lengths[..., None], ids, 0)
        batch |= {feature: ids.astype(np.int32), f"{feature}_length": lengths}
        if feature.startswith("pair"):
            batch[f"{feature}_types"] = (ids > 30).astype(np.int32)
    return batch


def engine(name: str, devices: int) -> Engine:
    mesh = meshes.make_mesh((-1, 1, 1), jax.devices()[:devices])
    spy = optax.trace(decay=0.0)  # its state is the gradient
    return Engine(objectives()[name], spy, mesh, meshes.rules_named("default"), seed=3)


def start(made: Engine) -> Any:
    """A state drawn without compiling anything."""
    rng = np.random.default_rng(1)

    def drawn(path: Any, leaf: Any) -> np.ndarray:
        if not np.issubdtype(leaf.dtype, np.floating):
            return np.zeros(leaf.shape, leaf.dtype)
        noise = rng.normal(0.0, 0.2, leaf.shape).astype(leaf.dtype)
        return noise + 1 if getattr(path[-1], "key", "") == "scale" else noise

    state = jax.tree_util.tree_map_with_path(drawn, made.abstract)
    return jax.tree.map(jax.device_put, state, made.shardings)


def one_step(name: str, devices: int) -> tuple[dict[str, float], Any, Any]:
    """(figures, gradient, what else the variables hold) of a step with dropout."""
    made, batch = engine(name, devices), batch_for(name)
    state, metrics = made.compile_step(batch)(start(made), meshes.place(batch, made.mesh))
    rest = {name: part for name, part in state.variables.items() if name != "params"}
    figures = {name: float(value) for name, value in metrics.items()}
    return figures, jax.device_get(state.opt_state.trace), jax.device_get(rest)


# With vectors of the whole batch and state; validation below is of a loss by weights.
IN_CI = "moco"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == IN_CI else pytest.mark.long) for n in objectives()]
)
def test_a_step_is_that_of_one_device(name: str) -> None:
    found, expected = one_step(name, 8), one_step(name, 1)
    assert found[0] == pytest.approx(expected[0], rel=1e-5, abs=1e-7)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        largest = max((float(np.abs(x).max()) for x in jax.tree.leaves(theirs)), default=0.0)
        assert largest > 1e-3 or not theirs
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * largest)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cotmae", pytest.param("cocondenser", marks=pytest.mark.long)])
def test_figures_of_validation_are_those_of_one_device(name: str) -> None:
    figures = []
    for devices in (1, 8):
        made, batch = engine(name, devices), batch_for(name)
        measure = made.compile_measure(batch)
        found = measure(start(made).variables, meshes.place(batch, made.mesh))
        figures.append({name: float(value) for name, value in found.items()})
    assert figures[1] == pytest.approx(figures[0], rel=1e-5, abs=1e-7)
