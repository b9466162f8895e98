"""Dual encoders as sentence-transformers folders, read and written.

Such a folder is a model folder with a list of modules beside it: Transformer, Pooling, perhaps
Dense, perhaps Normalize. A dual encoder with two towers is two such folders, `query` and
`passage`, in one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qac_jax.errors import UserError
from qac_jax.hub import backbones, hf_config, name_maps, weights
from qac_jax.models.encoders import SIDES, DualEncoder, DualEncoderConfig
from qac_jax.models.tensor_names import Table, dense, under


MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
LENGTHS = "sentence_bert_config.json"
_POOLINGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
_ACTIVATIONS = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "silu": "torch.nn.modules.activation.SiLU",
}
# Under which name the passage's prompt may lie, the usual one first.
_PASSAGE_PROMPTS = ("document", "passage", "corpus")
# The order of modules that a tower here computes; the last two may be absent.
_ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
_NO_LIMIT = 10**6  # Hugging Face writes 10^30 where there is none
# What only we read of the settings: how texts were read in training.
_READING = ("title", "query_length", "passage_length")
_OWN = "qac_jax"
_DENSE = "dense/"  # what the names of the projection's tensors get here


def is_folder(folder: Path) -> bool:
    """Whether this is a sentence-transformers folder, or a pair of them."""
    return (folder / MODULES).is_file() or is_pair(folder)


def is_pair(folder: Path) -> bool:
    """Whether this holds two towers."""
    return all((folder / side / MODULES).is_file() for side in SIDES)


def max_length(folder: Path) -> int | None:
    """At how many tokens the folder says that texts are cut, special tokens included."""
    folder = folder / SIDES[1] if is_pair(folder) else folder
    # sentence-transformers 5.5 and later leave it to the tokenizer's settings.
    for name, key in ((LENGTHS, "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        if (folder / name).is_file():
            limit = hf_config.read_json(folder / name).get(key)
            if limit and limit < _NO_LIMIT:
                return int(limit)
    return None


def load(folder: Path, options: backbones.Options) -> backbones.Loaded:
    """The folder's dual encoder: one tower for both sides, or two."""
    if not is_pair(folder):
        return load_tied(folder, options)
    query, passage = (load_tied(folder / side, options) for side in SIDES)
    return pair(query, passage)


def pair(query: backbones.Loaded, passage: backbones.Loaded) -> backbones.Loaded:
    """One dual encoder of two tied ones, which must be built alike."""
    (left, left_variables), (right, right_variables) = query, passage
    config = dataclasses.replace(
        left.config, tied=False, passage_prompt=right.config.passage_prompt
    )
    same = {"tied": False, "query_prompt": config.query_prompt, "scale": config.scale}
    if dataclasses.replace(right.config, **same) != config:
        raise UserError(
            "the query and the passage encoder are built differently (shape, pooling or "
            "normalisation), which is not supported; expected two of the same kind"
        )
    towers = {
        "query": left_variables["params"]["encoder"],
        "passage": right_variables["params"]["encoder"],
    }
    return DualEncoder(config, left.runtime), {"params": towers}


def load_tied(folder: Path, options: backbones.Options) -> backbones.Loaded:
    """A dual encoder with one tower, from one sentence-transformers folder."""
    places = _places(folder)
    inner = folder / places["Transformer"]
    files = backbones.read_encoder(inner, options)
    settings = _settings(folder)
    prompts = settings.get("prompts") or {}
    config = DualEncoderConfig(
        files.config,
        pooling=_pooling(folder / places["Pooling"] / "config.json"),
        normalize="Normalize" in places,
        scale=float(settings.get("scale", 1.0)),
        query_prompt=prompts.get("query") or "",
        passage_prompt=next((prompts[n] for n in _PASSAGE_PROMPTS if prompts.get(n)), ""),
        **{name: settings[_OWN][name] for name in _READING if name in settings.get(_OWN, {})},
    )
    tensors = files.tensors
    if "Dense" in places:
        place = folder / places["Dense"]
        config = dataclasses.replace(config, **_projection(place / "config.json"))
        tensors = tensors | {f"{_DENSE}{n}": t for n, t in weights.read_folder(place).items()}
    module = DualEncoder(config, options.runtime)
    table = under("encoder", _tower(config, files.table))
    ignored = files.config.hf_ignored
    return module, backbones.fit(folder, module, table, tensors, options, ignored)


def _tower(config: DualEncoderConfig, backbone: Table) -> Table:
    table = under("backbone", backbone)
    if config.projection is not None:
        table |= dense("projection", f"{_DENSE}linear", config.projection_bias)
    return table


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / SETTINGS
    return hf_config.read_json(file) if file.is_file() else {}


