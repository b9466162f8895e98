"""MS MARCO documents: docid, url, title, body in msmarco-docs.tsv, without quoting or header."""

from __future__ import annotations

import re
from collections.abc import Mapping

from qac_jax.formats.documents import Document, Section
from qac_jax.formats.files import Line
from qac_jax.formats.lines import columns, line_format


_COLUMNS = ("docid", "url", "title", "body")
_BLANKS = re.compile("[ \t]+")


def _document(line: Line, options: Mapping[str, str]) -> Document:
    """`released`: as the released code reads them, title and body merged into one line.

    Its awk keeps the blank-separated fields from the third to the last, so the title is part
    of the text and runs of blanks are one.
    """
    docid, url, title, body = columns(line.text, _COLUMNS)
    if options["released"] == "true":
        title, body = "", " ".join(_BLANKS.split(line.text.strip(" \t"))[2:])
    sections = (Section("", body),)
    return Document(
        docid, title.strip(), sections, source="msmarco", meta={"url": url}, place=line.place
    )


FORMAT = line_format(_document, (".tsv",), options={"released": "false"})
