"""The documentation: a strict build, its commands, the public interface, examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qac_jax


ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference" / "index.md"
PUBLIC = re.findall(r"^::: (\S+)", REFERENCE.read_text(encoding="utf-8"), re.M)
# Its example needs a model: test_retriever runs it. Sentence splitting only knows the mark.
ELSEWHERE = {"qac_jax.retriever", "qac_jax.text.sentences"}


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    for page in ("index", "own-documents/index", "settings/index", "formats/index", "papers/index"):
        assert (site / f"{page}.html").stat().st_size > 5_000, page
    assert len(list((site / "pictures").iterdir())) >= 3
    reference = (site / "reference" / "index.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in reference for name in PUBLIC)
    formats = (site / "formats" / "index.html").read_text(encoding="utf-8")
    assert "wikipedia" in formats and "MRQA" in formats


def resolved(name: str) -> Any:
    """What a dotted name means: a module, or something in one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, last = name.rpartition(".")
        return getattr(importlib.import_module(module), last)


def members(public: Any) -> Iterator[tuple[str, Any]]:
    """The functions of the interface: itself, or its own public methods."""
    if inspect.isfunction(public):
        yield public.__name__, public
        return
    for name, member in vars(public).items():
        inner = getattr(member, "__func__", getattr(member, "fget", member))
        of_ours = getattr(inner, "__module__", "").startswith("qac_jax")
        if inspect.isfunction(inner) and of_ours and not name.startswith("_"):
            yield name, inner


def test_links_between_files_lead_to_files_and_headings() -> None:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout")
    for name in listed.stdout.split():
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
            path, _, anchor = target.partition("#")
            file = (ROOT / name).parent / path if path else ROOT / name
            if "://" in target:
                continue
            assert file.exists(), f"{name}: {target}"
            if anchor:
                titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.M)
                anchors = [re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles]
                assert anchor in anchors, f"{name}: {target}"


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert not {page for page in pages if f" {page}\n" not in menu}


@pytest.mark.parametrize("name", PUBLIC)
def test_the_public_interface_is_typed_and_described(name: str) -> None:
    public = resolved(name)
    assert inspect.getdoc(public), name
    for called, function in members(public):
        parameters = [*inspect.signature(function).parameters.values()]
        bare = [p.name for p in parameters if p.annotation is p.empty]
        assert set(bare) <= {"self", "cls"}, f"{name}: {called}({', '.join(bare)})"
        assert "return" in function.__annotations__, f"{name}: {called} says not what it returns"


def test_what_the_package_offers_is_in_the_reference() -> None:
    offered = {getattr(qac_jax, name) for name in qac_jax.__all__ if name != "__version__"}
    assert offered <= {resolved(name) for name in PUBLIC}
    assert typing.get_type_hints(qac_jax.Retriever.search)


def test_examples_in_docstrings_are_right() -> None:
    with_examples = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "qac_jax").rglob("*.py")
        if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.M)
    }
    for name in sorted(with_examples - ELSEWHERE):
        outcome = doctest.testmod(importlib.import_module(name))
        assert outcome.attempted and not outcome.failed, name
