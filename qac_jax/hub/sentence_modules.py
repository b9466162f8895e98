"""The modules of sentence-transformers folders: their list, and the files of each kind.

`modules.json` lists them in the order in which they are applied. A tower here is a Transformer, a
Pooling and perhaps a Dense and a Normalize. A Router (Asym, in old folders) stands for several
lists, of which each side of a dual encoder has one; what follows it belongs to all of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qac_jax.errors import UserError
from qac_jax.hub import hf_config
from qac_jax.models.encoders import SIDES, DualEncoderConfig


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
_VECTOR = "sentence_embedding"


class Part(NamedTuple):
    """One module: its kind, and its folder inside of the model's."""

    kind: str
    place: str


def listed(folder: Path) -> list[Part]:
    """The modules of a folder."""
    file = folder / MODULES
    try:
        entries = json.loads(file.read_text("utf-8"))
        parts = [Part(_kind(entry["type"]), str(entry["path"])) for entry in entries]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{file} is not a list of modules") from None
    return [_inside(file, part) for part in parts]


def _inside(file: Path, part: Part) -> Part:
    """The module, if its place is inside of the model's folder."""
    place = Path(part.place)
    if place.is_absolute() or ".." in place.parts:
        raise UserError(f"{file} names {part.place!r}, which lies outside of the folder")
    return part


def _kind(name: object) -> str:
    return str(name).rsplit(".", 1)[-1]


def routed(parts: Sequence[Part]) -> bool:
    """Whether one of the modules is a router."""
    return any(part.kind in _ROUTERS for part in parts)


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
    raw = hf_config.read_json(file)
    try:
        kinds = {str(name): _kind(kind) for name, kind in raw["types"].items()}
        routes = {str(name): [str(n) for n in names] for name, names in raw["structure"].items()}
        route = next((name for name in ROUTES[side] if name in routes), None)
        if route is not None:
            parts = [Part(kinds[n], str(Path(router.place, n))) for n in routes[route]]
            return [_inside(file, part) for part in parts]
    except (TypeError, KeyError, AttributeError):
        raise UserError(f"{file} does not describe the modules of a router") from None
    raise UserError(
        f"{file} has the routes {', '.join(routes)}; expected 'query' and one of "
        + ", ".join(map(repr, ROUTES["passage"]))
    )


def router(sides: dict[str, list[Part]]) -> dict[str, Any]:
    """router_config.json of the modules of both sides."""
    parts = {part.place: part.kind for each in sides.values() for part in each}
    return {
        "types": {place: class_name(kind) for place, kind in parts.items()},
        "structure": {ROUTES[s][0]: [part.place for part in sides[s]] for s in SIDES},
        "parameters": {"default_route": ROUTES["passage"][0], "allow_empty_key": True},
    }


ROUTER = Part("Router", "")
ROUTER_FILE = _ROUTERS[ROUTER.kind]


def class_name(kind: str) -> str:
    """How modules.json calls a kind of module, in all versions."""
    return f"sentence_transformers.models.{kind}"


def tower(folder: Path, parts: Sequence[Part]) -> dict[str, Path]:
    """The folder of each kind of module; anything but the order of a tower is refused."""
    kinds = [part.kind for part in parts]
    usual = [kind for kind in _ORDER if kind in kinds]
    if kinds != usual or not {TRANSFORMER, POOLING} <= set(kinds):
        raise UserError(
            f"{folder / MODULES} lists the modules {', '.join(kinds)}; supported are Transformer, "
            "Pooling, Dense (or none), Normalize (or none), in this order"
        )
    return {part.kind: folder / part.place for part in parts}


def pooling_of(place: Path) -> dict[str, Any]:
    """Fields of a dual encoder that a Pooling says."""
    file = place / "config.json"
    raw = hf_config.read_json(file)
    modes = raw.get("pooling_mode")  # since sentence-transformers 5.5; switches before
    if modes is None:
        modes = [mode for mode, switch in _SWITCHES.items() if raw.get(switch)] or "mean"
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) > 1:
        raise UserError(
            f"{file} pools by {' and '.join(map(str, modes))} together, which is not supported; "
            "expected cls or another one alone"
        )
    if modes[0] not in _SWITCHES:
        raise UserError(f"{file} pools by {modes[0]}; expected one of {', '.join(_SWITCHES)}")
    return {"pooling": modes[0], "include_prompt": raw.get("include_prompt") is not False}


def pooling_file(config: DualEncoderConfig) -> dict[str, Any]:
    """config.json of a dual encoder's Pooling."""
    switches = {switch: mode == config.pooling for mode, switch in _SWITCHES.items()}
    described = {"word_embedding_dimension": config.backbone.hidden_size, **switches}
    return described | ({} if config.include_prompt else {"include_prompt": False})


def dense_of(place: Path) -> dict[str, Any]:
    """Fields of a dual encoder that a Dense says."""
    file = place / "config.json"
    raw = hf_config.read_json(file)
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


def dense_file(config: DualEncoderConfig) -> dict[str, Any]:
    """config.json of a dual encoder's Dense."""
    return {
        "in_features": config.backbone.hidden_size,
        "out_features": config.projection,
        "bias": config.projection_bias,
        "activation_function": _ACTIVATIONS[config.projection_activation],
    }


def check_normalize(place: Path) -> None:
    """Refuses a Normalize of anything but the vector."""
    file = place / "config.json"  # there since sentence-transformers 5.5
    if file.is_file() and not _of_vectors(hf_config.read_json(file)):
        raise UserError(f"{file} does not normalise the vector; only that is supported")


def _of_vectors(raw: dict[str, Any]) -> bool:
    ends = (raw.get("module_input_name"), raw.get("module_output_name"))
    return all(name in (None, _VECTOR) for name in ends)
