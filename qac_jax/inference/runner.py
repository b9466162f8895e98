"""Runs the batches of a model at inference, on all devices of this process.

Each device has a copy of the weights, or several share one, for generators that do not fit on one
(T5-3B, 11B). The rows of a batch are sharded over the copies, and the host prepares the next
batches while the devices compute.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from qac_jax import hardware
from qac_jax.errors import UserError
from qac_jax.inference.settings import BY_DEVICE, ENGINES, Inference
from qac_jax.models.pointer import Writer
from qac_jax.processes import cores


# Tokens of one batch: few for the caches of a CPU's cores, many for each GPU to use it fully.
_TOKENS_A_CORE = 512
_FEWEST_TOKENS = 1024
_MANY_TOKENS = 65536

# The mesh axis of the devices that share one copy of a model.
TENSOR = "tensor"

# ids, token types [B, L], lengths [B] -> last hidden states [B, L, D] (int8.py).
Hidden = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

T = TypeVar("T")

# XLA compiles a program for every shape, so lengths are rounded up to those of a short list, and
# all batches of one length have the same number of rows, except the last.
# (up to this length, lengths are multiples of this)
_STEPS = ((64, 8), (128, 16), (256, 32))
_STEP = 64

# For generation, whose programs are large and whose reading is a small part of the work.
_FEW = (16, 32, 64, 96, 128, 192, 256, 384, 512)
_FEW_STEP = 256


class Batch(NamedTuple):
    """The texts of one batch, and the shape they are padded to."""

    rows: np.ndarray  # numbers of texts, at most `size` of them
    size: int
    length: int


def rounded(length: int, limit: int) -> int:
    """The length that a text of `length` tokens is padded to, at most `limit`."""
    step = next((step for end, step in _STEPS if length <= end), _STEP)
    return min(-(-max(length, 1) // step) * step, max(limit, length))


def coarse(length: int, limit: int) -> int:
    """As `rounded`, with fewer lengths."""
    fitting = next((end for end in _FEW if length <= end), -(-length // _FEW_STEP) * _FEW_STEP)
    return max(min(fitting, limit), length)


def token_batches(
    lengths: Sequence[int] | np.ndarray,
    tokens: int,
    *,
    texts: int = 0,
    multiple: int = 1,
    limit: int = 512,
) -> Iterator[Batch]:
    """All texts, the longest first, in batches of about `tokens` tokens, padding included.

    Sizes are `multiple` (the number of devices) times powers of two, so that there are few, up to
    `texts` (0: any). The longest come first because they need the most memory.
    """
    lengths = np.asarray(lengths)
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        length = rounded(int(lengths[order[start]]), limit)
        fitting = max(tokens // (length * multiple), 1)
        if texts:
            fitting = min(fitting, max(texts // multiple, 1))
        size = multiple << (fitting.bit_length() - 1)
        left = len(order) - start
        while size // 2 >= max(left, multiple):
            size //= 2
        rows = order[start : start + size]
        yield Batch(rows, size, length)
        start += len(rows)


def even_batches(
    lengths: Sequence[int] | np.ndarray,
    texts: int,
    *,
    tokens: int = 0,
    multiple: int = 1,
    limit: int = 512,
) -> Iterator[Batch]:
    """All texts, the longest first, in batches of `texts` rows each, for models that generate.

    The last batch is padded to the same size. `tokens`: of a batch at most, padding included.
    """
    lengths = np.asarray(lengths)
    order = np.argsort(-lengths, kind="stable")
    size = texts
    if tokens and len(order):
        fitting = tokens // coarse(int(lengths[order[0]]), limit)
        size = min(size, max(fitting // multiple, 1) * multiple)
    while size // 2 >= max(len(order), multiple):
        size //= 2  # few texts
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        yield Batch(rows, size, coarse(int(lengths[rows[0]]), limit))


def padded(
    rows: Sequence[Sequence[int] | np.ndarray], batch: Batch, pad: int
) -> tuple[np.ndarray, np.ndarray]:
    """(ids [size, length], lengths [size]) of one batch; padding rows have length 1."""
    ids = np.full((batch.size, batch.length), pad, np.int32)
    lengths = np.ones(batch.size, np.int32)
    for place, row in enumerate(batch.rows):
        tokens = rows[row]
        ids[place, : len(tokens)] = tokens
        lengths[place] = len(tokens)
    return ids, lengths


@dataclasses.dataclass(frozen=True)
class Runner:
    """A model's parameters on the devices, and the batches for them. Make it with `of`."""

    params: Any
    mesh: Mesh
    inference: Inference = BY_DEVICE

    @classmethod
    def of(
        cls,
        params: Any,
        inference: Inference = BY_DEVICE,
        devices: Sequence[Any] | None = None,
        partitions: int = 1,
        place: Callable[[Mesh], Any] | None = None,
    ) -> Self:
        """On `devices` (default: all of this process), of which `partitions` share a copy of the
        parameters; place: where each parameter lies on the mesh (default: whole on every device).
        """
        devices = jax.local_devices() if devices is None else list(devices)
        if len(devices) % partitions:
            raise UserError(f"partitions={partitions} does not divide {len(devices)} devices")
        shape, axes = (len(devices) // partitions, partitions), ("data", TENSOR)
        mesh = jax.make_mesh(shape, axes, (AxisType.Auto,) * 2, devices=devices)
        where = place(mesh) if place else NamedSharding(mesh, PartitionSpec())
        return cls(jax.device_put(params, where), mesh, inference)

    @property
    def copies(self) -> int:
        """Copies of the model, each of which computes its own rows of a batch."""
        return self.mesh.shape["data"]

    def placed(self, arrays: T) -> T:
        """The arrays of one batch, their rows sharded over the devices."""
        return jax.device_put(arrays, NamedSharding(self.mesh, PartitionSpec("data")))

    def batches(self, lengths: Sequence[int], limit: int) -> Iterator[Batch]:
        """Batches of about the same number of tokens, for encoders."""
        devices = self.copies
        tokens = self.inference.batch_tokens or _MANY_TOKENS
        if not self.inference.batch_tokens and jax.default_backend() == "cpu":
            tokens = max(_TOKENS_A_CORE * cores() // devices, _FEWEST_TOKENS)
        texts = self.inference.batch_texts
        return token_batches(
            lengths, tokens * devices, texts=texts * devices, multiple=devices, limit=limit
        )

    def texts(self, on_cpu: int, elsewhere: int) -> int:
        """Texts of a batch on all devices; the arguments are for one device, by its kind."""
        usual = on_cpu if jax.default_backend() == "cpu" else elsewhere
        return (self.inference.batch_texts or usual) * self.copies

    def run(
        self,
        batches: Iterable[Batch],
        start: Callable[[Batch], T],
        take: Callable[[Batch, T], None],
        *,
        ahead: int = 3,
    ) -> None:
        """Starts every batch and takes the results in order, with up to `ahead` batches in flight:
        JAX computes asynchronously while `start` prepares the next ones."""
        waiting: collections.deque[tuple[Batch, T]] = collections.deque()
        for batch in batches:
            waiting.append((batch, start(batch)))
            if len(waiting) >= ahead:
                take(*waiting.popleft())
        while waiting:
            take(*waiting.popleft())

    def rows(
        self,
        batches: Iterable[Batch],
        start: Callable[[Batch], jax.Array],
        out: np.ndarray,
        advance: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """`out`, filled with the result of `start` for each text: a row or a number each."""

        def take(batch: Batch, result: jax.Array) -> None:
            out[batch.rows] = found = np.asarray(result)[: len(batch.rows)]
            check_finite(found)
            if advance is not None:
                advance(len(batch.rows))

        self.run(batches, start, take)
        return out


def dtype_of(precision: str, graphs: bool = False) -> str:
    """The type that matrix products are computed in (`Runtime.dtype`); graphs: whether the model
    may be a graph of another library, beside which all else is fp32."""
    if precision in ("int8", *ENGINES):
        if graphs and (precision != "int8" or jax.default_backend() == "cpu"):
            return "float32"
        raise UserError(
            f"--precision {precision} is for encoders and rerankers on CPUs; leave it out, or give "
            "fast"
        )
    return hardware.precision_on(jax.default_backend(), Inference(precision).precision)


def check_finite(numbers: np.ndarray) -> None:
    """Raises UserError for what a model gives where its numbers overflow."""
    if not np.isfinite(numbers).all():
        raise UserError("the model gives numbers that are not finite; give --precision float32")


# One copy of a model over several devices: matrices are cut along heads, the inner layer of the
# feed-forward network and the vocabulary, so that every device computes a part of each product
# (Megatron-LM; Shoeybi et al., 2019). The compiler places what lies between. An axis that the
# devices do not divide evenly stays whole on each.
_CUT = ("vocab", "heads", "mlp")


def shardings(module: Writer, mesh: Mesh) -> Any:
    count = mesh.shape[TENSOR]
    abstract = jax.eval_shape(module.init, jax.random.key(0), *module.example_inputs())

    def one(leaf: Any) -> NamedSharding:
        if count == 1 or not isinstance(leaf, nn.LogicallyPartitioned):
            return NamedSharding(mesh, PartitionSpec())
        sizes = zip(leaf.names, leaf.value.shape, strict=True)
        cut = [name in _CUT and size % count == 0 for name, size in sizes]
        return NamedSharding(mesh, PartitionSpec(*(TENSOR if here else None for here in cut)))

    boxed = abstract["params"]
    return jax.tree.map(one, boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned))


def by_copies(function: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """`function` of parameters and arrays with the rows first, compiled, for each copy's own rows.

    Every copy runs its own loops, without communication. Where a copy is divided, all run one loop
    together: a device must not leave one in which others wait for it.
    """
    if mesh.shape[TENSOR] > 1:
        return jax.jit(function)

    def cut(params: Any, *arrays: Any) -> Any:
        rows = PartitionSpec("data")
        inputs = (PartitionSpec(), *(rows for _ in arrays))
        each = jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=rows, check_vma=False)
        return each(params, *arrays)

    return jax.jit(cut)
