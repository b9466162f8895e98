"""`config.json` of Hugging Face folders: which architecture it is of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from qac_jax.errors import UserError, nearest
from qac_jax.models import backbone as architectures
from qac_jax.models.backbone import Architecture


Kind = TypeVar("Kind", bound=Architecture)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or one sentence about why there is none."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"there is no {path.name} in {path.parent}; expected a model folder"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object")
    return content


def write_json(path: Path, content: Any) -> None:
    """JSON as Hugging Face writes it."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", "utf-8")


def architecture(raw: dict[str, Any], folder: Path, base: type[Kind]) -> type[Kind]:
    """The architecture of a folder among those that are a `base`; others are refused by name."""
    kind = raw.get("model_type")
    config = architectures.reading(raw, base)
    if config is not None:
        return config
    if kind is None:
        raise UserError(f"{folder / 'config.json'} has no model_type, so the model is not known")
    known = architectures.model_types(base)
    if kind in architectures.model_types(Architecture):
        raise UserError(
            f"{folder} holds a {kind!r} model; expected an encoder ({', '.join(known)}), which is "
            "what makes vectors and scores here"
        )
    raise UserError(
        f"{folder} holds a {kind!r} model, which is not supported; {nearest(str(kind), known)}"
    )


def written_by(raw: Mapping[str, Any]) -> str:
    """The class that wrote the folder, as far as it says."""
    names = raw.get("architectures") or [""]
    return str(names[0])
