"""Four processes of two devices on loopback give what one gives (`launch/scale_drill.sh`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_four_processes_are_one(tmp_path: Path) -> None:
    drill = Path(__file__).parents[2] / "launch" / "scale_drill.py"
    command = [sys.executable, drill, "virtual", tmp_path / "out"]
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    verbs = ("train", "embed", "generate", "search", "label")
    assert ended.stdout.split("\n")[:-1] == [f"{verb}: equal" for verb in verbs]
