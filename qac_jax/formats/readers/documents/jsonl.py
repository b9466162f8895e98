"""Plain JSON lines and The Pile: {"text": …, "meta": {"pile_set_name": …}}.

The keys of id, title and text are the usual ones, or those that the options of these names give.
Records with {"sections": [{"heading", "text"}, …]} keep them. What is left goes to the
document's meta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qac_jax.formats.bad_lines import BadRecord
from qac_jax.formats.documents import Document, Section
from qac_jax.formats.files import Line
from qac_jax.formats.lines import json_object, line_format, made_id, string


_IDS = ("_id", "id", "docid", "doc_id", "text_id", "pid")
_TITLES = ("title", "headline")
_TEXTS = ("text", "contents", "content", "body", "passage", "article")


def document_of(record: Mapping[str, Any], keys: Mapping[str, str], line: Line) -> Document:
    """`keys` names the keys of id, title and text; empty: whichever usual one there is."""
    name = _key(record, keys["id"], _IDS)
    title = _key(record, keys["title"], _TITLES)
    text = _key(record, keys["text"], (*_TEXTS, "sections"))
    if text == "sections":
        given = record["sections"]
        sections = tuple(_section(p) for p in (given if isinstance(given, list) else [given]))
    else:
        sections = (Section("", string(record, text, what="text")),)
    meta = record.get("meta", record.get("metadata"))
    meta = dict(meta) if isinstance(meta, dict) else {}
    used = {name, title, text, "meta", "metadata", "source"}
    meta |= {key: value for key, value in record.items() if key not in used}
    return Document(
        string(record, name, what="id" if keys["id"] else "") or made_id(line),
        string(record, title).strip(),
        sections,
        source=string(record, "source") or str(meta.pop("pile_set_name", "")),
        meta=meta,
        place=line.place,
    )


def _key(record: Mapping[str, Any], given: str, usual: Sequence[str]) -> str:
    return given or next((key for key in usual if record.get(key) is not None), usual[0])


def _section(part: Any) -> Section:
    if not isinstance(part, dict):
        raise BadRecord("sections are not objects {heading, text}")
    return Section(string(part, "heading", "title"), string(part, "text", what="section's text"))


FORMAT = line_format(
    lambda line, options: document_of(json_object(line.text), options, line),
    (".jsonl", ".json", ".ndjson"),
    options={"id": "", "title": "", "text": ""},
)
