"""Hugging Face names of BERT's tensors in our trees, to find gradients by the reference's names.

Written apart from the library's bridge on purpose: two independent statements of the same
contract (the docstring of qac_jax/models/bert.py).
"""

import re
from collections.abc import Mapping
from typing import Any

import golden_cases as golden
import numpy as np


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
    "bert.embeddings.word_embeddings.weight": "backbone/embeddings/word/embedding",
    "bert.embeddings.position_embeddings.weight": "backbone/embeddings/position/embedding",
    "bert.embeddings.token_type_embeddings.weight": "backbone/embeddings/type/embedding",
    "cls.predictions.bias": "backbone/mlm_head/bias",
}
_MODULES = {
    "bert.embeddings.LayerNorm": "backbone/embeddings/norm",
    "bert.pooler.dense": "backbone/pooler",
    "cls.predictions.transform.dense": "backbone/mlm_head/dense",
    "cls.predictions.transform.LayerNorm": "backbone/mlm_head/norm",
    "classifier": "classifier",
    "d_head_ln_f": "d_head/norm",
}


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


def check_gradients(
    trees: Mapping[str, Any],
    arrays: dict[str, np.ndarray],
    norms: Mapping[str, float],
    prefix: str,
    precision: str,
    factor: float = 1.0,
) -> None:
    """The gradients that a case stores under `prefix`, and the norms of all of them."""
    assert norms, "the case holds no gradients"
    for name in golden.names(arrays, prefix):
        expected = golden.expected(arrays, f"{prefix}{name}", precision)
        golden.assert_gradient(select(trees, name), expected, precision, factor=factor, what=name)
    for name, norm in norms.items():
        golden.assert_gradient_norm(select(trees, name), norm, precision, factor=factor, what=name)


def _place(name: str) -> tuple[str, bool]:
    """(path in our trees, whether it is transposed) of a tensor."""
    name = re.sub(r"^(lm\.|.*?(?=\bembeddings\.|\bencoder\.layer\.))", "", name, count=1)
    if name.startswith(("embeddings.", "encoder.", "pooler.")):
        name = f"bert.{name}"
    if name in _WHOLE:
        return _WHOLE[name], False
    module, leaf = name.rsplit(".", 1)
    if module in _MODULES:
        return _leaf(_MODULES[module], leaf)
    layer = re.fullmatch(r"(?:bert\.encoder\.layer|(c_head|d_head))\.(\d+)\.(.+)", module)
    assert layer, f"no place for {name}"
    owner = layer[1] or "backbone"
    table = _GPT2 if owner == "d_head" else _LAYER
    path, transposed = _leaf(f"{owner}/layers/{layer[2]}/{table[layer[3]]}", leaf)
    return path, transposed and owner != "d_head"  # GPT-2 stores its kernels as [in, out]


def _leaf(path: str, leaf: str) -> tuple[str, bool]:
    norm = path.endswith("norm")
    if leaf == "bias":
        return f"{path}/bias", False
    return (f"{path}/scale", False) if norm else (f"{path}/kernel", True)
