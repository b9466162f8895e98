"""Our trees of a BERT and its heads by the names of the reference's tensors."""

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import golden_cases as golden
import numpy as np

from qac_jax.hub import head_files, weights
from qac_jax.models.backbone import PARTS, dense
from qac_jax.models.bert import BertConfig


def tensors(trees: Mapping[str, Any]) -> weights.Tensors:
    """All of "backbone", "classifier", "c_head" and "d_head", as far as they are there."""
    bert = trees["backbone"]
    parts: Any = {part: part in bert for part in PARTS}
    config = BertConfig(num_layers=len(bert["layers"]), **parts)
    found = weights.tensors_of(config.table("bert."), bert)
    for name in trees.keys() - {"backbone"}:
        if name == "classifier":
            found |= weights.tensors_of(dense(name, name), {name: trees[name]})
        else:
            shape = SimpleNamespace(config=config, num_layers=len(trees[name]["layers"]))
            found |= weights.tensors_of(head_files._table(name, shape, ""), trees[name])
    return found


def select(found: Mapping[str, Any], name: str) -> np.ndarray:
    """The tensor that Hugging Face, or the official code with a prefix, calls `name`; `found` are
    tensors or trees."""
    if "backbone" in found:
        found = tensors(found)
    name = re.sub(r"^(lm\.|.*?(?=\bembeddings\.|\bencoder\.layer\.))", "", name, count=1)
    inside = name.startswith(("embeddings.", "encoder.", "pooler."))
    return found[f"bert.{name}" if inside else name]


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
    found = tensors(trees)
    for name in golden.names(arrays, prefix):
        expected = golden.expected(arrays, f"{prefix}{name}", precision)
        golden.assert_gradient(select(found, name), expected, precision, factor=factor, what=name)
    for name, norm in norms.items():
        golden.assert_gradient_norm(select(found, name), norm, precision, factor=factor, what=name)
