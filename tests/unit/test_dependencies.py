"""What is imported is declared."""

import ast
import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

import qac_jax


PACKAGE = Path(qac_jax.__file__).parent
ROOT = PACKAGE.parent
# jaxlib comes with jax, pydantic with FastAPI, markupsafe with jinja2; the others are for users who
# want them, and a message says how.
OPTIONAL = {"jaxlib", "markupsafe", "pydantic", "datasets"}
# Extras for those who work on the package.
OURS = ("dev", "ci")
# Functions that import the module that they are given as text.
IMPORTERS = {"import_module", "load", "library", "import_quietly", "find_spec"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    """The packages of the base, and those of the extras for users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    texts = [text for name, texts in extras.items() if name not in OURS for text in texts]
    return {canonical(Requirement(text).name) for text in [*project["dependencies"], *texts]}


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
    known = declared()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for module in {name.split(".")[0] for name in _modules(node)} - OPTIONAL:
                if module in packages:
                    assert known & set(map(canonical, packages[module])), (module, path)
