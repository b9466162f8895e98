"""Dual encoders as sentence-transformers folders, read and written.

Such a folder is a model folder with a list of modules beside it (sentence_modules.py). A dual
encoder with two towers is two such folders, `query` and `passage`, in one, whose own list is a
router between them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qac_jax import progress
from qac_jax.errors import UserError, shown
from qac_jax.hub import backbones, hf_config, name_maps, sentence_modules, weights
from qac_jax.hub.sentence_modules import DENSE, MODULES, NORMALIZE, POOLING, TRANSFORMER, Part
from qac_jax.models.backbone import Table, dense, under
from qac_jax.models.encoders import SIDES, DualEncoder, DualEncoderConfig
from qac_jax.text import tokenizers


SETTINGS = "config_sentence_transformers.json"
LENGTHS = "sentence_bert_config.json"
_PROMPTS = sentence_modules.ROUTES  # prompts have the names of routes
_NO_LIMIT = 10**6  # Hugging Face writes 10^30 where there is none
# What only we read of the settings: how texts were read in training.
_READING = ("title", "query_length", "passage_length")
_OWN = "qac_jax"
_DENSE = "dense/"  # what the names of the projection's tensors get here


def is_folder(folder: Path) -> bool:
    """Whether this is a sentence-transformers folder, or a pair of them."""
    return (folder / MODULES).is_file() or is_pair(folder)


def is_pair(folder: Path) -> bool:
    """Whether this holds two towers, each a folder of its own."""
    return all((folder / side / MODULES).is_file() for side in SIDES)


def transformer_folder(folder: Path, side: str = "passage") -> Path:
    """Where the encoder of one side lies, with its tokenizer and its limit in tokens."""
    if not (folder / MODULES).is_file():
        return folder / side if is_pair(folder) else folder
    parts = sentence_modules.of_side(folder, sentence_modules.listed(folder), side)
    return next((folder / part.place for part in parts if part.kind == TRANSFORMER), folder)


def max_length(folder: Path) -> int | None:
    """At how many tokens the folder says that texts are cut, special tokens included."""
    folder = transformer_folder(folder)
    # sentence-transformers 5.5 and later leave it to the tokenizer's settings.
    for name, key in ((LENGTHS, "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        if (folder / name).is_file():
            limit = hf_config.read_json(folder / name).get(key)
            if limit is not None and (not isinstance(limit, int | float) or not limit >= 0):
                raise UserError(f"{folder / name}: {key} = {shown(limit)} is not a length")
            if limit and limit < _NO_LIMIT:
                return int(limit)
    return None


def load(folder: Path, options: backbones.Options) -> backbones.Loaded:
    """The folder's dual encoder: one tower for both sides, or two."""
    if not (folder / MODULES).is_file():
        return pair(*(load(folder / side, options) for side in SIDES))
    parts = sentence_modules.listed(folder)
    if not sentence_modules.routed(parts):
        return _load_tower(folder, parts, options)
    routes = [sentence_modules.of_side(folder, parts, side) for side in SIDES]
    if routes[0] == routes[1]:
        return _load_tower(folder, routes[0], options)
    if both := [part.place for part in routes[0] if part in routes[1] and part.kind != NORMALIZE]:
        progress.say(f"{folder}: both towers get a copy of their own of {', '.join(both)}")
    _check_tokenizers(folder)
    return pair(*(_load_tower(folder, route, options) for route in routes))


def _check_tokenizers(folder: Path) -> None:
    places = [transformer_folder(folder, side) for side in SIDES]
    if not all((place / "tokenizer.json").is_file() for place in places):
        return
    query, passage = (tokenizers.load(str(place)).backend.get_vocab() for place in places)
    if query != passage:
        raise UserError(
            f"{folder} reads queries and passages with different tokenizers, which is not "
            "supported; expected one vocabulary for both"
        )


def pair(query: backbones.Loaded, passage: backbones.Loaded) -> backbones.Loaded:
    """One dual encoder of two tied ones, which must be built alike."""
    (left, left_variables), (right, right_variables) = query, passage
    config = dataclasses.replace(
        left.config, tied=False, passage_prompt=right.config.passage_prompt
    )
    own = ("query_prompt", "scale", "other_prompts", "default_prompt_name")
    same = {"tied": False} | {name: getattr(config, name) for name in own}
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


def _load_tower(
    folder: Path, parts: Sequence[Part], options: backbones.Options
) -> backbones.Loaded:
    """A dual encoder with one tower, which these modules of the folder compute."""
    places = sentence_modules.tower(folder, parts)
    files = backbones.read_encoder(places[TRANSFORMER], options)
    fields = sentence_modules.pooling_of(places[POOLING]) | _described(folder)
    tensors = files.tensors
    if place := places.get(NORMALIZE):
        sentence_modules.check_normalize(place)
    if place := places.get(DENSE):
        fields |= sentence_modules.dense_of(place)
        tensors = tensors | {f"{_DENSE}{n}": t for n, t in weights.read_folder(place).items()}
    config = DualEncoderConfig(
        files.config,
        normalize=NORMALIZE in places,
        **fields,
    )
    module = DualEncoder(config, options.runtime)
    table = under("encoder", _tower(config, files.table))
    ignored = files.config.hf_ignored
    return module, backbones.fit(folder, module, table, tensors, options, ignored)


