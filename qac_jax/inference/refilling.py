"""Continuous batching: waiting texts take the places of those that have ended.

Every device holds as many slots. It writes until a few of its slots have ended, the host takes
what they say and starts as many waiting texts in their places. Texts come the longest first, and
those of one start are padded to one length, that of their bucket; slots are cut as soon as all
texts in them are shorter. So what is computed of a text is the same whatever comes with it, but
for the padding of what it reads.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qac_jax.inference.runner import TENSOR, Batch, Runner, coarse, padded
from qac_jax.models.decoding import slots as parts
from qac_jax.models.decoding.sampling import Rules
from qac_jax.models.decoding.settings import Decoding
from qac_jax.models.pointer import Writer


# Rows of one device: enough for fast matrix products. Texts: their memory must fit.
_ROWS, _TEXTS = {"cpu": 160}, {"cpu": 64}
_MANY_ROWS, _MANY_TEXTS = 2560, 512
# The share of the slots that is refilled at once.
_SHARE = 8

# Called with the number of a text, its tokens, their numbers and scores, a row a sample.
Take = Callable[[int, np.ndarray, np.ndarray, np.ndarray], None]


@dataclasses.dataclass(frozen=True)
class Text:
    """A text to continue: ids with special tokens, the most tokens, and 64 random bits."""

    ids: Sequence[int]
    limit: int
    bits: np.ndarray


def generate(
    module: Writer,
    runner: Runner,
    rules: Rules,
    texts: Sequence[Text],
    take: Take,
    *,
    pad: int,
    longest: int,
) -> None:
    """Continues every text and calls `take` with each as soon as it has ended."""
    if not texts:
        return
    lengths = [coarse(len(text.ids), longest) for text in texts]
    size = slots_of(runner, rules.settings, len(texts), max(lengths))
    programs = _programs(module, rules, runner.mesh)
    shared = programs.shared(runner.params)
    queue = _Queue(texts, lengths, runner.copies, size, max(1, size // _SHARE))
    length = queue.longest()
    slots = programs.empty(runner.params, shared, queue.inside.size, length)
    while queue.left():
        while queue.waiting and (queue.inside < 0).any():
            numbers, places = queue.next()
            arrays = _arrays(texts, lengths, numbers, pad)
            fresh = programs.start(runner.params, shared, *runner.placed(arrays))
            slots = programs.put(slots, fresh, runner.placed(places))
            if (queue.inside < 0).sum(1).max() < queue.few:
                break
        if (needed := queue.longest()) < length:
            slots, length = programs.cut(slots, needed), needed
        slots = programs.advance(runner.params, shared, slots, runner.placed(queue.ended()))
        tokens, counts, scores = (
            np.asarray(part) for part in slots.decoded(rules.settings.samples)
        )
        done = np.asarray(slots.done).reshape(*queue.inside.shape, -1).all(-1)
        for device, slot in np.argwhere(done & (queue.inside >= 0)):
            place = device * size + slot
            take(int(queue.inside[device, slot]), tokens[place], counts[place], scores[place])
            queue.inside[device, slot] = -1


class _Queue:
    """Which texts wait, the longest first, and which are in the slots of every device."""

    def __init__(
        self, texts: Sequence[Text], lengths: Sequence[int], devices: int, size: int, few: int
    ):
        order = np.argsort([-len(text.ids) for text in texts], kind="stable").tolist()
        self.waiting = collections.deque(order)
        self.inside = np.full((devices, size), -1)
        self.few, self._lengths = few, lengths

    def left(self) -> bool:
        """Whether any text has not ended."""
        return bool(self.waiting) or bool((self.inside >= 0).any())

    def longest(self) -> int:
        """The padded length of the longest text that has not ended."""
        running = [self._lengths[number] for number in self.inside[self.inside >= 0]]
        return max([*running, *(self._lengths[number] for number in list(self.waiting)[:1])])

    def ended(self) -> np.ndarray:
        """How many slots of each device must have ended before they are refilled."""
        devices, size = self.inside.shape
        if not self.waiting:
            return np.full(devices, size, np.int32)
        return np.minimum((self.inside < 0).sum(1) + self.few, size).astype(np.int32)

    def next(self) -> tuple[list[int], np.ndarray]:
        """The next texts of one padded length, at most `few` a device (-1: none), and the slots
        of their device that they get."""
        devices, size = self.inside.shape
        numbers, places = [-1] * (devices * self.few), np.full(devices * self.few, size, np.int32)
        length = self._lengths[self.waiting[0]]
        for device in range(devices):
            for row, slot in enumerate(np.flatnonzero(self.inside[device] < 0)[: self.few]):
                if self.waiting and self._lengths[self.waiting[0]] == length:
                    place = device * self.few + row
                    numbers[place], places[place] = self.waiting.popleft(), slot
                    self.inside[device, slot] = numbers[place]
        return numbers, places


def _arrays(
    texts: Sequence[Text], lengths: Sequence[int], numbers: Sequence[int], pad: int
) -> tuple[np.ndarray, ...]:
    """The arrays of these texts for `slots.start` (-1: none)."""
    nothing = Text([pad], 0, np.zeros(2, np.uint32))
    chosen = [texts[number] if number >= 0 else nothing for number in numbers]
    length = max(lengths[number] for number in numbers if number >= 0)
    batch = Batch(np.arange(len(chosen)), len(chosen), length)
    ids, sizes = padded([text.ids for text in chosen], batch, pad)
    limits = np.array([text.limit for text in chosen], np.int32)
    return ids, sizes, limits, np.stack([text.bits for text in chosen])


def slots_of(runner: Runner, settings: Decoding, count: int, length: int) -> int:
    """Slots of each device for `count` texts of at most `length` tokens."""
    kind, inference = jax.default_backend(), runner.inference
    rows, most = _ROWS.get(kind, _MANY_ROWS), _TEXTS.get(kind, _MANY_TEXTS)
    size = inference.batch_texts or max(1, min(rows // settings.samples, most))
    if inference.batch_tokens:
        size = max(1, min(size, inference.batch_tokens // length))
    while size // 2 * runner.copies >= max(count, runner.copies):
        size //= 2  # few texts
    return size


class _Programs:
    """The compiled function. Every copy of the model runs its own loop, without communication."""

    def __init__(self, module: Writer, rules: Rules, mesh: Mesh):
        self._module, self._rules, self._mesh = module, rules, mesh
        self.shared = jax.jit(lambda params: parts.shared(module, {"params": params}))
        self.start = jax.jit(self._start)
        self.put = jax.jit(self._put, donate_argnums=0)
        self.advance = jax.jit(self._advance, donate_argnums=2)
        self.empty = jax.jit(self._nothing, static_argnums=(2, 3))
        self.cut = jax.jit(lambda *of: self._placed(parts.cut(*of)), static_argnums=1)

    def _start(
        self, params: Any, shared: Any, ids: Any, lengths: Any, limits: Any, bits: Any
    ) -> parts.Slots:
        variables, arrays = {"params": params}, (ids, lengths, limits, bits)
        fresh = parts.start(self._module, variables, shared, *arrays, self._rules)
        return self._placed(fresh)

    def _put(self, slots: parts.Slots, fresh: parts.Slots, places: Any) -> parts.Slots:
        specs = _specs(slots)
        inputs = (specs, specs, PartitionSpec("data"))
        return self._on_each(parts.put, inputs, specs)(slots, fresh, places)

    def _advance(self, params: Any, shared: Any, slots: parts.Slots, ended: Any) -> parts.Slots:
        def run(params: Any, shared: Any, slots: parts.Slots, ended: Any) -> parts.Slots:
            variables = {"params": params}
            return parts.advance(self._module, variables, shared, slots, ended.sum(), self._rules)

        if self._mesh.shape[TENSOR] > 1:
            # One loop for all copies: a device must not leave one in which others wait for it.
            return self._placed(run(params, shared, slots, ended))
        specs, everywhere = _specs(slots), PartitionSpec()
        inputs = (everywhere, everywhere, specs, PartitionSpec("data"))
        return self._on_each(run, inputs, specs)(params, shared, slots, ended)

    def _on_each(self, function: Callable[..., Any], inputs: Any, output: Any) -> Any:
        return jax.shard_map(
            function,
            mesh=self._mesh,
            in_specs=inputs,
            out_specs=output,
            axis_names={"data"},
            check_vma=False,
        )

    def _nothing(self, params: Any, shared: Any, count: int, length: int) -> parts.Slots:
        ids = jax.ShapeDtypeStruct((count, length), np.int32)
        number = jax.ShapeDtypeStruct((count,), np.int32)
        bits = jax.ShapeDtypeStruct((count, 2), np.uint32)
        like = jax.eval_shape(self._start, params, shared, ids, number, number, bits)
        return self._placed(parts.empty(like))

    def _placed(self, slots: parts.Slots) -> parts.Slots:
        devices = self._mesh.shape[TENSOR]

        def placed(x: jax.Array, axis: int) -> jax.Array:
            names: list[Any] = [None] * x.ndim
            names[axis] = "data"
            keys_or_values = x.ndim - axis == 4  # [rows, heads, …]
            if keys_or_values and x.shape[axis + 1] % devices == 0:
                names[axis + 1] = TENSOR
            sharding = NamedSharding(self._mesh, PartitionSpec(*names))
            return jax.lax.with_sharding_constraint(x, sharding)

        return jax.tree.map(placed, slots, slots.axes())


def _specs(slots: parts.Slots) -> Any:
    return jax.tree.map(lambda axis: PartitionSpec(*(None,) * axis, "data"), slots.axes())


# Compiled once for all generators of one architecture.
_programs = functools.lru_cache(maxsize=8)(_Programs)
