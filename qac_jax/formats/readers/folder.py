"""Any folder: Markdown, HTML, text, tables, JSON lines, reStructuredText and PDF, mixed.

A page is a document of sections, a row of a table a document; ids begin with the path below the
folder. What is not read is listed with the reason, and stops nothing. Each kind of file is a
`PageFormat`, whose reader takes a `Source` and gives documents; a file that cannot be read raises
`NotRead`, a row is `source.skip`. Links are never followed: what they lead to is either read under
its own name or not in the folder.
"""

import codecs
import functools
import math
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

from qac_jax import artifacts
from qac_jax.artifacts.reading import CLAIM
from qac_jax.errors import UserError, nearest
from qac_jax.formats import registry
from qac_jax.formats.bad_lines import BadLines, Skipped
from qac_jax.formats.documents import (
    Document,
    DocumentFormat,
    Pieces,
    Section,
    Shard,
    default_count,
    shared,
)


BINARY, EMPTY, WORDLESS = "binary file", "empty file", "no text in it"
# What --columns gives to columns of tables.
ROLES = ("id", "title", "text", "url")

# Between the parts of a title: document, chapter, section.
_ARROW = " > "
_LONGEST_TITLE = 300
# A run file divides its columns by blanks.
_UNFIT = re.compile(r"[\s%]")

# Folders that programs fill for themselves.
_OF_PROGRAMS = frozenset({"__pycache__", "node_modules", "__MACOSX", "site-packages"})
# A collection's own files in BEIR's layout, which are not documents.
_QUERIES, _JUDGEMENTS = ("queries.jsonl", "queries.tsv"), "qrels"

# Bytes that text does not hold; tab, line ends, form feed and escape are not among them.
_CONTROLS = bytes(b for b in range(32) if b not in (7, 8, 9, 10, 11, 12, 13, 27)) + b"\x7f"
_SIGNATURES = (b"%PDF-", b"PK\x03\x04", b"\x89PNG", b"\xff\xd8\xff", b"\x1f\x8b", b"\x28\xb5\x2f")
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
    limit: int
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

    def raw(self) -> bytes:
        with open(self.file, "rb") as file:
            raw = file.read(self.limit + 1)
        if len(raw) > self.limit:
            raise NotRead("too large", f"more than {self.limit >> 20} MB")
        return raw

    def text(self, declared: Callable[[bytes], str] = lambda raw: "") -> str:
        """The whole file with plain line ends. `declared` reads the encoding in its beginning."""
        raw = self.raw()
        if is_binary(raw):
            raise NotRead(BINARY)
        text, encoding, guessed = decoded(raw, declared(raw[:4096]))
        if not text.strip():
            raise NotRead(EMPTY)
        if guessed:
            self.bad.note(self.path, f"is not UTF-8; read as {encoding}, which is a guess")
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def skip(self, reason: str, detail: str = "", line: int | None = None) -> None:
        self.bad.skip(self.path, reason, detail, line)


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
    """A document of sections. The title of each is the way to it: Manual > Setup > Linux.

    `further`: what else is known of each section, such as its page.
    """
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
    """A document with its file's path among what is known of it; without halves of surrogate pairs,
    which no UTF-8 file can hold."""
    known = {key: value for key, value in meta.items() if value not in ("", None, {}, [])}
    sound = tuple(Section(_sound(s.heading), _sound(s.text)) for s in sections)
    return Document(_sound(name), _sound(title), sound, meta=_sound({"path": source.path, **known}))


