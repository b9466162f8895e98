"""Which tensor of a Hugging Face file is which parameter here, as tables.

A table maps a parameter's path ("layers/0/mlp/up/kernel") to a `Slot`: the tensor's name and how
it lies there. One table reads and writes, so that a round trip gives back the same bytes. Tables
speak of layers as a loop; `scanned` and `looped` turn parameter trees into and out of the
stacked form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util

from qac_jax.errors import UserError
from qac_jax.models.bert import BertConfig
from qac_jax.models.t5 import T5Config
from qac_jax.models.t5_layers import FEED_FORWARD


Tensors = dict[str, np.ndarray]


class Slot(NamedTuple):
    """Where a parameter lies: a whole tensor, or one of three equal parts of its last axis."""

    name: str
    transposed: bool = False
    part: int | None = None


Table = dict[str, Slot]
_PARTS = 3


def read(table: Table, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The parameters of a table, as a tree; every tensor must be there."""
    flat = {}
    for path, slot in table.items():
        tensor = tensors[slot.name]
        if slot.part is not None:
            if tensor.shape[-1] % _PARTS:
                raise UserError(f"{slot.name} of shape {tensor.shape} cannot be cut in {_PARTS}")
            tensor = np.split(tensor, _PARTS, axis=-1)[slot.part]
        flat[path] = np.ascontiguousarray(tensor.T if slot.transposed else tensor)
    return traverse_util.unflatten_dict(flat, sep="/")


def write(table: Table, params: Mapping[str, Any]) -> Tensors:
    """The tensors of a table, from a parameter tree that holds exactly its paths."""
    flat = traverse_util.flatten_dict(params, sep="/")
    if flat.keys() != table.keys():
        odd = sorted(flat.keys() ^ table.keys())
        raise UserError(
            f"the parameters do not fit the module: {odd[0]} is "
            + ("not one of its parameters" if odd[0] in flat else "missing")
        )
    parts: dict[str, list[np.ndarray]] = {}
    for path, slot in sorted(table.items(), key=lambda item: item[1].part or 0):
        tensor = np.asarray(flat[path])
        parts.setdefault(slot.name, []).append(tensor.T if slot.transposed else tensor)
    return {
        name: np.ascontiguousarray(p[0] if len(p) == 1 else np.concatenate(p, axis=-1))
        for name, p in parts.items()
    }


def names(table: Table) -> set[str]:
    """The tensors that a table speaks of."""
    return {slot.name for slot in table.values()}


def under(path: str, table: Table) -> Table:
    """The table of a module that sits at `path` of another one."""
    return {f"{path}/{inner}": slot for inner, slot in table.items()}


def dense(path: str, name: str, bias: bool = True) -> Table:
    """torch's Linear, whose weight lies as [out, in]."""
    table = {f"{path}/kernel": Slot(f"{name}.weight", transposed=True)}
    return table | {f"{path}/bias": Slot(f"{name}.bias")} if bias else table


def norm(path: str, name: str) -> Table:
    return {f"{path}/scale": Slot(f"{name}.weight"), f"{path}/bias": Slot(f"{name}.bias")}


def bert(config: BertConfig, encoder: str = "bert.", model: str = "") -> Table:
    """A BERT whose encoder's names begin with `encoder` and whose heads' with `model`."""
    table: Table = {
        f"embeddings/{ours}/embedding": Slot(f"{encoder}embeddings.{theirs}_embeddings.weight")
        for ours, theirs in (("word", "word"), ("position", "position"), ("type", "token_type"))
    }
    table |= norm("embeddings/norm", f"{encoder}embeddings.LayerNorm")
    table |= bert_layers(config.num_layers, f"{encoder}encoder.layer.")
    if config.pooler:
        table |= dense("pooler", f"{encoder}pooler.dense")
    if config.mlm_head:
        table |= dense("mlm_head/dense", f"{model}cls.predictions.transform.dense")
        table |= norm("mlm_head/norm", f"{model}cls.predictions.transform.LayerNorm")
        table["mlm_head/bias"] = Slot(f"{model}cls.predictions.bias")
    return table


def cross_encoder(config: BertConfig, encoder: str = "bert.", model: str = "") -> Table:
    """A sequence classifier on a BERT's pooled vector."""
    return under("bert", bert(config, encoder)) | dense("classifier", f"{model}classifier")


def bert_layers(count: int, prefix: str) -> Table:
    """`count` BERT layers, prefix0.…, prefix1.…: an encoder's, or those of a Condenser head."""
    table: Table = {}
    for i in range(count):
        ours, theirs = f"layers/{i}", f"{prefix}{i}"
        for name in ("query", "key", "value"):
            table |= dense(f"{ours}/attention/{name}", f"{theirs}.attention.self.{name}")
        table |= dense(f"{ours}/attention/output", f"{theirs}.attention.output.dense")
        table |= norm(f"{ours}/attention_norm", f"{theirs}.attention.output.LayerNorm")
        table |= dense(f"{ours}/mlp/up", f"{theirs}.intermediate.dense")
        table |= dense(f"{ours}/mlp/down", f"{theirs}.output.dense")
        table |= norm(f"{ours}/mlp_norm", f"{theirs}.output.LayerNorm")
    return table


