"""The campaign against everything that is written and read; prints tables in Markdown.

launch/campaign.sh --work /tmp/campaign [--kills 1000 --inputs 10000 --damaged 500 --signals 200]

Every attack is drawn from the seed, its kind, its group and its number alone, and is written to
WORK/journal.jsonl when it is over: a campaign that was stopped continues when it is called again,
also with larger numbers. Of a fault, WORK/faults has the commands, all that they printed and the
files, at once. The order mixes all kinds, so that a part of a campaign is a sample of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import campaign_inputs
import campaign_kills
import campaign_live
import campaign_models
import campaign_power
from campaign_lab import Lab, Outcome
from campaign_material import COMMANDS, QUICK


Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Kind:
    """Attacks of one kind: how many by default, and of which groups in which proportion."""

    count: int
    groups: Mapping[str, int]
    attack: Callable[[Lab, str, int, random.Random], Outcome]
    kept: tuple[str, ...] = ("kill",)  # folders that a fault is kept with


KINDS = {
    "kills": Kind(1000, campaign_kills.STAGES, campaign_kills.kill),
    "signals": Kind(200, campaign_kills.SIGNALLED, campaign_kills.interrupt),
    "inputs": Kind(10_000, campaign_inputs.INPUTS, campaign_inputs.feed, ("bad",)),
    "damaged": Kind(
        500, dict.fromkeys(campaign_inputs.READERS, 1), campaign_inputs.damage, ("bad",)
    ),
    "models": Kind(300, campaign_models.MODELS, campaign_models.feed, ("bad",)),
    "full": Kind(100, dict.fromkeys(campaign_kills.FULL, 1), campaign_kills.full),
    "links": Kind(100, campaign_kills.LINKED, campaign_kills.link),
    "living": Kind(100, campaign_live.LIVING, campaign_live.kill),
    "power": Kind(300, campaign_power.POWER, campaign_power.fail, ("power", "kill")),
}
FAULTS = ("lost", "half", "different", "traceback", "hang", "killed by itself", "other")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", required=True, help="folder to work in")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after some minutes")
    parser.add_argument("--quick", action="store_true", help="leave networks out")
    parser.add_argument("--table", action="store_true", help="print what the journal has, no more")
    for name, known in KINDS.items():
        parser.add_argument(f"--{name}", type=int, default=known.count)
    options = parser.parse_args(arguments)
    work, began = Path(options.work).absolute(), time.monotonic()
    if not options.table:
        power = campaign_power.library(work) if options.power else ""
        if options.power and not power:
            print("no C compiler: losses of power are left out", file=sys.stderr)
        lab = Lab(work, power=power)
        try:
            lab.reference(QUICK if options.quick else list(COMMANDS))
            for kind, group, number in plan({name: getattr(options, name) for name in KINDS}):
                if options.quick and group in campaign_kills.COMPUTING | {*campaign_models.MODELS}:
                    continue
                if kind != "power" or power:
                    attack(lab, options.seed, kind, group, number)
                if time.monotonic() - began > 60 * options.minutes:
                    break
        finally:
            lab.close()
    records = list(journal(work))
    print("\n".join(tables(records)))
    faults = [record for record in records if record["faults"]]
    for record in faults:
        for what, how in record["faults"]:
            print(f"- {label(record)}: {what}: {' '.join(how.split())[-400:]}")
    return 1 if faults else 0


def plan(counts: Mapping[str, int]) -> list[tuple[str, str, int]]:
    """All attacks, mixed: each part of the list is a sample of the whole."""
    placed = []
    for kind, count in counts.items():
        groups = KINDS[kind].groups
        total = sum(groups.values())
        for group, share in groups.items():
            own = -(-count * share // total)
            placed += [((n + 0.5) / own, kind, group, n) for n in range(own)]
    return [(kind, group, number) for _, kind, group, number in sorted(placed)]


def attack(lab: Lab, seed: int, kind: str, group: str, number: int) -> Outcome | None:
    """One attack, unless the journal has it."""
    place = lab.work / "journal.jsonl"
    if (known := _known.get(str(place))) is None:
        known = _known[str(place)] = {key(record) for record in journal(lab.work)}
    record: Json = {"seed": seed, "kind": kind, "group": group, "number": number}
    if key(record) in known:
        return None
    lab.runs.clear()
    began = time.monotonic()
    try:
        outcome = KINDS[kind].attack(lab, group, number, random.Random(repr(key(record))))
    except Exception as error:  # of the campaign itself, or of a folder that it cannot read
        outcome = Outcome()
        trace = "".join(traceback.format_exception(error))
        outcome.fault("other", f"{error!r:.200}\n{trace[-1500:]}")
    record |= vars(outcome) | {
        "seconds": round(time.monotonic() - began, 2),
        "cpu": round(sum(result.seconds for _, result in lab.runs), 2),
    }
    if outcome.faults:
        kept = lab.keep(label(record), outcome, *KINDS[kind].kept)
        print(f"FAULT {kept}: {outcome.faults}", file=sys.stderr, flush=True)
    with place.open("a") as file:
        file.write(json.dumps(record) + "\n")
    known.add(key(record))
    return outcome


_known: dict[str, set[tuple[Any, ...]]] = {}


def key(record: Json) -> tuple[Any, ...]:
    return record["seed"], record["kind"], record["group"], record["number"]


def label(record: Json) -> str:
    return "-".join(str(record[name]) for name in ("kind", "group", "seed", "number"))


def journal(work: Path) -> Iterator[Json]:
    """The attacks that are over."""
    place = work / "journal.jsonl"
    for line in place.read_text().splitlines() if place.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue  # the last line of a campaign that was killed


def tables(records: list[Json]) -> Iterator[str]:
    """A line for each group, and the sums."""
    yield f"| attack | group | runs | landed | fresh processes | {' | '.join(FAULTS)} | CPU s |"
    yield "|---" * (len(FAULTS) + 6) + "|"
    for kind in KINDS:
        mine = [record for record in records if record["kind"] == kind]
        for group in dict.fromkeys(record["group"] for record in mine):
            yield _line(kind, group, [record for record in mine if record["group"] == group])
        if mine:
            yield _line(f"**{kind}**", "all", mine)
    endings = Counter((record["kind"], record["ended"]) for record in records if record["ended"])
    for (kind, ended), count in sorted(endings.items()):
        yield f"- {kind} {ended}: {count:,}"


def _line(kind: str, group: str, records: list[Json]) -> str:
    counts = Counter(
        what if what in FAULTS else "other" for record in records for what, _ in record["faults"]
    )
    sums = [sum(record[name] for record in records) for name in ("landed", "fresh", "cpu")]
    cells = [kind, group, len(records), *sums[:2], *(counts[name] for name in FAULTS)]
    return "| " + " | ".join(map(str, cells)) + f" | {sums[2]:.0f} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
