"""The papers' tables: every row, the recipe or grid that gives it, its status, what differs.

    print(page("qac"))      # docs/papers/qac.md, and qac recipes --paper qac

Rows and figures stand in `assets/papers`; what a recipe trains is read from the recipe, so that a
page cannot say anything else.
"""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qac_jax import gin_files
from qac_jax.errors import UserError, nearest


_FOLDER = Path(__file__).parent / "assets" / "papers"
_VARIED = ("queries", "probabilities", "sorts", "strategies", "random_crop_share", "n_passages")
_EACH = "one for each column"
_INTRO = """Made by `qac recipes --paper {name}` from the recipes. Figures are as printed.

**Status.** *dry run*: the recipe builds and `qac plan` says what it costs. *small size*: it ran at
small size with the figure named ([results](../results/{results})). None has run at full size."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table. overlays: gin files and bindings. run: the stages with its figures."""

    name: str
    figures: tuple[str, ...]
    recipe: str = ""
    overlays: tuple[str, ...] = ()
    run: str = ""
    also: str = ""
    grid: str = ""
    cell: str = ""
    verb: str = ""
    small: str = ""
    differs: str = ""

    @property
    def variant(self) -> tuple[str, tuple[str, ...]]:
        return self.recipe, self.overlays


@dataclasses.dataclass(frozen=True)
class Table:
    """A table or figure. measured: what gives each column."""

    name: str
    caption: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Paper:
    """A paper's tables. open_choices: what it does not state, or its released code does else."""

    title: str
    results: str
    open_choices: tuple[str, ...]
    tables: tuple[Table, ...]


def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def read(name: str) -> Paper:
    if name not in names():
        raise UserError(f"{name!r} is not one of the papers; {nearest(name, names())}")
    with (_FOLDER / f"{name}.toml").open("rb") as file:
        record = tomllib.load(file)
    tables = [
        Table(**{**_tuples(table), "rows": tuple(Row(**_tuples(row)) for row in table["rows"])})
        for table in record["tables"]
    ]
    return Paper(**{**_tuples(record), "tables": tuple(tables)})


def page(name: str) -> str:
    """A paper's page in Markdown."""
    paper = read(name)
    lines = [f"# {paper.title}", "", _INTRO.format(name=name, results=paper.results)]
    for table in paper.tables:
        lines += ["", f"## {table.name}: {table.caption}", "", *_table(table)]
    lines += ["", "## Open choices", "", *(f"- {choice}" for choice in paper.open_choices)]
    lines += ["", "## What the recipes train", "", *_trained(paper)]
    return "\n".join(lines) + "\n"


def stages(recipe_name: str, overlays: Sequence[str] = ()) -> Mapping[str, Any]:
    """The stages of a recipe with overlays, as for a dry run."""
    from qac_jax import config
    from qac_jax.pipeline import recipe

    config.register([recipe.Recipe])
    files = [part for part in overlays if part.endswith(".gin")]
    bindings = [part for part in overlays if not part.endswith(".gin")]
    # Macros that a user must set: any value will do here.
    bindings += [f"{macro} = 'out'" for macro in gin_files.recipe(recipe_name).required]
    try:
        config.apply(config.Settings([f"recipes/{recipe_name}.gin", *files], bindings=bindings))
        return recipe.ordered(config.build(recipe.Recipe))
    finally:
        config.apply(config.Settings())


@functools.cache
def cells(grid_name: str) -> frozenset[str]:
    """The systems of a grid."""
    from qac_jax import config
    from qac_jax.pipeline import grid, recipe

    config.register([recipe.Recipe, grid.Grid])
    try:
        config.apply(config.Settings([f"recipes/{grid_name}.gin"]))
        return frozenset(grid.systems(config.build(grid.Grid)))
    finally:
        config.apply(config.Settings())


