"""Which pseudo-queries suit which collections: AugTriever's heat map (appendix A.2).

A row is a system, a column a group of collections (by lengths, kinds of queries, domains, tasks;
`benchmarks.GROUPS`, as the paper prints them) or a collection. A cell holds the mean nDCG@10; its
shade is its position between the lowest and the highest value of the column. A group has a value
only if all its members have one, so other collections have columns of their own.

    systems = {"RandomCrop": "out/crop/beir", "QExt": "out/qext/beir"}
    table = Heatmap.of(systems)
    print(table.text()); Path("heatmap.svg").write_text(table.svg())
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qac_jax.errors import UserError
from qac_jax.evaluation.benchmarks import BEIR14, GROUPS, MSMARCO, Suite
from qac_jax.report import suites, svg, tables
from qac_jax.report.markup import Markup, element
from qac_jax.report.svg import CHARACTER, Drawing


# Pixels of a cell and of the margin; from this shade on a cell is too dark for dark numbers.
_WIDTH, _HEIGHT, _MARGIN = 54, 26, 12
_STRONG = 0.65


@dataclass(frozen=True)
class Heatmap:
    """Values by system and column; None where a system has none."""

    columns: tuple[str, ...]
    figures: Mapping[str, tuple[float | None, ...]]

    @classmethod
    def of(cls, folders: Mapping[str, str]) -> Heatmap:
        """From artefacts of kind "metrics": system -> folders joined by commas."""
        return cls.from_suites(
            {name: suites.suite(suites.gathered(joined)) for name, joined in folders.items()}
        )

    @classmethod
    def from_suites(cls, systems: Mapping[str, Suite]) -> Heatmap:
        """From every system's metrics; columns without any value are left out."""
        if not systems:
            raise UserError("a heat map needs at least one system; give the metrics of some")
        rows = {name: dict(_columns(suite)) for name, suite in systems.items()}
        names = list(dict.fromkeys(column for row in rows.values() for column in row))
        kept = tuple(
            column for column in names if any(row.get(column) is not None for row in rows.values())
        )
        if not kept:
            raise UserError(
                "no group of collections is complete, and no other collection has nDCG@10; "
                "evaluate more collections"
            )
        return cls(kept, {n: tuple(row.get(c) for c in kept) for n, row in rows.items()})

    def text(self) -> str:
        """As a plain table, in percent."""
        rows = [[name, *map(tables.percent, row)] for name, row in self.figures.items()]
        return tables.grid(["nDCG@10", *self.columns], rows)

    def shades(self) -> dict[str, tuple[float | None, ...]]:
        """0 for the lowest figure of a column to 1 for the highest (all equal: 1)."""
        shaded = []
        for column in zip(*self.figures.values(), strict=True):
            known = [value for value in column if value is not None]
            low, high = min(known), max(known)
            span = high - low
            shaded.append(
                [None if v is None else (v - low) / span if span else 1.0 for v in column]
            )
        return dict(zip(self.figures, zip(*shaded, strict=True), strict=True))

    def drawing(self) -> Drawing:
        """As a plot; every cell shows its value when it is pointed at."""
        left = _MARGIN * 2 + CHARACTER * max(map(len, self.figures))
        # Names of columns are written at 45 degrees.
        top = _MARGIN * 2 + 0.75 * CHARACTER * max(map(len, self.columns))
        parts = [
            svg.text(left + _WIDTH * (place + 0.5), top - 6, column, "name", rotate=-45)
            for place, column in enumerate(self.columns)
        ]
        for line, (name, shades) in enumerate(self.shades().items()):
            y = top + _HEIGHT * line
            parts.append(svg.text(left - 8, y + 17, name, "name", "end"))
            cells = zip(self.columns, self.figures[name], shades, strict=True)
            for place, (column, value, shade) in enumerate(cells):
                parts.append(_cell(left + _WIDTH * place, y, f"{name}, {column}", value, shade))
        return Drawing(
            parts,
            "nDCG@10 by system and group of collections",
            width=left + _WIDTH * len(self.columns) + top + _MARGIN,
            height=top + _HEIGHT * len(self.figures) + _MARGIN,
        )

    def svg(self) -> str:
        """As a picture of its own."""
        return self.drawing().file()


def _columns(suite: Suite) -> Iterator[tuple[str, Any]]:
    """MS MARCO, the groups, then collections that are in no group."""
    yield "MS MARCO", suite.ndcg.get(MSMARCO)
    yield from suite.groups().items()
    grouped = {name for members in GROUPS.values() for name in members} | {MSMARCO, *BEIR14}
    whole = all(name in suite.ndcg for name in BEIR14)
    for name, value in suite.ndcg.items():
        # If BEIR is incomplete, its groups are missing: then its sets are shown.
        if name not in grouped or (not whole and name != MSMARCO):
            yield BEIR14.get(name, name), value


def _cell(x: float, y: float, label: str, value: float | None, shade: float | None) -> Markup:
    number = tables.percent(value)
    strong = shade is not None and shade > _STRONG
    return element(
        "g",
        element("title", f"{label}: {number}"),
        element(
            "rect",
            class_="absent" if shade is None else "cell",
            x=x, y=y, width=_WIDTH - 2, height=_HEIGHT - 2, rx=3,
            fill_opacity=None if shade is None else f"{0.04 + 0.96 * shade:.2f}",
        ),
        svg.text(x + _WIDTH / 2 - 1, y + 17, number, "middle", "strong" if strong else "weak"),
    )  # fmt: skip
