"""Which pseudo-queries suit which collections: AugTriever's heat map (appendix A.2).

A row is a system, a column a group of collections (by lengths, kinds of queries, domains, tasks;
`benchmarks.GROUPS`, as the paper prints them) or a collection; a cell the mean nDCG@10, and its
shade how it stands in its column. A group has a figure only where all its members have one, so
collections of one's own stand in columns of their own.

    systems = {"RandomCrop": "out/crop/beir", "QExt": "out/qext/beir"}
    table = Heatmap.of(systems)
    print(table.text()); Path("heatmap.svg").write_text(table.svg())
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qac_jax.errors import UserError
from qac_jax.evaluation.benchmarks import BEIR14, GROUPS, MSMARCO, Suite
from qac_jax.report import suites, tables


# Pixels of a cell, of a character of a label, and of the margin.
_WIDTH, _HEIGHT, _CHARACTER, _MARGIN = 54, 26, 6.6, 12
_LIGHT, _DARK = (247, 251, 255), (8, 69, 148)
_INK, _PAPER, _NOTHING = "#1b1f24", "#ffffff", "#f0f0f0"


@dataclass(frozen=True)
class Heatmap:
    """Figures by system and column; None where there is none."""

    columns: tuple[str, ...]
    figures: Mapping[str, tuple[float | None, ...]]

    @classmethod
    def of(cls, folders: Mapping[str, str]) -> Heatmap:
        """From artefacts of figures: system -> folders joined by commas."""
        return cls.from_suites(
            {name: suites.suite(suites.gathered(place)) for name, place in folders.items()}
        )

    @classmethod
    def from_suites(cls, systems: Mapping[str, Suite]) -> Heatmap:
        """From every system's figures; columns without any figure are left out."""
        if not systems:
            raise UserError("a heat map needs at least one system; give figures of some")
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
        found = []
        for column in zip(*self.figures.values(), strict=True):
            known = [value for value in column if value is not None]
            low, high = min(known), max(known)
            span = high - low
            found.append([None if v is None else (v - low) / span if span else 1.0 for v in column])
        return dict(zip(self.figures, zip(*found, strict=True), strict=True))

    def svg(self) -> str:
        """As a picture that stands by itself; every cell tells its figure when pointed at."""
        left = _MARGIN * 2 + _CHARACTER * max(map(len, self.figures))
        top = _MARGIN * 2 + 0.75 * _CHARACTER * max(map(len, self.columns))
        width = left + _WIDTH * len(self.columns) + top + _MARGIN
        height = top + _HEIGHT * len(self.figures) + _MARGIN
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" '
            f'fill="{_INK}" role="img" aria-label="nDCG@10 by system and group of collections">'
        ]
        for place, column in enumerate(self.columns):
            x, y = left + _WIDTH * (place + 0.5), top - 6
            parts.append(
                f'<text x="{x:.1f}" y="{y:.1f}" transform="rotate(-45 {x:.1f} {y:.1f})">'
                f"{html.escape(column)}</text>"
            )
        for line, (name, shades) in enumerate(self.shades().items()):
            y = top + _HEIGHT * line
            parts.append(
                f'<text x="{left - 8:.1f}" y="{y + 17:.1f}" text-anchor="end">'
                f"{html.escape(name)}</text>"
            )
            for place, (value, shade) in enumerate(zip(self.figures[name], shades, strict=True)):
                parts += _cell(
                    left + _WIDTH * place, y, f"{name}, {self.columns[place]}", value, shade
                )
        return "\n".join([*parts, "</svg>"]) + "\n"


def _columns(suite: Suite) -> Iterator[tuple[str, Any]]:
    """MS MARCO, the groups, then collections that are in none of them."""
    yield "MS MARCO", suite.ndcg.get(MSMARCO)
    yield from suite.groups().items()
    grouped = {name for members in GROUPS.values() for name in members} | {MSMARCO, *BEIR14}
    whole = all(name in suite.ndcg for name in BEIR14)
    for name, value in suite.ndcg.items():
        # Of an incomplete BEIR the sets say more than the groups that are missing.
        if name not in grouped or (not whole and name != MSMARCO):
            yield BEIR14.get(name, name), value


def _cell(
    x: float, y: float, label: str, value: float | None, shade: float | None
) -> Sequence[str]:
    number = tables.percent(value)
    fill = _NOTHING if shade is None else _colour(shade)
    ink = _PAPER if shade is not None and shade > 0.55 else _INK
    return (
        f'<g><title>{html.escape(label)}: {number}</title><rect x="{x:.1f}" y="{y:.1f}" '
        f'width="{_WIDTH - 2}" height="{_HEIGHT - 2}" rx="3" fill="{fill}"/>',
        f'<text x="{x + _WIDTH / 2 - 1:.1f}" y="{y + 17:.1f}" text-anchor="middle" '
        # As a style: a page's own rule for texts of drawings would beat the attribute.
        f'style="fill:{ink}">{number}</text></g>',
    )


def _colour(shade: float) -> str:
    mixed = (round(a + (b - a) * shade) for a, b in zip(_LIGHT, _DARK, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)
