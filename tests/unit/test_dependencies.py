"""What is imported is declared."""

import ast
import tomllib
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
