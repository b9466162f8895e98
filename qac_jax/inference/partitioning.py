"""One copy of a model over several devices, for generators that do not fit on one (T5-3B, 11B).

Matrices are cut along heads, the inner layer of the feed-forward network and the vocabulary, so
that every device computes a part of each product (Megatron-LM; Shoeybi et al., 2019; T5X's
`num_partitions`). The compiler places what lies between. An axis that the devices do not divide
evenly stays whole on each.
"""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qac_jax.inference.settings import TENSOR
from qac_jax.models.writers import Writer


_CUT = ("vocab", "heads", "mlp")


def shardings(module: Writer, mesh: Mesh) -> Any:
    """Where each parameter of a module lies."""
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


def share(params: Any) -> float:
    """The share of the parameters' bytes that one device holds."""
    leaves = jax.tree.leaves(params)
    held = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves
    )
    return held / sum(leaf.nbytes for leaf in leaves)