def _places(folder: Path) -> dict[str, str]:
    """Module name -> sub-folder; anything but the order that a tower computes is refused."""
    file = folder / MODULES
    try:
        listed = json.loads(file.read_text("utf-8"))
        places = {str(entry["type"]).rsplit(".", 1)[-1]: str(entry["path"]) for entry in listed}
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{file} is not a list of modules") from None
    usual = [name for name in _ORDER if name in places]
    if [*places] != usual or len(places) != len(listed) or not {*_ORDER[:2]} <= {*places}:
        raise UserError(
            f"{file} lists the modules {', '.join(places)}; supported are Transformer, Pooling, "
            "Dense (or none), Normalize (or none), in this order"
        )
    return places


def _pooling(file: Path) -> str:
    raw = hf_config.read_json(file)
    modes = raw.get("pooling_mode")  # since sentence-transformers 5.5; flags before
    if modes is None:
        modes = [key for key, on in raw.items() if key.startswith("pooling_mode_") and on is True]
    modes = [modes] if isinstance(modes, str) else list(modes)
    names = {flag: name for name, flag in _POOLINGS.items()} | {name: name for name in _POOLINGS}
    if len(modes) != 1 or modes[0] not in names:
        raise UserError(f"{file} pools by {', '.join(modes) or 'nothing'}; expected cls or mean")
    if raw.get("include_prompt") is False:
        raise UserError(f"{file} leaves prompts out of the pooling, which is not supported")
    return names[modes[0]]


def _projection(file: Path) -> dict[str, Any]:
    raw = hf_config.read_json(file)
    names = {theirs: ours for ours, theirs in _ACTIVATIONS.items()}
    function = raw.get("activation_function", _ACTIVATIONS["tanh"])  # their default
    vector = "sentence_embedding"
    if function not in names:
        raise UserError(f"{file} has the activation {function}; expected {', '.join(names)}")
    ends = (raw.get("module_input_name"), raw.get("module_output_name"))
    if raw.get("use_residual") or any(name not in (None, vector) for name in ends):
        raise UserError(
            f"{file} is not a plain linear projection of the vector; only that is supported"
        )
    return {
        "projection": int(raw["out_features"]),
        "projection_bias": bool(raw.get("bias", True)),
        "projection_activation": names[function],
    }


def save_tied(
    folder: Path, config: DualEncoderConfig, tower: Mapping[str, Any], max_length: int | None
) -> None:
    """Writes one tower (in loop form) as a sentence-transformers folder, without a tokenizer."""
    table = backbones.saved_table(config.backbone)
    tensors = name_maps.write(_tower(config, table), tower)
    dense = {n.removeprefix(_DENSE): t for n, t in tensors.items() if n.startswith(_DENSE)}
    own = {n: t for n, t in tensors.items() if not n.startswith(_DENSE)}
    weights.write_file(folder / weights.SAFETENSORS, own)
    hf_config.write_json(folder / "config.json", config.backbone.to_hf())
    width = config.backbone.hidden_size
    pooling: dict[str, Any] = {flag: name == config.pooling for name, flag in _POOLINGS.items()}
    pooling |= {"pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False}
    parts: list[tuple[str, dict[str, Any] | None]] = [
        ("Pooling", {"word_embedding_dimension": width} | pooling)
    ]
    if config.projection is not None:
        activation = _ACTIVATIONS[config.projection_activation]
        described: dict[str, Any] = {
            "in_features": width,
            "out_features": config.projection,
            "bias": config.projection_bias,
            "activation_function": activation,
        }
        parts.append(("Dense", described))
    if config.normalize:
        parts.append(("Normalize", None))
    modules = [_module(0, "Transformer", "")]
    for index, (name, content) in enumerate(parts, start=1):
        place = f"{index}_{name}"
        modules.append(_module(index, name, place))
        (folder / place).mkdir()
        if content is not None:
            hf_config.write_json(folder / place / "config.json", content)
        if name == "Dense":
            weights.write_file(folder / place / weights.SAFETENSORS, dense)
    (folder / MODULES).write_text(json.dumps(modules, indent=2) + "\n", "utf-8")
    limit = max_length or config.backbone.max_length
    hf_config.write_json(folder / LENGTHS, {"max_seq_length": limit, "do_lower_case": False})
    prompts = {"query": config.query_prompt, _PASSAGE_PROMPTS[0]: config.passage_prompt}
    settings: dict[str, Any] = {
        "prompts": {name: text for name, text in prompts.items() if text},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if config.normalize else "dot",
    }
    if config.scale != 1.0:  # sentence-transformers has none, and passes over it
        settings["scale"] = config.scale
    plain = DualEncoderConfig(config.backbone)
    reading = {name: getattr(config, name) for name in _READING}
    if any(value != getattr(plain, name) for name, value in reading.items()):
        settings[_OWN] = reading
    hf_config.write_json(folder / SETTINGS, settings)


def _module(index: int, name: str, place: str) -> dict[str, Any]:
    kind = f"sentence_transformers.models.{name}"
    return {"idx": index, "name": str(index), "path": place, "type": kind}
