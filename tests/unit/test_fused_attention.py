"""The kernel for GPUs that attends within packed texts, interpreted, against plain attention."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from qac_jax.models import attention, packing
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.layers import Runtime, seeds_of
from qac_jax.models.packing import plan
from qac_jax.training import mesh as meshes


SITE = 7
_CASES = {
    # heads, head size, longest text, texts' tokens, filling behind them
    "one block": (2, 16, 12, (12, 1, 5, 0), 0),
    "blocks": (2, 32, 150, (150, 64, 65, 3), 20),
    "much filling": (1, 16, 20, (4, 9), 170),
}


def _attended(rate: float, case: str, interpret: bool, dtype: str) -> list[tuple]:
    """Output and gradient of the kernel, and of XLA on padded texts in fp32."""
    heads, size, longest, counts, filling = _CASES[case]
    rng, tokens, texts = np.random.default_rng(0), sum(counts) + filling, len(counts)
    joint = jnp.asarray(rng.normal(size=(1, tokens, 3 * heads * size)), dtype)
    weights = rng.normal(size=(1, tokens, heads * size))
    weights[:, sum(counts) :] = 0.0
    keys = jax.random.split(jax.random.key(1), texts)
    packed, fit = plan(jnp.array(counts), longest, tokens, 1)
    assert fit

    def ours(x: jax.Array) -> jax.Array:
        shape = attention.KernelShape(heads, longest, rate, interpret)
        starts = jnp.append(jnp.cumsum(packed.lengths) - packed.lengths, tokens)
        seeds = seeds_of(keys, SITE)
        return attention.attend_texts(x[0], starts, packed.lengths, seeds, shape)[None]

    def plain(x: jax.Array) -> jax.Array:
        runtime = Runtime(attention="xla")
        parts = jnp.split(packed.unpack(x.astype(jnp.float32)), 3, axis=2)
        query, key, value = (attention.split_heads(part, heads) for part in parts)
        mixed = attention.attend(
            query, key, value, packed.lengths, runtime, keys=keys, site=SITE, rate=rate
        )
        return packed.pack(attention.merge_heads(mixed))

    def both(run) -> tuple:
        def total(x: jax.Array) -> tuple:
            out = run(x)
            return (out * weights).sum(), out

        with jax.default_matmul_precision("highest"):
            gradient, out = jax.jit(jax.grad(total, has_aux=True))(joint)
        return tuple(np.asarray(x, np.float32)[0] for x in (out, gradient))

    return list(zip(both(ours), both(plain), strict=True))


@pytest.mark.parametrize(
    ("rate", "case"), [(0.3, "one block"), (0.3, "blocks"), (0.0, "much filling")]
)
def test_it_is_plain_attention_with_the_same_dropout(rate: float, case: str) -> None:
    for ours, plain in _attended(rate, case, interpret=True, dtype="float32"):
        np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-5 * max(1.0, abs(plain).max()))


@pytest.mark.gpu
@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("case", _CASES)
def test_the_compiled_kernel_is_plain_attention(rate: float, case: str) -> None:
    for ours, plain in _attended(rate, case, interpret=False, dtype="bfloat16"):
        assert np.abs(ours - plain).max() < 0.03 * max(1.0, np.abs(plain).max())


def test_what_lies_between_texts_is_zero() -> None:
    """Padded texts, whose padding is between them, and a filling longer than any text."""
    shape = attention.KernelShape(1, 20, 0.0, interpret=True)
    joint = jnp.ones((70, 48))
    starts, counts = jnp.array([0, 20, 70]), jnp.array([7, 20])

    def total(x: jax.Array) -> tuple:
        out = attention.attend_texts(x, starts, counts, jnp.zeros(1, jnp.uint32), shape)
        return (out * jnp.arange(70.0)[:, None]).sum(), out

    gradient, out = jax.grad(total, has_aux=True)(joint)
    there = np.zeros(70, bool)
    there[:7] = there[20:40] = True
    np.testing.assert_allclose(out[there], 1.0, atol=1e-6)
    assert not out[~there].any() and not gradient[~there].any() and gradient[there].any()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each kernel traced; they are let compute here, in fp32."""
    monkeypatch.setattr(attention, "_HALF", (*attention._HALF, "float32"))
    shape = functools.partial(attention.KernelShape, interpret=True)
    monkeypatch.setattr(attention, "KernelShape", shape)
    found: list[int] = []
    attend = attention.attend_texts

    def counted(*arguments):
        found.append(1)
        return attend(*arguments)

    monkeypatch.setattr(attention, "attend_texts", counted)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "rate", "packed"),
    [(1, 0.0, ((16, 0.8),)), (1, 0.2, ()), (8, 0.0, ()), (8, 0.2, ((16, 0.8),))],
)
def test_layers_are_the_same_with_it(
    kernels: list[int], packed: tuple, rate: float, devices: int
) -> None:
    """A BERT on one device and on several, each of which computes its own texts."""
    config = BertConfig(50, 32, 3, 2, 64, 16, hidden_dropout=rate, attention_dropout=rate)
    ids = np.arange(256).reshape(16, 16) % 50
    lengths = np.array([16, 9, 1, 12, 5, 2, 16, 8, 3, 16, 1, 7, 14, 4, 12, 10])
    keys = jax.random.split(jax.random.key(1), 16)
    weights = np.cos(np.arange(16 * 16 * 32)).reshape(16, 16, 32)
    weights *= (np.arange(16) < lengths[:, None])[..., None]
    params = nn.unbox(Bert(config).init(jax.random.key(0), ids, lengths))["params"]

    def run(kind: str, count: int) -> tuple[tuple, int]:
        runtime = Runtime(attention=kind, packed=packed)
        mesh = meshes.make_mesh(devices=jax.devices()[:count])

        def loss(params: dict, *texts: jax.Array) -> jax.Array:
            with packing.made_for("gpu" if kind == "auto" else "cpu"):
                out = Bert(config, runtime).apply({"params": params}, *texts[:2], keys=texts[2])
            return (out.last * weights).sum()

        rows = NamedSharding(mesh, PartitionSpec(meshes.BATCH_AXES))
        with meshes.use(mesh):
            texts = jax.device_put((ids, lengths, keys), rows)
            everywhere = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
            compiled = jax.jit(jax.value_and_grad(loss)).lower(everywhere, *texts).compile()
            return compiled(everywhere, *texts), (compiled.as_text() or "").count(" all-gather(")

    (plain, _), (ours, gathered) = run("xla", 1), run("auto", devices)
    for a, b in zip(*map(jax.tree.leaves, (ours, plain)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    assert len(kernels) == config.num_layers and not gathered
