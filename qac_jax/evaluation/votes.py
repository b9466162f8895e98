"""Human judgements: a blind sheet to fill in, and what several filled sheets say.

A sheet is a CSV of two texts a line, shuffled, without a word on where they come from; that stands
in a key of its own, which judges do not get. Appendix A of QAC calls a pair highly related where at
least 3 of 6 judges say so: at least half of them.
"""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

from qac_jax.errors import DataError, UserError


SHEET = ("number", "first", "second", "vote")
KEY = ("number", "sort", "name")
_YES, _NO = ("1", "yes", "y", "true"), ("0", "no", "n", "false")


class Item(NamedTuple):
    """Two texts to judge together, and what is not told: where they come from."""

    first: str
    second: str
    sort: str
    name: str = ""


def write(sheet: IO[str], key: IO[str], items: Sequence[Item], seed: int = 0) -> None:
    """The blind sheet and its key, in a new order."""
    order = list(items)
    random.Random(seed).shuffle(order)
    to_judges, to_us = csv.writer(sheet), csv.writer(key)
    to_judges.writerow(SHEET)
    to_us.writerow(KEY)
    for number, item in enumerate(order, start=1):
        to_judges.writerow((number, _line(item.first), _line(item.second), ""))
        to_us.writerow((number, item.sort, item.name))


def read_key(path: str | os.PathLike[str]) -> dict[int, str]:
    """Number -> sort."""
    return {number: row["sort"] for number, row, _ in _rows(path, ("number", "sort"))}


def read_votes(path: str | os.PathLike[str], key: Mapping[int, str]) -> dict[int, bool]:
    """One judge's filled sheet."""
    found: dict[int, bool] = {}
    for number, row, line in _rows(path, ("number", "vote")):
        vote = (row["vote"] or "").strip().lower()
        if number not in key:
            raise DataError(f"number {number} is not in the key", file=str(path), line=line)
        if vote not in _YES + _NO:
            raise DataError(
                f"vote {row['vote']!r} is neither 1 (yes) nor 0 (no)", file=str(path), line=line
            )
        found[number] = vote in _YES
    if missing := len(key.keys() - found.keys()):
        raise DataError(
            f"votes on {missing} of {len(key)} numbers are missing; fill in all", file=str(path)
        )
    return found


def rates(key: Mapping[int, str], judges: Sequence[Mapping[int, bool]]) -> dict[str, float]:
    """Sort -> share of its items that at least half of the judges say yes to."""
    by_sort: dict[str, list[bool]] = {}
    for number, sort in key.items():
        yes = sum(votes[number] for votes in judges)
        by_sort.setdefault(sort, []).append(2 * yes >= len(judges))
    return {sort: sum(found) / len(found) for sort, found in sorted(by_sort.items())}


def fleiss_kappa(judges: Sequence[Mapping[int, bool]]) -> float:
    """How much judges agree beyond chance (Fleiss, 1971): 1 always, 0 as by chance.

    Where all votes are the same there is no chance to disagree; they agree.
    """
    count = len(judges)
    if count < 2:
        raise UserError("agreement needs at least 2 judges; give more sheets to --votes")
    agreement, yes_share = 0.0, 0.0
    for number in judges[0]:
        yes = sum(votes[number] for votes in judges)
        agreement += (yes * (yes - 1) + (count - yes) * (count - yes - 1)) / (count * (count - 1))
        yes_share += yes / count
    agreement, yes_share = agreement / len(judges[0]), yes_share / len(judges[0])
    chance = yes_share**2 + (1 - yes_share) ** 2
    return 1.0 if chance == 1 else (agreement - chance) / (1 - chance)


def _rows(
    path: str | os.PathLike[str], columns: Sequence[str]
) -> list[tuple[int, dict[str, str], int]]:
    found = []
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        for row in reader:
            if absent := [name for name in columns if row.get(name) is None]:
                raise DataError(
                    f"has no column {absent[0]!r}; expected a sheet or key of qac evaluate",
                    file=str(path),
                    line=reader.line_num,
                )
            try:
                found.append((int(row["number"]), row, reader.line_num))
            except ValueError:
                raise DataError(
                    f"number {row['number']!r} is none", file=str(path), line=reader.line_num
                ) from None
    if not found:
        raise DataError("holds no line; expected a sheet or key of qac evaluate", file=str(path))
    return found


def _line(text: str) -> str:
    return " ".join(text.split())
