"""Hugging Face names of BERT's tensors in our parameter tree, for tests.

Written apart from the library's bridge on purpose: two independent statements of the same
contract (the docstring of qac_jax/models/bert.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from qac_jax.models.bert import BertConfig


_LAYER = {
    "attention.self.query": "attention/query",
    "attention.self.key": "attention/key",
    "attention.self.value": "attention/value",
    "attention.output.dense": "attention/output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "mlp/up",
    "output.dense": "mlp/down",
    "output.LayerNorm": "mlp_norm",
}
_GPT2 = {
    "ln_1": "attention_norm",
    "attn.c_proj": "attention/output",
    "ln_2": "mlp_norm",
    "mlp.c_fc": "mlp/up",
    "mlp.c_proj": "mlp/down",
}
_WHOLE = {
    "bert.embeddings.word_embeddings.weight": "bert/embeddings/word/embedding",
    "bert.embeddings.position_embeddings.weight": "bert/embeddings/position/embedding",
    "bert.embeddings.token_type_embeddings.weight": "bert/embeddings/type/embedding",
    "cls.predictions.bias": "bert/mlm_head/bias",
}
_MODULES = {
    "bert.embeddings.LayerNorm": "bert/embeddings/norm",
    "bert.pooler.dense": "bert/pooler",
    "cls.predictions.transform.dense": "bert/mlm_head/dense",
    "cls.predictions.transform.LayerNorm": "bert/mlm_head/norm",
    "classifier": "classifier",
    "d_head_ln_f": "d_head/norm",
}


def config(folder: Path, **parts: Any) -> BertConfig:
    """config.json as a BertConfig."""
    hf = json.loads((folder / "config.json").read_text())
    return BertConfig(
        vocab_size=hf["vocab_size"],
        hidden_size=hf["hidden_size"],
        num_layers=hf["num_hidden_layers"],
        num_heads=hf["num_attention_heads"],
        intermediate_size=hf["intermediate_size"],
        max_positions=hf["max_position_embeddings"],
        type_vocab_size=hf["type_vocab_size"],
        activation=hf["hidden_act"],
        layer_norm_eps=hf["layer_norm_eps"],
        hidden_dropout=hf["hidden_dropout_prob"],
        attention_dropout=hf["attention_probs_dropout_prob"],
        initializer_range=hf["initializer_range"],
        **parts,
    )


def tensors(*paths: Path) -> dict[str, np.ndarray]:
    """The tensors of safetensors files, a folder standing for its model.safetensors."""
    found: dict[str, np.ndarray] = {}
    for path in paths:
        found |= safetensors.numpy.load_file(path / "model.safetensors" if path.is_dir() else path)
    return found


def tree(named: Mapping[str, np.ndarray], precision: str) -> dict[str, Any]:
    """Parameter trees {"bert", "classifier", "c_head", "d_head"}, whichever there are."""
    root: dict[str, Any] = {}
    for name, tensor in named.items():
        for path, value in _places(name, tensor):
            *parents, leaf = path.split("/")
            node = root
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = value.astype(precision)
    return root


def select(trees: Mapping[str, Any], name: str) -> np.ndarray:
    """The tensor that Hugging Face (or the official code, with `lm.`) calls `name`."""
    packed = re.fullmatch(r"d_head\.(\d+)\.attn\.c_attn\.(weight|bias)", name)
    if packed:
        attention = trees["d_head"]["layers"][packed[1]]["attention"]
        leaf = "kernel" if packed[2] == "weight" else "bias"
        return np.concatenate([attention[p][leaf] for p in ("query", "key", "value")], -1)
    path, transposed = _place(name)
    node: Any = trees
    for part in path.split("/"):
        node = node[part]
    return np.asarray(node).T if transposed else np.asarray(node)


def _places(name: str, tensor: np.ndarray) -> list[tuple[str, np.ndarray]]:
    packed = re.fullmatch(r"d_head\.(\d+)\.attn\.c_attn\.(weight|bias)", name)
    if packed:
        leaf = "kernel" if packed[2] == "weight" else "bias"
        base = f"d_head/layers/{packed[1]}/attention"
        thirds = np.split(tensor, 3, axis=-1)
        parts = zip(("query", "key", "value"), thirds, strict=True)
        return [(f"{base}/{part}/{leaf}", third) for part, third in parts]
    path, transposed = _place(name)
    return [(path, tensor.T if transposed else tensor)]


def _place(name: str) -> tuple[str, bool]:
    """(path in our trees, whether it is transposed) of a tensor."""
    name = name.removeprefix("lm.")
    if name.startswith(("embeddings.", "encoder.", "pooler.")):
        name = f"bert.{name}"
    if name in _WHOLE:
        return _WHOLE[name], False
    module, leaf = name.rsplit(".", 1)
    if module in _MODULES:
        return _leaf(_MODULES[module], leaf)
    layer = re.fullmatch(r"(?:bert\.encoder\.layer|(c_head|d_head))\.(\d+)\.(.+)", module)
    assert layer, f"no place for {name}"
    owner = layer[1] or "bert"
    table = _GPT2 if owner == "d_head" else _LAYER
    path, transposed = _leaf(f"{owner}/layers/{layer[2]}/{table[layer[3]]}", leaf)
    return path, transposed and owner != "d_head"  # GPT-2 stores its kernels as [in, out]


def _leaf(path: str, leaf: str) -> tuple[str, bool]:
    norm = path.endswith("norm")
    if leaf == "bias":
        return f"{path}/bias", False
    return (f"{path}/scale", False) if norm else (f"{path}/kernel", True)
