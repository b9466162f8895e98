"""The campaign against everything that is written and read; prints a table in Markdown.

launch/campaign.sh --work /tmp/campaign [--kills 1000 --inputs 10000 --damaged 500 --signals 200]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import campaign_inputs
import campaign_kills
from campaign_kills import Row
from campaign_lab import Lab
from campaign_material import COMMANDS


# Stages that get signals: quick ones, one that trains, one that applies a network.
SIGNALLED = ("passages", "contexts", "base", "vectors", "exported")
KINDS = ("lost", "half", "different", "traceback", "hang", "killed by itself")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", required=True, help="folder to work in")
    parser.add_argument("--seed", type=int, default=0)
    for name, count in (("kills", 1000), ("inputs", 10_000), ("damaged", 500), ("signals", 200)):
        parser.add_argument(f"--{name}", type=int, default=count)
    options = parser.parse_args(arguments)
    rng, began = random.Random(options.seed), time.monotonic()
    lab = Lab(Path(options.work).absolute())
    faults: list[str] = []
    try:
        lab.reference(list(COMMANDS))
        if options.kills:
            points = max(1, options.kills // (len(COMMANDS) + 1))
            rows = list(campaign_kills.stages(lab, list(COMMANDS), points, rng))
            rows.append(campaign_kills.recipe(lab, points, rng))
            faults += table("kills", rows)
        if options.signals:
            each = max(1, options.signals // len(SIGNALLED))
            faults += table("signals", campaign_kills.signals(lab, SIGNALLED, each, rng))
        if options.inputs:
            faults += shown("bad inputs", *campaign_inputs.inputs(lab, options.inputs, rng))
        if options.damaged:
            names = list(campaign_inputs.READERS)
            found = campaign_inputs.damaged(lab, names, options.damaged, rng)
            faults += shown("damaged artefacts", *found)
    finally:
        lab.close()
    print(f"\n{len(faults)} faults in {time.monotonic() - began:.0f} s, seed {options.seed}")
    for fault in faults:
        print(f"- {fault}")
    return 1 if faults else 0


def table(what: str, rows: Iterable[Row]) -> list[str]:
    """Prints a line a stage as it is done, and the sum; returns the faults."""
    print(f"\n| stage | operations | {what} | {' | '.join(KINDS)} |")
    print("|---|" + "---|" * (len(KINDS) + 2), flush=True)
    total: Counter[str] = Counter()
    faults = []
    for row in rows:
        print(_line(row.name, row.operations or "", row.counts, what), flush=True)
        # At once: a campaign may be stopped before its end.
        print("".join(f"- {fault}\n" for fault in row.faults), end="", file=sys.stderr, flush=True)
        total += row.counts
        faults += row.faults
    print(_line("all", "", total, what), flush=True)
    return faults


def _line(name: str, operations: object, counts: Counter[str], what: str) -> str:
    figures = (counts[what], *(counts[kind] for kind in KINDS))
    return f"| {name} | {operations} | {' | '.join(map(str, figures))} |"


def shown(what: str, counts: Counter[str], faults: list[str]) -> list[str]:
    print(f"\n{what}: " + ", ".join(f"{name} {n}" for name, n in counts.items()), flush=True)
    return faults


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
