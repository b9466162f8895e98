"""MRQA's contexts. A first line {"header": …} names the data set; every other line is a context
with its questions. Markers of the format tell documents, titles and paragraphs apart:
`[DOC] [TLE] a title [PAR] text [SEP] text`. `readers/queries/mrqa.py` reads the questions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from qac_jax.formats.documents import Document, Section
from qac_jax.formats.files import Line
from qac_jax.formats.lines import json_object, line_format, made_id, string


_MARKER = re.compile(r"\s*\[(DOC|TLE|PAR|SEP)\]\s*")


def _document(line: Line, options: Mapping[str, str]) -> Document | None:
    record = json_object(line.text)
    if "header" in record:
        return None
    sections = _sections(string(record, "context", what="context"))
    title = next((section.heading for section in sections if section.heading), "")
    return Document(made_id(line), title, sections, source="mrqa", place=line.place)


def _sections(context: str) -> tuple[Section, ...]:
    """The text between the markers; a title heads what follows it."""
    parts = _MARKER.split(context)
    heading, sections = "", []
    for marker, text in zip(["PAR", *parts[1::2]], parts[::2], strict=True):
        if marker == "TLE":
            heading = text.strip()
        elif text.strip():
            sections.append(Section(heading, text.strip()))
    return tuple(sections)


FORMAT = line_format(_document, (".jsonl",))
