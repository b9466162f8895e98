"""Texts out of a T5 or another writer: greedy or sampled here, or searched (beam.py).

    settings = Decoding(max_tokens=64, samples=5)
    generated = decode(module, variables, ids, lengths, settings, keys=keys)
    generated.tokens     # [texts, samples, max_tokens], padded behind each end

Here rows know nothing of one another, and each is as far as it is.

A slot holds one text, continued by `samples` rows. Slots whose rows have ended can be given to
other texts while the rest go on (continuous batching; Yu et al., Orca, OSDI 2022): what a row says
depends on its text, its key and its own position alone.

    slots = start(module, variables, ids, lengths, limits, bits, rules)
    slots = advance(module, variables, shared, slots, 1, rules)   # until one of them has ended
    slots = put(slots, start(…), places)                          # in its place, other texts
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.models.decoding import beam, sampling
from qac_jax.models.decoding.sampling import Decoded, Rules
from qac_jax.models.decoding.settings import Decoding
from qac_jax.models.layers import Array, statistics_dtype
from qac_jax.models.pointer import Writer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slots:
    """The rows of all slots, those of one slot side by side: R = slots · samples."""

    tokens: Array  # [R, max_tokens], padded behind each end
    last: Array  # [R]
    done: Array  # [R]
    scores: Array  # [R]: sums of log-likelihoods
    limits: Array  # [R]
    keys: Array  # [R, 2]: the bits of each row's key
    cache: Any  # its position [R] counts a row's tokens

    def decoded(self, samples: int) -> Decoded:
        parts = (self.tokens, self.cache.position, self.scores)
        return Decoded(*(part.reshape(-1, samples, *part.shape[1:]) for part in parts))

    def axes(self) -> Slots:
        """The axis of every array that counts rows or slots."""
        rows = jax.tree.map(lambda _: 0, dataclasses.replace(self, cache=None))
        return dataclasses.replace(rows, cache=self.cache.axes())


def shared(module: Writer, variables: Any) -> Any:
    """Arrays that all texts are read and written with, computed once; a model may have none."""
    return module.apply(variables, method="in_common")


def start(
    module: Writer,
    variables: Any,
    shared: Any,
    ids: Array,
    lengths: Array,
    limits: Array,
    bits: Array,
    rules: Rules,
) -> Slots:
    """Slots with these texts. limits [B]: the most tokens of each, bits: uint32 [B, 2]."""
    config, settings = module.config, rules.settings
    size, copies = settings.max_tokens, settings.samples
    memory = module.apply(variables, ids, lengths, shared=shared, method="encode")
    cache = module.apply(variables, memory, lengths, size, copies, method="init_cache")
    limits = jnp.repeat(jnp.minimum(limits, size), copies)
    rows = limits.shape[0]
    return Slots(
        tokens=jnp.full((rows, size), config.pad_id, jnp.int32),
        last=jnp.full(rows, config.start_id, jnp.int32),
        done=limits < 1,
        scores=jnp.zeros(rows, statistics_dtype(module.runtime.compute_dtype)),
        limits=limits,
        keys=jax.random.key_data(sampling.row_keys(bits, copies)),
        cache=cache.at(jnp.zeros(rows, jnp.int32)).sharing(None),
    )


def empty(like: Any) -> Slots:
    """Slots of the shapes of `like` without texts."""
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    return dataclasses.replace(zeros, done=jnp.ones_like(zeros.done))


def put(slots: Slots, fresh: Slots, places: Array) -> Slots:
    """`slots` with each of the fresh ones at its place; those whose place does not exist are left
    out. Fresh texts may be padded to a shorter length."""
    count = places.shape[0]

    def written(x: Array, new: Array, axis: int) -> Array:
        each = new.shape[axis] // count  # rows of a slot, or 1
        at = (places[:, None] * each + jnp.arange(each)).reshape(-1)
        widths = [(0, size - new.shape[i]) for i, size in enumerate(x.shape)]
        widths[axis] = (0, 0)
        index = (slice(None),) * axis + (at,)
        return x.at[index].set(jnp.pad(new, widths), mode="drop")

    return jax.tree.map(written, slots, fresh, slots.axes())


def cut(slots: Slots, length: int) -> Slots:
    """Slots whose texts are padded to `length`."""
    return dataclasses.replace(slots, cache=slots.cache.cut(length))


def advance(
    module: Writer, variables: Any, shared: Any, slots: Slots, ended: Array | int, rules: Rules
) -> Slots:
    """Writes until as many slots as `ended` hold no row that goes on."""
    config, settings = module.config, rules.settings

    def step(slots: Slots) -> Slots:
        before, done = slots.cache.position, slots.done
        cache = slots.cache.sharing(shared)
        logits, cache = module.apply(variables, slots.last, cache, method="step")
        scores = rules.allowed(logits, slots.tokens, before)
        if settings.method == "sample":
            keys = jax.random.wrap_key_data(slots.keys, impl="threefry2x32")
            token = sampling.draw(scores, keys, before, settings)
        else:
            token = sampling.largest(scores, 1)[1][:, 0].astype(jnp.int32)
        chosen = jnp.take_along_axis(logits, token[:, None], axis=-1)[:, 0]
        likelihood = chosen - jax.nn.logsumexp(logits, axis=-1)
        token = jnp.where(done, config.pad_id, token)
        here = (jnp.arange(settings.max_tokens) == before[:, None]) & ~done[:, None]
        position = jnp.where(done, before, before + 1)
        return dataclasses.replace(
            slots,
            tokens=jnp.where(here, token[:, None], slots.tokens),
            last=token,
            done=done | (token == config.eos_id) | (position >= slots.limits),
            scores=slots.scores + jnp.where(done, 0.0, likelihood),
            cache=cache.at(position).sharing(None),
        )

    def goes_on(slots: Slots) -> Array:
        return slots.done.reshape(-1, settings.samples).all(1).sum() < ended

    return lax.while_loop(goes_on, step, slots)


def decode(
    module: Writer,
    variables: Any,
    ids: Array,
    lengths: Array,
    settings: Decoding,
    *,
    limits: Array | None = None,
    keys: Array | None = None,
    pieces: int = 0,
) -> Decoded:
    """Continuations of each text.

    limits [B]: how many tokens each text's continuations have at most (default: max_tokens).
    keys: 64 random bits a text (uint32 [B, 2]), for sampling. pieces: ids from there on belong to
    no token and are never generated (0: all ids may be).
    """
    if limits is None:
        limits = jnp.full(ids.shape[0], settings.max_tokens, jnp.int32)
    limits = jnp.minimum(limits, settings.max_tokens)
    rules = Rules(settings, module.config, pieces)
    if settings.method == "beam":
        memory = module.apply(variables, ids, lengths, method="encode")
        return beam.search(module, variables, memory, lengths, limits, rules)
    if keys is None:
        if settings.method == "sample":
            raise ValueError("sampling needs keys: 64 random bits a text")
        keys = jnp.zeros((ids.shape[0], 2), jnp.uint32)
    shared = module.apply(variables, method="in_common")
    texts = start(module, variables, shared, ids, lengths, limits, keys, rules)
    texts = advance(module, variables, shared, texts, ids.shape[0], rules)
    return texts.decoded(settings.samples)
