"""The smallest parts of every model: dense, norms, embedding, gelu, dropout, run-time options.

Conventions kept by all models of this room:

* Parameters are fp32, computation runs in `Runtime.dtype`, statistics in at least fp32.
* Leaf names are Flax's: `kernel` [in, out], `bias`, `scale`, `embedding` [rows, embed].
* Parameters carry logical axis names ("vocab", "embed", "heads", "mlp", "positions", "types",
  "layers", "labels"); activations are constrained by `shard` with "batch", "length" and these.
* Dropout takes `keys`, one PRNG key a row, or None for none; every place that drops folds its
  own site number into the row's key, so splitting or sharding a batch changes nothing.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.errors import UserError, nearest
from qac_jax.fields import Checked, option
from qac_jax.models.packing import Array, Keys, TokenKeys, platform, row_major


Initializer = Callable[..., Array]
Axes = tuple[str | None, ...]  # logical names of a parameter's axes

DTYPES = ("float32", "mixed", "bfloat16", "float16", "float64")
ATTENTION = ("auto", "xla")
REMATERIALISATION = ("none", "attention", "dots", "layer")


@dataclasses.dataclass(frozen=True)
class Runtime(Checked):
    """How a model is computed; no field changes what it computes, nor its parameters' values.

    dtype is that of activations; with "mixed" they are fp32, and the dense layers of a stack and
    word predictions multiply bfloat16 roundings, sums staying fp32: for CPUs with instructions for
    such products.
    scan stacks the parameters of equal layers along a leading axis and loops over them inside
    the program: it compiles once whatever the depth. remat names what the backward pass
    computes again: nothing, the attention scores, all but the matrix products, whole layers.
    packed says which texts are computed without padding (packing.py): those padded to a length,
    with room for a share of their tokens. kept is the number of chunks of a batch that is encoded
    in chunks which the backward pass does not compute again (objectives/chunked.py).
    """

    dtype: str = option("float32", choices=DTYPES)
    attention: str = option("auto", choices=ATTENTION)
    scan: bool = False
    remat: str = option("none", choices=REMATERIALISATION)
    packed: tuple[tuple[int, float], ...] = option((), affects_result=False)
    kept: int = option(0, affects_result=False)

    @property
    def compute_dtype(self) -> jnp.dtype:
        if self.dtype == "float64" and jnp.result_type(float) != jnp.float64:
            raise UserError("dtype='float64' needs JAX's 64-bit mode; set JAX_ENABLE_X64=1")
        return jnp.dtype("float32" if self.dtype == "mixed" else self.dtype)

    @property
    def mixed(self) -> bool:
        """Whether dense layers round what they multiply to bfloat16."""
        return self.dtype == "mixed"


def statistics_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """Where sums over many values are taken: fp32, or wider if the activations are."""
    return jnp.promote_types(dtype, jnp.float32)


def shard(x: Array, *names: str | None) -> Array:
    """Constrains an activation by logical axis names; nothing happens without a mesh."""
    return row_major(nn.with_logical_constraint(x, names))


def parameter(
    module: nn.Module, name: str, init: Initializer, shape: tuple[int, ...], axes: Axes
) -> Array:
    """An fp32 parameter with logical axis names."""
    return module.param(name, nn.with_logical_partitioning(init, axes), shape, jnp.float32)


def matmul(x: Array, kernel: Array, mixed: bool = False) -> Array:
    """x [..., in] times kernel [in, out], as one product of two matrices.

    Leading axes are merged first: XLA's CPU code multiplies matrices much faster than it does
    anything with three axes, and elsewhere the reshapes cost nothing.
    """
    multiply = _mixed_product if mixed else lax.dot
    flat = multiply(x.reshape(-1, x.shape[-1]), kernel)
    return flat.reshape(*x.shape[:-1], kernel.shape[-1])


@jax.custom_vjp
def _mixed_product(x: Array, kernel: Array) -> Array:
    """x [N, in] times kernel [in, out], both rounded to bfloat16, in fp32; so are the gradients."""
    return _mixed_forward(x, kernel)[0]


def _mixed_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    x, kernel = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    return lax.dot(x, kernel, preferred_element_type=jnp.float32), (x, kernel)


def _mixed_backward(kept: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, kernel = kept
    g = g.astype(jnp.bfloat16)
    wide = jnp.float32
    of_x = lax.dot_general(g, kernel, (((1,), (1,)), ((), ())), preferred_element_type=wide)
    of_kernel = lax.dot_general(x, g, (((0,), (0,)), ((), ())), preferred_element_type=wide)
    return of_x, of_kernel


_mixed_product.defvjp(_mixed_forward, _mixed_backward)


def spread(vector: Array, x: Array) -> Array:
    """vector [D] to be added to each token of x [..., D], or multiplied with it.

    Its gradient is a sum over all tokens. On a CPU XLA makes of it windows that it walks down a
    column at a time, at a tenth of the speed of a product of a row of ones with the matrix.
    """
    return _spread(vector, x.shape) if platform() == "cpu" else vector


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _spread(vector: Array, shape: tuple[int, ...]) -> Array:
    return jnp.broadcast_to(vector, shape)


def _spread_backward(shape: tuple[int, ...], _: None, g: Array) -> tuple[Array]:
    rows = g.reshape(-1, shape[-1])
    wide = statistics_dtype(g.dtype)
    total = lax.dot(jnp.ones(len(rows), g.dtype), rows, preferred_element_type=wide)
    return (total.astype(g.dtype),)


_spread.defvjp(lambda vector, shape: (_spread(vector, shape), None), _spread_backward)


class Dense(nn.Module):
    """x W + b, with the logical names of W's two axes."""

    features: int
    axes: Axes
    dtype: jnp.dtype
    kernel_init: Initializer = nn.initializers.normal(0.02)
    use_bias: bool = True
    mixed: bool = False

    def __call__(self, x: Array, scale: float = 1.0) -> Array:
        """scale multiplies the result; it is folded into the parameters, which are smaller."""
        kernel, bias = self.parts(x.shape[-1], scale)
        y = matmul(x.astype(self.dtype), kernel, self.mixed)
        return y if bias is None else y + spread(bias, y)

    @nn.compact
    def parts(self, width: int, scale: float = 1.0) -> tuple[Array, Array | None]:
        """W and b as they are multiplied and added, `scale` in them."""
        shape = (width, self.features)
        kernel, bias = parameter(self, "kernel", self.kernel_init, shape, self.axes), None
        if self.use_bias:
            zeros = nn.initializers.zeros_init()
            bias = parameter(self, "bias", zeros, (self.features,), self.axes[1:])
        scaled: Any = (kernel, bias)
        if scale != 1.0:
            scaled = jax.tree.map(lambda x: x * scale, scaled)
        return jax.tree.map(lambda x: x.astype(self.dtype), scaled)


