"""`config.json` of Hugging Face folders: what kind of model it is, and its shape, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qac_jax.errors import UserError, nearest
from qac_jax.models.bert import BertConfig
from qac_jax.models.t5 import T5Config


# `model_type` -> the family that reads it. ERNIE 2.0 is a BERT with four token types; mT5 is a
# T5 v1.1; DPR wraps a BERT.
FAMILIES = {"bert": "bert", "ernie": "bert", "dpr": "bert", "t5": "t5", "mt5": "t5"}
_BERT_FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "activation": "hidden_act",
    "layer_norm_eps": "layer_norm_eps",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "initializer_range": "initializer_range",
    "pad_id": "pad_token_id",
}
_T5_FIELDS = {
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "d_kv": "d_kv",
    "d_ff": "d_ff",
    "num_layers": "num_layers",
    "num_heads": "num_heads",
    "num_buckets": "relative_attention_num_buckets",
    "max_distance": "relative_attention_max_distance",
    "feed_forward": "feed_forward_proj",
    "dropout": "dropout_rate",
    "layer_norm_eps": "layer_norm_epsilon",
    "initializer_factor": "initializer_factor",
    "pad_id": "pad_token_id",
    "eos_id": "eos_token_id",
    "start_id": "decoder_start_token_id",
}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or one sentence about why there is none."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"there is no {path.name} in {path.parent}; expected a model folder"
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object")
    return content


def write_json(path: Path, content: Any) -> None:
    """JSON as Hugging Face writes it."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", "utf-8")


def family(raw: dict[str, Any], folder: Path) -> str:
    """ "bert" or "t5"; other kinds of model are refused by name."""
    kind = raw.get("model_type")
    if kind in FAMILIES:
        return FAMILIES[kind]
    if kind is None:
        raise UserError(f"{folder / 'config.json'} has no model_type, so the model is not known")
    raise UserError(
        f"{folder} holds a {kind!r} model, which is not supported; {nearest(str(kind), FAMILIES)}"
    )


def architecture(raw: dict[str, Any]) -> str:
    """The class that wrote the folder, as far as it says."""
    names = raw.get("architectures") or [""]
    return str(names[0])


def bert_config(raw: dict[str, Any], *, pooler: bool, mlm_head: bool) -> BertConfig:
    """The shape of a BERT; what config.json leaves out is Hugging Face's default, as here."""
    position = raw.get("position_embedding_type", "absolute")
    if position != "absolute":
        raise UserError(f"position_embedding_type={position!r} is not supported; expected absolute")
    if raw.get("use_task_id"):
        raise UserError(
            "this ERNIE has task embeddings (use_task_id, ERNIE 3.0), which are not supported; "
            "ERNIE 2.0 is"
        )
    return BertConfig(pooler=pooler, mlm_head=mlm_head, **_take(raw, _BERT_FIELDS))


def t5_config(raw: dict[str, Any], *, tied: bool) -> T5Config:
    """The shape of a T5. Hugging Face scales the decoder's output where embeddings are tied."""
    named = bool(raw.get("tie_word_embeddings", raw["model_type"] != "mt5"))
    fields = _take(raw, _T5_FIELDS)
    return T5Config(
        tied=tied,
        scaled=bool(raw.get("scale_decoder_outputs", named)),
        num_decoder_layers=raw.get("num_decoder_layers") or fields.get("num_layers", 6),
        **fields,
    )


def _take(raw: dict[str, Any], fields: dict[str, str]) -> dict[str, Any]:
    return {ours: raw[theirs] for ours, theirs in fields.items() if raw.get(theirs) is not None}


def from_bert(config: BertConfig, labels: int | None = None) -> dict[str, Any]:
    """config.json of a BERT; with labels, of a sequence classifier."""
    kind = "BertForMaskedLM" if config.mlm_head else "BertModel"
    raw: dict[str, Any] = {theirs: getattr(config, ours) for ours, theirs in _BERT_FIELDS.items()}
    if labels is not None:
        kind = "BertForSequenceClassification"
        raw["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
        raw["label2id"] = {f"LABEL_{i}": i for i in range(labels)}
    return {
        **raw,
        "architectures": [kind],
        "model_type": "bert",
        "position_embedding_type": "absolute",
        "dtype": "float32",
    }


def from_t5(config: T5Config) -> dict[str, Any]:
    """config.json of a T5."""
    raw = {theirs: getattr(config, ours) for ours, theirs in _T5_FIELDS.items()}
    return {
        **raw,
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "num_decoder_layers": config.num_decoder_layers,
        "tie_word_embeddings": config.tied,
        "scale_decoder_outputs": config.scaled,
        "dtype": "float32",
    }
