"""Encode a large batch a chunk at a time, with the gradient of the whole.

Contrastive losses need the vectors of all examples, but not all their activations at once:
GradCache (Gao et al., 2021). In JAX that is a scan over chunks of a rematerialised encoder; the
second forward pass replays the same keys because they are inputs. Where memory has room for the
activations of some chunks, these are encoded once, as one larger batch (`kept`).

Chunks are *strided*: chunk j holds the examples j, j + n, j + 2n, … of a batch cut in n chunks.
Where the batch is sharded over devices every chunk is too. Contiguous chunks would each be on one
device, and every device would compute all of them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from qac_jax.errors import UserError


Tree = Any


def split(batch: Tree, count: int) -> Tree:
    """Every array [B, …] as [count, B / count, …], strided."""
    return jax.tree.map(
        lambda x: jnp.swapaxes(x.reshape(x.shape[0] // count, count, *x.shape[1:]), 0, 1), batch
    )


def join(chunks: Tree) -> Tree:
    """The inverse of `split`: [count, B / count, …] as [B, …] in the order of the batch."""
    return jax.tree.map(
        lambda x: jnp.swapaxes(x, 0, 1).reshape(x.shape[0] * x.shape[1], *x.shape[2:]), chunks
    )


def chunked_encode(encode: Callable[[Tree], Tree], batch: Tree, chunk: int, kept: int = 0) -> Tree:
    """`encode(batch)`, `chunk` examples at a time (0: all at once).

    The backward pass encodes every chunk again, but for `kept` of them, whose activations it finds
    in memory.

    `encode` maps a tree of arrays with the examples first to a tree of arrays with the examples
    first, each example independently; it may close over its parameters. Dropout keys are part of
    the batch, one for each example, so that chunked and direct encoding are the same function. What
    is to be summed over examples (a masked-token loss) is returned as one number per example, and
    the caller sums.
    """
    size = jax.tree.leaves(batch)[0].shape[0]
    if not chunk or chunk >= size or kept * chunk >= size:
        return encode(batch)
    if size % chunk:
        raise UserError(
            f"chunk={chunk} does not divide the batch of {size} examples to encode; "
            "choose a divisor of it"
        )
    # Without prevent_cse the scan already keeps both passes apart (jax.checkpoint's own advice).
    body = jax.checkpoint(encode, prevent_cse=False)
    chunks = split(batch, size // chunk)
    if not kept:
        return join(jax.lax.map(body, chunks))
    whole = encode(join(jax.tree.map(lambda x: x[:kept], chunks)))
    again = jax.lax.map(body, jax.tree.map(lambda x: x[kept:], chunks))
    both = jax.tree.map(lambda *x: jnp.concatenate(x), split(whole, kept), again)
    return join(both)


def gathered(variables: Tree) -> Tree:
    """The variables whole on every device, gathered here and not again inside a loop over chunks.

    With parameters sharded over `fsdp` the compiler gathers them in every iteration of the loop. If
    they fit in memory whole, gather them once: `encode` closes over `gathered(variables)`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return variables
    whole = PartitionSpec()
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, whole), variables)


def first_rows(tree: Tree, count: int) -> Tree:
    """The first `count` rows of every array [B, …] (0: all), whole on every device.

    Whole, because a part of a sharded array would be sharded unequally: the compiler then pads
    shards with undefined rows, and not all of its gradients leave these out.
    """
    if not count:
        return tree
    return gathered(jax.tree.map(lambda x: x[:count], gathered(tree)))