def together(x: Array, layers: Sequence[Dense], scales: Sequence[float]) -> list[Array]:
    """Dense layers of one shape applied to the same x; on a GPU by one product.

    Three products of BERT-base's width read and write more than they multiply; one of three times
    the width reads x once, and its gradient is summed inside of it.
    """
    if platform() != "gpu":
        return [layer(x, scale) for layer, scale in zip(layers, scales, strict=True)]
    parts = [layer.parts(x.shape[-1], scale) for layer, scale in zip(layers, scales, strict=True)]
    # Stacked, not joined: so the axis that tensor parallelism divides stays an axis.
    kernel = jnp.stack([kernel for kernel, _ in parts], axis=1)
    flat = x.reshape(-1, x.shape[-1]).astype(kernel.dtype)
    each = jnp.split(lax.dot_general(flat, kernel, (((1,), (0,)), ((), ()))), len(parts), axis=1)
    each = [y.reshape(*x.shape[:-1], -1) for y in each]
    return [y if bias is None else y + bias for y, (_, bias) in zip(each, parts, strict=True)]


def joined(x: Array, layers: Sequence[Dense], scales: Sequence[float]) -> Array:
    """As `together`, side by side in one array [..., n · width]; for one device."""
    parts = [layer.parts(x.shape[-1], scale) for layer, scale in zip(layers, scales, strict=True)]
    kernel = jnp.concatenate([kernel for kernel, _ in parts], axis=1)
    y = matmul(x.astype(kernel.dtype), kernel)
    return y + jnp.concatenate([bias for _, bias in parts])


