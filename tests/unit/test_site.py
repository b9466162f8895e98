"""The documentation: a strict build, its commands, the public interface, examples in docstrings."""

import doctest
import importlib
import os
import re
import subprocess
import sys
import typing
from pathlib import Path

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
    reference = (site / "reference" / "index.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in reference for name in PUBLIC)


def test_links_between_files_lead_to_files_and_headings() -> None:
    # The documents of tests/mixed link to others of their own projects.
    ours = ["*.md", ":!tests/mixed/documents"]
    listed = subprocess.run(["git", "ls-files", *ours], cwd=ROOT, capture_output=True, text=True)
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


def test_what_the_package_offers_is_in_the_reference() -> None:
    offered = {name for name in qac_jax.__all__ if name != "__version__"}
    assert offered <= {name.rpartition(".")[2] for name in PUBLIC}
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
