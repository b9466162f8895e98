"""Cross-encoders as transformers' sequence classifiers, read and written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qac_jax.hub import backbones, hf_config, name_maps, weights
from qac_jax.models.encoders import CrossEncoder


_CLASS = "ForSequenceClassification"
# In config.json: it was trained on queries behind a first ranking's score.
_READS_SCORES = "qac_reads_scores"


def is_folder(raw: Mapping[str, Any]) -> bool:
    """Whether a config.json is a sequence classifier's."""
    return hf_config.written_by(raw).endswith(_CLASS)


def load(folder: Path, options: backbones.Options) -> backbones.Loaded:
    """The cross-encoder of a folder."""
    options = dataclasses.replace(options, pooler=True, mlm_head=False)
    files = backbones.read_encoder(folder, options)
    config = files.config
    table = config.classifier_table(files.encoder, files.model)
    bias = files.tensors.get(table["classifier/bias"].name)
    labels = len(files.raw.get("id2label") or "01") if bias is None else len(bias)
    rate = files.raw.get(config.hf_classifier_dropout)
    scores = bool(files.raw.get(_READS_SCORES))
    module = CrossEncoder(config, options.runtime, labels, rate, scores)
    ignored = config.hf_ignored
    return module, backbones.fit(folder, module, table, files.tensors, options, ignored)


def save(folder: Path, module: CrossEncoder, params: Mapping[str, Any]) -> None:
    """Writes a cross-encoder (in loop form), without a tokenizer."""
    config = module.config
    raw = config.to_hf(module.labels)
    rate = module.classifier_dropout
    if rate is not None or config.hf_classifier_dropout not in raw:
        raw[config.hf_classifier_dropout] = rate
    if module.reads_scores:
        raw[_READS_SCORES] = True
    table = config.classifier_table(encoder=config.hf_base)
    weights.write_file(folder / weights.SAFETENSORS, name_maps.write(table, params))
    hf_config.write_json(folder / "config.json", raw)
