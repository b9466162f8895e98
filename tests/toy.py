"""Two tiny objectives and a loader in memory, for the tests of the trainer."""

import collections
import dataclasses
import hashlib
import re
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from qac_jax.models.layers import Runtime, dropout
from qac_jax.objectives.chunked import chunked_encode, gathered
from qac_jax.objectives.objective import Objective, example_keys, global_weights


class Net(nn.Module):
    """Embedding, mixing over the text, one MLP: all logical axes of a Transformer occur."""

    vocab: int = 32
    embed: int = 16
    mlp: int = 32
    dropout: float = 0.0
    param_dtype: Any = jnp.float32
    runtime: Runtime = Runtime()

    @nn.compact
    def __call__(self, ids: jax.Array, lengths: jax.Array, keys: Any = None) -> jax.Array:
        def weight(name: str, axes: tuple[str, str], shape: tuple[int, int]) -> jax.Array:
            start = nn.with_logical_partitioning(nn.initializers.normal(0.3), axes)
            return self.param(name, start, shape, self.param_dtype)

        table = weight("table", ("vocab", "embed"), (self.vocab, self.embed))
        up = weight("up", ("embed", "mlp"), (self.embed, self.mlp))
        down = weight("down", ("mlp", "embed"), (self.mlp, self.embed))
        mask = jnp.arange(ids.shape[1]) < lengths[:, None]
        x = table[ids] * mask[..., None]
        x = x + (x.sum(1) / lengths[:, None])[:, None]
        x = nn.with_logical_constraint(x, ("batch", "length", "embed"))
        hidden = nn.gelu(x @ up)
        hidden = dropout(hidden, keys, 1, self.dropout)
        x = x + nn.with_logical_constraint(hidden, ("batch", "length", "mlp")) @ down
        return nn.with_logical_constraint(x * mask[..., None], ("batch", "length", "embed"))

    def logits(self, variables: Any, x: jax.Array) -> jax.Array:
        return x @ variables["params"]["table"].T


@dataclasses.dataclass(frozen=True)
class ToyMlm(Objective):
    """Predicts tokens that were replaced by 1."""

    model: Net = Net()
    rate: float = 0.3
    splittable: bool = True
    explode_at: int = -1  # a token id whose presence makes the loss infinite

    def init(self, key: jax.Array) -> Any:
        return self.model.init(key, jnp.zeros((1, 4), jnp.int32), jnp.ones((1,), jnp.int32))

    def prepare(self, batch: Any, key: jax.Array) -> Any:
        ids, lengths = batch["tokens"], batch["tokens_length"]
        keys = example_keys(key, ids.shape[0])
        # What is dropped is masked.
        chosen = dropout(jnp.ones(ids.shape), keys, 0, self.rate) == 0
        chosen &= jnp.arange(ids.shape[1]) < lengths[:, None]
        return {
            "ids": jnp.where(chosen, 1, ids),
            "labels": ids,
            "lengths": lengths,
            "weights": global_weights(chosen),
            "keys": keys,
        }

    def loss(self, variables: Any, batch: Any, key: jax.Array, train: bool) -> tuple[Any, Any]:
        keys = batch["keys"] if train else None
        x = self.model.apply(variables, batch["ids"], batch["lengths"], keys)
        logits = self.model.logits(variables, x)
        weights = batch["weights"].astype(logits.dtype)
        losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["labels"][..., None], 2)
        loss = jnp.sum(losses[..., 0] * weights)
        if self.explode_at >= 0:
            loss = jnp.where(jnp.any(batch["labels"] == self.explode_at), jnp.nan, loss)
        right = jnp.argmax(logits, -1) == batch["labels"]
        return loss, {"accuracy": jnp.sum(right * weights)}