def _table(table: Table) -> Iterator[str]:
    from qac_jax.report import tables

    notes = list(dict.fromkeys(row.differs for row in table.rows if row.differs))
    header = ["row", *table.columns, "given by", "status", "differs"]
    rows = [
        [
            row.name,
            *(row.figures or [""] * len(table.columns)),
            _source(row),
            _status(row),
            f"{notes.index(row.differs) + 1}" if row.differs else "",
        ]
        for row in table.rows
    ]
    yield tables.markdown(header, rows)
    if len(table.measured) == 1:
        yield from ("", f"Columns: {table.measured[0]}.")
    elif table.measured:
        given = zip(table.columns, table.measured, strict=True)
        yield ""
        yield "Columns: " + "; ".join(f"{column}: {what}" for column, what in given if what) + "."
    if notes:
        yield ""
        yield from (f"{number}. {note}" for number, note in enumerate(notes, 1))


def _source(row: Row) -> str:
    """What gives a row: a recipe, its overlays, the stage; or a grid's system; or verbs."""
    if row.verb:
        return ", ".join(f"`qac {verb}`" for verb in row.verb.split(", "))
    if not row.recipe:
        return ""
    parts = [f"`{row.recipe}`", *(f"`{part}`" for part in row.overlays)]
    text = " ".join(parts) + (f": {row.run}" if row.run else "")
    if row.also:
        text += f"; {row.also}"
    return text + (f"; grid `{row.grid}`: {row.cell}" if row.grid else "")


def _status(row: Row) -> str:
    if not row.recipe:
        return "" if not row.verb else "small size"
    return f"small size: {row.small}" if row.small else "dry run"


def _trained(paper: Paper) -> Iterator[str]:
    """A line for each training stage of each recipe with its overlays."""
    from qac_jax.report import tables
    from qac_jax.stages.train import Train

    lines = []
    known: dict[Any, Mapping[str, Any]] = {}
    seen: dict[str, set[tuple[str, ...]]] = {}
    for row in (row for table in paper.tables for row in table.rows if row.recipe):
        if row.variant not in known:
            known[row.variant] = stages(*row.variant)
            trained = known[row.variant].items()
            facts = [(name, *_facts(stage)) for name, stage in trained if isinstance(stage, Train)]
            earlier = seen.setdefault(row.recipe, set())
            new = [line for line in facts if line not in earlier]
            earlier.update(facts)
            what = " ".join([f"`{row.recipe}`", *(f"`{part}`" for part in row.overlays)])
            for line in new or [("as above",)] if facts else ():
                lines.append([what, *line, *[""] * (8 - len(line))][:8])
                what = ""
        _check(row, known[row.variant])
    header = ["recipe", "stage", "objective", "examples", "length", "batch", "optimizer", "tokens"]
    yield tables.markdown(header, lines)


def _check(row: Row, built: Mapping[str, Any]) -> None:
    """Raises ValueError for a row whose stage or grid's system is not there."""
    absent = [name for name in row.run.split(", ") if name and name not in built]
    if absent:
        raise ValueError(f"{row.name}: {row.recipe} has no stage {absent[0]!r}")
    if row.grid and row.cell != _EACH and row.cell not in cells(row.grid):
        raise ValueError(f"{row.name}: {row.grid} has no system {row.cell!r}")


def _facts(train: Any) -> list[str]:
    schedule, optimizer = train.schedule, train.optimizer
    length = f"{schedule.steps:,} steps" if schedule.steps else f"{schedule.epochs:g} epochs"
    warm = optimizer.warmup_steps or f"{optimizer.warmup_ratio:g}"
    lengths = ", ".join(f"{name} {count}" for name, count in train.reading.lengths.items())
    return [
        type(train.objective).__name__,
        ", ".join([train.reading.kind, *_settings(train.reading.settings or {})]),
        length,
        f"{schedule.batch_size:,}",
        f"{optimizer.name} {optimizer.learning_rate:g}, warm-up {warm}",
        lengths,
    ]


def _settings(settings: Mapping[str, Any]) -> Iterator[str]:
    """What of a kind's settings the papers vary."""
    for name in _VARIED:
        value = settings.get(name)
        if isinstance(value, Mapping):
            yield ", ".join(f"{part} {share:g}" for part, share in value.items())
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield ", ".join(map(str, value))
        elif value:
            yield f"{name} {value:g}"


def _tuples(record: Mapping[str, Any]) -> dict[str, Any]:
    return {n: tuple(v) if isinstance(v, list) else v for n, v in record.items()}
