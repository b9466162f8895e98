"""Transformer layers, and stacks of them: a loop or a scan, rematerialised by name.

One layer's parameters are
{"attention": {"query", "key", "value", "output"}, "attention_norm", "mlp": {"up", "down"},
"mlp_norm"}. A stack of them is the subtree "layers" of its module: {"0": layer, "1": layer, …}
as a loop, or with `Runtime.scan` one such tree whose leaves have a leading axis "layers".
`hub.weights` turns one form into the other. A stack with parts that are not
layers (MPNet's, ModernBERT's) is {"layers": such a stack, "stack_…": part, …}.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.models import layers, packing
from qac_jax.models.attention import attend, attend_joint, in_one_kernel, merge_heads, split_heads
from qac_jax.models.layers import Array, Initializer, Runtime, activation, dense_of, dropout, shard
from qac_jax.models.packing import Keys, Lengths


# Dropout sites: what comes before the layers, these places of every layer, what comes after.
INPUT_SITE = 0
OUTPUT_SITE = 1 << 20
_SITES_A_LAYER = 4
_PROBABILITIES, _ATTENTION, _MLP = range(3)


def site(index: int | Array, place: int) -> int | Array:
    """The number of a dropout place of layer `index` (which a scan only knows at run time)."""
    return 1 + _SITES_A_LAYER * index + place


class Attention(nn.Module):
    """Multi-head self-attention with its output projection."""

    config: Any
    runtime: Runtime
    output_init: Initializer | None = None

    @nn.compact
    def __call__(
        self,
        x: Array,
        lengths: Lengths,
        keys: Keys,
        index: int | Array,
        visible: Array | None = None,
        rows: int | None = None,
        bias: Array | None = None,
    ) -> Array:
        """rows: only the first `rows` positions are queries (None: all).

        bias [1, heads, L, L] is added to the scores.
        """
        config, width = self.config, self.config.hidden_size
        init = nn.initializers.normal(config.initializer_range)

        dense = partial(dense_of, self.runtime, width, ("embed", "heads"), init)
        scales = ((width // config.num_heads) ** -0.5, 1.0, 1.0)
        three = [dense(name=name) for name in ("query", "key", "value")]
        drops: Any = {"keys": keys, "site": site(index, _PROBABILITIES)}
        drops["rate"] = config.attention_dropout
        plain = lengths is not None and visible is None and bias is None and rows is None
        divides = x.shape[0] % packing.parts() == 0
        if plain and divides and in_one_kernel(self.runtime, config):
            joint = layers.joined(x, three, scales)
            merged = attend_joint(joint, lengths, config.num_heads, **drops)
        else:
            if rows is None:
                each = layers.together(x, three, scales)
            else:
                query = three[0](packing.first(x, lengths, rows), scales[0])
                each = layers.together(x, three[1:], scales[1:])
            each = [shard(y, "batch", "length", "heads") for y in each]
            each = [packing.unpack(y, lengths, "heads") for y in each]
            if rows is not None:
                each = [shard(query, "batch", "length", "heads"), *each]
            query, key, value = (split_heads(y, config.num_heads) for y in each)
            drops |= {"visible": visible, "bias": bias if bias is None else bias[:, :, :rows]}
            merged = merge_heads(attend(query, key, value, lengths, self.runtime, **drops))
            merged = packing.pack(merged, lengths if rows is None else None, "heads")
        keys, last = keys if rows is None else packing.text_keys(keys), self.output_init or init
        output = dense_of(self.runtime, width, ("heads", "embed"), last, name="output")(merged)
        return dropout(output, keys, site(index, _ATTENTION), config.hidden_dropout)


class Mlp(nn.Module):
    """Up, activation, down."""

    config: Any
    runtime: Runtime
    intermediate_size: int
    output_init: Initializer | None = None

    @nn.compact
    def __call__(self, x: Array, keys: Keys, index: int | Array) -> Array:
        config, runtime = self.config, self.runtime
        init = nn.initializers.normal(config.initializer_range)
        width = self.intermediate_size
        hidden = dense_of(runtime, width, ("embed", "mlp"), init, name="up")(x)
        hidden = activation(config.activation)(shard(hidden, "batch", "length", "mlp"))
        output_init = self.output_init or init
        width = config.hidden_size
        output = dense_of(runtime, width, ("mlp", "embed"), output_init, name="down")(hidden)
        return dropout(output, keys, site(index, _MLP), config.hidden_dropout)


class Layers(nn.Module):
    """`count` equal layers one after another.

    `make(parent=None)` makes the layer, which is called as layer(x, index, *arguments). Where its
    class says which of the arguments are lengths and keys (`packs`), texts are computed without
    padding if `Runtime.packed` says so: the layer then gets packed tokens (packing.py).
    """

    make: Callable[..., nn.Module]
    count: int
    runtime: Runtime

    @nn.compact
    def __call__(
        self, x: Array, *arguments: Any, wanted: Sequence[int] = (), rows: int | None = None
    ) -> tuple[Array, dict[int, Array]]:
        """The last output and the wanted hidden states: 0 is x itself, k the output of layer k.

        With `rows` the last layer, which must take it, computes only the first `rows` positions.
        """
        layer, runtime = self.make(parent=None), self.runtime
        x = x.astype(runtime.compute_dtype)  # what a layer gives, and what a scan must begin with
        params = self._params(layer, x, *arguments)
        places = getattr(layer, "packs", None)
        if places is None or not runtime.packed:
            return self._stack(layer, params, x, arguments, wanted, rows)
        lengths, keys = (arguments[place] for place in places)
        if (plan := packing.choose(runtime.packed, lengths, x.shape[1])) is None:
            return self._stack(layer, params, x, arguments, wanted, rows)

        packed, fit = plan
        tokens = None if keys is None else packing.TokenKeys(keys, packed)
        packed_arguments = list(arguments)
        packed_arguments[places[0]], packed_arguments[places[1]] = packed, tokens
        inner = tuple(number for number in wanted if number)
        last, states = self._stack(layer, params, packed.pack(x), packed_arguments, inner, rows)
        states = {number: packed.unpack(state) for number, state in states.items()}
        if 0 in wanted:
            states[0] = x
        last = last if rows is not None else packed.unpack(last)
        return last + jnp.where(fit, 0.0, jnp.nan).astype(last.dtype), states

    def _stack(
        self,
        layer: nn.Module,
        params: Any,
        x: Array,
        arguments: Sequence[Any],
        wanted: Sequence[int],
        rows: int | None,
    ) -> tuple[Array, dict[int, Array]]:
        runtime, count = self.runtime, self.count

        def apply(weights: Any, x: Array, index: int | Array, **options: Any) -> Array:
            return layer.apply({"params": weights}, x, index, *arguments, **options)

        step = rematerialise(apply, runtime)
        last = step if rows is None else rematerialise(partial(apply, rows=rows), runtime)
        states = {0: x} if 0 in wanted else {}
        if not runtime.scan:
            for index in range(count):
                x = (last if index == count - 1 else step)(params[str(index)], x, index)
                if index + 1 in wanted:
                    states[index + 1] = x
            return x, states

        def body(x: Array, weights_and_index: tuple[Any, Array]) -> tuple[Array, None]:
            return step(weights_and_index[0], x, weights_and_index[1]), None

        # A scan for every stretch between wanted states, so that no other state is kept.
        scanned = count if rows is None else count - 1
        stops = sorted({k for k in wanted if 0 < k < scanned} | {scanned})
        for start, stop in zip([0, *stops], stops, strict=False):
            weights = jax.tree.map(lambda leaf, a=start, b=stop: leaf[a:b], params)
            x, _ = lax.scan(body, x, (weights, jnp.arange(start, stop)))
            if stop in wanted:
                states[stop] = x
        if rows is not None:
            x = last(jax.tree.map(lambda leaf: leaf[-1], params), x, count - 1)
        return x, states

    def _params(self, layer: nn.Module, x: Array, *arguments: Any) -> dict[str, Any]:
        """The stack's parameters; layer i starts the same as a loop and as a scan."""
        if not self.is_initializing():
            return nn.meta.unbox(dict(self.variables["params"]))

        @jax.jit  # so that the layer's output, which nobody wants here, is never computed
        def one(key: Array) -> Any:
            return layer.init(key, x, 0, *arguments)["params"]

        key = self.make_rng("params")
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(self.count))
        # Compiled once for all layers, also for a loop: to compile it for each took a minute.
        stacked = lax.map(one, keys)
        if self.runtime.scan:
            params = nn.meta.add_axis(stacked, 0, {nn.meta.PARTITION_NAME: "layers"})
        else:
            params = {str(i): jax.tree.map(itemgetter(i), stacked) for i in range(self.count)}
        for name, value in params.items():
            self.param(name, lambda _, value=value: value)
        return nn.meta.unbox(params)


def rematerialise(step: Callable, runtime: Runtime) -> Callable:
    """`step` with the parts that `runtime.remat` names computed again by the backward pass."""
    if runtime.remat == "layer":
        return jax.checkpoint(step, prevent_cse=not runtime.scan)
    if runtime.remat == "dots":
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        return jax.checkpoint(step, prevent_cse=not runtime.scan, policy=policy)
    return step