@dataclasses.dataclass(frozen=True)
class ToyContrastive(Objective):
    """Every query against all passages; a queue-like counter as state."""

    model: Net = Net()
    chunk: int = dataclasses.field(default=0, kw_only=True)
    gather: bool = False
    stateful: bool = False
    splittable: bool = False

    def init(self, key: jax.Array) -> Any:
        variables = dict(
            self.model.init(key, jnp.zeros((1, 4), jnp.int32), jnp.ones((1,), jnp.int32))
        )
        if self.stateful:
            variables["queue"] = {"seen": jnp.zeros((), jnp.int32)}
        return variables

    def prepare(self, batch: Any, key: jax.Array) -> Any:
        return {**batch, "keys": example_keys(key, batch["query"].shape[0])}

    def loss(self, variables: Any, batch: Any, key: jax.Array, train: bool) -> tuple[Any, Any]:
        params = {"params": variables["params"]}
        params = gathered(params) if self.gather else params

        def encode(part: Any) -> Any:
            def vectors(name: str) -> jax.Array:
                keys = part["keys"] if train else None
                return self.model.apply(params, part[name], part[f"{name}_length"], keys)[:, 0]

            return vectors("query"), vectors("passage")

        q, p = chunked_encode(encode, batch, self.chunk)
        scores = q @ p.T
        loss = -jnp.mean(jnp.diagonal(jax.nn.log_softmax(scores)))
        aux: dict[str, Any] = {"top1": jnp.mean(jnp.argmax(scores, 1) == jnp.arange(len(q)))}
        if self.stateful:
            aux["state"] = {"queue": {"seen": variables["queue"]["seen"] + len(q)}}
        return loss, aux


class HalfNet(Net):
    """Gives logits in full, as all models do."""

    runtime: Runtime = Runtime("float16")

    def logits(self, variables: Any, x: jax.Array) -> jax.Array:
        return super().logits(variables, x).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class HalfMlm(ToyMlm):
    """In float16: half parameters in the pass, losses in full."""

    model: Net = HalfNet()

    def loss(self, variables: Any, batch: Any, key: jax.Array, train: bool) -> tuple[Any, Any]:
        params = jax.tree.map(lambda x: x.astype(jnp.float16), variables["params"])
        return super().loss({**variables, "params": params}, batch, key, train)


def texts(rng: np.random.Generator, size: int, length: int, vocab: int = 32) -> tuple[Any, Any]:
    """Padded ids and unequal lengths."""
    lengths = rng.integers(2, length + 1, size).astype(np.int32)
    ids = rng.integers(2, vocab, (size, length)).astype(np.int32)
    return np.where(np.arange(length) < lengths[:, None], ids, 0).astype(np.int32), lengths


def batch(size: int, seed: int = 0, length: int = 12) -> dict[str, np.ndarray]:
    """One batch that suits both objectives."""
    rng = np.random.default_rng(seed)
    result = {}
    for name in ("tokens", "query", "passage"):
        result[name], result[f"{name}_length"] = texts(rng, size, length)
    return result


class MemoryLoader:
    """The loader's contract over batches made from (seed, number)."""

    def __init__(self, size: int, seed: int = 0, length: int = 12, examples: int = 64):
        self._size, self._seed, self._length = size, seed, length
        self._next = 0
        self.examples_per_epoch = examples
        self.identity = hashlib.sha256(f"{size}/{seed}/{length}/{examples}".encode()).hexdigest()
        first = batch(size, seed, length)
        self.spec = {name: (x.shape, x.dtype) for name, x in first.items()}

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        self._next += 1
        return batch(self._size, self._seed * 1000 + self._next, self._length)

    def state(self) -> dict[str, Any]:
        return {"next": self._next}

    def restore(self, state: dict[str, Any]) -> None:
        self._next = int(state["next"])


COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)

IN_LOOP = " in a loop"

_CALL = re.compile(rf"\s({'|'.join(COLLECTIVES)})(?:-start)?\(")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) .*\{$")
_LOOP_BODY = re.compile(r"\bbody=%?([\w.-]+)")


def collectives(compiled: jax.stages.Compiled) -> dict[str, int]:
    """The number of collectives of each kind in the compiled program.

    Those in the body of a loop, which run in every iteration, are counted separately (and once).
    """
    text = compiled.as_text() or ""
    bodies = set(_LOOP_BODY.findall(text))
    counts: collections.Counter[str] = collections.Counter()
    where = ""
    for line in text.splitlines():
        if begin := _COMPUTATION.match(line):
            where = IN_LOOP if begin[1] in bodies else ""
        counts.update(name + where for name in _CALL.findall(line))
    names = [name + suffix for suffix in ("", IN_LOOP) for name in COLLECTIVES]
    return {name: counts[name] for name in names if counts[name]}
