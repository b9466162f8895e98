"""All property tests on examples that nobody has seen: a random search, its seed printed."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest


TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_properties_hold_for_other_draws() -> None:
    files = sorted(
        str(path)
        for path in TESTS.rglob("test_*.py")
        if "from hypothesis import" in path.read_text() and path != Path(__file__)
    )
    assert files
    seed = random.SystemRandom().randrange(1 << 32)
    selection = ["-m", "hypothesis and not slow", "--hypothesis-profile=search"]
    command = [sys.executable, "-m", "pytest", *selection, f"--hypothesis-seed={seed}", *files]
    print(f"seed {seed}; again: {' '.join(command)}")
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}\n{done.stderr}"
