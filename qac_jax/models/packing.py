"""How activations lie in memory: the platform's layout, and texts without their padding, in rows.

A batch holds texts [B, L], right-padded. Everything in a layer but attention treats each token
alone, so a stack of layers may leave the padding out: `Packed.pack` moves the tokens of consecutive
texts into one row (one row for each part of a sharded batch), layers compute the rows, and
`Packed.unpack` moves what they give back. Attention unpacks queries, keys and values and is the
same padded one, at a few per cent of a layer's FLOPs. So masks, position biases, dropout, poolings
and predictions are addressed by text and position as before.

`Runtime.packed` says how much room the rows have, which must be known when a step is compiled;
`step.room_of` chooses it for each batch. Should texts not fit, all of them become NaN: a token is
never lost silently.
"""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Iterator, Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint


Array = jax.Array

# What `made_for` says; "": nothing.
_OTHER: contextvars.ContextVar[str] = contextvars.ContextVar("platform", default="")


def platform() -> str:
    """ "cpu", "gpu" or "tpu": that of this process, or the one of `made_for`."""
    return _OTHER.get() or jax.default_backend()


@contextlib.contextmanager
def made_for(name: str) -> Iterator[None]:
    """Programs traced in here are those of another platform."""
    token = _OTHER.set(name)
    try:
        yield
    finally:
        _OTHER.reset(token)


def one_device() -> bool:
    """Whether what is traced here runs on one device; without a mesh, whether there is but one."""
    mesh = jax.sharding.get_abstract_mesh()
    return jax.device_count() == 1 if mesh.empty else mesh.size == 1


def row_major(x: Array) -> Array:
    """On a GPU: x in memory in the order of its axes, and its gradient too.

    Left alone, XLA gives an activation the layout of what is first added to it: that of a bias or
    of position embeddings, whose missing axes become the innermost. Layers then compute on
    [features, tokens] or [length, features, texts], with transposes before attention and after.

    With several devices it does nothing: XLA gathers all parts of what is constrained so.
    """
    if platform() != "gpu" or not isinstance(x, jax.core.Tracer) or not one_device():
        return x
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


# Rows are multiples of this many tokens: what matrix units like.
_MULTIPLE = 8


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """Texts [B] in rows [R, T]: row r holds the texts r · B/R, r · B/R + 1, …; then a filling."""

    lengths: Array  # [B]
    text: Array  # [R, T]: the number of each token's text in its row
    position: Array  # [R, T]: of each token in its text
    there: Array  # [R, T]: each token's place among the B/R · L padded ones, beyond them: filling
    back: Array  # [R, B/R · L]: each padded token's place in its row, beyond it: padding
    length: int = dataclasses.field(metadata={"static": True})  # L

    def pack(self, x: Array, axis: str | None = None) -> Array:
        """[B, L, D] -> [R, T, D]; the filling is 0. axis: the logical name of D."""
        rows = x.reshape(*self.back.shape, x.shape[2])
        return _shard(_moved(rows, self.there, self.back), axis)

    def unpack(self, x: Array, axis: str | None = None) -> Array:
        """[R, T, D] -> [B, L, D]; the padding is 0. axis: the logical name of D."""
        padded = _moved(x, self.back, self.there)
        return _shard(padded.reshape(-1, self.length, x.shape[2]), axis)

    def first(self, x: Array, count: int) -> Array:
        """The first `count` positions of every text: [R, T, D] -> [B, count, D]."""
        rows = self.back.shape[0]
        places = self.back.reshape(rows, -1, self.length)[:, :, :count].reshape(rows, -1)
        return _shard(_taken(x, places).reshape(-1, count, x.shape[2]), None)

    def of_tokens(self, values: Array) -> Array:
        """A value of each token [B, L], without a gradient: [R, T]; of the filling 0."""
        rows = values.reshape(self.back.shape)
        return jnp.take_along_axis(rows, self.there, axis=1, mode="fill", fill_value=0)

    def of_texts(self, values: Array) -> Array:
        """A value of each text [B] at its tokens: [R, T]."""
        rows = values.reshape(self.back.shape[0], -1)
        return jnp.take_along_axis(rows, self.text, axis=1, mode="clip")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenKeys:
    """One PRNG key a text, for dropout of packed tokens."""

    keys: Array  # [B]
    packed: Packed


# What layers are called with. Lengths of texts [B]; None: no padding.
Lengths = Array | Packed | None
# One PRNG key a text, for dropout; None: nothing is dropped.
Keys = Array | TokenKeys | None
# How many of the first positions the last layer computes; None: all.
Rows = int | None


