"""What the trainer knows of a paper: the Objective protocol and the conventions of its parts.

An objective is a frozen dataclass: a Linen module (or its configuration) and hyper-parameters as
fields, pure methods. Its conventions:

**Variables** are a dict of collections. "params" is what the optimiser changes; any other
collection ("momentum", "queue") is state of the objective.

**Randomness.** `prepare` sees the whole batch and makes whatever is random about its tokens.
Everything random is drawn from one key an example (`example_keys`), and travels in the batch, so
that splitting or sharding the batch changes nothing. The key given to `loss` is the same for all
microbatches of a step: use it for nothing that belongs to an example.

**Sums.** When `splittable`, the loss and every scalar of the auxiliary dict *add up* over
microbatches: a mean over masked tokens is a sum of weights times losses, with weights that
`prepare` normalised over the whole batch (`global_weights`). So accumulated gradients equal the
direct ones whatever the lengths.

**Not splittable** (examples see one another): `loss` gets the whole batch. Such an objective has a
field `chunk`: how many examples it encodes at a time (0: all at once), through
`qac_jax.objectives.chunked`; the trainer sets it from its microbatch option.

**State** advances once an optimiser step: `loss` returns the new collections under the key
"state" of the auxiliary dict, and the trainer puts them in the place of the old ones (in training
only). An objective with state is not splittable.

The arrays of a prepared batch have the examples first.

**Optional**, used where they are there:

- `model`: the field that holds the Linen module which is kept after training, or the property
  `encoder_module` where `encoder`'s variables belong to another one;
- `with_tokenizer(tokenizer) -> Objective`: called once before a run (a dual encoder in the field
  `model` is told besides how its queries and passages are read: titles, prompts, limits);
- `start_from(module, params) -> (Objective, params)`: the objective in the shape of a loaded
  module, and those of its own parameters that the loaded ones are (default: the same tree);
- `stored_heads(folder) -> params`: its other parameters that lie in a Hugging Face folder;
- `initial_state(params) -> Variables`: the other collections, made from loaded parameters;
- `flops(spec) -> float`: FLOPs of the model in one training step (forward and backward, nothing
  computed twice) on a batch of shapes `spec`; without it no MFU is printed;
- `activation_bytes(spec) -> float`: what the backward pass of a microbatch of these shapes keeps,
  for dry runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp


Variables = dict[str, Any]
Batch = dict[str, Any]
Aux = dict[str, Any]
Spec = Mapping[str, jax.ShapeDtypeStruct]


@runtime_checkable
class Objective(Protocol):
    """A training loss, and what it needs (see the module's text for the conventions)."""

    @property
    def splittable(self) -> bool:
        """True where the loss of a batch is the sum of the losses of its parts."""

    def init(self, key: jax.Array) -> Variables:
        """New variables, parameters boxed with their logical axis names."""

    def prepare(self, batch: Batch, key: jax.Array) -> Batch:
        """The whole batch made ready: masks, labels, normalised weights, keys of the examples."""

    def loss(
        self, variables: Variables, batch: Batch, key: jax.Array, train: bool
    ) -> tuple[jax.Array, Aux]:
        """The loss of a prepared batch or microbatch, and scalars to log (and "state")."""

    def encoder(self, variables: Variables) -> Variables:
        """The variables that are exported: the text encoder's, without pre-training heads."""


def example_keys(key: jax.Array, count: int) -> jax.Array:
    """One PRNG key an example, by its place in the whole batch: [count]."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(count))


def global_weights(mask: jax.Array) -> jax.Array:
    """Weights that sum to one over the true places of the whole batch (all zero if none is)."""
    count = jnp.sum(mask, dtype=float)  # fp32; fp64 where JAX runs in x64
    return mask.astype(float) / jnp.maximum(count, 1.0)


def split_aux(aux: Aux) -> tuple[dict[str, jax.Array], Variables]:
    """The scalars of an auxiliary dict, and the collections to replace."""
    return {name: value for name, value in aux.items() if name != "state"}, aux.get("state", {})
