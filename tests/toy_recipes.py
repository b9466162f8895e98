"""Recipes and grids built by their names, for tests of what they say."""

from collections.abc import Mapping
from typing import Any

from qac_jax import config, fields, recipes
from qac_jax.pipeline import grid, recipe


# Parameters without a default.
NEEDED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("augtriever_adaptation", "msmarco_beir"), {"encoder": "out/encoder"})
}
RECIPES = [name for name, header in recipes.headers().items() if not header.grid]
GRIDS = [name for name, header in recipes.headers().items() if header.grid]


def stages(name: str, *more: str, **values: Any) -> dict[str, Any]:
    """The stages of a recipe in order; `more`: overlays (….gin) and bindings."""
    given = config.Config(
        name,
        overlays=[part for part in more if part.endswith(".gin")],
        bindings=[part for part in more if not part.endswith(".gin")],
        values={**NEEDED.get(name, {}), **values},
    )
    built = recipe.ordered(given.recipe())
    assert not given.unused()
    return built


def grid_of(name: str) -> grid.Grid:
    """A grid, not yet its cells."""
    found = config.Config(name).recipe()
    assert isinstance(found, grid.Grid)
    return found


def cells(name: str, seed: int = 0) -> dict[str, dict[str, Any]]:
    """The stages of every system of a grid, with one seed."""
    return {c.system: dict(c.stages) for c in placed(grid_of(name)) if c.seed == seed}


def placed(found: grid.Grid) -> list[grid.Cell]:
    """All cells of a grid."""

    def build(system: grid.System, seed: int) -> recipe.Recipe:
        values = {**NEEDED.get(found.recipe, {}), **system, "seed": seed}
        files = values.pop("gin", ())
        built = config.Config(found.recipe, files=files, values=values).recipe()
        assert isinstance(built, recipe.Recipe)
        return built

    return grid.cells(found, build)


def different(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, set[str]]:
    """Stage -> the fields in which two recipes differ."""
    found = {}
    for name in a.keys() | b.keys():
        first, second = (fields.describe(s[name]) if name in s else {} for s in (a, b))
        names = {n for n in first.keys() | second.keys() if first.get(n) != second.get(n)}
        if names:
            found[name] = names
    return found


PARTS = (
    *("optimizer", "schedule", "reading", "decoding", "filter", "rule", "cutting", "mining"),
    *("sampling", "kept_negatives", "options", "masking"),
)


def says(stage: Any, **facts: Any) -> None:
    """Its fields, or those of its parts, have these values."""
    places = [stage, *(getattr(stage, name) for name in PARTS if hasattr(stage, name))]
    found = {n: next(getattr(p, n) for p in places if hasattr(p, n)) for n in facts}
    assert found == facts
