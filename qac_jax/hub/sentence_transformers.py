"""Dual encoders as sentence-transformers folders, read and written.

Such a folder is a model folder with a list of modules beside it. One with two towers holds two,
`query` and `passage`, and its own list is a router between them.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qac_jax.errors import UserError
from qac_jax.hub import backbones, weights
from qac_jax.models.backbone import Table, dense, under
from qac_jax.models.encoders import SIDES, DualEncoder, DualEncoderConfig
from qac_jax.text import tokenizers


MODULES = "modules.json"
TRANSFORMER, POOLING, DENSE, NORMALIZE = "Transformer", "Pooling", "Dense", "Normalize"
# The order that a tower computes; the last two may be absent.
_ORDER = (TRANSFORMER, POOLING, DENSE, NORMALIZE)
_ROUTERS = {"Router": "router_config.json", "Asym": "config.json"}
# What routes are called; the first name is what we write.
ROUTES = {"query": ("query",), "passage": ("document", "passage", "doc", "corpus")}

# Pooling -> the switch that folders had before `pooling_mode`, which all versions read.
_SWITCHES = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_ACTIVATIONS = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "silu": "torch.nn.modules.activation.SiLU",
}
_CLASSES = "sentence_transformers.models"  # what modules.json calls them in, in all versions


class Part(NamedTuple):
    """One module: its kind, and its folder inside of the model's."""

    kind: str
    place: str


def listed(folder: Path) -> list[Part]:
    with weights.sound(file := folder / MODULES):
        entries = json.loads(file.read_text("utf-8"))
        return [_part(file, entry["type"], entry["path"]) for entry in entries]


def _part(file: Path, kind: object, place: object) -> Part:
    """A module that a file names; its place must be inside of the model's folder."""
    path = Path(str(place))
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"{file} names {str(place)!r}, which lies outside of the folder")
    return Part(str(kind).rsplit(".", 1)[-1], str(place))


def of_side(folder: Path, parts: Sequence[Part], side: str) -> list[Part]:
    """The modules that texts of one side go through."""
    found: list[Part] = []
    for part in parts:
        found += _route(folder, part, side) if part.kind in _ROUTERS else [part]
    return found


def _route(folder: Path, router: Part, side: str) -> list[Part]:
    place = folder / router.place
    file = place / _ROUTERS[router.kind]
    if not file.is_file():  # a Router that was an Asym once
        file = place / _ROUTERS["Asym"]
    with weights.sound(file):
        raw = weights.read_json(file)
        routes = [route for name, route in raw["structure"].items() if name in ROUTES[side]]
        return [_part(file, raw["types"][n], Path(router.place, n)) for n in routes[0]]


def _places(folder: Path, parts: Sequence[Part]) -> dict[str, Path]:
    """The folder of each kind of module; anything but the order of a tower is refused."""
    kinds = [part.kind for part in parts]
    usual = [kind for kind in _ORDER if kind in kinds]
    if kinds != usual or not {TRANSFORMER, POOLING} <= set(kinds):
        raise UserError(
            f"{folder / MODULES} lists the modules {', '.join(kinds)}; supported are Transformer, "
            "Pooling, Dense (or none), Normalize (or none), in this order"
        )
    return {part.kind: folder / part.place for part in parts}


def _pooling_of(file: Path) -> dict[str, Any]:
    """Fields of a dual encoder that a Pooling says."""
    raw = weights.read_json(file)
    # "pooling_mode" since sentence-transformers 5.5, switches before.
    switched = [mode for mode, switch in _SWITCHES.items() if raw.get(switch)]
    modes = raw.get("pooling_mode") or switched or "mean"
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) > 1 or modes[0] not in _SWITCHES:
        found = " and ".join(map(str, modes))
        raise UserError(f"{file} pools by {found}; expected one of {', '.join(_SWITCHES)}")
    return {"pooling": modes[0], "include_prompt": raw.get("include_prompt") is not False}


def _dense_of(file: Path) -> dict[str, Any]:
    """Fields of a dual encoder that a Dense says."""
    raw = weights.read_json(file)
    names = {theirs: ours for ours, theirs in _ACTIVATIONS.items()}
    function = raw.get("activation_function", _ACTIVATIONS["tanh"])  # their default
    if function not in names:
        raise UserError(f"{file} has the activation {function}; expected {', '.join(names)}")
    if raw.get("use_residual") or not _of_vectors(raw):
        raise UserError(
            f"{file} is not a plain linear projection of the vector; only that is supported"
        )
    return {
        "projection": int(raw["out_features"]),
        "projection_bias": bool(raw.get("bias", True)),
        "projection_activation": names[function],
    }


