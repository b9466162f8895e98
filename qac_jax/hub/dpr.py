"""DPR's form of a dual encoder: two folders, `query` and `passage`, that transformers loads as
DPRQuestionEncoder and DPRContextEncoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax.errors import UserError
from qac_jax.hub import hf_config, name_maps, weights
from qac_jax.models.encoders import SIDES, DualEncoderConfig


# Side -> (the class in transformers, what the names of its tensors begin with).
CLASSES = {
    "query": ("DPRQuestionEncoder", "question_encoder."),
    "passage": ("DPRContextEncoder", "ctx_encoder."),
}


def is_pair(folder: Path) -> bool:
    """Whether this holds both sides of a DPR."""
    files = [folder / side / "config.json" for side in SIDES]
    return all(
        file.is_file() and hf_config.read_json(file).get("model_type") == "dpr" for file in files
    )


def check(config: DualEncoderConfig) -> None:
    """Refuses what DPR's form has no place for."""
    plain = DualEncoderConfig(config.bert)
    names = ("pooling", "normalize", "projection_activation", "query_prompt", "passage_prompt")
    odd = [
        f"{name}={getattr(config, name)!r}"
        for name in names
        if getattr(config, name) != getattr(plain, name)
    ]
    if odd:
        raise UserError(
            f"a DPR's vector is that of [CLS], perhaps projected, and nothing else, but this "
            f"encoder has {', '.join(odd)}; export it as sentence_transformers"
        )


def save_side(folder: Path, config: DualEncoderConfig, tower: Mapping[str, Any], side: str) -> None:
    """Writes one tower (in loop form), without a tokenizer."""
    cls, prefix = CLASSES[side]
    bert = dataclasses.replace(config.bert, pooler=False, mlm_head=False)
    table = name_maps.under("bert", name_maps.bert(bert, f"{prefix}bert_model."))
    unused = ("pooler", "mlm_head")  # parts of a BERT that a vector is not made with
    params: dict[str, Any] = {
        "bert": {name: part for name, part in tower["bert"].items() if name not in unused}
    }
    if config.projection is not None:
        table |= name_maps.dense("projection", f"{prefix}encode_proj")
        kernel = tower["projection"]["kernel"]
        # DPR's projection always has a bias.
        params["projection"] = {"bias": np.zeros_like(kernel[0]), **tower["projection"]}
    weights.write_file(folder / weights.SAFETENSORS, name_maps.write(table, params))
    raw = {
        **hf_config.from_bert(bert),
        "architectures": [cls],
        "model_type": "dpr",
        "projection_dim": config.projection or 0,
    }
    hf_config.write_json(folder / "config.json", raw)
