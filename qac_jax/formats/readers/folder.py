"""Any folder: Markdown, HTML, text, tables, JSON lines and PDF, mixed.

A page is a document of sections, a row of a table a document; ids begin with the path below the
folder. What is not read is listed with the reason, and stops nothing: a `PageFormat` raises
`NotRead` for a file and calls `source.skip` for a row. Links are never followed.
"""

import codecs
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

from qac_jax import artifacts
from qac_jax.artifacts.reading import CLAIM
from qac_jax.errors import UserError
from qac_jax.formats import registry
from qac_jax.formats.bad_lines import BadLines, Note, Skipped
from qac_jax.formats.documents import Document, DocumentFormat, Pieces, Section, Shard
from qac_jax.formats.files import LONGEST_LINE, is_file, share_out
from qac_jax.formats.identities import id_hash


BINARY, EMPTY, WORDLESS = "binary file", "empty file", "no text in it"
# What --columns gives to columns of tables.
ROLES = ("id", "title", "text", "url")

# Between the parts of a title: document, chapter, section.
_ARROW = " > "
_LONGEST_TITLE = 300
# Living indexes take 512 characters, with the numbers of passages.
_LONGEST_ID = 400
# A run file divides its columns by blanks.
_UNFIT = re.compile(r"[\s%]")

# Folders that programs fill for themselves.
_OF_PROGRAMS = frozenset({"__pycache__", "node_modules", "__MACOSX", "site-packages"})
# A collection's own files in BEIR's layout, which are not documents.
_QUERIES, _JUDGEMENTS = ("queries.jsonl", "queries.tsv"), "qrels"

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_HEAD, _SAMPLE = 1 << 13, 1 << 18
# With fewer bytes beyond ASCII than this, frequencies of letters say nothing.
_ENOUGH = 24


class NotRead(Exception):
    """Why a file gives no documents: `reason` is counted, `detail` is listed."""

    def __init__(self, reason: str, detail: str = ""):
        self.reason, self.detail = reason, detail
        super().__init__(reason)


@dataclass
class Source:
    """A file below the folder `base`, and where choices are noted."""

    file: str
    base: str
    columns: Mapping[str, str] = field(default_factory=dict)
    bad: BadLines = field(default_factory=BadLines)

    @functools.cached_property
    def path(self) -> str:
        return _shown(os.path.relpath(self.file, self.base))

    @property
    def id(self) -> str:
        """The path without blanks, as ids stand in run files and judgements."""
        return _UNFIT.sub(lambda match: quote(match[0]), self.path)

    @property
    def name(self) -> str:
        """The file's name as a title."""
        stem = os.path.splitext(os.path.basename(self.path))[0]
        return " ".join(re.sub(r"[_\-]+", " ", stem).split()) or self.path

    def raw(self, most: int = 0) -> bytes:
        most = most or LONGEST_LINE
        with open(self.file, "rb") as file:
            raw = file.read(most + 1)
        if len(raw) > most:
            raise NotRead("too large", f"more than {most:,} bytes; divide it")
        return raw

    def text(self, declared: Callable[[bytes], str] = lambda raw: "", most: int = 0) -> str:
        """The whole file with plain line ends. `declared` reads the encoding in its beginning."""
        raw = self.raw(most)
        if is_binary(raw):
            raise NotRead(BINARY)
        text, encoding, guessed = decoded(raw, declared(raw[:4096]))
        if not text.strip():
            raise NotRead(EMPTY)
        if guessed:
            self.note(f"is not UTF-8; read as {encoding}, which is a guess")
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def skip(self, reason: str, detail: str = "", line: int | None = None) -> None:
        self.bad.skipped.append(Skipped(self.path, reason, detail, line))

    def note(self, text: str) -> None:
        self.bad.notes.append(Note(self.path, text))


@dataclass(frozen=True)
class PageFormat:
    """A kind of file. suffixes: what names end with, in lower case ("": names without a dot)."""

    suffixes: tuple[str, ...]
    read: Callable[[Source], Iterable[Document]]


class Headed(NamedTuple):
    """A heading (level 1 is the highest) and the text below it, up to the next one."""

    level: int
    heading: str
    text: str


def page(
    source: Source,
    title: str,
    headed: Sequence[Headed],
    meta: Mapping[str, Any] | None = None,
    further: Sequence[Mapping[str, Any]] = (),
) -> Document:
    """A document of sections, each with the way to it as its title: Manual > Setup > Linux."""
    # A heading that goes on and on is text.
    headed = [
        part
        if len(part.heading) <= _LONGEST_TITLE
        else Headed(part.level, "", f"{part.heading}\n{part.text}".rstrip())
        for part in headed
    ]
    headings = [part.heading for part in headed if part.heading]
    title = title if title and len(title) <= _LONGEST_TITLE else [*headings, source.name][0]
    sections, parts = [], []
    above: list[Headed] = []
    for number, part in enumerate(headed):
        if part.heading:
            above = [*(one for one in above if one.level < part.level), part]
        if not part.text.strip():
            continue
        way = [one.heading for one in above]
        # The first heading often only repeats the title ("Setup" and "Setup | Our manual").
        first, whole = way[0].casefold() if way else "", title.casefold()
        repeats = first == whole or (len(first) > 3 and first in whole)
        about: dict[str, Any] = {"title": _ARROW.join([title, *way[repeats:]])}
        if way:
            about["heading"] = _ARROW.join(way)
        about.update(further[number] if number < len(further) else {})
        sections.append(Section(way[-1] if way else "", part.text))
        parts.append(about)
    if not sections:
        if not headings:
            raise NotRead(WORDLESS)
        sections, parts = [Section("", "\n".join(headings))], [{"title": title}]
    return document(source, source.id, title, sections, {**(meta or {}), "parts": parts})


