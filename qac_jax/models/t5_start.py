"""A T5 that can copy before it has learned anything: for small models, short runs, few texts.

What a generator of queries says are mostly words of the text it read. From the usual random start
a small T5 finds out how to copy only after very many steps; until then it talks past the text.
Here four places of the first layers start in the shape that such models are found to learn
(induction heads, Olsson et al., 2022), everything else stays random but speaks more softly:

- encoder, layer 0: half of the heads look at the token before and add it, rotated, to the state;
- decoder, layer 0: self-attention takes most of the token just said away, or the tied output
  matrix would say it again (small T5s get into "the the the" by that);
- cross attention looks for the place whose token before is the one just said;
- and adds the token at that place to the state, which the tied output matrix then says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from qac_jax.errors import UserError
from qac_jax.models.t5 import T5, T5Config


Array = jax.Array

# Chosen on random texts, where 60 steps of training then copy 96 % of the tokens.
_OTHERS = 0.3  # how loud all other layers are
_BEFORE = 5.0  # score of the token before, added to scores of about 1
_SHARP = 0.35  # of the cross attention's queries
_OWN = 0.25  # of the self-attention's queries: 8 for the token itself, 1 or so for others
_AWAY = 0.8  # of the token just said: the rest tells the cross attention what it was
_LOUD = 2.0  # how loud the copied token is, beside the one just said
_AHEAD = 1  # the relative-position bucket of the token before


def copying(model: T5, params: Mapping[str, Any], key: Array) -> Any:
    """New parameters of this shape (boxed or not) that start by copying."""
    config = model.config
    _check(config)
    width, heads = config.d_model, config.num_heads // 2
    ahead = heads * config.d_kv
    turn, place, said, own = (_rotation(k, width) for k in jax.random.split(key, 4))
    # Every head of the decoder compares one head's share of the token before.
    shares = jnp.arange(config.num_heads * config.d_kv) % ahead
    first = {
        ("encoder", "attention", "query"): lambda x: x.at[:, :ahead].multiply(0.1),
        ("encoder", "attention", "value"): lambda x: x.at[:, :ahead].set(turn[:, :ahead]),
        ("encoder", "attention", "output"): lambda x: x.at[:ahead].set(place[:, :ahead].T),
        ("decoder", "attention", "query"): lambda x: _OWN * own,
        ("decoder", "attention", "key"): lambda x: own,
        ("decoder", "attention", "value"): lambda x: own,
        ("decoder", "attention", "output"): lambda x: -_AWAY * own.T,
        ("decoder", "cross_attention", "query"): lambda x: _SHARP * turn[:, shares],
        ("decoder", "cross_attention", "key"): lambda x: place[:, shares],
        ("decoder", "cross_attention", "value"): lambda x: said,
        ("decoder", "cross_attention", "output"): lambda x: _LOUD * said.T,
    }
    stacked = model.runtime.scan

    def started(path: Any, boxed: Any) -> Any:
        names = [str(entry.key) for entry in path]
        value = boxed.unbox() if isinstance(boxed, nn.meta.AxisMetadata) else boxed
        value = _changed(names, value)
        is_box = isinstance(boxed, nn.meta.AxisMetadata)
        return boxed.replace_boxed(value) if is_box else value

    def _changed(names: list[str], value: Array) -> Array:
        side = names[0]
        if names == ["encoder", "relative_bias", "embedding"]:
            return value.at[_AHEAD, :heads].add(_BEFORE)
        if side not in ("encoder", "decoder") or names[1] != "layers":
            return value
        layer, (part, kind) = ("", names[2:4]) if stacked else (names[2], names[3:5])
        if kind in ("output", "down"):
            value = value * _OTHERS
        change = first.get((side, part, kind))
        if change is None or layer not in ("", "0"):
            return value
        return value.at[0].set(change(value[0])) if stacked else change(value)

    is_leaf = lambda x: isinstance(x, nn.meta.AxisMetadata)  # noqa: E731
    return jax.tree_util.tree_map_with_path(started, params, is_leaf=is_leaf)


def _rotation(key: Array, width: int) -> Array:
    return jnp.linalg.qr(jax.random.normal(key, (width, width)))[0]


def _check(config: T5Config) -> None:
    if not config.tied or config.num_heads % 2 or config.num_heads * config.d_kv != config.d_model:
        raise UserError(
            f"start='copying' is not for this T5 (tied={config.tied}, num_heads="
            f"{config.num_heads}, d_kv={config.d_kv}, d_model={config.d_model}); expected a tied "
            "output matrix, an even number of heads and num_heads x d_kv = d_model"
        )
