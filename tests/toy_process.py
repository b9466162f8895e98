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
        "import sys; from qac_jax import cli, verbs\n"
        "verbs.VERBS['numbers'] = verbs.Verb('numbers', '', 'toy_stages:Numbers')\n"
        "sys.exit(cli.main())"
    )
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