def gpt2_layers(count: int, prefix: str) -> Table:
    """`count` GPT-2 blocks. Their matrices lie as [in, out], queries, keys and values in one."""
    table: Table = {}
    for i in range(count):
        ours, theirs = f"layers/{i}", f"{prefix}{i}"
        table |= norm(f"{ours}/attention_norm", f"{theirs}.ln_1")
        table |= norm(f"{ours}/mlp_norm", f"{theirs}.ln_2")
        for part, name in enumerate(("query", "key", "value")):
            for leaf, kind in (("kernel", "weight"), ("bias", "bias")):
                slot = Slot(f"{theirs}.attn.c_attn.{kind}", part=part)
                table[f"{ours}/attention/{name}/{leaf}"] = slot
        for path, name in (
            ("attention/output", "attn.c_proj"),
            ("mlp/up", "mlp.c_fc"),
            ("mlp/down", "mlp.c_proj"),
        ):
            table[f"{ours}/{path}/kernel"] = Slot(f"{theirs}.{name}.weight")
            table[f"{ours}/{path}/bias"] = Slot(f"{theirs}.{name}.bias")
    return table


def t5(config: T5Config) -> Table:
    """A T5 with its language-model head."""
    table: Table = {"shared/embedding": Slot("shared.weight")}
    if not config.tied:
        table["lm_head/embedding"] = Slot("lm_head.weight")
    for stack, count in (("encoder", config.num_layers), ("decoder", config.num_decoder_layers)):
        table[f"{stack}/norm/scale"] = Slot(f"{stack}.final_layer_norm.weight")
        table[f"{stack}/relative_bias/embedding"] = Slot(
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        )
        for i in range(count):
            table |= _t5_block(config, f"{stack}/layers/{i}", f"{stack}.block.{i}.layer.")
    return table


def _t5_block(config: T5Config, ours: str, theirs: str) -> Table:
    parts = [("attention", "SelfAttention", "attention_norm")]
    if ours.startswith("decoder"):
        parts.append(("cross_attention", "EncDecAttention", "cross_attention_norm"))
    table: Table = {}
    for place, (path, name, norm) in enumerate(parts):
        for inner in ("query", "key", "value", "output"):
            slot = Slot(f"{theirs}{place}.{name}.{inner[0]}.weight", transposed=True)
            table[f"{ours}/{path}/{inner}/kernel"] = slot
        table[f"{ours}/{norm}/scale"] = Slot(f"{theirs}{place}.layer_norm.weight")
    place = len(parts)
    gated = FEED_FORWARD[config.feed_forward][1]
    up = {"gate": "wi_0", "up": "wi_1"} if gated else {"up": "wi"}
    for path, name in {**up, "down": "wo"}.items():
        slot = Slot(f"{theirs}{place}.DenseReluDense.{name}.weight", transposed=True)
        table[f"{ours}/mlp/{path}/kernel"] = slot
    table[f"{ours}/mlp_norm/scale"] = Slot(f"{theirs}{place}.layer_norm.weight")
    return table


def looped(params: Any) -> Any:
    """The tree with every stack of layers as {"0": layer, "1": layer, …}, on the host."""
    return _map_stacks(params, _unstack)


def scanned(params: Any) -> Any:
    """The tree with every stack of layers as one layer with a leading axis, on the host."""
    return _map_stacks(params, _stack)


def _map_stacks(tree: Any, change: Any) -> Any:
    if not isinstance(tree, Mapping):
        return np.asarray(tree)
    return {
        name: change(branch) if name == "layers" else _map_stacks(branch, change)
        for name, branch in tree.items()
    }


def _unstack(layers: Mapping[str, Any]) -> dict[str, Any]:
    flat = {path: np.asarray(leaf) for path, leaf in traverse_util.flatten_dict(layers).items()}
    if "0" in layers:
        return traverse_util.unflatten_dict(flat)
    count = len(next(iter(flat.values())))
    return {
        str(i): traverse_util.unflatten_dict({path: leaf[i] for path, leaf in flat.items()})
        for i in range(count)
    }


def _stack(layers: Mapping[str, Any]) -> dict[str, Any]:
    ordered = [traverse_util.flatten_dict(layers[str(i)]) for i in range(len(layers))]
    return traverse_util.unflatten_dict(
        {path: np.stack([np.asarray(layer[path]) for layer in ordered]) for path in ordered[0]}
    )
