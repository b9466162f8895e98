"""One copy of a model over several devices, for generators that do not fit on one (T5-3B, 11B).

Matrices are cut along heads, the inner layer of the feed-forward network and the vocabulary, so
that every device computes a part of each product (Megatron-LM; Shoeybi et al., 2019; T5X's
`num_partitions`). The compiler places what lies between. An axis that the devices do not divide
evenly stays whole on each.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qac_jax.inference.runner import TENSOR
from qac_jax.models.pointer import Writer


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
