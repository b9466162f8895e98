"""Runs the batches of a model at inference, on all devices of this process.

Each device has a copy of the weights, or several share one (partitioning.py). The rows of a batch
are sharded over the copies, and the host prepares the next batches while the devices compute.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from qac_jax import hardware
from qac_jax.errors import UserError
from qac_jax.inference import buckets
from qac_jax.inference.buckets import Batch
from qac_jax.inference.settings import BY_DEVICE, Inference


# Tokens of one batch on one device: few for a CPU's caches, many to use a GPU fully.
_TOKENS = {"cpu": 4096}
_MANY_TOKENS = 65536

# The mesh axis of the devices that share one copy of a model.
TENSOR = "tensor"

T = TypeVar("T")
S = TypeVar("S")


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
    ) -> Runner:
        """On `devices` (default: all of this process), of which `partitions` share a copy of the
        parameters; place: where each parameter lies on the mesh (default: whole on every device).
        """
        devices = jax.local_devices() if devices is None else list(devices)
        if len(devices) % partitions:
            raise UserError(
                f"partitions={partitions} does not divide the number of devices of this process, "
                f"{len(devices)}; choose a number that does"
            )
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
        tokens = self.inference.batch_tokens or _TOKENS.get(jax.default_backend(), _MANY_TOKENS)
        texts = self.inference.batch_texts
        return buckets.batches(
            lengths, tokens * devices, texts=texts * devices, multiple=devices, limit=limit
        )

    def even_batches(
        self, lengths: Sequence[int], limit: int, *, on_cpu: int, elsewhere: int
    ) -> Iterator[Batch]:
        """Batches of the same number of texts, for models that generate."""
        devices = self.copies
        return buckets.even_batches(
            lengths,
            self.texts(on_cpu, elsewhere),
            tokens=self.inference.batch_tokens * devices,
            multiple=devices,
            limit=limit,
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
        """Starts every batch and takes the results in order, with up to `ahead` batches in flight.

        JAX computes asynchronously while `start` prepares the next batches.
        """
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
            out[batch.rows] = np.asarray(result)[: len(batch.rows)]
            if advance is not None:
                advance(len(batch.rows))

        self.run(batches, start, take)
        return out


def dtype_of(precision: str) -> str:
    """What matrix products are computed in (`Runtime.dtype`)."""
    return hardware.precision_on(jax.default_backend(), Inference(precision).precision)


def prefetched(make: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """`make` of each item; the next one is made in a thread while one is in use."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        upcoming: collections.deque[concurrent.futures.Future[T]] = collections.deque()
        for item in items:
            upcoming.append(thread.submit(make, item))
            if len(upcoming) > 1:
                yield upcoming.popleft().result()
        while upcoming:
            yield upcoming.popleft().result()
