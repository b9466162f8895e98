"""Tab-separated lines, without quoting or header; columns=… names them out of id, title, text, url
and _. Without an id, records are numbered by their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qac_jax.errors import UserError, nearest
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import Document, DocumentFormat, Pieces, Shard
from qac_jax.formats.files import Line
from qac_jax.formats.lines import columns, made_id, read_lines, share_lines, table_passage


_COLUMNS = ("id", "title", "text", "url", "_")


def share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    names = options["columns"].split(",")
    for name in names:
        if name not in _COLUMNS:
            raise UserError(
                f"columns={options['columns']}: no column {name!r}; expected names "
                f"out of {', '.join(_COLUMNS)} ({nearest(name, _COLUMNS)})"
            )
    if "text" not in names:
        raise UserError(f"columns={options['columns']}: one of them must be called text")
    return share_lines(path, count, (".tsv", ".txt"))


def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    names = shard.option("columns").split(",")

    def parse(line: Line) -> Document:
        row = dict(zip(names, columns(line.text, names), strict=True))
        name = row["id"] if "id" in names else made_id(line)
        document = table_passage(name, row.get("title", ""), row["text"], line)
        if "url" in names:
            document.meta["url"] = row["url"]  # type: ignore[index]
        return document

    return read_lines(shard, bad, parse)


FORMAT = DocumentFormat(share, read, options={"columns": "id,text"})