def _described(folder: Path) -> dict[str, Any]:
    """What the settings of a folder say, or one sentence about what is wrong in them."""
    settings = _settings(folder)
    try:
        own = settings.get(_OWN, {})
        read = {name: own[name] for name in _READING if name in own}
        for name, value in read.items():
            if name != "title" and (type(value) is not int or value < 0):
                raise ValueError(f"{name} = {shown(value)} is not a length")
        return {"scale": float(settings.get("scale", 1.0)), **read, **_prompts(folder, settings)}
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{folder / SETTINGS} does not say how texts are read ({type(error).__name__}: "
            f"{str(error)[:200]}); copy the folder again"
        ) from error


def _prompts(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Which prompts stand before texts of each side.

    Where there is none for either side, not even an empty one, both have the default one, as in
    sentence-transformers' `encode`.
    """
    prompts = {str(name): str(text or "") for name, text in (settings.get("prompts") or {}).items()}
    default = settings.get("default_prompt_name") or ""
    if default and default not in prompts:
        raise UserError(
            f"{folder / SETTINGS} names the default prompt {default!r}, but its prompts are "
            f"{', '.join(map(repr, prompts)) or 'none'}; add it, or take default_prompt_name out"
        )
    found = {
        side: next((prompts[n] for n in names if prompts.get(n)), "")
        for side, names in _PROMPTS.items()
    }
    known = {name: names[0] for names in _PROMPTS.values() for name in names}
    if default and not prompts.keys() & known.keys():
        found = dict.fromkeys(_PROMPTS, prompts[default])
    return {f"{side}_prompt": text for side, text in found.items()} | {
        "other_prompts": tuple((n, text) for n, text in prompts.items() if n not in known),
        "default_prompt_name": known.get(default, default),
    }


def _tower(config: DualEncoderConfig, backbone: Table) -> Table:
    table = under("backbone", backbone)
    if config.projection is not None:
        table |= dense("projection", f"{_DENSE}linear", config.projection_bias)
    return table


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / SETTINGS
    return hf_config.read_json(file) if file.is_file() else {}


def save_tied(
    folder: Path,
    config: DualEncoderConfig,
    tower: Mapping[str, Any],
    max_length: int | None,
    lowercase: bool = False,
) -> None:
    """Writes one tower (in loop form) as a sentence-transformers folder, without a tokenizer.

    lowercase: texts are made lower case before the tokenizer gets them.
    """
    table = backbones.saved_table(config.backbone)
    tensors = name_maps.write(_tower(config, table), tower)
    dense = {n.removeprefix(_DENSE): t for n, t in tensors.items() if n.startswith(_DENSE)}
    own = {n: t for n, t in tensors.items() if not n.startswith(_DENSE)}
    weights.write_file(folder / weights.SAFETENSORS, own)
    hf_config.write_json(folder / "config.json", config.backbone.to_hf())
    contents = {
        POOLING: sentence_modules.pooling_file(config),
        DENSE: sentence_modules.dense_file(config),
    }
    parts = _parts(config)
    for part in parts[1:]:
        (folder / part.place).mkdir()
        if part.kind in contents:
            hf_config.write_json(folder / part.place / "config.json", contents[part.kind])
        if part.kind == DENSE:
            weights.write_file(folder / part.place / weights.SAFETENSORS, dense)
    _write_modules(folder, parts)
    limit = max_length or config.backbone.max_length
    hf_config.write_json(folder / LENGTHS, {"max_seq_length": limit, "do_lower_case": lowercase})
    _write_settings(folder, config)


def save_router(folder: Path, config: DualEncoderConfig) -> None:
    """Joins the folders of both towers in one model, which chooses by the kind of text."""
    parts = {
        side: [Part(part.kind, f"{side}/{part.place}".rstrip("/")) for part in _parts(config)]
        for side in SIDES
    }
    _write_modules(folder, [sentence_modules.ROUTER])
    hf_config.write_json(folder / sentence_modules.ROUTER_FILE, sentence_modules.router(parts))
    _write_settings(folder, config)


def _parts(config: DualEncoderConfig) -> list[Part]:
    """The modules of a tower, in order."""
    kinds = [POOLING]
    kinds += [DENSE] * (config.projection is not None) + [NORMALIZE] * config.normalize
    return [Part(TRANSFORMER, "")] + [Part(k, f"{i}_{k}") for i, k in enumerate(kinds, start=1)]


def _write_modules(folder: Path, parts: Sequence[Part]) -> None:
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": part.place,
            "type": sentence_modules.class_name(part.kind),
        }
        for index, part in enumerate(parts)
    ]
    (folder / MODULES).write_text(json.dumps(modules, indent=2) + "\n", "utf-8")


def _write_settings(folder: Path, config: DualEncoderConfig) -> None:
    prompts = dict(config.other_prompts)
    for side, names in _PROMPTS.items():
        prompts[names[0]] = getattr(config, f"{side}_prompt")
    default = config.default_prompt_name
    settings: dict[str, Any] = {
        "prompts": {name: text for name, text in prompts.items() if text or default},
        "default_prompt_name": default or None,
        "similarity_fn_name": "cosine" if config.normalize else "dot",
    }
    if config.scale != 1.0:  # sentence-transformers has none, and passes over it
        settings["scale"] = config.scale
    plain = DualEncoderConfig(config.backbone)
    reading = {name: getattr(config, name) for name in _READING}
    if any(value != getattr(plain, name) for name, value in reading.items()):
        settings[_OWN] = reading
    hf_config.write_json(folder / SETTINGS, settings)
