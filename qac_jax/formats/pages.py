"""What a folder of documents holds: kinds of files, and how one of them becomes documents.

Each kind is a module of `readers/pages` that declares FORMAT, a `PageFormat`. Its reader takes a
`Source` and gives documents; a file that cannot be read raises `NotRead`, a row is `source.skip`.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

from qac_jax.formats import encodings
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import Document, Section


BINARY, EMPTY, WORDLESS = "binary file", "empty file", "no text in it"

# Between the parts of a title: document, chapter, section.
ARROW = " > "
_LONGEST_TITLE = 300

_PARAGRAPHS = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
# A run file divides its columns by blanks.
_UNFIT = re.compile(r"[\s%]")


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
        """Below the folder, as text, whatever bytes its names hold."""
        relative = os.path.relpath(self.file, self.base)
        return os.fsencode(relative).decode("utf-8", "backslashreplace")

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
        if encodings.is_binary(raw):
            raise NotRead(BINARY)
        text, encoding, guessed = encodings.decoded(raw, declared(raw[:4096]))
        if not text.strip():
            raise NotRead(EMPTY)
        if guessed:
            self.bad.note(self.path, f"is not UTF-8; read as {encoding}, which is a guess")
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def skip(self, reason: str, detail: str = "", line: int | None = None) -> None:
        self.bad.skip(self.path, reason, detail, line)


@dataclass(frozen=True)
class PageFormat:
    """A kind of file; a file of `readers/pages` declares one as FORMAT.

    suffixes: what names end with, in lower case ("": names without a dot). read: its documents.
    """

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
    headed = [_sized(part) for part in headed]
    title = title if len(title) <= _LONGEST_TITLE else ""
    first = next((part.heading for part in headed if part.heading), "")
    title = title or first or source.name
    sections, parts = [], []
    above: list[Headed] = []
    for number, part in enumerate(headed):
        if part.heading:
            above = [*(one for one in above if one.level < part.level), part]
        if not part.text.strip():
            continue
        way = [one.heading for one in above]
        names = way[1:] if way and _alike(way[0], title) else way
        about: dict[str, Any] = {"title": ARROW.join([title, *names])}
        if way:
            about["heading"] = ARROW.join(way)
        about.update(further[number] if number < len(further) else {})
        sections.append(Section(above[-1].heading if above else "", part.text))
        parts.append(about)
    if not sections:
        headings = "\n".join(part.heading for part in headed if part.heading)
        if not headings:
            raise NotRead(WORDLESS)
        sections, parts = [Section("", headings)], [{"title": title}]
    return document(source, source.id, title, sections, {**(meta or {}), "parts": parts})


def _sized(part: Headed) -> Headed:
    """A heading that goes on and on is text."""
    if len(part.heading) <= _LONGEST_TITLE:
        return part
    return Headed(part.level, "", "\n".join(filter(None, (part.heading, part.text))))


def document(
    source: Source,
    name: str,
    title: str,
    sections: Sequence[Section],
    meta: Mapping[str, Any],
) -> Document:
    """A document with its file's path among what is known of it."""
    known = {key: value for key, value in meta.items() if value not in ("", None, {}, [])}
    whole = Document(name, title, tuple(sections), meta={"path": source.path, **known})
    return _sound(whole)


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs (divided by blank lines) as one line each."""
    for part in _PARAGRAPHS.split(text):
        if joined := " ".join(part.split()):
            yield joined


def _alike(heading: str, title: str) -> bool:
    """Whether the first heading only repeats the title ("Setup" and "Setup | Our manual")."""
    heading, title = heading.casefold(), title.casefold()
    return heading == title or (len(heading) > 3 and heading in title)


def _sound(whole: Document) -> Document:
    """The same without halves of surrogate pairs, which no UTF-8 file can hold."""
    return Document(
        well_formed(whole.id),
        well_formed(whole.title),
        tuple(Section(well_formed(s.heading), well_formed(s.text)) for s in whole.sections),
        meta=_well_formed_in(whole.meta),
    )


def well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _well_formed_in(value: Any) -> Any:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, Mapping):
        return {well_formed(str(key)): _well_formed_in(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_well_formed_in(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
