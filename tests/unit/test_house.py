"""Stages write below --out alone; the front door is light and quick."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import qac_jax
from qac_jax import fields
from qac_jax.cli import STEPS, VARIANTS, VERBS
from qac_jax.pipeline.stage import Stage


ROOT = Path(qac_jax.__file__).parent


def stages() -> Iterator[type[Stage]]:
    for verb in (*VERBS.values(), *STEPS.values()):
        for flag in ("", *VARIANTS.get(verb.name, ())) if verb.target else ():
            yield verb.load([flag])


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
    for path in (ROOT / "stages").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called != "open", f"{ast.unparse(node)}: write by out.open"
                assert called.split(".")[-1] not in writes or "self." not in ast.unparse(node)


def test_no_option_is_a_place_to_write_to() -> None:
    for stage in stages():
        for name, leaf in fields.flat(stage).items():
            if "str" in str(leaf.hint) and not fields.is_input(leaf.field):
                told = leaf.field.metadata["help"]
                assert not re.search("to write to|^(folder|file) for", told), (stage, name)