def _of_vectors(raw: dict[str, Any]) -> bool:
    ends = {raw.get("module_input_name"), raw.get("module_output_name")}
    return ends <= {None, "sentence_embedding"}


SETTINGS = "config_sentence_transformers.json"
LENGTHS = "sentence_bert_config.json"
_NO_LIMIT = 10**6  # Hugging Face writes 10^30 where there is none
# What only we read of the settings: how texts were read in training.
_READING = ("title", "query_length", "passage_length")
_OWN = "qac_jax"
_DENSE = "dense/"  # what the names of the projection's tensors get here


def is_folder(folder: Path) -> bool:
    return (folder / MODULES).is_file()


def transformer_folder(folder: Path, side: str = "passage") -> Path:
    """Where the encoder of one side lies, with its tokenizer and its limit in tokens."""
    if not is_folder(folder):
        return folder / side if (folder / side).is_dir() else folder
    parts = of_side(folder, listed(folder), side)
    return next((folder / part.place for part in parts if part.kind == TRANSFORMER), folder)


def max_length(folder: Path) -> int | None:
    """At how many tokens the folder says that texts are cut, special tokens included."""
    folder = transformer_folder(folder)
    # sentence-transformers 5.5 and later leave it to the tokenizer's settings.
    for name, key in ((LENGTHS, "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        if (folder / name).is_file():
            with weights.sound(folder / name):
                limit = weights.read_json(folder / name).get(key) or 0
                if 0 < limit < _NO_LIMIT:
                    return int(limit)
    return None


def load(folder: Path, options: backbones.Options) -> backbones.Loaded:
    """The folder's dual encoder: one tower for both sides, or two."""
    parts = listed(folder)
    if not any(part.kind in _ROUTERS for part in parts):
        return _load_tower(folder, parts, options)
    routes = [of_side(folder, parts, side) for side in SIDES]
    if routes[0] == routes[1]:
        return _load_tower(folder, routes[0], options)
    _check_tokenizers(folder)
    return pair(*(_load_tower(folder, route, options) for route in routes))


def _check_tokenizers(folder: Path) -> None:
    places = [transformer_folder(folder, side) for side in SIDES]
    if not all((place / "tokenizer.json").is_file() for place in places):
        return
    query, passage = (tokenizers.load(str(place)).backend.get_vocab() for place in places)
    if query != passage:
        raise UserError(f"{folder} has two vocabularies; expected one for both towers")


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
            "normalisation); expected two of the same kind"
        )
    both = zip(SIDES, (left_variables, right_variables), strict=True)
    towers = {side: variables["params"]["encoder"] for side, variables in both}
    return DualEncoder(config, left.runtime), {"params": towers}


def _load_tower(
    folder: Path, parts: Sequence[Part], options: backbones.Options
) -> backbones.Loaded:
    """A dual encoder with one tower, which these modules of the folder compute."""
    places = _places(folder, parts)
    files = backbones.read_encoder(places[TRANSFORMER], options)
    fields = _pooling_of(places[POOLING] / "config.json") | _described(folder)
    more: weights.Tensors = {}
    if place := places.get(NORMALIZE):
        file = place / "config.json"  # there since sentence-transformers 5.5
        if file.is_file() and not _of_vectors(weights.read_json(file)):
            raise UserError(f"{file} does not normalise the vector; only that is supported")
    if place := places.get(DENSE):
        fields |= _dense_of(place / "config.json")
        more = {f"{_DENSE}{n}": t for n, t in weights.read_folder(place).items()}
    config = DualEncoderConfig(files.config, normalize=NORMALIZE in places, **fields)
    module = DualEncoder(config, options.runtime)
    table = under("encoder", _tower(config, files.table))
    return files.fitted(module, table, options, **more)


def _described(folder: Path) -> dict[str, Any]:
    """Fields of a dual encoder that the settings of its folder say."""
    file = folder / SETTINGS
    settings = weights.read_json(file) if file.is_file() else {}
    with weights.sound(file):
        own = settings.get(_OWN, {})
        read = {name: own[name] for name in _READING if name in own}
        for name, value in read.items():
            if name != "title" and (type(value) is not int or value < 0):
                raise ValueError(f"{name} = {value!r} is not a length")
        return {"scale": float(settings.get("scale", 1.0)), **read, **_prompts(settings)}


def _prompts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Which prompts stand before texts of each side.

    Where there is none for either side, not even an empty one, both have the default one, as in
    sentence-transformers' `encode`.
    """
    prompts = {str(name): str(text or "") for name, text in (settings.get("prompts") or {}).items()}
    default = settings.get("default_prompt_name") or ""
    if default and default not in prompts:
        raise KeyError(f"there is no prompt {default!r}")
    found = {
        side: next((prompts[n] for n in names if prompts.get(n)), "")
        for side, names in ROUTES.items()
    }
    known = {name: names[0] for names in ROUTES.values() for name in names}
    if default and not prompts.keys() & known.keys():
        found = dict.fromkeys(ROUTES, prompts[default])
    return {f"{side}_prompt": text for side, text in found.items()} | {
        "other_prompts": tuple((n, text) for n, text in prompts.items() if n not in known),
        "default_prompt_name": known.get(default, default),
    }


def _tower(config: DualEncoderConfig, backbone: Table) -> Table:
    table = under("backbone", backbone)
    if config.projection is not None:
        table |= dense("projection", f"{_DENSE}linear", config.projection_bias)
    return table


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
    tensors = weights.tensors_of(_tower(config, table), tower)
    names = [name for name in tensors if name.startswith(_DENSE)]
    dense = {name.removeprefix(_DENSE): tensors.pop(name) for name in names}
    weights.write_file(folder / weights.SAFETENSORS, tensors)
    weights.write_json(folder / "config.json", config.backbone.to_hf())
    switches = {switch: mode == config.pooling for mode, switch in _SWITCHES.items()}
    width = config.backbone.hidden_size
    contents: dict[str, dict[str, Any]] = {
        POOLING: {"word_embedding_dimension": width, **switches}
        | ({} if config.include_prompt else {"include_prompt": False}),
        DENSE: {
            "in_features": width,
            "out_features": config.projection,
            "bias": config.projection_bias,
            "activation_function": _ACTIVATIONS[config.projection_activation],
        },
    }
    parts = _parts(config)
    for part in parts[1:]:
        (folder / part.place).mkdir()
        if part.kind in contents:
            weights.write_json(folder / part.place / "config.json", contents[part.kind])
        if part.kind == DENSE:
            weights.write_file(folder / part.place / weights.SAFETENSORS, dense)
    _write_modules(folder, parts)
    limit = max_length or config.backbone.max_length
    weights.write_json(folder / LENGTHS, {"max_seq_length": limit, "do_lower_case": lowercase})
    _write_settings(folder, config)


def save_router(folder: Path, config: DualEncoderConfig) -> None:
    """Joins the folders of both towers in one model, which chooses by the kind of text."""
    parts = _parts(config)
    places = {s: [f"{s}/{part.place}".rstrip("/") for part in parts] for s in SIDES}
    types = [f"{_CLASSES}.{part.kind}" for part in parts]
    raw = {
        "types": {p: t for s in SIDES for p, t in zip(places[s], types, strict=True)},
        "structure": {ROUTES[side][0]: places[side] for side in SIDES},
        "parameters": {"default_route": ROUTES["passage"][0], "allow_empty_key": True},
    }
    _write_modules(folder, [Part("Router", "")])
    weights.write_json(folder / _ROUTERS["Router"], raw)
    _write_settings(folder, config)


def _parts(config: DualEncoderConfig) -> list[Part]:
    """The modules of a tower, in order."""
    kinds = [POOLING]
    kinds += [DENSE] * (config.projection is not None) + [NORMALIZE] * config.normalize
    return [Part(TRANSFORMER, "")] + [Part(k, f"{i}_{k}") for i, k in enumerate(kinds, start=1)]


def _write_modules(folder: Path, parts: Sequence[Part]) -> None:
    modules = [
        {"idx": index, "name": str(index), "path": part.place, "type": f"{_CLASSES}.{part.kind}"}
        for index, part in enumerate(parts)
    ]
    (folder / MODULES).write_text(json.dumps(modules, indent=2) + "\n", "utf-8")


def _write_settings(folder: Path, config: DualEncoderConfig) -> None:
    prompts = dict(config.other_prompts)
    for side, names in ROUTES.items():
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
    weights.write_json(folder / SETTINGS, settings)
