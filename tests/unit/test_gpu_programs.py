"""Steps as they are made for a GPU, on a machine without one: traced and lowered only."""

import contextlib
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
from toy_objectives import batch_for, engine, objective

from qac_jax.models import packing
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.layers import Runtime
from qac_jax.training import mesh as meshes


_LAYERS = 2
# Layers whose attention is one kernel: the encoder's of each text, and those of heads and
# decoders; not the last one where it only computes [CLS].
_FORWARD = {
    "mlm": _LAYERS,
    "cocondenser": 2 * (_LAYERS + 1),
    "cotmae": _LAYERS + 1,
    "retromae": _LAYERS,
    "finetune": 2 * (_LAYERS - 1),
    "localized": _LAYERS - 1,
}


@pytest.fixture(autouse=True)
def _a_gpu():
    with packing.made_for("gpu"):
        yield


_QUICK = ("mlm", "localized")


@pytest.mark.parametrize(
    "name", [n if n in _QUICK else pytest.param(n, marks=pytest.mark.slow) for n in _FORWARD]
)
def test_every_objective_has_a_program_for_a_gpu(name: str) -> None:
    """Its state can be made and its step differentiated with kernels for attention."""
    config = BertConfig(64, 64, _LAYERS, 1, 256, 16, hidden_dropout=0.0, attention_dropout=0.0)
    made, batch = engine(objective(name, "bfloat16", config)), batch_for(name)
    spec = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in batch.items()}
    there: Any = contextlib.nullcontext()
    if jax.__version_info__ >= (0, 12):  # it asks which GPU kernels are for
        device = jax.sharding.AbstractDevice("NVIDIA H100", None, "gpu")
        mesh = made.mesh.abstract_mesh.update(abstract_device=device)
        there = jax.sharding.use_abstract_mesh(mesh)
    with meshes.use(made.mesh), there:
        traced = jax.jit(made.step).trace(made.abstract, spec)
        program = traced.lower(lowering_platforms=("cuda",)).as_text()
    for kernel in ("attention", "attention_backward"):
        assert program.count(f'name = "{kernel}"') == _FORWARD[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "packed", "scan"),
    [(None, (), False), (None, ((16, 0.75),), True), (1, ((16, 0.75),), False)],
)
def test_its_forms_of_layers_are_the_plain_ones(rows, packed, scan: bool) -> None:
    """One product for queries, keys and values, and a norm with a backward pass of its own."""
    with jax.enable_x64(True):
        runtime = Runtime(dtype="float64", packed=packed, scan=scan)
        model = Bert(BertConfig(50, 32, 3, 4, 64, 16), runtime)
        ids, lengths = np.arange(96).reshape(6, 16) % 50, np.array([16, 9, 1, 12, 5, 2])
        keys = jax.random.split(jax.random.key(1), 6)
        with packing.made_for("cpu"):
            params = nn.unbox(model.init(jax.random.key(0), ids, lengths))["params"]
        params = jax.tree.map(lambda x: np.asarray(x, np.float64) + 0.01, params)
        everything = np.cos(np.arange(6 * 16 * 32)).reshape(6, 16, 32)
        everything *= (np.arange(16) < lengths[:, None])[..., None]  # packed padding is 0
        weights = everything[:, :1]

        def run(made_for: str) -> tuple:
            def loss(params: dict) -> jax.Array:
                with packing.made_for(made_for):
                    out = model.apply({"params": params}, ids, lengths, keys=keys, rows=rows)
                return (out.last * (weights if rows else everything)).sum()

            return jax.jit(jax.value_and_grad(loss))(params)

        for ours, plain in zip(*map(jax.tree.leaves, (run("gpu"), run("cpu"))), strict=True):
            np.testing.assert_allclose(ours, plain, rtol=1e-10, atol=1e-12)
