"""docs/extending.md: every example runs as it stands, and touches as few files as it may."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toy_process import devices


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
_PARTS = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)
SECTIONS = {k: text for k, text in zip(_PARTS[1::2], _PARTS[2::2], strict=True) if k[0] == "("}
# The files that an extension may touch, by the beginning of its heading.
FILES = {"(a)": 2, "(b)": 2, "(c)": 1, "(d)": 1, "(e)": 1}
_FENCE = re.compile(r"^```(\w+) *([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROGRAMS = (
    f'qac() {{ "{sys.executable}" -m qac_jax.cli "$@"; }}; python() {{ "{sys.executable}" "$@"; }}'
)


@pytest.mark.slow
@pytest.mark.parametrize("heading", SECTIONS)
def test_an_example_runs_as_it_stands(heading: str, tmp_path: Path) -> None:
    for name in ("qac_jax", "gin_configs"):  # as links: an example's files stay out of ours
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, copy_function=os.symlink, ignore=ignored)
    fences = _FENCE.findall(SECTIONS[heading])
    shown = re.findall(r"\]\(\.\./([\w/]+\.(?:py|gin))\)", SECTIONS[heading])  # in the package
    files = {file for _, file, _ in fences if file} | set(shown)
    assert all((ROOT / file).exists() for file in shown)
    assert 1 <= len(files) <= FILES[heading[:3]], files
    environment = devices(PYTHONPATH=str(tmp_path))
    for language, file, text in fences:
        if file:
            path = tmp_path / file
            path.unlink(missing_ok=True)  # a link to ours: the example replaces it
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            continue
        command = {
            "python": [sys.executable, "-c", text],
            "bash": ["bash", "-euc", f"{_PROGRAMS}\n{text}"],
        }[language]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
