"""One step is the same on any mesh, in microbatches, in chunks, and in two processes."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy

from qac_jax.objectives import chunked
from qac_jax.training import mesh as meshes
from qac_jax.training.step import Engine


SIZE = 16
# Of the largest entry of all gradients (x64; fp32 sums in another order differ by about 5e-6).
TOLERANCE = {"float64": 1e-9, "float32": 2e-5}

# Keeps the last gradient as its state, so that a real, whole step tells its gradient exactly.
SPY = optax.chain(optax.trace(decay=0.0), optax.scale(-0.1))

MLM = toy.ToyMlm(toy.Net(dropout=0.2))
CONTRASTIVE = toy.ToyContrastive(toy.Net(dropout=0.2))


def one_step(
    objective: Any,
    shape: tuple[int, int, int],
    dtype: str,
    steps: int = 1,
    size: int = SIZE,
    **options: Any,
) -> tuple[float, Any, Any]:
    """(loss, gradients, parameters) of the last of some steps as numpy."""
    count = int(np.prod(shape))
    with jax.enable_x64(dtype == "float64"):
        net = dataclasses.replace(objective.model, param_dtype=jnp.dtype(dtype))
        mesh = meshes.make_mesh(shape, jax.devices()[:count])
        objective = dataclasses.replace(objective, model=net)
        engine = Engine(objective, SPY, mesh, seed=3, **options)
        state = engine.create()
        compiled = engine.compile_step(toy.batch(size))
        for number in range(steps):
            state, metrics = compiled(state, meshes.place(toy.batch(size, number), mesh))
        gradients = state.opt_state[0].trace
        return float(metrics["loss"]), jax.device_get(gradients), jax.device_get(state.params)


def assert_same(a: tuple[float, Any, Any], b: tuple[float, Any, Any], dtype: str) -> None:
    """Losses and gradients equal within the tolerance of the largest gradient entry."""
    limit = TOLERANCE[dtype]
    largest = max(float(np.abs(x).max()) for x in jax.tree.leaves(b[1]))
    assert largest > 1e-3, "the gradient vanished: nothing would be compared"
    assert abs(a[0] - b[0]) <= limit * max(1.0, abs(b[0]))
    for x, y in zip(jax.tree.leaves(a[1]), jax.tree.leaves(b[1]), strict=True):
        assert x.dtype == y.dtype == np.dtype(dtype)
        np.testing.assert_allclose(x, y, rtol=0, atol=limit * largest)


@pytest.fixture(scope="module")
def single() -> dict[tuple[str, str], tuple[float, Any, Any]]:
    """The direct step on one device."""
    return {
        (name, dtype): one_step(objective, (1, 1, 1), dtype, steps=2)
        for name, objective in (("mlm", MLM), ("contrastive", CONTRASTIVE))
        for dtype in TOLERANCE
    }


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *((shape, "float64") for shape in ((8, 1, 1), (1, 8, 1), (2, 4, 1), (2, 2, 2))),
        ((2, 2, 2), "float32"),
    ],
)
@pytest.mark.parametrize("name", ["mlm", "contrastive"])
def test_every_mesh_is_one_device(single: Any, name: str, shape: Any, dtype: str) -> None:
    objective = {"mlm": MLM, "contrastive": CONTRASTIVE}[name]
    assert_same(one_step(objective, shape, dtype, steps=2), single[name, dtype], dtype)


@pytest.mark.parametrize(
    ("shape", "microbatch", "dtype"),
    [
        ((1, 1, 1), 1, "float64"),
        pytest.param((2, 2, 2), 8, "float64", marks=pytest.mark.slow),
        ((8, 1, 1), 8, "float32"),
    ],
)
def test_accumulation_is_the_direct_step(
    single: Any, shape: Any, microbatch: int, dtype: str
) -> None:
    # Lengths and counts of masked tokens differ by microbatch: means of means would not agree.
    found = one_step(MLM, shape, dtype, steps=2, microbatch=microbatch)
    assert_same(found, single["mlm", dtype], dtype)


@pytest.mark.parametrize(
    ("shape", "chunk", "dtype"),
    [((1, 1, 1), 2, "float64"), pytest.param((2, 2, 2), 4, "float32", marks=pytest.mark.slow)],
)
def test_chunked_is_the_direct_step_without_dropout(shape: Any, chunk: int, dtype: str) -> None:
    direct = one_step(toy.ToyContrastive(), (1, 1, 1), dtype)
    found = one_step(toy.ToyContrastive(chunk=chunk), shape, dtype)
    assert_same(found, direct, dtype)


def test_chunked_is_the_direct_step_with_dropout(single: Any) -> None:
    # Keys of dropout belong to examples, so even dropout does not see the chunks.
    objective = dataclasses.replace(CONTRASTIVE, chunk=8, gather=True)
    found = one_step(objective, (2, 4, 1), "float64", steps=2)
    assert_same(found, single["contrastive", "float64"], "float64")


def test_chunked_is_an_unrolled_loop_over_the_same_chunks() -> None:
    with jax.enable_x64(True):
        net = toy.Net(dropout=0.4, param_dtype=jnp.float64)
        variables = toy.nn.unbox(toy.ToyContrastive(net).init(jax.random.key(0)))
        keys = jax.random.split(jax.random.key(5), SIZE)
        batch = {**toy.batch(SIZE), "keys": keys}

        def encode(variables: Any, part: Any) -> jax.Array:
            return net.apply(variables, part["query"], part["query_length"], part["keys"])[:, 0]

        def loss(vectors: jax.Array) -> jax.Array:
            return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(vectors @ vectors.T / 3)))

        def scanned(variables: Any) -> jax.Array:
            return loss(chunked.chunked_encode(lambda part: encode(variables, part), batch, 4))

        def unrolled(variables: Any) -> jax.Array:
            # Chunk j holds examples j, j + 4, …: 4 chunks of 4.
            parts = [jax.tree.map(lambda x, j=j: x[j::4], batch) for j in range(4)]
            vectors = jnp.zeros((SIZE, net.embed))
            for j, part in enumerate(parts):
                vectors = vectors.at[j::4].set(encode(variables, part))
            return loss(vectors)

        a, b = (jax.jit(jax.value_and_grad(f))(variables) for f in (scanned, unrolled))
        assert_same((float(a[0]), jax.device_get(a[1]), 0), (float(b[0]), b[1], 0), "float64")


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_chunks_that_keep_their_activations_are_not_encoded_again(kept: int) -> None:
    x = np.arange(24.0, dtype=np.float32).reshape(12, 2) / 10
    kernel = np.ones((2, 3), np.float32)

    def loss(kernel: jax.Array, chunk: int) -> jax.Array:
        encoded = chunked.chunked_encode(lambda part: jnp.sin(part @ kernel), x, chunk, kept)
        return jnp.sum(encoded * np.arange(36).reshape(12, 3))

    differentiate = jax.grad(loss)
    np.testing.assert_allclose(differentiate(kernel, 4), differentiate(kernel, 0), rtol=1e-5)
    # Two products for chunks that are kept; one more, in two loops, for those that are not.
    program = jax.make_jaxpr(differentiate, static_argnums=1)(kernel, 4)
    assert str(program).count("= dot_general") == {0: 3, 1: 5, 3: 2}[kept]


def test_split_and_join_are_inverse_and_strided() -> None:
    x = {"a": np.arange(24).reshape(12, 2), "b": np.arange(12)}
    parts = chunked.split(x, 3)
    np.testing.assert_array_equal(parts["b"][1], [1, 4, 7, 10])
    back = chunked.join(parts)
    np.testing.assert_array_equal(back["a"], x["a"])
    np.testing.assert_array_equal(back["b"], x["b"])
