"""An interrupt while the command line is imported is one sentence, not a traceback."""

from __future__ import annotations

import subprocess
import sys


INTERRUPTED = """
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "qac_jax.pipeline.signals":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
sys.argv = ["qac", "--help"]
from qac_jax.__main__ import main
sys.exit(main())
"""


def test_an_interrupt_during_an_import_is_a_sentence() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr == "qac: interrupted before anything was begun\n"


def test_the_package_runs_as_a_module() -> None:
    words = [sys.executable, "-m", "qac_jax", "--help"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("usage: qac")
