"""The command line in a process of its own, with the toy stages as verbs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """The same command line in a process of its own, with the toy stages as verbs."""
    code = (
        "import sys; from qac_jax import cli\n"
        "cli.STAGES['numbers'] = 'toy_stages:Numbers'; cli._SUMMARIES['numbers'] = ''\n"
        "sys.exit(cli.main())"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
