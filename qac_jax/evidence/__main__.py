"""`python -m qac_jax.evidence bundle | run | merge`: see launch/evidence.sh."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from qac_jax.errors import Interrupted, UserError


BUNDLE = "a grid → one file that a machine with little but JAX can run"
USAGE = """usage: launch/evidence.sh bundle OUT GRID --data_dir DATA [--made DIR] [--most MIB]
       launch/evidence.sh run BUNDLE --out RESULTS --minutes 9 [--after RESULTS …] [--share I/N]
       launch/evidence.sh merge BUNDLE RESULTS … --out DIR"""


def main(arguments: list[str]) -> int:
    verbs = {"bundle": bundle, "run": run, "merge": merge, "work": work}
    if not arguments or arguments[0] not in verbs:
        print(USAGE, file=sys.stderr)
        return 0 if arguments[:1] in (["--help"], ["-h"]) else 2
    try:
        return verbs[arguments[0]](arguments[1:])
    except UserError as error:
        print(f"evidence {arguments[0]}: {error}", file=sys.stderr)
        return 2
    except Interrupted as interrupted:
        print(f"evidence {arguments[0]}: {interrupted}", file=sys.stderr)
        return interrupted.exit_code


def bundle(arguments: list[str]) -> int:
    """`bundle OUT GRID …`: further arguments are those of `qac run GRID`."""
    from qac_jax import flags, progress, recipes
    from qac_jax.evidence import packing
    from qac_jax.evidence.bundling import Bundler, describe

    if not arguments or arguments[0].startswith("-"):
        raise UserError("bundle needs a file to write to; write bundle OUT GRID --data_dir DATA")
    target, rest = Path(arguments[0]), arguments[1:]

    def add(parser: flags.Parser) -> None:
        parser.add_argument(
            "--made",
            metavar="DIR",
            help="folder of the grid, whose finished stages are taken over (default: OUT.made)",
        )
        parser.add_argument("--most", type=float, default=40, help="MiB that it may have")

    options, grid, cells = recipes.read_grid("evidence bundle", BUNDLE, rest, add)
    made = Path(options.made or f"{target}.made")
    with tempfile.TemporaryDirectory(dir=_parent(target)) as scratch:
        bundler = Bundler(grid, cells, made, Path(scratch))
        if options.dry_run:
            print(f"{len(cells)} cells, {len(bundler.left)} stages would be left to run")
            return 0
        described = bundler.bundle()
        size = packing.write(described, Path(scratch), target, options.most)
    progress.say(f"{target}: {size / 2**20:.1f} MiB; {describe(described, bundler.left)}")
    return 0


def _parent(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.parent


def run(arguments: list[str]) -> int:
    from qac_jax.evidence import running

    parser = argparse.ArgumentParser(prog="evidence run", allow_abbrev=False)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for what the slice leaves")
    parser.add_argument("--minutes", type=float, default=9, help="how long the slice may take")
    parser.add_argument(
        "--after", type=Path, nargs="+", default=[], help="folders of slices to go on from"
    )
    parser.add_argument(
        "--work", type=Path, help="folder to work in, which is kept (default: a temporary one)"
    )
    parser.add_argument("--share", default="0/1", help="I/N: the cells of one of N machines")
    parser.add_argument(
        "--saving", type=float, default=running.SAVING, help="seconds at the end for saving"
    )
    options = parser.parse_args(arguments)
    facts = running.run(
        options.bundle,
        options.out,
        minutes=options.minutes,
        after=options.after,
        work_folder=options.work,
        share=options.share,
        saving=options.saving,
    )
    print(json.dumps(facts))
    return 0


def work(arguments: list[str]) -> int:
    from qac_jax.evidence import running

    parser = argparse.ArgumentParser(prog="evidence work", allow_abbrev=False)
    parser.add_argument("root", type=Path)
    parser.add_argument("--share", required=True)
    parser.add_argument("--until", type=float, required=True)
    options = parser.parse_args(arguments)
    running.work(options.root, options.share, options.until)
    return 0


def merge(arguments: list[str]) -> int:
    from qac_jax.evidence import merging
    from qac_jax.report import grids

    parser = argparse.ArgumentParser(prog="evidence merge", allow_abbrev=False)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("results", type=Path, nargs="+", help="folders of slices")
    parser.add_argument("--out", type=Path, required=True, help="folder for the summary")
    options = parser.parse_args(arguments)
    summary = merging.merge(options.bundle, options.results, options.out)
    print(grids.markdown(summary), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
