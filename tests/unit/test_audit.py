"""launch/audit.sh says in a sentence what it needs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


ROOT = Path(__file__).parents[2]


def test_advisories_without_a_network_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "launch").mkdir()
    shutil.copy(ROOT / "launch/audit.sh", tmp_path / "launch")
    (tmp_path / "launch/setup.sh").write_text(
        """set -euo pipefail; QAC_ROOT=.; _fail() { printf 'launch: %s\\n' "$*" >&2; exit 2; }"""
    )
    python = tmp_path / "python"  # which reaches nothing
    python.write_text("#!/bin/sh\necho 'Traceback (most recent call last)' >&2\nexit 1\n")
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "launch/audit.sh", "--advisories"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("launch: PyPI's advisories cannot be reached; run this with a ")
    assert done.stderr.count("\n") == 1
