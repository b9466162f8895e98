"""docs/extending.md: every example runs as it stands, and touches as few files as it may."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")

# The files that an extension may touch, by the beginning of its heading.
FILES = {"(a)": 2, "(b)": 2, "(c)": 1, "(d)": 1, "(e)": 1}

_PROGRAMS = (
    f'qac() {{ "{sys.executable}" -m qac_jax.cli "$@"; }}; python() {{ "{sys.executable}" "$@"; }}'
)


class Fence(NamedTuple):
    language: str
    file: str  # the file that it is; empty where it is run
    text: str


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def fences(section: str) -> list[Fence]:
    pattern = re.compile(r"^```(\w+) *([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [Fence(*found) for found in pattern.findall(section)]


def copied(folder: Path) -> None:
    """The package as links, so that an example's files stay out of the repository."""
    for name in ("qac_jax", "gin_configs"):
        for path in sorted((ROOT / name).rglob("*")):
            target = folder / path.relative_to(ROOT)
            if path.is_file() and "__pycache__" not in path.parts:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(path)


def run(fence: Fence, folder: Path) -> None:
    command = {
        "python": [sys.executable, "-c", fence.text],
        "bash": ["bash", "-euc", f"{_PROGRAMS}\n{fence.text}"],
    }[fence.language]
    environment = {**os.environ, "PYTHONPATH": str(folder), "XLA_FLAGS": ""}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{fence.text}\n{done.stdout}\n{done.stderr}"


# These compile a model's training; the others take seconds.
HEADINGS = [
    pytest.param(heading, marks=[pytest.mark.slow] if heading[:3] in ("(a)", "(b)", "(e)") else [])
    for heading in sections()
    if heading.startswith("(")
]


@pytest.mark.parametrize("heading", HEADINGS)
def test_an_example_runs_as_it_stands(heading: str, tmp_path: Path) -> None:
    copied(tmp_path)
    steps = fences(sections()[heading])
    shown = re.findall(r"\]\(\.\./([\w/]+\.(?:py|gin))\)", sections()[heading])  # in the package
    files = {fence.file for fence in steps if fence.file} | set(shown)
    assert all((ROOT / file).exists() for file in shown)
    assert 1 <= len(files) <= FILES[heading[:3]], files
    for fence in steps:
        if fence.file:
            path = tmp_path / fence.file
            path.unlink(missing_ok=True)  # a link to ours: the example replaces it
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(fence.text, encoding="utf-8")
        else:
            run(fence, tmp_path)
