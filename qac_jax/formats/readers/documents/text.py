"""A folder of text files: one file is one document, its path below the folder its id."""

from __future__ import annotations

import os
import re

from qac_jax.formats.documents import Document, Section
from qac_jax.formats.lines import folder_format


_PARAGRAPHS = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")


def _document(name: str, text: str) -> Document:
    """Paragraphs (divided by blank lines) become one line each."""
    paragraphs = (" ".join(p.split()) for p in _PARAGRAPHS.split(text))
    body = "\n".join(p for p in paragraphs if p)
    title = os.path.splitext(os.path.basename(name))[0].replace("_", " ")
    return Document(name, title, (Section("", body),))


FORMAT = folder_format(_document, (".txt", ".text", ".md", ".rst"))
