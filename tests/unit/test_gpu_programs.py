"""Steps as they are made for a GPU, on a machine without one: traced and lowered only."""

from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

from qac_jax.models import packing
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives.cocondenser import CoCondenser
from qac_jax.objectives.cotmae import CotMae
from qac_jax.objectives.cross_encoder import Localized
from qac_jax.objectives.finetune import Finetune
from qac_jax.objectives.masking import Vocabulary
from qac_jax.objectives.mlm import Mlm
from qac_jax.objectives.retromae import RetroMae
from qac_jax.training import mesh as meshes
from qac_jax.training.step import Engine


_LAYERS = 2
# Layers whose attention is one kernel: the encoder's of each text, and those of heads and
# decoders; not the last one where it only computes [CLS].
_FORWARD = {
    "mlm": _LAYERS,
    "cocondenser": 2 * (_LAYERS + 2),
    "cotmae": 2 * _LAYERS,
    "retromae": _LAYERS,
    "finetune": 2 * (_LAYERS - 1),
    "cross_encoder": _LAYERS - 1,
}


@pytest.fixture(autouse=True)
def _a_gpu():
    with packing.made_for("gpu"):
        yield


def _objective(name: str, **runtime: Any) -> Any:
    config = BertConfig(200, 64, _LAYERS, 1, 256, 16, hidden_dropout=0.0, attention_dropout=0.0)
    made = Runtime(dtype="bfloat16", **runtime)
    model, vocabulary = config.build(made), Vocabulary(np.zeros(200, bool))
    if name == "finetune":
        return Finetune(DualEncoder(DualEncoderConfig(config), made))
    if name == "cross_encoder":
        return Localized(CrossEncoder(config.with_parts("pooler"), made))
    kinds: dict[str, Any] = {of.__name__.lower(): of for of in (Mlm, CoCondenser, CotMae, RetroMae)}
    return kinds[name](model, vocabulary=vocabulary)


def _batch(name: str) -> dict[str, np.ndarray]:
    """Four examples; fine-tuning has four passages a query, the cross-encoder as many pairs."""
    features: dict[str, dict[str, tuple[int, ...]]] = {
        "mlm": {"tokens": (4, 16)},
        "retromae": {"tokens": (4, 16)},
        "finetune": {"query": (4, 8), "passages": (4, 4, 16)},
        "cross_encoder": {"pairs": (4, 4, 16)},
    }
    pair: dict[str, tuple[int, ...]] = {"passage": (4, 16), "context": (4, 8)}
    batch = {}
    for feature, shape in features.get(name, pair).items():
        batch[feature] = np.full(shape, 7, np.int32)
        batch[f"{feature}_length"] = np.full(shape[:-1], shape[-1] // 2, np.int32)
        if name == "cross_encoder":
            batch[f"{feature}_types"] = np.zeros(shape, np.int32)
    return batch


def _engine(name: str, **runtime: Any) -> tuple[Engine, dict[str, np.ndarray]]:
    mesh = meshes.make_mesh(devices=jax.devices()[:1])
    rules = meshes.rules_named("default")
    return Engine(_objective(name, **runtime), optax.adamw(1e-4), mesh, rules), _batch(name)


def _lowered(engine: Engine, batch: dict[str, np.ndarray]) -> str:
    spec = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in batch.items()}
    with meshes.use(engine.mesh, engine.rules):
        traced = jax.jit(engine.step).trace(engine.abstract, spec)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


_KERNELS = ('name = "attention"', 'name = "attention_backward"')


@pytest.mark.parametrize("name", _FORWARD)
def test_every_objective_has_a_program_for_a_gpu(name: str) -> None:
    """Its state can be made and its step differentiated with kernels for attention."""
    program = _lowered(*_engine(name))
    assert [program.count(kernel) for kernel in _KERNELS] == [_FORWARD[name]] * 2


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
