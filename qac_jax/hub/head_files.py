"""Pre-training heads as files beside a BERT: Condenser's `c_head`, CoT-MAE's `d_head`.

The official codes keep them in `model.pt`; here they are safetensors with the same names.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn

from qac_jax.errors import UserError
from qac_jax.hub import names, weights
from qac_jax.hub.backbones import DEFAULT, Loaded, Options, fit, loop_params
from qac_jax.models.backbone import BackboneConfig, Slot, Table, norm, under
from qac_jax.models.heads import BidirectionalHead, CausalDecoder
from qac_jax.models.layers import Runtime


Place = str | os.PathLike[str]
FILE = "heads.safetensors"
BIDIRECTIONAL, CAUSAL = "c_head", "d_head"
# Where heads may lie in a folder, first found first taken.
_FILES = (FILE, "c_head.safetensors", "model.pt", weights.SAFETENSORS, weights.PYTORCH)
_LAYER = re.compile(rf"(?P<prefix>.*?)(?P<head>{BIDIRECTIONAL}|{CAUSAL})\.(?P<layer>\d+)\.")


def load_heads(
    place: Place,
    config: BackboneConfig,
    runtime: Runtime | None = None,
    options: Options = DEFAULT,
    *,
    window: int = -1,
) -> dict[str, Loaded]:
    """Pre-training heads "c_head" and "d_head" of a file, or of a folder that may hold some.

    config is that of the encoder that they belong to; window is how far a causal decoder looks
    back, which no file says.
    """
    path, options = Path(place), options.on(runtime)
    path = path if path.exists() else names.folder(place)
    files = [path] if path.is_file() else [path / f for f in _FILES if (path / f).is_file()]
    heads: dict[str, Loaded] = {}
    for file in files:
        tensors = weights.read_file(file)
        for name, (prefix, count) in _layers(tensors).items():
            module: nn.Module
            if name == BIDIRECTIONAL:
                module = BidirectionalHead(config, options.runtime, count)
            else:
                module = CausalDecoder(config, options.runtime, count, window)
            own = {n: t for n, t in tensors.items() if n.startswith((f"{prefix}{name}", name))}
            table = _table(name, module, prefix)
            heads[name] = module, fit(file, module, table, own, options)
        if heads:
            break
    return heads


def save_heads(file: Place, heads: Mapping[str, Loaded]) -> None:
    """Writes heads, as `load_heads` gives them, into a safetensors file."""
    tensors: weights.Tensors = {}
    for name, (module, variables) in heads.items():
        if name not in (BIDIRECTIONAL, CAUSAL):
            raise UserError(f"there is no head {name!r}; expected {BIDIRECTIONAL} or {CAUSAL}")
        tensors |= weights.tensors_of(_table(name, module, ""), loop_params(variables))
    path = Path(file)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    weights.write_file(part, tensors)
    os.replace(part, path)


def _table(name: str, module: Any, prefix: str) -> Table:
    count = module.num_layers
    if name == BIDIRECTIONAL:
        return under("layers", module.config.stack_table(count, f"{prefix}{name}."))
    table = under("layers", _gpt2_blocks(count, f"{prefix}{name}."))
    return table | norm("norm", f"{prefix}{name}_ln_f")


def _gpt2_blocks(count: int, prefix: str) -> Table:
    """GPT-2 blocks. Their matrices are stored as [in, out], queries, keys and values in one."""
    table: Table = {}
    for i in range(count):
        theirs = f"{prefix}{i}"
        table |= norm(f"{i}/attention_norm", f"{theirs}.ln_1")
        table |= norm(f"{i}/mlp_norm", f"{theirs}.ln_2")
        for part, name in enumerate(("query", "key", "value")):
            for leaf, kind in (("kernel", "weight"), ("bias", "bias")):
                slot = Slot(f"{theirs}.attn.c_attn.{kind}", part=part)
                table[f"{i}/attention/{name}/{leaf}"] = slot
        for path, name in (
            ("attention/output", "attn.c_proj"),
            ("mlp/up", "mlp.c_fc"),
            ("mlp/down", "mlp.c_proj"),
        ):
            table[f"{i}/{path}/kernel"] = Slot(f"{theirs}.{name}.weight")
            table[f"{i}/{path}/bias"] = Slot(f"{theirs}.{name}.bias")
    return table


def _layers(tensors: Mapping[str, object]) -> dict[str, tuple[str, int]]:
    """Head -> (what its names begin with, number of layers)."""
    heads: dict[str, tuple[str, int]] = {}
    for match in filter(None, map(_LAYER.match, sorted(tensors))):
        prefix, count = heads.get(match["head"], (match["prefix"], 0))
        heads[match["head"]] = prefix, max(count, int(match["layer"]) + 1)
    return heads
