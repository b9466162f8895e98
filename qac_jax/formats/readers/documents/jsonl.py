"""Plain JSON lines and The Pile: {"text": …, "meta": {"pile_set_name": …}}.

The keys of id, title and text are the usual ones, or those that the options of these names give.
Records with {"sections": [{"heading", "text"}, …]} keep them. What is left goes to the
document's meta, but for AugQ's outputs, which `qac generate --imported` reads. With the option
source=Pile-CC only documents of this source (pile_set_name) are read; the others are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.documents import Document, DocumentFormat, Pieces, Section, Shard
from qac_jax.formats.files import Line
from qac_jax.formats.lines import json_object, made_id, read_lines, share_lines, string


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
        empty = text in record and record[text] is None
        sections = (Section("", "" if empty else string(record, text, what="text")),)
    meta = record.get("meta", record.get("metadata"))
    meta = dict(meta) if isinstance(meta, dict) else {}
    used = {name, title, text, "meta", "metadata", "source", "outputs"}
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


def share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    return share_lines(path, count, (".jsonl", ".json", ".ndjson"))


def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    options = dict(shard.options)
    wanted = options["source"]

    def parse(line: Line) -> Document | None:
        document = document_of(json_object(line.text), options, line)
        if wanted and document.source != wanted:
            bad.leave_out("documents of other sources")
            return None
        return document

    return read_lines(shard, bad, parse)


FORMAT = DocumentFormat(share, read, options={"id": "", "title": "", "text": "", "source": ""})
