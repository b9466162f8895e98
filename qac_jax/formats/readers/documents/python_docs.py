"""Docstrings of installed Python packages; the path lists them: numpy,scipy,stdlib."""

from __future__ import annotations

from qac_jax.formats.documents import DocumentFormat
from qac_jax.formats.python import python_docs


FORMAT = DocumentFormat(
    python_docs.share,
    python_docs.read,
    options={"held_out": "include", "kinds": "", "sections": "all", "summary": "keep"},
)
