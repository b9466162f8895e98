"""Docstrings as text: numpy, Google and plain style; summary, sections and "See Also".

Prose becomes one line a paragraph, without its marks; doctests and literal blocks keep their lines.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Docstring(NamedTuple):
    """`sections` are texts to be cut one by one; the first begins with the summary."""

    summary: str = ""
    sections: tuple[str, ...] = ()
    see_also: tuple[str, ...] = ()


# A short docstring is one section; a long one is divided at its headings.
_SHORT_WORDS = 90
_TINY_WORDS = 12

_NUMPY_RULE = re.compile(r"^\s*([-=~^]{3,})\s*$")
_GOOGLE_HEADING = re.compile(
    r"^(Args|Arguments|Parameters|Keyword Args|Keyword Arguments|Returns?|Yields?|Raises|"
    r"Attributes|Methods|Examples?|Example usage|Usage|Notes?|Warnings?|References?|See [Aa]lso|"
    r"Todo)\s*::?\s*$"
)
# Headings that describe the interface stay together; so do remarks and their references.
_INTERFACE = set(
    "args|arguments|parameters|keyword args|keyword arguments|return|returns|yield|yields|raises|"
    "attributes|methods|other parameters|receives|warns".split("|")
)
_REMARKS = set("note notes warning warnings reference references todo".split())

_TEXT_SIGNATURE = re.compile(r"\s*\w+\(((?!\n\n).)*?\)\s*\n--\s*\n", re.DOTALL)
_TABLE_RULE = re.compile(r"^\s*(\+[-=+]{4,}|[=-]{2,}(\s+[=-]{2,})+)\s*$")
_SIGNATURE = re.compile(r"^[\w.]+\(.*\)(\s*->.*)?\.?$", re.DOTALL)
_BULLET = re.compile(r"^([-*+•]|\d+[.)]|\[\d+\]|\.\. \[\w+\])\s+")
_FIELD = re.compile(r"^:(\w+)\b([^:`]*):(?!`|\w+:`)\s*")
_ARGUMENT = re.compile(r"^\*{0,2}\w+(\s\([^()]*\))?:\s+\S|^[\w.]+\s+--?\s+\S")
_DIRECTIVE = re.compile(r"^\.\. ([\w:-]+)::\s*(.*)$")
_REMARK = ("note", "warning", "tip", "important", "caution", "rubric", "hint")
_ANNOUNCES = re.compile(r"::$|^\s*\.\. (code|code-block|sourcecode|math|testcode)::")
_TARGET = re.compile(r"^\.\. _[^:]+:")
_ROLE = re.compile(r":[\w:+-]{1,60}:`(?:([^`<]*[^`<\s])\s*<[^`>]*>|~?\.?([^`]*))`")
_CROSS_REFERENCE = re.compile(r":(?:\w+:)?(?:func|class|meth|mod|obj|attr|data):`[~.!]*+([\w.]++)`")
_LITERAL = re.compile(r"``([^`]+)``|`~?(?:([^`<>]*[^`<>\s])\s*<[^`>]*>|([^`<>]+))`_{0,2}")
_SPACES = re.compile(r" {2,}")
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([^\s*](?:[^*\n]*[^\s*])?)\*{1,2}(?![\w*])")
_TEMPLATE = re.compile(r"^(%\(\w+\)s|\$?\{\w+\})$")


def parse(text: str) -> Docstring:
    """Takes a docstring that is dedented already (ast.get_docstring)."""
    if signature := _TEXT_SIGNATURE.match(text):
        text = text[signature.end() :]
    see_also: list[str] = []
    rendered: list[tuple[str, str]] = []
    for heading, lines in _headed(text.splitlines()):
        if heading.lower() == "see also":
            see_also.extend(_see_also(lines))
            continue
        body = "\n\n".join(paragraphs(lines))
        if body:
            rendered.append((heading, f"{heading}:\n{body}" if heading else body))
    if not rendered:
        return Docstring(see_also=tuple(see_also))
    summary = "" if rendered[0][0] else _summary(rendered[0][1])
    return Docstring(summary, tuple(_grouped(rendered)), tuple(dict.fromkeys(see_also)))


def plain(line: str) -> str:
    """Prose without reStructuredText marks."""
    line = _ROLE.sub(lambda m: m[1] or m[2], line)
    line = _LITERAL.sub(lambda m: m[1] or m[2] or m[3], line)
    return _SPACES.sub(" ", _EMPHASIS.sub(r"\1", line))


def _headed(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The lines below each heading; the heading of the first lines is empty."""
    heading, body = "", []  # type: str, list[str]
    skip = False
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        if skip:
            skip = False
            continue
        rule = _NUMPY_RULE.match(following)
        skip = bool(rule and line.strip() and len(rule[1]) >= min(4, len(line.strip())))
        google = _GOOGLE_HEADING.match(line)
        if skip or google:
            yield heading, body
            heading, body = google[1] if google else plain(line.strip().rstrip(":")), []
        elif not _NUMPY_RULE.match(line):
            body.append(line)
    yield heading, body


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def paragraphs(lines: Sequence[str]) -> Iterator[str]:
    """Paragraphs with their prose unwrapped and their code as it stands."""
    block: list[str] = []
    literal: int | None = None  # the indent of the line that announced a literal block
    for line in [*lines, ""]:
        if line.strip():
            if literal is not None and _indent(line) <= literal:
                literal = None
            block.append(line.rstrip())
        elif block:
            code = literal is not None and _indent(block[0]) > literal
            yield from _paragraph(block, code)
            if not code:
                literal = _indent(block[-1]) if _ANNOUNCES.search(block[-1]) else None
            block = []