def _sound(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    elif isinstance(value, Mapping):
        return {_sound(str(key)): _sound(one) for key, one in value.items()}
    elif isinstance(value, list | tuple):
        return [_sound(one) for one in value]
    elif isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def is_binary(raw: bytes) -> bool:
    """Whether these bytes are not text: a signature, zero bytes, many control characters."""
    if raw.startswith(_UTF_16):
        return False
    head = raw[:_HEAD]
    many = len(head) - len(head.translate(None, _CONTROLS)) > len(head) // 20
    return raw.startswith(_SIGNATURES) or b"\0" in head or many


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
    """What --columns says: role -> column (of text: columns joined by +)."""
    chosen: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        role, equals, name = (part.strip() for part in item.partition("="))
        if not equals or not name:
            raise UserError(
                f"columns={text!r}: {item!r} is not of the form role=column; expected such as "
                f"id=nr,title=name,text=question+answer,url=link"
            )
        if role not in ROLES:
            raise UserError(
                f"columns={text!r}: {role!r} is not one of {', '.join(ROLES)} "
                f"({nearest(role, ROLES)})"
            )
        chosen[role] = name
    return chosen


# The folder.


def _share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    asked_columns(options["columns"])
    found, skipped = _walked(path, options)
    if not found:
        bad = BadLines()
        bad.skipped += skipped
        raise UserError(
            f"{path} holds no file that can be read ({bad.reasons() or 'it is empty'}); expected "
            f"{', '.join(suffix for suffix in sorted(_kinds(options['as_text'])) if suffix)}"
        )
    return shared(found, min(count or default_count(found), len(found)), cut=False)


def _read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    options = shard.options
    kinds, columns = _kinds(options["as_text"]), asked_columns(options["columns"])
    base = shard.path if os.path.isdir(shard.path) else os.path.dirname(shard.path)
    if shard.index == 0:
        bad.skipped += _walked(shard.path, options)[1]
    for piece in shard.pieces:
        source = Source(piece.file, base, _limit(options), columns, bad)
        kind = kinds[os.path.splitext(piece.file)[1].lower()]
        try:
            yield from kind.read(source)
        except NotRead as error:
            source.skip(error.reason, error.detail)
        except OSError as error:
            source.skip("unreadable", error.strerror or str(error))
        except RecursionError:
            source.skip("nested too deeply")


def _limit(options: Mapping[str, str]) -> int:
    if not options["max_mb"].isdecimal() or not int(options["max_mb"]):
        raise UserError(f"max_mb={options['max_mb']!r} is not a size; expected such as 100")
    return int(options["max_mb"]) << 20


@functools.cache
def _kinds(as_text: str) -> dict[str, PageFormat]:
    """Suffix -> what reads such files; `as_text` lists further suffixes of plain text."""
    kinds = {suffix: kind for kind in registry.PAGES.all().values() for suffix in kind.suffixes}
    for suffix in filter(None, (part.strip().lower() for part in as_text.split(","))):
        kinds[f".{suffix.lstrip('.')}"] = registry.PAGES.get("text")
    return kinds


def _walked(root: str, options: Mapping[str, str]) -> tuple[list[str], list[Skipped]]:
    """All files below a folder (or the one file) that are read, in the order of their paths, and
    what is not read."""
    suffixes, limit = _kinds(options["as_text"]), _limit(options)
    if not os.path.isdir(root):
        if not os.path.isfile(root):
            raise UserError(f"{root} is not a folder; format folder reads one folder, or one file")
        if os.path.splitext(root)[1].lower() not in suffixes:
            raise UserError(
                f"{root} is of a kind that is not read; expected a folder, or a file named "
                f"{', '.join('*' + suffix for suffix in sorted(suffixes) if suffix)}"
            )
        return [root], []
    found: list[str] = []
    skipped: list[Skipped] = []
    top = os.path.realpath(root)
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            entries = list(os.scandir(os.path.join(root, below)))
        except OSError as error:
            skipped.append(Skipped(_shown(below) or ".", "unreadable", error.strerror or ""))
            continue
        for entry in entries:
            path = os.path.join(below, entry.name)
            if reason := _refused(entry, path, top, suffixes, limit):
                skipped.append(Skipped(_shown(path), *reason))
            elif entry.is_dir(follow_symlinks=False):
                pending.append(path)
            else:
                found.append(path)
    found.sort(key=lambda path: _shown(path).split("/"))
    return [os.path.join(root, path) for path in found], sorted(skipped)


def _shown(path: str) -> str:
    """A path as text, whatever bytes its names hold."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _refused(
    entry: os.DirEntry[str], path: str, top: str, suffixes: Collection[str], limit: int
) -> tuple[str, str] | None:
    """(reason, detail) why an entry is not read; None where it is."""
    if entry.is_symlink():
        target = os.path.realpath(entry.path)
        where = "within" if os.path.commonpath([top, target]) == top else "out of"
        return f"link {where} the folder", _shown(os.readlink(entry.path))
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        return "unreadable", error.strerror or ""
    folder = stat.S_ISDIR(status.st_mode)
    if entry.name.startswith("."):
        return f"hidden {'folder' if folder else 'file'}", ""
    if not folder and not stat.S_ISREG(status.st_mode):
        return "neither a file nor a folder", ""
    if not os.access(entry.path, os.R_OK | (os.X_OK if folder else 0)):
        return "unreadable", "no permission"
    if path in _QUERIES or (folder and path == _JUDGEMENTS):
        return "queries and judgements", ""
    if folder:
        if entry.name in _OF_PROGRAMS:
            return "folder of a program", ""
        made = any(os.path.exists(os.path.join(entry.path, n)) for n in (artifacts.COMMIT, CLAIM))
        return ("result of this program", "") if made else None
    suffix = os.path.splitext(entry.name)[1].lower()
    if suffix not in suffixes:
        return "other kind of file", suffix
    if not status.st_size:
        return EMPTY, ""
    if status.st_size > limit:
        return "too large", f"{status.st_size / (1 << 20):,.0f} MB; up to {limit >> 20} are read"
    return None


DOCUMENT_FORMATS = {
    "folder": DocumentFormat(_share, _read, options={"columns": "", "as_text": "", "max_mb": "100"})
}
