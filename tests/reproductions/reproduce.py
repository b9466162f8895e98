"""Figures of docs/results and the commands that give them, in figures.yaml.

what         one line about it
command      {data} is the folder of the collections, {out} an empty folder to write to
file, key    where the figure stands in {out}: keys of JSON; a mapping picks the row of a list
value        the figure; tolerance: how far another run may be from it, because …
page         where it is reported; printed: its text there
minutes      of the command on the machine, on the date, at the commit
"""

import argparse
import dataclasses
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A figure."""

    name: str
    what: str
    command: str
    file: str
    key: Sequence[Any]
    value: float
    tolerance: float
    because: str
    page: str
    printed: str
    minutes: float
    date: Any
    commit: str
    machine: str

    def figure(self, out: Path) -> float:
        """The figure that the command has written."""
        value = json.loads((out / self.file).read_text(encoding="utf-8"))
        for key in self.key:
            if isinstance(key, dict):
                (value,) = (row for row in value if key.items() <= row.items())
            else:
                value = value[key]
        return float(value)


def read_all() -> dict[str, Reproduction]:
    """Name -> figure."""
    figures = yaml.safe_load((FOLDER / "figures.yaml").read_text(encoding="utf-8"))
    return {name: Reproduction(name=name, **fields) for name, fields in figures.items()}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="launch/reproduce.sh", description=__doc__.split("\n")[0])
    known = read_all()
    parser.add_argument("names", nargs="+", choices=known, help="figures to measure again")
    data = os.environ.get("QAC_DATA")
    parser.add_argument("--data", default=data, required=not data, help="the collections")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "reproductions")
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.names:
        one, began = known[name], time.monotonic()
        # Figures of one command share its folder, so that it runs once.
        first = next(n for n in known if known[n].command == one.command)
        out = options.out / first
        out.mkdir(parents=True, exist_ok=True)
        words = [w.format(data=options.data, out=out) for w in shlex.split(one.command)]
        subprocess.run(words, check=True, cwd=ROOT)
        figure = one.figure(out)
        same = abs(figure - one.value) <= one.tolerance
        failed += not same
        minutes = (time.monotonic() - began) / 60
        print(
            f"{name}: {figure:.4f} ({one.value:g} ± {one.tolerance:g} expected: "
            f"{'yes' if same else 'no'}), {minutes:.1f} min"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
