"""docs/extending.md: every example of the page runs as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import toy_retrieval as toy


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.M | re.S)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_runs_as_it_stands(section: str, tmp_path: Path) -> None:
    toy.write_collection(tmp_path / "data" / "mine", 30, 8)
    (tmp_path / "gin_configs").symlink_to(ROOT / "gin_configs")
    files = 0
    for language, marks, text in _FENCE.findall(SECTIONS[section]):
        named = re.search(r"file=(\S+)", marks)
        if named:
            files += 1
            target = tmp_path / named[1]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        elif language == "bash":
            for command in text.replace("\\\n", " ").splitlines():
                run(command, tmp_path)
        elif language == "python":
            run(f"python -c {shlex.quote(text)}", tmp_path)
    assert files, "an example shows the files that it adds"


def run(command: str, folder: Path) -> None:
    words = shlex.split(command)
    environment = {**os.environ, "XLA_FLAGS": ""}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = os.path.abspath(folder / value) if name == "PYTHONPATH" else value
    path = [environment.get("PYTHONPATH", str(folder)), str(ROOT)]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    program = ["-m", "qac_jax.cli"] if words[0] == "qac" else []
    assert words[0] in ("qac", "python"), command
    done = subprocess.run(
        [sys.executable, *program, *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
