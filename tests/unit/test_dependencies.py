"""What is imported is declared."""

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

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
    found = (re.match(r"[\w.-]+", text) for text in [*project["dependencies"], *texts])
    return {canonical(match[0]) for match in found if match} - {"qac-jax"}


def imported() -> dict[str, set[str]]:
    """Module -> the files that import it, wherever they do."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name in _modules(node):
                top = name.split(".")[0]
                if top.isidentifier() and top not in sys.stdlib_module_names:
                    found.setdefault(top, set()).add(str(path.relative_to(PACKAGE)))
    found.pop("qac_jax")
    return found


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
    assert {
        module: sorted(files)
        for module, files in imported().items()
        if module in packages
        and module not in OPTIONAL
        and not known & {canonical(name) for name in packages[module]}
    } == {}
