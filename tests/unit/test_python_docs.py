"""Docstrings of packages as documents: a made-up package, then real ones."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import sys

import pytest

from qac_jax.errors import UserError
from qac_jax.formats import documents
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.readers import python_docs


INIT = '''"""A package for the tests of reading docstrings.

It has a module docstring with a few words more."""
from ._impl import fast, grind, Mill
from ._impl import grind as mill_it
__all__ = ["grind", "mill_it", "Mill", "fast"]
'''
IMPL = '''
def grind(grain):
    """Grind grain between the stones of a mill.

    See Also
    --------
    Mill : the machine
    sieve
    """

def _secret():
    """Nobody outside should ever see this docstring."""

class Mill:
    """A machine that grinds, driven by the tide."""

    def __init__(self, wheel):
        """Builds it around a wheel of some size."""

    def stop(self):
        """Stops the wheel until the next tide comes."""

    def short(self):
        """Too short."""

    def again(self):
        """Grind grain between the stones of a mill.

        See Also
        --------
        Mill : the machine
        sieve
        """
'''
ADDED = '''
from somewhere import add_newdoc
add_newdoc("toymill._impl", "fast", """
    fast(grain)

    A compiled function with a docstring elsewhere.
    """.replace("x", "y"))
add_newdoc("toymill._impl", "Mill", ("turn", "Turns the wheel once by hand."))
'''


@pytest.fixture(scope="module")
def toymill(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "toymill"
    folder.mkdir()
    (folder / "__init__.py").write_text(INIT)
    (folder / "_impl.py").write_text(IMPL)
    (folder / "_docs.py").write_text(ADDED)
    (folder / "compiled.pyi").write_text('def from_stub(): """Only the stub tells of this one."""')
    (folder / "_impl.pyi").write_text('def grind(): """Never read: there is a source."""')
    (folder / "tests").mkdir()
    (folder / "tests" / "test_x.py").write_text('def test(): """A test is no documentation."""')
    (folder / "explodes.py").write_text('"""Imports are never run here, else."""\nraise SystemExit')
    sys.path.insert(0, str(folder.parent))
    yield folder
    sys.path.remove(str(folder.parent))
    assert "toymill" not in sys.modules


def test_modules_and_classes_are_documents_with_public_titles(toymill):
    found = {d.id: d for d in documents.read("python_docs", "toymill")}
    assert set(found) == {
        "toymill", "toymill._impl", "toymill._impl:Mill", "toymill.compiled", "toymill.explodes",
    }  # fmt: skip
    titles = {i: [part["title"] for part in d.meta["parts"]] for i, d in found.items()}
    assert titles["toymill"] == ["toymill"]
    assert titles["toymill._impl"] == ["toymill.fast", "toymill.grind"]
    assert titles["toymill._impl:Mill"] == [
        "toymill.Mill", "toymill.Mill", "toymill.Mill.stop", "toymill.Mill.turn",
    ]  # fmt: skip
    assert titles["toymill.compiled"] == ["toymill.compiled.from_stub"]
    assert found["toymill._impl"].title == "toymill"
    assert found["toymill._impl:Mill"].title == "toymill.Mill"


def test_parts_know_summary_aliases_and_anchors(toymill):
    (impl,) = (d for d in documents.read("python_docs", "toymill") if d.id == "toymill._impl")
    part = next(p for p in impl.meta["parts"] if p["title"] == "toymill.grind")
    assert part == {
        "title": "toymill.grind",
        "kind": "function",
        "aliases": ["toymill.mill_it"],
        "summary": "Grind grain between the stones of a mill.",
        "anchors": [["toymill.Mill", "Mill"], ["sieve", "sieve"]],
    }
    assert impl.sections[impl.meta["parts"].index(part)].text == part["summary"]
    assert impl.meta["package"] == "toymill" and impl.meta["kind"] == "module"
    assert not any("Nobody" in section.text for section in impl.sections)


def test_what_is_left_out_is_told(toymill):
    bad = BadLines()
    (toymill / "extra.py").write_text('__all__ = ["gone"]\nfrom ._c import gone')
    list(documents.read("python_docs", "toymill", bad=bad))
    (toymill / "extra.py").unlink()
    assert bad.left_out == {
        "docstrings that stand elsewhere too": 1,
        "names of toymill that are compiled or another package's, such as toymill.extra.gone": 1,
    }


def test_the_held_out_fifth_can_be_left_out():
    names = [f"package.module{i}" for i in range(4000)]
    share = sum(map(python_docs.held_out, names)) / len(names)
    assert abs(share - 0.2) < 4.5 * (0.16 / 4000) ** 0.5
    every, kept, tests = (
        {d.id: d for d in documents.read("python_docs", "optax", held_out=choice)}
        for choice in ("include", "exclude", "only")
    )
    assert every == {**kept, **tests} and not set(kept) & set(tests)
    assert tests and all(d.meta["held_out"] for d in tests.values())
    assert not any(d.meta["held_out"] for d in kept.values())


@pytest.fixture(scope="module")
def real():
    titles: dict = {}
    packages = "optax,nltk,collections,json,asyncio,random,datetime,functools"
    for document in documents.read("python_docs", packages):
        for part, section in zip(document.meta["parts"], document.sections, strict=True):
            titles.setdefault(part["title"], (part, section.text))
    return titles


@pytest.mark.parametrize(
    "name",
    ["optax.adamw", "nltk.tokenize.sent_tokenize", "collections.Counter",
     "collections.Counter.most_common", "random.shuffle", "json.loads", "asyncio.run",
     "datetime.datetime", "nltk.tokenize.PunktSentenceTokenizer", "functools.lru_cache"],
)  # fmt: skip
def test_real_public_names(real, name):
    assert name in real


def test_real_docstrings_carry_their_summary(real):
    part, text = real["collections.Counter"]
    assert part["summary"].startswith("Dict subclass for counting hashable items.")
    assert text.startswith(part["summary"])
    assert real["nltk.tokenize.sent_tokenize"][0]["aliases"] == ["nltk.sent_tokenize"]
    assert ["optax.adam", "optax.adam"] in real["optax.adamw"][0]["anchors"]


def test_shards_are_packages_and_their_union_is_the_whole(toymill):
    everything = list(documents.read("python_docs", "toymill,json"))
    for count in (None, 1, 2, 9):
        shards = documents.shards("python_docs", "toymill,json", count)
        assert len(shards) == (2 if count is None else min(count, 2))
        found = [d for shard in shards for d in documents.read_shard(shard)]
        assert [dataclasses.asdict(d) for d in found] == [dataclasses.asdict(d) for d in everything]


def test_mistakes_are_one_sentence():
    with pytest.raises(UserError, match="'scipi' is not installed; .*did you mean 'scipy'"):
        documents.shards("python_docs", "scipi")
    with pytest.raises(UserError, match="no packages are named"):
        documents.shards("python_docs", " , ")
    with pytest.raises(UserError, match="not a top-level package"):
        documents.shards("python_docs", "scipy.stats")
    with pytest.raises(UserError, match="held_out='no'"):
        documents.shards("python_docs", "scipy", options={"held_out": "no"})


def test_versions_enter_the_key():
    found = python_docs.versions("optax,stdlib")
    assert found["optax"] == importlib.metadata.version("optax")
    assert found["stdlib"].startswith("python 3.")
    # Imported and installed under different names.
    found = python_docs.versions("pytrec_eval")
    assert found["pytrec_eval"].startswith("pytrec_eval-terrier ")
