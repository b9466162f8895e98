"""The source: imports are declared, stages write below --out alone, the front door is quick."""

import ast
import json
import re
import subprocess
import sys
import tomllib
import uuid
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import qac_jax


PACKAGE = Path(qac_jax.__file__).parent
# jaxlib comes with jax, pydantic with FastAPI, markupsafe with jinja2; the others are for users who
# want them, and a message says how.
OPTIONAL = {"jaxlib", "markupsafe", "pydantic", "datasets"}
# Extras for those who work on the package.
OURS = ("dev", "ci")
# Functions that import the module that they are given as text.
IMPORTERS = {"import_module", "load", "library", "import_quietly", "find_spec"}


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [node.module or ""]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if called in IMPORTERS and isinstance(node.args[0].value, str):
            return [node.args[0].value]
    return []


def test_what_is_imported_is_declared() -> None:
    packages = {"faiss": ["faiss-cpu"], **metadata.packages_distributions()}
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    groups = {**project["optional-dependencies"], "": project["dependencies"]}
    texts = [text for name, texts in groups.items() if name not in OURS for text in texts]
    known = {canonicalize_name(Requirement(text).name) for text in texts}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for module in {name.split(".")[0] for name in _modules(node)} - OPTIONAL:
                if module in packages:
                    assert known & set(map(canonicalize_name, packages[module])), (module, path)


def test_the_bill_of_materials_has_what_cyclonedx_requires() -> None:
    """Of all pins, with their hashes; the same bytes each time."""
    root = PACKAGE.parent
    locks = sorted(root.glob("launch/constraints-3.12*.txt"))
    words = [str(root / "launch" / "sbom.sh"), *map(str, locks)]
    written = [subprocess.run(words, capture_output=True, check=True).stdout for _ in range(2)]
    bom = json.loads(written[0])
    assert written[0] == written[1]
    assert (bom["bomFormat"], bom["specVersion"], bom["version"]) == ("CycloneDX", "1.6", 1)
    assert bom["serialNumber"] == uuid.UUID(bom["serialNumber"].removeprefix("urn:uuid:")).urn
    parts = [bom["metadata"]["component"], *bom["components"]]
    refs = [part["bom-ref"] for part in parts]
    assert len(set(refs)) == len(refs)
    assert bom["dependencies"] == [{"ref": refs[0], "dependsOn": refs[1:]}]
    for part in parts:
        assert part["type"] in ("application", "library") and part["name"]
        assert part["purl"].startswith("pkg:pypi/") and part["purl"].endswith(part["version"])
        for each in part.get("licenses", ()):
            assert each.keys() == {"expression"} or each["license"].keys() == {"name"}
        assert len(part.get("licenses", ())) == 1 or "expression" not in str(part.get("licenses"))
    pins = re.findall(r"^([\w.-]+)==(\S+)(.*)", "".join(f.read_text() for f in locks), re.M)
    found = {(p["name"], p["version"]): p for p in bom["components"]}
    assert found.keys() == {pin[:2] for pin in pins}
    for name, version, rest in pins:
        hashes = {each["content"] for each in found[name, version].get("hashes", ())}
        assert hashes == set(re.findall("sha256:([0-9a-f]{64})", rest))


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
    for path in (*PACKAGE.glob("stages/*.py"), *PACKAGE.glob("exporting/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called != "open", f"{ast.unparse(node)}: write by out.open"
                assert called.split(".")[-1] not in writes or "self." not in ast.unparse(node)
