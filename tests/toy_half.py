"""The toy objective in float16: half parameters in the pass, losses in full."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import toy

from qac_jax.models.layers import Runtime


class Net(toy.Net):
    """Gives logits in full, as all models do."""

    runtime: Runtime = Runtime("float16")

    def logits(self, variables: Any, x: jax.Array) -> jax.Array:
        return super().logits(variables, x).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Mlm(toy.ToyMlm):
    model: toy.Net = Net()

    def loss(self, variables: Any, batch: Any, key: jax.Array, train: bool) -> tuple[Any, Any]:
        params = jax.tree.map(lambda x: x.astype(jnp.float16), variables["params"])
        return super().loss({**variables, "params": params}, batch, key, train)
