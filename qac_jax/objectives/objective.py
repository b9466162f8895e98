"""The base class of training objectives, and the conventions of its methods.

An objective is a frozen dataclass: a Linen module in the field `model`, hyper-parameters in other
fields, and pure methods. The conventions:

**Variables** are a dict of collections. "params" is what the optimiser changes; any other
collection ("momentum", "queue") is state of the objective. It advances once an optimiser step:
`loss` returns the new collections under the key "state" of the auxiliary dict (in training only).

**Randomness.** `prepare` sees the whole batch and samples everything that is random about its
tokens, with a key for each example (`example_keys`). These keys are part of the batch, so that
splitting or sharding the batch changes nothing. The key passed to `loss` is the same for all
microbatches of a step; most losses ignore it.

**Sums.** When `splittable`, the loss and every scalar of the auxiliary dict *add up* over
microbatches: a mean over masked tokens is a sum of weights times losses, with weights that
`prepare` normalised over the whole batch (`global_weights`; `mlm.normalised` of masked texts). So
accumulated gradients equal those of the whole batch, whatever the lengths. Where examples see one
another, or where there is state, `loss` receives the whole batch, and may encode it `chunk`
examples at a time (`qac_jax.objectives.chunked`).

**Any batch on any devices.** Where devices cannot share a batch equally, copies of its first rows
fill it up behind its `examples`. An objective that `fills` leaves them out of losses and figures:
their weights are 0 (`global_weights`), or the vectors of the others are taken
(`chunked.first_rows`).
"""

import abc
import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from qac_jax.errors import UserError
from qac_jax.fields import Checked
from qac_jax.models.layers import Array, Runtime


Variables = dict[str, Any]
Batch = dict[str, Any]
Aux = dict[str, Any]
Loss = tuple[Array, Aux]


@dataclasses.dataclass(frozen=True)
class Context:
    """The facts of a run, given to its objective once.

    tokenizer: of the examples (None in plans, which have none: every piece is a word of its own).
    lengths: the token limits of the features; reading: titles, prompts and scores of the examples;
    settings: those of the kind of examples. precision: `Runtime.dtype`. chunk: the examples to
    encode at a time where the objective is not splittable (0: as it says itself).
    """

    tokenizer: Any = None
    lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)
    reading: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    precision: str = "float32"
    chunk: int = 0


@dataclasses.dataclass(frozen=True)
class Objective(Checked, abc.ABC):
    """A training loss and what it needs (see the module's text for the conventions)."""

    fills: ClassVar[bool] = False  # whether it leaves out rows behind its `examples`

    model: nn.Module
    # Examples encoded at a time (0: all), where it is not splittable.
    chunk: int = dataclasses.field(default=0, kw_only=True, metadata={"affects_result": False})
    # The rows of a batch that are examples, where others fill it up (0: all).
    examples: int = dataclasses.field(default=0, kw_only=True, metadata={"affects_result": False})

    @abc.abstractmethod
    def init(self, key: Array) -> Variables:
        """New variables, parameters boxed with their logical axis names."""

    @abc.abstractmethod
    def prepare(self, batch: Batch, key: Array) -> Batch:
        """The batch that `loss` takes: masked, with labels, normalised weights and example keys."""

    @abc.abstractmethod
    def loss(self, variables: Variables, batch: Batch, key: Array, train: bool) -> Loss:
        """The loss of a prepared batch or microbatch, and scalars to log (and "state")."""

    def export(self, variables: Variables) -> tuple[nn.Module, Any]:
        """The result of a run: the encoder without pre-training heads, and its parameters."""
        return self.model, variables["params"]

    def verb(self, kind: str) -> str:
        """The verb of a run on this kind of examples, where no command line names one."""
        return "pretrain"

    @property
    def splittable(self) -> bool:
        """Whether the loss of a batch is the sum of the losses of its parts."""
        return True

    @property
    def runtime(self) -> Runtime:
        return self.model.runtime

    def start_from(self, module: nn.Module, params: Any) -> tuple[Self, Any]:
        """The objective in the shape of a loaded module, and the parameters it takes from there.

        Parameters of the objective that are missing there are initialised.
        """
        if type(self.model) is not type(module):
            raise UserError(
                f"{type(self).__name__} trains a {type(self.model).__name__}, but the parameters "
                f"to start from are those of a {type(module).__name__}; give another init or "
                "objective"
            )
        return dataclasses.replace(self, model=module), params

    def stored_heads(self, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """Parameters beside the encoder's in a Hugging Face folder to start from."""
        return {}

    def initial_state(self, params: Any) -> Variables:
        """The collections beside "params" that depend on a run's initial parameters."""
        return {}

    def bind(self, context: Context) -> Self:
        """The objective of a run; refuses a tokenizer that does not suit its model."""
        config = getattr(self.model, "config", None)
        rows = getattr(getattr(config, "backbone", config), "vocab_size", None)
        if context.tokenizer is not None and rows is not None:
            pieces = context.tokenizer.vocab_size
            if pieces > rows:
                raise UserError(
                    f"vocab_size={rows} of the model is too small for a tokenizer of {pieces} "
                    f"pieces; set it to {pieces} or more, or use the tokenizer that it was made for"
                )
        runtime = dataclasses.replace(self.runtime, dtype=context.precision)
        chunk = self.chunk if self.splittable else context.chunk or self.chunk
        return dataclasses.replace(self, model=self.model.clone(runtime=runtime), chunk=chunk)

    def fitted(
        self, *, room: tuple[tuple[int, float], ...] = (), kept: int = 0, examples: int = 0
    ) -> Self:
        """The objective as one program computes it: with this room for texts without padding
        (`Runtime.packed`), this number of chunks that keep their activations (`Runtime.kept`), and
        batches of which the first rows are examples."""
        # In one chunk are all examples, with the rows that fill up.
        chunk = 0 if 0 < examples <= self.chunk else self.chunk
        runtime = dataclasses.replace(self.runtime, packed=room, kept=kept)
        model = self.model.clone(runtime=runtime)
        return dataclasses.replace(self, model=model, chunk=chunk, examples=examples)


def example_keys(key: Array, count: int) -> Array:
    """One PRNG key per example, from its index in the whole batch: [count]."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(count))


def of_examples(rows: int, examples: int) -> Array:
    """Which rows of a batch are its first `examples` (0: all), bool [rows]."""
    return jnp.arange(rows) < (examples or rows)


def global_weights(mask: Array, examples: int = 0) -> Array:
    """Weights that sum to one over the true positions of the batch (all zero if there are none).

    Rows behind the first `examples` (0: none) have weights of zero.
    """
    if examples:
        mask &= of_examples(len(mask), examples).reshape(-1, *[1] * (mask.ndim - 1))
    count = jnp.sum(mask, dtype=float)  # fp32; fp64 where JAX runs in x64
    return mask.astype(float) / jnp.maximum(count, 1.0)