def plan(lengths: Array, length: int, room: int, rows: int) -> tuple[Packed, Array]:
    """How texts of these lengths are packed into `rows` rows of `room` tokens, and whether they
    all fit."""
    sizes = lengths.reshape(rows, -1).astype(jnp.int32)
    ends = jnp.cumsum(sizes, axis=1)
    starts = ends - sizes
    place = jnp.arange(room, dtype=jnp.int32)
    search = partial(jnp.searchsorted, side="right", method="scan_unrolled")
    text = jax.vmap(search, (0, None))(ends, place).astype(jnp.int32)
    position = place - jnp.take_along_axis(starts, text, axis=1, mode="clip")
    beyond = sizes.shape[1] * length
    there = jnp.where(place < ends[:, -1:], text * length + position, beyond)
    within = jnp.arange(length, dtype=jnp.int32)
    back = jnp.where(within < sizes[..., None], starts[..., None] + within, room)
    packed = Packed(lengths, text, position, there, back.reshape(rows, -1), length)
    return packed, jnp.all(ends[:, -1] <= room)


def room_for(length: int, share: float, texts: int) -> int:
    """The tokens that fit into a row for this many texts, padded to `length`."""
    return math.ceil(texts * length * share / _MULTIPLE) * _MULTIPLE


def choose(
    packed: Sequence[tuple[int, float]], lengths: Array | None, length: int
) -> tuple[Packed, Array] | None:
    """The plan of `Runtime.packed` for a batch of texts; None where it is computed with padding."""
    share = dict(packed).get(length)
    if share is None or lengths is None:
        return None
    texts, rows = lengths.shape[0], parts()
    if texts % rows:
        return None
    room = room_for(length, share, texts // rows)
    if room >= texts // rows * length:
        return None
    return plan(lengths, length, room, rows)


def parts() -> int:
    """How many parts the batch axis of activations is sharded into where this is traced."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else math.prod(mesh.shape[name] for name in batch_axes())


def batch_axes() -> tuple[str, ...]:
    axes = dict(reversed(nn.get_logical_axis_rules())).get("batch")
    return (axes,) if isinstance(axes, str) else tuple(axes or ())


def one_part_a_device() -> bool:
    """Whether each device has texts of its own here, and all of them; without a mesh, whether there
    is but one device."""
    mesh = jax.sharding.get_abstract_mesh()
    return one_device() if mesh.empty else parts() == mesh.size


# What layers call, whether their input is packed (then `lengths` is a Packed and `keys` are
# TokenKeys) or not.


def pack(x: Array, lengths: Lengths, axis: str | None = None) -> Array:
    """[B, L, D] as the layer's input is laid out. axis: the logical name of D."""
    return lengths.pack(x, axis) if isinstance(lengths, Packed) else x


def unpack(x: Array, lengths: Lengths, axis: str | None = None) -> Array:
    """An array laid out as the layer's input, as [B, L, D]. axis: the logical name of D."""
    return lengths.unpack(x, axis) if isinstance(lengths, Packed) else x


def first(x: Array, lengths: Lengths, rows: int | None) -> Array:
    """The first `rows` positions of every text [B, rows, …]; None: x as it is."""
    if rows is None:
        return x
    return lengths.first(x, rows) if isinstance(lengths, Packed) else x[:, :rows]


def text_lengths(lengths: Lengths) -> Array | None:
    return lengths.lengths if isinstance(lengths, Packed) else lengths


def text_keys(keys: Keys) -> Array | None:
    return keys.keys if isinstance(keys, TokenKeys) else keys


def _taken(x: Array, places: Array) -> Array:
    """x [R, T, D] at places [R, N], 0 where a place is beyond T: [R, N, D]."""
    return jnp.take_along_axis(x, places[..., None], axis=1, mode="fill", fill_value=0)


@jax.custom_vjp
def _moved(x: Array, there: Array, back: Array) -> Array:
    """x at `there`. No place is read twice, so the gradient is the same with `back`: reading
    again, where that of a gather would add up in place, which accelerators do slowly."""
    return _taken(x, there)


def _moved_forward(x: Array, there: Array, back: Array) -> tuple[Array, tuple[Array, Array]]:
    return _taken(x, there), (there, back)


def _moved_backward(places: tuple[Array, Array], gradient: Array) -> tuple[Array, None, None]:
    there, back = places
    return _moved(gradient, back, there), None, None


_moved.defvjp(_moved_forward, _moved_backward)


def _shard(x: Array, axis: str | None) -> Array:
    return row_major(nn.with_logical_constraint(x, ("batch", "length", axis)))
