"""Docstrings of packages as documents: their text, public names, a made-up package, real ones."""

import sys

import pytest

from qac_jax.errors import UserError
from qac_jax.formats import docstrings, documents
from qac_jax.formats.bad_lines import BadLines


# Docstrings of the usual styles as plain text.


NUMPY = """Stack arrays in sequence
vertically (row wise).

Rebuilds arrays divided by `vsplit`. See :func:`~numpy.stack` and
``hstack``, or :ref:`the guide <guide>`; *never* ``a ** b``.

.. versionadded:: 1.5

Parameters
----------
tup : sequence of ndarrays
    The arrays must have the same shape
    along all but the first axis.
dtype : str or dtype

Returns
-------
stacked : ndarray
    The array formed by stacking the given arrays, will be at least 2-D. It is a copy in all cases.

See Also
--------
concatenate : Join a sequence of arrays
    along an existing axis.
hstack, dstack

Examples
--------
>>> np.vstack((a,b))
array([[1, 2, 3],
       [4, 5, 6]])

Then a remark on what was
seen, which has enough words to be one of the longer parts of this rather long docstring.
"""


def test_numpy_style():
    parsed = docstrings.parse(NUMPY)
    assert parsed.summary == "Stack arrays in sequence vertically (row wise)."
    assert parsed.see_also == ("concatenate", "hstack", "dstack")
    intro, interface, examples = parsed.sections
    assert intro.endswith(
        "\n\nRebuilds arrays divided by vsplit. See numpy.stack and hstack, "
        "or the guide; never a ** b."
    )
    assert interface.startswith(
        "Parameters:\ntup : sequence of ndarrays\nThe arrays must have the "
        "same shape along all but the first axis.\ndtype : str or dtype"
    )
    assert "\n\nReturns:\nstacked : ndarray\nThe array formed" in interface
    assert "array([[1, 2, 3],\n       [4, 5, 6]])\n\nThen a remark on what was seen" in examples


def test_code_tables_and_lists_keep_their_lines():
    text = (
        "Use it so::\n\n    for x in y:\n        f(x)\n\nThen\n\n- one point\n  that goes on\n"
        "- another\n\n=====  =====\nname   value\n=====  =====\na      1\n=====  =====\n\n"
        ":param x: the *input*,\n    in full\n:returns: nothing\n"
    )
    (section,) = docstrings.parse(text).sections
    assert section == (
        "Use it so:\n\nfor x in y:\n    f(x)\n\nThen\n\n- one point that goes on\n- another\n\n"
        "=====  =====\nname   value\n=====  =====\na      1\n=====  =====\n\n"
        "x: the input, in full\nreturns: nothing"
    )
    signature = docstrings.parse("array(object,\n  dtype=None)\n--\n\nCreate an array.")
    assert signature.sections == ("Create an array.",)


# Docstrings of packages as documents: a made-up package, then real ones.


INIT = '''"""A package for the tests of reading docstrings."""
from ._impl import fast, lost
from ._impl import grind as mill_it
from ._impl import *
__all__ = ["grind", "mill_it", "Mill", "fast"]
'''


IMPL = '''
from toymill import lost  # a circle

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

    def wait(self):
        """Stops the wheel until the next tide comes."""
'''


ADDED = '''
from somewhere import add_newdoc
add_newdoc("toymill._impl", "fast", """A compiled function with a docstring elsewhere.""")
add_newdoc("toymill._impl", "Mill", ("turn", "Turns the wheel once by hand."))
'''


@pytest.fixture(scope="module")
def toymill(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "toymill"
    folder.mkdir()
    (folder / "__init__.py").write_text(INIT)
    (folder / "_impl.py").write_text(IMPL)
    (folder / "_docs.py").write_text(ADDED)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_x.py").write_text('def test(): """A test is no documentation."""')
    (folder / "explodes.py").write_text('"""Imports are never run here, else."""\nraise SystemExit')
    sys.path.insert(0, str(folder.parent))
    yield folder
    sys.path.remove(str(folder.parent))
    assert "toymill" not in sys.modules


def test_modules_and_classes_are_documents_with_public_titles(toymill):
    bad = BadLines()
    found = {d.id: d for d in documents.read("python_docs", "toymill", bad=bad)}
    assert bad.left_out == {"docstrings that stand elsewhere too": 1}
    assert {i: [part["title"] for part in d.meta["parts"]] for i, d in found.items()} == {
        "toymill": ["toymill"],
        "toymill._impl": ["toymill.fast", "toymill.grind"],
        "toymill._impl:Mill": [*["toymill.Mill"] * 2, "toymill.Mill.stop", "toymill.Mill.turn"],
        "toymill.explodes": ["toymill.explodes"],
    }
    assert found["toymill._impl:Mill"].title == "toymill.Mill"
    impl = found["toymill._impl"]
    assert impl.meta["parts"][1] == {
        "title": "toymill.grind",
        "kind": "function",
        "aliases": ["toymill.mill_it"],
        "summary": "Grind grain between the stones of a mill.",
        "anchors": [["toymill.Mill", "Mill"], ["sieve", "sieve"]],
    }
    assert impl.sections[1].text == "Grind grain between the stones of a mill."
    assert impl.meta["package"] == impl.title == "toymill" and impl.meta["kind"] == "module"
    assert not any("Nobody" in section.text for section in impl.sections)


def test_the_held_out_fifth_can_be_left_out():
    every, kept, tests = (
        {d.id: d for d in documents.read("python_docs", "optax", held_out=choice)}
        for choice in ("include", "exclude", "only")
    )
    assert every == {**kept, **tests} and not set(kept) & set(tests)
    assert kept and tests and all(d.meta["held_out"] for d in tests.values())
    assert not any(d.meta["held_out"] for d in kept.values())
    with pytest.raises(UserError, match="'scipi' is not installed.*did you mean 'scipy'"):
        documents.shards("python_docs", "scipi")
