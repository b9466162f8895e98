"""Docstrings of the usual styles as plain text."""

from __future__ import annotations

from qac_jax.formats.python import docstrings


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
numpy.vsplit : Split.

Notes
-----
The kernel is

.. math::
    y = x

and nothing else happens here; it takes as long as it takes to copy all of the arrays given to it.

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
    assert parsed.see_also == ("concatenate", "hstack", "dstack", "numpy.vsplit")
    intro, interface, notes, examples = parsed.sections
    assert intro == (
        "Stack arrays in sequence vertically (row wise).\n\n"
        "Rebuilds arrays divided by vsplit. See numpy.stack and hstack, or the guide; "
        "never a ** b."
    )
    assert interface.startswith(
        "Parameters:\ntup : sequence of ndarrays\n"
        "The arrays must have the same shape along all but the first axis.\ndtype : str or dtype"
    )
    assert "\n\nReturns:\nstacked : ndarray\nThe array formed" in interface
    assert notes.startswith("Notes:\nThe kernel is\n\ny = x\n\nand nothing")
    assert examples.startswith(
        "Examples:\n>>> np.vstack((a,b))\narray([[1, 2, 3],\n       [4, 5, 6]])\n\nThen a remark on"
        " what was seen"
    )


def test_google_style_stays_together_when_short():
    text = (
        "Returns `x` scaled.\n\nArgs:\n  x: an array of any shape,\n    of floats.\n  scale: a"
        " factor.\n\nReturns:\n  The product."
    )
    parsed = docstrings.parse(text)
    assert parsed.summary == "Returns x scaled."
    assert parsed.sections == (
        "Returns x scaled.\n\nArgs:\nx: an array of any shape, of floats.\nscale: a factor.\n\n"
        "Returns:\nThe product.",
    )


def test_seealso_directives_and_google_lists_are_anchors():
    text = (
        "Does it.\n\n.. seealso::\n  The functions :func:`optax.adam`,\n  :class:`optax.Sgd`.\n\n"
        "More.\n\nSee also:\n  - :func:`jax.numpy.stack`: along a new axis\n  - hstack: flat"
    )
    parsed = docstrings.parse(text)
    assert parsed.see_also == ("optax.adam", "optax.Sgd", "jax.numpy.stack", "hstack")
    assert parsed.sections == ("Does it.\n\nMore.",)


def test_signatures_of_compiled_functions_are_no_summary():
    assert docstrings.parse("array(object,\n  dtype=None)\n--\n\nCreate an array.").sections == (
        "Create an array.",
    )
    parsed = docstrings.parse("f(x[, y]) -> value\n\nReturn the value.")
    assert parsed.summary == "Return the value."
    assert parsed.sections[0].startswith("f(x[, y]) -> value")


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


def test_marks_over_line_ends_and_directives_without_text():
    text = (
        "The parameter :math:`\\theta\nt > 0` is kept.\n\n.. autosummary::\n   :toctree: x/\n"
        "\n.. note::\n   Mind the gap.\n\n.. _target:\n\n%(params)s"
    )
    assert docstrings.parse(text).sections == (
        "The parameter \\theta t > 0 is kept.\n\nNote:\nMind the gap.",
    )


def test_nothing_gives_nothing():
    assert docstrings.parse("") == docstrings.Docstring()
    assert docstrings.parse("%(default)s").sections == ()
