"""DPR's form of a dual encoder: two folders, `query` and `passage`, that transformers loads as
DPRQuestionEncoder and DPRContextEncoder."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax.errors import UserError
from qac_jax.hub import backbones, weights
from qac_jax.models.backbone import PARTS, dense, under
from qac_jax.models.encoders import SIDES, DualEncoder, DualEncoderConfig


MODEL_TYPE = "dpr"
_INNER = "bert_model."  # what the names of the encoder inside begin with
# Side -> (the class in transformers, what the names of its tensors begin with).
CLASSES = {
    "query": ("DPRQuestionEncoder", "question_encoder."),
    "passage": ("DPRContextEncoder", "ctx_encoder."),
}


def is_side(raw: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a DPR's encoder."""
    return raw.get("model_type") == MODEL_TYPE


def is_pair(folder: Path) -> bool:
    """Whether this holds both sides of a DPR."""
    files = [folder / side / "config.json" for side in SIDES]
    return all(file.is_file() and is_side(weights.read_json(file)) for file in files)


def load_side(folder: Path, options: backbones.Options) -> backbones.Loaded:
    """One side of a DPR: the [CLS] vector, projected where projection_dim says so."""
    # Old DPR files hold a pooler that the model never used.
    options = dataclasses.replace(options, pooler=False, mlm_head=False)
    files = backbones.read_encoder(folder, options)
    width = files.raw.get("projection_dim") or None
    module = DualEncoder(DualEncoderConfig(files.config, projection=width), options.runtime)
    table = under("encoder/backbone", files.table)
    if width:
        name = f"{files.encoder.removesuffix(_INNER)}encode_proj"
        table |= dense("encoder/projection", name)
    ignored = files.config.hf_ignored
    return module, backbones.fit(folder, module, table, files.tensors, options, ignored)


def check(config: DualEncoderConfig) -> None:
    """Refuses what DPR's form has no place for."""
    if MODEL_TYPE not in config.backbone.model_types:
        raise UserError(
            f"a DPR is a pair of BERTs, but this encoder is {config.backbone.display_name}; "
            "export it as sentence_transformers"
        )
    plain = DualEncoderConfig(config.backbone)
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
    backbone = config.backbone.with_parts()
    table = under("backbone", backbone.table(prefix + _INNER))
    params: dict[str, Any] = {  # without the parts that a vector is not made with
        "backbone": {name: part for name, part in tower["backbone"].items() if name not in PARTS}
    }
    if config.projection is not None:
        table |= dense("projection", f"{prefix}encode_proj")
        kernel = tower["projection"]["kernel"]
        # DPR's projection always has a bias.
        params["projection"] = {"bias": np.zeros_like(kernel[0]), **tower["projection"]}
    weights.write_file(folder / weights.SAFETENSORS, weights.tensors_of(table, params))
    raw = {
        **backbone.to_hf(),
        "architectures": [cls],
        "model_type": MODEL_TYPE,
        "projection_dim": config.projection or 0,
    }
    weights.write_json(folder / "config.json", raw)
