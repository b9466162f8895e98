"""Stages write below --out alone; the front door is light and quick."""

import ast
import subprocess
import sys
from pathlib import Path

import qac_jax


ROOT = Path(qac_jax.__file__).parent


def test_the_front_door_is_light_and_quick() -> None:
    heavy = ("jax", "numpy", "tensorflow", "gin", "flax", "transformers")
    program = (
        "import sys, time; began = time.process_time(); from qac_jax import cli; "
        "cli.main(['--help']); print(time.process_time() - began, "
        f"[m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds, found = done.stdout.splitlines()[-1].split(" ", 1)
    assert found == "[]" and float(seconds) < 0.3


def test_stages_write_below_their_artefact_alone() -> None:
    """By the Writer `out`, never by the path of an option."""
    writes = ("write_text", "write_bytes", "mkdir", "copyfile", "copytree")
    for path in (*ROOT.glob("stages/*.py"), *ROOT.glob("exporting/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called != "open", f"{ast.unparse(node)}: write by out.open"
                assert called.split(".")[-1] not in writes or "self." not in ast.unparse(node)
