"""Human judgements: a blind sheet to fill in, and the result of several filled sheets.

A sheet is a CSV of two texts a line, shuffled, without their sources; these are in a separate key,
which judges do not get. Appendix A of QAC calls a pair highly related if at least 3 of 6 judges
vote so: at least half of them.
"""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

from qac_jax.errors import DataError, UserError
from qac_jax.evaluation.results import Result


SHEET = ("number", "first", "second", "vote")
KEY = ("number", "sort", "name")
RATE = "highly related"
_YES, _NO = ("1", "yes", "y", "true"), ("0", "no", "n", "false")


class Item(NamedTuple):
    """Two texts to judge together, and their source, which judges do not see."""

    first: str
    second: str
    sort: str
    name: str = ""


def write(sheet: IO[str], key: IO[str], items: Sequence[Item], seed: int = 0) -> None:
    """The blind sheet and its key, shuffled."""
    order = list(items)
    random.Random(seed).shuffle(order)
    sheet_writer, key_writer = csv.writer(sheet), csv.writer(key)
    sheet_writer.writerow(SHEET)
    key_writer.writerow(KEY)
    for number, item in enumerate(order, start=1):
        sheet_writer.writerow((number, _line(item.first), _line(item.second), ""))
        key_writer.writerow((number, item.sort, item.name))


def read_key(path: str | os.PathLike[str]) -> dict[int, str]:
    """Number -> sort."""
    return {number: row["sort"] for number, row, _ in _rows(path, ("number", "sort"))}


def read_votes(path: str | os.PathLike[str], key: Mapping[int, str]) -> dict[int, bool]:
    """One judge's filled sheet."""
    votes: dict[int, bool] = {}
    for number, row, line in _rows(path, ("number", "vote")):
        vote = (row["vote"] or "").strip().lower()
        if number not in key:
            raise DataError(f"number {number} is not in the key", file=str(path), line=line)
        if vote not in _YES + _NO:
            raise DataError(
                f"vote {row['vote']!r} is neither 1 (yes) nor 0 (no)", file=str(path), line=line
            )
        votes[number] = vote in _YES
    if missing := len(key.keys() - votes.keys()):
        raise DataError(
            f"votes on {missing} of {len(key)} numbers are missing; fill in all", file=str(path)
        )
    return votes


def rates(key: Mapping[int, str], judges: Sequence[Mapping[int, bool]]) -> dict[str, float]:
    """Sort -> share of its items for which at least half of the judges vote yes."""
    by_sort: dict[str, list[bool]] = {}
    for number, sort in key.items():
        yes = sum(votes[number] for votes in judges)
        by_sort.setdefault(sort, []).append(2 * yes >= len(judges))
    return {sort: sum(items) / len(items) for sort, items in sorted(by_sort.items())}


def counted(key: Mapping[int, str], judges: Sequence[Mapping[int, bool]]) -> list[Result]:
    """The same as results, with the share of judges that said yes to each item."""
    return [
        Result(
            sort,
            {RATE: rate},
            {
                str(number): {RATE: sum(votes[number] for votes in judges) / len(judges)}
                for number, of in key.items()
                if of == sort
            },
            sum(of == sort for of in key.values()),
        )
        for sort, rate in rates(key, judges).items()
    ]


def fleiss_kappa(judges: Sequence[Mapping[int, bool]]) -> float:
    """Agreement of judges beyond chance (Fleiss, 1971): 1 if they always agree, 0 as by chance.

    If all votes are equal, agreement by chance is complete too; kappa is 1 then.
    """
    count = len(judges)
    if count < 2:
        raise UserError("agreement needs at least 2 judges; give more --sheets")
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
    rows = []
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        for row in reader:
            if absent := [name for name in columns if row.get(name) is None]:
                raise DataError(
                    f"has no column {absent[0]!r}; expected a sheet or key of qac relate",
                    file=str(path),
                    line=reader.line_num,
                )
            try:
                rows.append((int(row["number"]), row, reader.line_num))
            except ValueError:
                raise DataError(
                    f"{row['number']!r} is not a valid number", file=str(path), line=reader.line_num
                ) from None
    if not rows:
        raise DataError("has no lines; expected a sheet or key of qac relate", file=str(path))
    return rows


def _line(text: str) -> str:
    return " ".join(text.split())