def _paragraph(block: Sequence[str], code: bool) -> Iterator[str]:
    if code or any(_TABLE_RULE.match(line) for line in block):
        margin = min(map(_indent, block))
        yield "\n".join(line[margin:] for line in block)
        return
    first = next((n for n, line in enumerate(block) if line.lstrip().startswith(">>>")), len(block))
    prose: list[list[str]] = []
    joinable, hanging, directive, previous = False, False, False, 0
    for line in block[:first]:
        indent, text = _indent(line), line.strip()
        if directive and _FIELD.match(text):
            continue  # an option of the directive
        directive = _DIRECTIVE.match(text) is not None
        kept = _without_directive(text)
        if kept is None or _TEMPLATE.match(kept):
            joinable = False
            continue
        starts = _BULLET.match(kept) or _FIELD.match(kept) or _ARGUMENT.match(kept)
        kept = _FIELD.sub(lambda m: f"{m[2].strip() or m[1]}: ", kept)
        if joinable and not starts and (indent == previous or hanging and indent > previous):
            prose[-1].append(kept)
        else:
            prose.append([kept])
            hanging = bool(starts)
        joinable, previous = True, indent
    # Marks may reach over a line end, so they come off after the lines are joined.
    lines = [plain(" ".join(parts)) for parts in prose]
    margin = 0
    for line in block[first:]:
        margin = _indent(line) if line.lstrip().startswith(">>>") else min(margin, _indent(line))
        lines.append(line[margin:])
    if lines:
        yield "\n".join(lines)


def _without_directive(text: str) -> str | None:
    """The text that is left of a directive; None for nothing."""
    if _TARGET.match(text):
        return None
    match = _DIRECTIVE.match(text)
    if match is None:
        return text[:-1] if text.endswith("::") else text
    name, argument = match.groups()
    if name == "math":
        return argument or None
    if name in _REMARK:
        return f"{argument}:" if name == "rubric" else f"{name.capitalize()}: {argument}".rstrip()
    return None


def _summary(first: str) -> str:
    """The first paragraph that is not the signature compiled functions begin with."""
    for paragraph in first.split("\n\n"):
        if not _SIGNATURE.match(paragraph):
            return "" if paragraph.startswith(">>>") else paragraph.split("\n")[0]
    return ""


def _grouped(rendered: Sequence[tuple[str, str]]) -> Iterator[str]:
    short = sum(len(text.split()) for _, text in rendered) <= _SHORT_WORDS
    groups: list[tuple[str, list[str]]] = []
    for heading, text in rendered:
        kind = heading.lower()
        kind = "interface" if kind in _INTERFACE else "remarks" if kind in _REMARKS else kind
        alike = groups and kind in ("interface", "remarks") and groups[-1][0] == kind
        if groups and (short or alike or len(text.split()) < _TINY_WORDS):
            groups[-1][1].append(text)
        else:
            groups.append((kind, [text]))
    for _, texts in groups:
        yield "\n\n".join(texts)


def _see_also(lines: Sequence[str]) -> Iterator[str]:
    """The names in a "See Also" section; their descriptions are indented or behind a colon."""
    filled = [line for line in lines if line.strip()]
    margin = min(map(_indent, filled), default=0)
    for line in filled:
        if references := _CROSS_REFERENCE.findall(line):
            yield from references
            continue
        if _indent(line) > margin:
            continue
        text = " ".join(plain(_BULLET.sub("", line.strip())).split())
        names = re.split(r"\s+:|:\s|:$|\s[-–—]+\s", text, maxsplit=1)[0]
        for name in names.split(","):
            name = name.strip().rstrip(".:").removesuffix("()")
            if re.fullmatch(r"[A-Za-z_][\w.]*", name):
                yield name
