"""Recipes built from gin files and bindings, for tests of what recipes say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qac_jax import config, fields
from qac_jax.pipeline import grid, recipe


GIN = Path(__file__).parents[1] / "gin_configs"
# Macros without a default.
NEEDED = {
    "augtriever_adaptation": "ENCODER = 'out/encoder'",
    "augtriever_evaluation": "ENCODER = 'out/encoder'",
    "augtriever_finetuning": "ENCODER = 'out/encoder'",
    "msmarco_beir": "ENCODER = 'out/encoder'",
    "usefulness_cell": "INIT = 'out/base'",
}


def _is_grid(path: Path) -> bool:
    return "grid.Grid" in path.read_text()


_PATHS = sorted((GIN / "recipes").glob("*.gin"))
RECIPES = [path.stem for path in _PATHS if not _is_grid(path)]
GRIDS = [path.stem for path in _PATHS if _is_grid(path)]


def stages(name: str, *more: str, macros: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The stages of a recipe in order; `more`: overlays (….gin) and bindings."""
    files = [f"recipes/{name}.gin", *(part for part in more if part.endswith(".gin"))]
    bindings = [part for part in more if not part.endswith(".gin")]
    if name in NEEDED:
        bindings.append(NEEDED[name])
    config.register([recipe.Recipe])
    try:
        config.apply(config.Settings(files=files, bindings=bindings, macros=dict(macros or {})))
        return recipe.ordered(config.build(recipe.Recipe))
    finally:
        config.apply(config.Settings())


def grid_of(name: str) -> grid.Grid:
    """A grid, not yet its cells."""
    config.register([recipe.Recipe, grid.Grid])
    try:
        config.apply(config.Settings(files=[f"recipes/{name}.gin"]))
        found = config.build(grid.Grid)
        assert isinstance(found, grid.Grid)
        return found
    finally:
        config.apply(config.Settings())


def cells(name: str, seed: int = 0) -> dict[str, dict[str, Any]]:
    """The stages of every system of a grid."""
    return cells_of(grid_of(name), seed)


def cells_of(found: grid.Grid, seed: int = 0) -> dict[str, dict[str, Any]]:
    """The stages of every system, with one seed."""
    return {cell.system: dict(cell.stages) for cell in placed(found) if cell.seed == seed}


def placed(found: grid.Grid) -> list[grid.Cell]:
    """All cells of a grid."""

    def build(files: Any, more: Any, seed: int) -> recipe.Recipe:
        config.apply(config.Settings(files=files, bindings=[*more, f"SEED = {seed}"]))
        return config.build(recipe.Recipe)

    try:
        return grid.cells(found, build)
    finally:
        config.apply(config.Settings())


def different(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, set[str]]:
    """Stage -> the fields in which two recipes differ."""
    found = {}
    for name in a.keys() | b.keys():
        first, second = (fields.describe(s[name]) if name in s else {} for s in (a, b))
        names = {n for n in first.keys() | second.keys() if first.get(n) != second.get(n)}
        if names:
            found[name] = names
    return found