def document(
    source: Source, name: str, title: str, sections: Sequence[Section], meta: Mapping[str, Any]
) -> Document:
    """A document with its file's path among what is known of it."""
    known = {key: value for key, value in meta.items() if value not in ("", None, {}, [])}
    name, title, parts, known = _sound([name, title, sections, {"path": source.path, **known}])
    if len(name) > _LONGEST_ID:
        name = f"{name[:_LONGEST_ID]}~{id_hash(name):016x}"
    return Document(name, title, tuple(Section(*part) for part in parts), meta=known)


def _sound(value: Any) -> Any:
    """Without what JSON in UTF-8 cannot hold: halves of surrogate pairs, infinities."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return json.loads(text.decode("utf-16", "replace"), parse_constant=str)


def is_binary(raw: bytes) -> bool:
    return b"\0" in raw[:_HEAD] and not raw.startswith(_UTF_16)


def decoded(raw: bytes, declared: str = "") -> tuple[str, str, bool]:
    """(text, encoding, whether that is a guess): by byte-order mark, as UTF-8, as declared, or what
    charset-normalizer takes it for."""
    if raw.startswith(_UTF_16):
        return raw.decode("utf-16", "replace"), "utf-16", False
    for name in ("utf-8-sig", declared.lower()):
        try:
            return raw.decode(name), name, False
        except (LookupError, ValueError):
            pass
    best = None
    if sum(byte > 127 for byte in raw[:_SAMPLE]) >= _ENOUGH:
        from charset_normalizer import from_bytes

        best = from_bytes(raw[:_SAMPLE]).best()
    name = best.encoding if best else "cp1252"
    return raw.decode(name, "replace"), name, True


def asked_columns(text: str) -> dict[str, str]:
    """The value of --columns: role -> column (of text: columns joined by +)."""
    items = [part.partition("=") for part in text.split(",") if part.strip()]
    chosen = {role.strip(): name.strip() for role, _, name in items}
    if not all(chosen.values()) or not set(chosen) <= set(ROLES):
        raise UserError(f"columns={text!r}: expected such as id=nr,title=name,text=a+b,url=link")
    return chosen


# The folder.


def _share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    asked_columns(options["columns"])
    found, skipped = _walked(path)
    if not found:
        why = ", ".join(sorted({item.reason for item in skipped})) or "it is empty"
        raise UserError(f"{path} holds no file that can be read ({why})")
    return share_out(found, count, cut=False)


def _read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    columns = asked_columns(shard.options["columns"])
    base = os.path.dirname(shard.path) if is_file(shard.path) else shard.path
    if shard.index == 0:
        bad.skipped += _walked(shard.path)[1]
    for piece in shard.pieces:
        source = Source(piece.file, base, columns, bad)
        try:
            yield from _kinds()[_suffix(piece.file)].read(source)
        except NotRead as error:
            source.skip(error.reason, error.detail)
        except OSError as error:
            source.skip("unreadable", error.strerror or str(error))
        except RecursionError:
            source.skip("nested too deeply")


@functools.cache
def _kinds() -> dict[str, PageFormat]:
    """Suffix -> what reads such files."""
    return {suffix: kind for kind in registry.PAGES.formats.values() for suffix in kind.suffixes}


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _walked(root: str) -> tuple[list[str], list[Skipped]]:
    """All files below a folder (or the one file) that are read, in the order of their paths, and
    what is not read."""
    if is_file(root) or not os.path.isdir(root):
        if not is_file(root) or _suffix(root) not in _kinds():
            raise UserError(f"{root} is neither a folder nor a file of a kind that is read")
        return [root], []
    found: list[str] = []
    skipped: list[Skipped] = []

    def skip(path: str, reason: str, detail: str = "") -> None:
        skipped.append(Skipped(_shown(os.path.relpath(path, root)), reason, detail))

    def unreadable(error: OSError) -> None:
        skip(error.filename, "unreadable", error.strerror or "")

    for folder, folders, files in os.walk(root, onerror=unreadable):
        inside = {name for name in folders if not is_file(os.path.join(folder, name))}
        names, folders[:] = sorted([*folders, *files]), []
        for name in names:
            path = os.path.join(folder, name)
            if reason := _refused(path, os.path.relpath(path, root), name in inside):
                skip(path, *reason)
            else:
                (folders if name in inside else found).append(name if name in inside else path)
    found.sort(key=lambda path: _shown(path).split("/"))
    return found, sorted(skipped)


def _shown(path: str) -> str:
    """A path as text, whatever bytes its names hold."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _refused(path: str, below: str, folder: bool) -> tuple[str, str] | None:
    """(reason, detail) why a file or folder is not read; None where it is."""
    name = os.path.basename(path)
    if os.path.islink(path):
        return "link", _shown(os.readlink(path))
    if name.startswith("."):
        return "hidden", ""
    if below in _QUERIES or folder and below == _JUDGEMENTS:
        return "queries and judgements", ""
    if folder:
        if any(os.path.exists(os.path.join(path, n)) for n in (artifacts.COMMIT, CLAIM)):
            return "result of this program", ""
        return ("folder of a program", "") if name in _OF_PROGRAMS else None
    if not is_file(path):
        return "neither a file nor a folder", ""
    if _suffix(name) not in _kinds():
        return "other kind of file", _suffix(name)
    if not os.access(path, os.R_OK):
        return "unreadable", ""
    return None if os.path.getsize(path) else (EMPTY, "")


DOCUMENT_FORMATS = {"folder": DocumentFormat(_share, _read, options={"columns": ""})}
