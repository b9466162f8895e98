"""Figures of docs/results and the commands that give them, in figures.yaml.

what         one line about it
command      {data} is the folder of the collections, {out} an empty folder to write to
file, key    where the figure stands in {out}: keys of JSON; a mapping picks the row of a list
value        the figure; tolerance: how far another run may be from it, because …
page         where it is reported; printed: its text there
minutes      of the command on the machine, on the date, at the commit
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import yaml


FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
_READ = yaml.safe_load((FOLDER / "figures.yaml").read_text(encoding="utf-8"))
FIGURES = {name: SimpleNamespace(**fields) for name, fields in _READ.items()}


def written(figure: SimpleNamespace, out: Path) -> float:
    """The figure that its command has written."""
    value = json.loads((out / figure.file).read_text(encoding="utf-8"))
    for key in figure.key:
        if isinstance(key, dict):
            (value,) = (row for row in value if key.items() <= row.items())
        else:
            value = value[key]
    return float(value)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="launch/reproduce.sh", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="+", choices=FIGURES, help="figures to measure again")
    data = os.environ.get("QAC_DATA")
    parser.add_argument("--data", default=data, required=not data, help="the collections")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "reproductions")
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.names:
        one, began = FIGURES[name], time.monotonic()
        # Figures of one command share its folder, so that it runs once.
        first = next(n for n in FIGURES if FIGURES[n].command == one.command)
        out = options.out / first
        out.mkdir(parents=True, exist_ok=True)
        words = [w.format(data=options.data, out=out) for w in shlex.split(one.command)]
        if code := subprocess.run(words, cwd=ROOT).returncode:
            return code  # it has said why
        figure = written(one, out)
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
