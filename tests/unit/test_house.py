"""The house keeps its shape: few settings a stage, no circles, a light front door."""

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
FILES = sorted(p for p in ROOT.rglob("*.py") if "assets" not in p.parts)
MOST_FILES = 14
# Rooms of like things: one objective, verb, recipe or kind of example each.
LIKE = dict.fromkeys(("objectives", "stages", "recipes", "kinds"), 24)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def stages() -> Iterator[type[Stage]]:
    for verb in (*VERBS.values(), *STEPS.values()):
        for flag in ("", *VARIANTS.get(verb.name, ())) if verb.target else ():
            yield verb.load([flag])


def test_rooms_hold_few_files() -> None:
    rooms: dict[str, int] = {}
    for path in FILES:
        if path.parent != ROOT and path.stem != "__init__":
            rooms[path.parent.name] = rooms.get(path.parent.name, 0) + 1
    assert {room: n for room, n in rooms.items() if n > LIKE.get(room, MOST_FILES)} == {}


def imports_of(path: Path) -> Iterator[str]:
    """The modules of ours that a file imports when it is imported itself."""
    names = {module_of(p) for p in FILES}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("qac_jax"):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in names else str(node.module)


def test_modules_import_one_another_in_no_circle() -> None:
    graph = {module_of(path): set(imports_of(path)) - {"qac_jax"} for path in FILES}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, f"a circle: {' -> '.join((*above, module))}"
        if module not in done:
            for other in sorted(graph.get(module, ())):
                visit(other, (*above, module))
            done.add(module)

    for module in graph:
        visit(module, ())


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
