"""The image's Dockerfile follows hadolint's rules."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


DEPLOY = Path(__file__).parents[2] / "deploy"


def test_hadolint_has_nothing_to_say() -> None:
    program = shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run(
        [program, "--no-color", DEPLOY / "Dockerfile"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