def dense_of(
    runtime: Runtime,
    features: int,
    axes: Axes,
    init: Initializer,
    use_bias: bool = True,
    *,
    name: str | None = None,
) -> Dense:
    dtype, mixed = runtime.compute_dtype, runtime.mixed
    return Dense(features, axes, dtype, init, use_bias, mixed, name=name)


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis; mean and variance in at least fp32."""

    epsilon: float
    dtype: jnp.dtype
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        ones, zeros = nn.initializers.ones_init(), nn.initializers.zeros_init()
        width = x.shape[-1:]
        scale = parameter(self, "scale", ones, width, ("embed",))
        bias = parameter(self, "bias", zeros, width, ("embed",)) if self.use_bias else None
        if platform() == "gpu":
            return _normalise(x, scale, bias, self.epsilon).astype(self.dtype)
        return _scaled(_normalised(x, self.epsilon)[0], scale, bias).astype(self.dtype)


def _scaled(y: Array, scale: Array, bias: Array | None) -> Array:
    scaled = y * spread(scale, y)
    return scaled if bias is None else scaled + spread(bias, y)


def _normalised(x: Array, epsilon: float) -> tuple[Array, tuple[Array, Array]]:
    """(x - mean) / deviation; and the mean and 1 / deviation."""
    wide = x.astype(statistics_dtype(x.dtype))
    mean = wide.mean(-1, keepdims=True)
    centred = wide - mean
    inverse = lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + epsilon)
    return centred * inverse, (mean, inverse)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _normalise(x: Array, scale: Array, bias: Array | None, epsilon: float) -> Array:
    """Layer normalisation whose backward pass keeps each token's mean and deviation.

    Where they are computed again, as XLA does on GPUs, the gradient of `scale` is a product of
    [tokens, features] in fp32 that is written and read again before it is summed.
    """
    return _scaled(_normalised(x, epsilon)[0], scale, bias)


def _normalise_forward(x: Array, scale: Array, bias: Array | None, epsilon: float) -> Any:
    y, statistics = _normalised(x, epsilon)
    # The barrier keeps them from being computed again.
    return _scaled(y, scale, bias), (x, scale, bias, lax.optimization_barrier(statistics))


def _normalise_backward(epsilon: float, kept: Any, g: Array) -> tuple[Array, Array, Array | None]:
    x, scale, bias, (mean, inverse) = kept
    tokens = tuple(range(x.ndim - 1))
    y = (x.astype(g.dtype) - mean) * inverse
    of_y = g * scale
    along = (of_y * y).mean(-1, keepdims=True)
    of_x = (of_y - of_y.mean(-1, keepdims=True) - y * along) * inverse
    of_bias = None if bias is None else g.sum(tokens).astype(bias.dtype)
    return of_x.astype(x.dtype), (g * y).sum(tokens).astype(scale.dtype), of_bias


_normalise.defvjp(_normalise_forward, _normalise_backward)


class Embedding(nn.Module):
    """A table of rows; `table` gives it whole, for tied output layers and static slices."""

    rows: int
    features: int
    axis: str
    init: Initializer = nn.initializers.normal(0.02)

    def setup(self) -> None:
        shape, axes = (self.rows, self.features), (self.axis, "embed")
        self.table = parameter(self, "embedding", self.init, shape, axes)

    def __call__(self, ids: Array) -> Array:
        # On a GPU a row that does not exist is 0, and has no gradient to be added up.
        mode = "fill" if platform() == "gpu" else "clip"
        return jnp.take(self.table, ids, axis=0, mode=mode, fill_value=0)


def gelu(x: Array) -> Array:
    """Exact (erf) gelu: x times the normal distribution function."""
    return 0.5 * x * (1.0 + lax.erf(x * math.sqrt(0.5)))


gelu_tanh = partial(jax.nn.gelu, approximate=True)  # T5 v1.1's and GPT-2's

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
    "identity": lambda x: x,
}


def activation(name: str) -> Callable[[Array], Array]:
    if name not in ACTIVATIONS:
        raise UserError(f"activation {name!r} is not known; {nearest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]


def fold(keys: Array | None, number: int | Array) -> Array | None:
    """Another independent set of per-example keys (a second text, a head …)."""
    if keys is None:
        return None
    return jax.vmap(jax.random.fold_in, (0, None))(keys, number)


def dropout(x: Array, keys: Keys, site: int | Array, rate: float) -> Array:
    """Drops entries of x [B, …] with per-example keys; `site` tells the places apart.

    With TokenKeys those of packed tokens [R, T, D], the same as of [B, L, D].
    """
    if keys is None or rate == 0.0:
        return x
    if isinstance(keys, TokenKeys):
        packed, width = keys.packed, x.shape[-1]
        seeds = packed.of_texts(seeds_of(keys.keys, site))
        begin = packed.position.astype(jnp.uint32) * jnp.uint32(width)
        places = begin.reshape(-1, 1) + _places((width,))
        keep = stays(seeds.reshape(-1), places, rate).reshape(x.shape)
    else:
        keep = stays(seeds_of(keys, site), _places(x.shape[1:]), rate)
    return jnp.where(keep, x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), jnp.zeros((), x.dtype))


def _mix(x: Array) -> Array:
    """A bijective 32-bit mixer (two multiplications): every input bit reaches every output."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


# A hash of (row key, site, place in the row) against a threshold: a counter and a few integer
# operations an entry. XLA fuses it into whatever uses the mask, so that no random bits are ever
# stored. Good enough to drop units with, for nothing else.


def seeds_of(keys: Array, site: int | Array) -> Array:
    """A number for each row and site: uint32 [B]."""
    words = jax.random.key_data(keys).astype(jnp.uint32).reshape(keys.shape[0], -1)
    seed = _mix(jnp.asarray(site).astype(jnp.uint32) + jnp.uint32(0x9E3779B9))
    seeds = jnp.broadcast_to(seed, keys.shape[:1])
    for word in range(words.shape[1]):
        seeds = _mix(seeds ^ words[:, word]) + jnp.uint32(0x9E3779B9)
    return seeds


def _places(shape: tuple[int, ...]) -> Array:
    """The number of each entry of a row, uint32 [1, …]."""
    place, stride = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        place += lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride)
        stride *= shape[axis]
    return place[None]


def stays(seeds: Array, places: Array, rate: float) -> Array:
    """Whether each entry stays, for seeds [B] and places [B or 1, …], or one seed."""
    if seeds.ndim:
        seeds = seeds.reshape(seeds.shape[0], *(1,) * (places.ndim - 1))
    bits = _mix(_mix(places ^ seeds) + seeds)
    return bits >= jnp.uint32(min(round(rate * 2.0**32), 2**32 - 1))
