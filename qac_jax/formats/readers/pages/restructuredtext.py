"""reStructuredText: underlined titles as sections, directives by what they hold, roles as text.

Nothing is executed or included: `include`, `raw` and the like are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from qac_jax.formats.documents import Document
from qac_jax.formats.pages import Headed, PageFormat, Source, page


_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1{1,}[ \t]*")
_DIRECTIVE = re.compile(r"\.\.[ \t]+(?:\|[^|\n]*\|[ \t]+)?([\w:.+\-]+)::(?:[ \t]+(.*))?[ \t]*")
_TARGET = re.compile(r"\.\.[ \t]+_(`[^`]*`|[^:]*):(?:[ \t]+(.*))?")
_FOOTNOTE = re.compile(r"\.\.[ \t]+\[([^\]]+)\](?:[ \t]+(.*))?")
_OPTION = re.compile(r":([\w\- ]+):(?:[ \t]+(.*))?[ \t]*")
_ITEM = re.compile(r"(?:[-*+•]|\(?(?:\d{1,9}|#)[.)])[ \t]+")
_GRID = re.compile(r"\+[-=+]+\+")
_COLUMNS = re.compile(r"=+(?:[ \t]+=+)+")
_CODE = re.compile(r"``(.+?)``")
_ROLE = re.compile(r"(?::[\w:+.\-]{1,60}:)`([^`]+)`|`([^`]+)`:[\w:+.\-]{1,60}:")
_LINK = re.compile(r"`([^`<>]*?)[ \t]*<([^<>`]+)>`__?")
_NAMED = re.compile(r"`([^`]+)`(?:__?)?")
_REFERENCE = re.compile(r"(?<![\w`])([A-Za-z0-9](?:[\w.\-]{0,80}[A-Za-z0-9])?)__?(?!\w)")
_STRONG = re.compile(r"\*\*(?=\S)([^*\n]{1,400}?)(?<=\S)\*\*")
_EMPHASIS = re.compile(r"(?<![\w*])\*(?=\S)([^*\n]{1,400}?)(?<=\S)\*(?![\w*])")
_HELD = re.compile("\ue000(\\d+)\ue001")

# Directives whose content a reader of the page does not see.
_HIDDEN = frozenset(
    {
        "toctree", "contents", "include", "literalinclude", "raw", "meta", "index", "image",
        "highlight", "default-role", "role", "sectnum", "section-numbering", "only", "automodule",
        "autoclass", "autofunction", "automethod", "autosummary", "currentmodule", "module",
        "plot", "graphviz", "math", "title", "unicode", "date", "replace", "target-notes",
    }
)  # fmt: skip
# Directives whose argument is no text but a file or a language.
_ARGUMENT_HIDDEN = frozenset(
    {"figure", "code-block", "code", "sourcecode", "csv-table", "testcode"}
)
_SAID = frozenset({"deprecated", "versionadded", "versionchanged"})


def read(source: Source) -> Iterator[Document]:
    reader = _Reader(source.text().expandtabs(8).split("\n"))
    headed = reader.headed()
    first = next((part.heading for part in headed if part.heading), "")
    meta = {"anchors": reader.anchors, "front_matter": reader.fields}
    yield page(source, reader.title or first, headed, meta)


class _Reader:
    def __init__(self, lines: list[str]):
        self.anchors: list[list[str]] = []
        self.fields: dict[str, str] = {}
        self.title = ""
        self._lines = lines
        self._styles: list[str] = []  # adornments in the order of their levels

    def headed(self) -> list[Headed]:
        found: list[Headed] = []
        level, heading, body = 0, "", list[str]()
        number = 0
        while number < len(self._lines):
            title = self._title_at(number)
            if title is None:
                number = self._block(number, body)
                continue
            found.append(Headed(level, heading, "\n".join(body)))
            level, heading, number = title
            body = []
        found.append(Headed(level, heading, "\n".join(body)))
        return found

    def _title_at(self, number: int) -> tuple[int, str, int] | None:
        """(level, title, the next line) where a title begins, with or without an overline."""
        line = self._lines[number]
        text, under = self._line(number + 1), self._line(number + 2)
        if _ADORNMENT.fullmatch(line) and text.strip() and under.strip() == line.strip():
            if len(line.strip()) >= len(text.strip()):
                return self._level(f"{line[0]}{line[0]}"), self._plain(text.strip()), number + 3
        if line.strip() and line[0] != " " and _ADORNMENT.fullmatch(text):
            if len(text.strip()) >= min(len(line.rstrip()), 4) and not _ADORNMENT.fullmatch(line):
                return self._level(text[0]), self._plain(line.strip()), number + 2
        return None

    def _level(self, style: str) -> int:
        if style not in self._styles:
            self._styles.append(style)
        return self._styles.index(style) + 1

    def _line(self, number: int) -> str:
        return self._lines[number] if number < len(self._lines) else ""

    def _block(self, number: int, body: list[str]) -> int:
        """Reads what begins in a line into `body`; returns the number of the line after it."""
        line = self._lines[number]
        if not line.strip() or _ADORNMENT.fullmatch(line):
            return number + 1
        stripped = line.strip()
        if stripped == ".." or stripped.startswith(".. "):
            return self._explicit(number, body)
        if _COLUMNS.fullmatch(stripped) or _GRID.fullmatch(stripped):
            return self._table(number, body)
        if (option := _OPTION.fullmatch(stripped)) and not any(body):
            self.fields[option[1]] = option[2] or ""
            return number + 1
        return self._paragraph(number, body)

    def _paragraph(self, number: int, body: list[str]) -> int:
        parts: list[str] = []
        literal = False
        while number < len(self._lines) and self._lines[number].strip():
            stripped = self._lines[number].strip()
            if parts and (_ITEM.match(stripped) or self._title_at(number) is not None):
                break
            parts.append(stripped[item.end() :] if (item := _ITEM.match(stripped)) else stripped)
            literal = stripped.endswith("::")
            number += 1
        text = " ".join(parts)
        if literal:
            text = text[:-1] if text != "::" else ""
        if text and (plain := self._plain(text)):
            body.append(plain)
        if literal:
            first = next(
                (n for n in range(number, len(self._lines)) if self._line(n).strip()), None
            )
            if first is not None and self._line(first).startswith(" "):
                code, number = self._indented(number)
                body += [one for one in code if one.strip()]
        return number

    def _explicit(self, number: int, body: list[str]) -> int:
        """A directive, a comment, a footnote or a target, with the indented lines below it."""
        line = self._lines[number].strip()
        depth = len(self._lines[number]) - len(self._lines[number].lstrip())
        inside, after = self._indented(number + 1, depth)
        if directive := _DIRECTIVE.fullmatch(line):
            self._directive(directive[1].lower(), (directive[2] or "").strip(), inside, body)
        elif footnote := _FOOTNOTE.fullmatch(line):
            text = " ".join([footnote[2] or "", *(one.strip() for one in inside)])
            if plain := self._plain(text):
                body.append(plain)
        return after

    def _directive(self, name: str, argument: str, inside: list[str], body: list[str]) -> None:
        if name in _HIDDEN or name.startswith("auto"):
            return
        while inside and (not inside[0].strip() or _OPTION.fullmatch(inside[0].strip())):
            inside = inside[1:]
        code = name in ("code-block", "code", "sourcecode", "testcode", "parsed-literal")
        if argument and name not in _ARGUMENT_HIDDEN:
            said = {"deprecated": "Deprecated since", "versionadded": "Added in"}
            prefix = said.get(name, "Changed in") + " " if name in _SAID else ""
            body.append(self._plain(prefix + argument))
        if code:
            body += [one for one in inside if one.strip()]
            return
        nested = _Reader(inside)
        nested._styles = self._styles
        for part in nested.headed():
            body += [text for text in (part.heading, part.text) if text]
        self.anchors += nested.anchors

    def _indented(self, number: int, depth: int = 0) -> tuple[list[str], int]:
        """The lines that are indented more than `depth`, without their common indentation."""
        start = number
        while number < len(self._lines):
            line = self._lines[number]
            if line.strip() and len(line) - len(line.lstrip()) <= depth:
                break
            number += 1
        lines = self._lines[start:number]
        common = min((len(o) - len(o.lstrip()) for o in lines if o.strip()), default=0)
        return [one[common:] for one in lines], number

    def _table(self, number: int, body: list[str]) -> int:
        """Lines of cells; the borders go."""
        while number < len(self._lines) and (stripped := self._lines[number].strip()):
            if not (_COLUMNS.fullmatch(stripped) or _GRID.fullmatch(stripped)):
                cells = (
                    stripped.strip("|").split("|")
                    if "|" in stripped
                    else re.split(r" {2,}", stripped)
                )
                text = " | ".join(filter(None, (self._plain(cell.strip()) for cell in cells)))
                if text and not _ADORNMENT.fullmatch(stripped):
                    body.append(text)
            number += 1
        return number

    def _plain(self, text: str) -> str:
        """A line as it is read."""
        kept: list[str] = []

        def hold(match: re.Match[str]) -> str:
            kept.append(match[1])
            return f"\ue000{len(kept) - 1}\ue001"

        text = _CODE.sub(hold, " ".join(text.split()))
        text = _ROLE.sub(lambda match: self._role(match[1] or match[2]), text)
        text = _LINK.sub(self._link, text)
        text = _NAMED.sub(lambda match: match[1], text)
        text = _REFERENCE.sub(lambda match: match[1], text)
        text = _STRONG.sub(lambda match: match[1], text)
        text = _EMPHASIS.sub(lambda match: match[1], text)
        text = re.sub(r"\|([^|\s][^|]*)\|_{0,2}", lambda match: match[1], text)
        text = re.sub(r"\\(.)", lambda match: match[1].strip(), text)
        text = _HELD.sub(
            lambda match: kept[int(match[1])] if int(match[1]) < len(kept) else "", text
        )
        return " ".join(text.split())

    def _role(self, text: str) -> str:
        """:ref:`label <target>` is its label, :func:`~package.name` its last part."""
        label, bracket, target = text.partition("<")
        if bracket and label.strip():
            return label.strip()
        text = (target if bracket else text).strip("<>! ")
        return text[1:].rsplit(".", 1)[-1] if text.startswith("~") else text

    def _link(self, match: re.Match[str]) -> str:
        label = " ".join(match[1].split())
        if label:
            self.anchors.append([match[2], label])
        return label or match[2]


FORMAT = PageFormat((".rst", ".rest"), read)
