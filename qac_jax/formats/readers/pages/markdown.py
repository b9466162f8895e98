"""Markdown: front matter, headings of both sorts as sections, links and emphasis as their text.

Code stays as it is, without its fences; tables become lines of their cells.
"""

from __future__ import annotations

import html
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from qac_jax.formats.documents import Document
from qac_jax.formats.pages import Headed, PageFormat, Source, page


_HEADING = re.compile(r" {0,3}(#{1,6})(?=[ \t]|$)")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[^`]*")
_RULE = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?")
_QUOTED = re.compile(r" {0,3}(?:>[ \t]?)+")
_TABLE_LINE = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?")
_DEFINITION = re.compile(r" {0,3}\[([^\[\]]{1,200})\]:[ \t]*<?([^\s<>]+)>?.*")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_TAG = re.compile(r"</?[a-zA-Z][^<>\n]{0,1000}>")
_IMAGE = re.compile(r"!\[([^\[\]]*)\](?:\([^()\n]*\)|\[[^\[\]]*\])?")
_LINK = re.compile(
    r"\[([^\[\]]+)\]\(<?([^()\s<>]*(?:\([^()\s]*\)[^()\s<>]*)?)>?(?:[ \t][^()\n]*)?\)"
)
_REFERENCE = re.compile(r"\[([^\[\]]+)\]\[([^\[\]]*)\]")
_ADDRESS = re.compile(r"<((?:https?|ftp|mailto):[^<>\s]+)>")
_STRONG = re.compile(r"(\*{1,3}|~~)(?=\S)([^*~\n]{1,400}?)(?<=\S)\1")
_UNDERSCORED = re.compile(r"(?<!\w)(_{1,3})(?=\S)([^_\n]{1,400}?)(?<=\S)\1(?!\w)")
_FOOTNOTE = re.compile(r"\[\^[^\[\]\s]{1,60}\]:?")
# ::: note, as Pandoc, Docusaurus and MyST mark boxes.
_DIV = re.compile(r" {0,3}:{3,}.*")
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_ATTRIBUTES = re.compile(r" ?\{[#.:][^{}]*\}$")
# Stands for a stretch of code while the text around it is changed.
_HELD = re.compile("\ue000(\\d+)\ue001")
_YAML_LINE = re.compile(r"([A-Za-z_][\w \-]*?)[ \t]*:(?:[ \t]+(.*)|[ \t]*)")
# A key of front matter is never this long.
_LONG = 4000
_URLS = ("url", "canonical_url", "permalink", "link", "source")


def read(source: Source) -> Iterator[Document]:
    front, text = _front_matter(source.text())
    reader = _Reader(_COMMENT.sub("", text) if "<!--" in text else text)
    headed = reader.headed()
    title = str(front.pop("title", "") or "")
    url = next((str(front.pop(key)) for key in _URLS if isinstance(front.get(key), str)), "")
    meta = {"url": url, "front_matter": front, "anchors": reader.anchors}
    yield page(source, title, headed, meta)


class _Reader:
    def __init__(self, text: str):
        self.anchors: list[list[str]] = []
        self._targets: dict[str, str] = {}
        self._lines = list(self._without_definitions(text.split("\n")))

    def headed(self) -> list[Headed]:
        """The sections, the first of which is what stands before any heading."""
        found: list[Headed] = []
        level, heading = 0, ""
        body: list[str] = []  # finished lines
        paragraph: list[str] = []  # lines of the paragraph that is being read
        fence = ""
        inset = 0  # of the line that opened a fence
        table = listed = False

        def end_paragraph() -> None:
            nonlocal paragraph
            if paragraph:
                body.append(self._plain(" ".join(line.strip() for line in paragraph)))
            paragraph = []

        def begin(new_level: int, new_heading: str) -> None:
            nonlocal level, heading, body
            end_paragraph()
            found.append(Headed(level, heading, "\n".join(filter(str.strip, body))))
            level, heading, body = new_level, self._plain(new_heading), []

        for line in self._lines:
            if fence:
                if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                    fence = ""
                else:
                    own = len(line) - len(line.lstrip())
                    body.append(line[min(own, inset) :].rstrip())
                continue
            inset = len(line) - len(line.lstrip())
            quoted = _QUOTED.match(line)
            line = line[quoted.end() :] if quoted else line
            if listed and line.strip():
                # What is indented below an item belongs to it; what is not ends the list.
                listed = line[0] in " \t" or bool(paragraph) or bool(_ITEM.match(line))
                line = line.lstrip()
            if opening := _FENCE.fullmatch(line):
                end_paragraph()
                fence = opening[1]
            elif not line.strip() or _DIV.fullmatch(line):
                end_paragraph()
                table = False
            elif not paragraph and (line.startswith(("    ", "\t"))) and not _ITEM.match(line):
                body.append(line.strip())  # code by its indentation, or a list item's next line
            elif match := _HEADING.match(line):
                begin(len(match[1]), _heading(line[match.end() :]))
            elif paragraph and (under := _UNDERLINE.fullmatch(line)):
                text, paragraph = " ".join(map(str.strip, paragraph)), []
                begin(1 if under[1][0] == "=" else 2, _heading(text))
            elif _RULE.fullmatch(line):
                end_paragraph()
            elif "|" in line and _TABLE_LINE.fullmatch(line.strip()):
                rows, paragraph, table = paragraph, [], True
                body += [self._row(row) for row in rows]
            elif table and "|" in line:
                body.append(self._row(line))
            elif item := _ITEM.match(line):
                end_paragraph()
                paragraph, listed = [line[item.end() :]], True
            else:
                paragraph.append(line)
        begin(0, "")
        return found

    def _row(self, line: str) -> str:
        return " | ".join(self._plain(cell.strip()) for cell in line.strip().strip("|").split("|"))

    def _without_definitions(self, lines: list[str]) -> Iterator[str]:
        """All lines but `[name]: address`, which are noted."""
        fence = ""
        for line in lines:
            match = _FENCE.fullmatch(line)
            if match and not fence:
                fence = match[1]
            elif fence and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            elif not fence and (defined := _DEFINITION.fullmatch(line)):
                if not defined[1].startswith("^"):
                    self._targets[defined[1].casefold()] = defined[2]
                    continue
            yield line

    def _plain(self, text: str) -> str:
        """A line as it is read: without the marks of links, emphasis, tags and code."""
        kept: list[str] = []

        def hold(code: str) -> str:
            kept.append(code)
            return f"\ue000{len(kept) - 1}\ue001"

        text = _held_code(" ".join(text.split()), hold)
        text = _FOOTNOTE.sub("", text)
        text = _ADDRESS.sub(lambda match: match[1], text)
        text = _IMAGE.sub(lambda match: match[1], text)
        text = _LINK.sub(lambda match: self._linked(match[1], match[2]), text)
        text = _REFERENCE.sub(self._referred, text)
        text = _TAG.sub("", text)
        for _ in range(2):  # bold within italic
            text = _STRONG.sub(lambda match: match[2], text)
            text = _UNDERSCORED.sub(lambda match: match[2], text)
        text = html.unescape(_ESCAPED.sub(lambda match: match[1], text))
        text = _HELD.sub(
            lambda match: kept[int(match[1])] if int(match[1]) < len(kept) else "", text
        )
        return " ".join(text.split())

    def _linked(self, label: str, target: str) -> str:
        if target and "\ue000" not in label:
            self.anchors.append([target, " ".join(label.replace("*", "").split())])
        return label

    def _referred(self, match: re.Match[str]) -> str:
        target = self._targets.get((match[2] or match[1]).casefold())
        return match[0] if target is None else self._linked(match[1], target)


def _heading(text: str) -> str:
    """A heading without the signs and {#attributes} behind it."""
    text = " ".join(text.split())
    bare = text.rstrip("#")
    return _ATTRIBUTES.sub("", bare.rstrip() if bare[-1:] in ("", " ") else text)


def _held_code(text: str, hold: Any) -> str:
    """The text with `code` replaced by what `hold` gives for it, in linear time."""
    if "`" not in text:
        return text
    pieces = re.split(r"(`+)", text)  # text, run, text, run, …, text
    places: dict[str, list[int]] = defaultdict(list)
    for number in range(len(pieces) - 2, 0, -2):
        places[pieces[number]].append(number)
    found, number = [pieces[0]], 1
    while number < len(pieces):
        run = pieces[number]
        later = places[run]
        while later and later[-1] <= number:
            later.pop()
        if later:
            closing = later[-1]
            found.append(hold("".join(pieces[number + 1 : closing]).strip()))
            number = closing
        else:
            found.append(run)
        found.append(pieces[number + 1])
        number += 2
    return "".join(found)


def _front_matter(text: str) -> tuple[dict[str, Any], str]:
    """What stands between two lines of --- (YAML) or +++ (TOML) at the top, and the rest."""
    mark = text[:3]
    if mark not in ("---", "+++") or text[3:4] not in ("\n", " "):
        return {}, text
    top, divider, rest = text[text.index("\n") + 1 :].partition(f"\n{mark}\n")
    if not divider:
        top, divider, rest = text[text.index("\n") + 1 :].rstrip().partition(f"\n{mark}")
        if not divider or rest.strip():
            return {}, text
    if mark == "+++":
        try:
            return {key: _simple(value) for key, value in tomllib.loads(top).items()}, rest
        except (tomllib.TOMLDecodeError, RecursionError):
            return {}, text
    front = _yaml(top)
    return (front, rest) if front is not None else ({}, text)


def _yaml(text: str) -> dict[str, Any] | None:
    """The keys of the first level and their texts or lists; None where it is not YAML at all."""
    found: dict[str, Any] = {}
    key = ""
    for line in text.split("\n"):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if key and line.strip().startswith("- "):
            old = found[key]
            found[key] = [*(old if isinstance(old, list) else []), _scalar(line.strip()[2:])]
        elif line[0] in " \t":
            if key and isinstance(found[key], str):
                found[key] = f"{found[key].rstrip('>|-')} {line.strip()}".strip()
        elif len(line) < _LONG and (match := _YAML_LINE.fullmatch(line)):
            key = match[1]
            value = (match[2] or "").strip()
            if value.startswith("[") and value.endswith("]"):
                found[key] = [_scalar(one) for one in value[1:-1].split(",") if one.strip()]
            else:
                found[key] = _scalar(value)
        else:
            return None
    return found


def _scalar(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text


def _simple(value: Any) -> Any:
    """TOML's values as JSON has them."""
    if isinstance(value, dict):
        return {key: _simple(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_simple(one) for one in value]
    return value if isinstance(value, str | int | float | bool) else str(value)


FORMAT = PageFormat((".md", ".markdown", ".mdown", ".mkd", ".mdx", ".qmd", ".rmd"), read)
