"""Pages in a folder: plain text, Markdown (markdown-it), reStructuredText, PDF (pypdf).

Links and emphasis become their text, code stays as it is, tables become lines of their cells.
Nothing is executed or included.
"""

import functools
import io
import itertools
import logging
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from qac_jax.formats import docstrings
from qac_jax.formats.documents import Document
from qac_jax.formats.files import LONGEST_FILE
from qac_jax.formats.readers.folder import Headed, NotRead, PageFormat, Source, page
from qac_jax.formats.readers.web import parsed


_PARAGRAPHS = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")


def paragraphs(text: str) -> str:
    """Paragraphs (divided by blank lines) as one line each."""
    joined = (" ".join(part.split()) for part in _PARAGRAPHS.split(text))
    return "\n".join(filter(None, joined))


# Markdown.

# What Pandoc, Docusaurus and MyST add: boxes (::: note), footnotes, tasks, attributes of headings.
_BOX = re.compile(r"^ {0,3}:{3,}.*$", re.MULTILINE)
_FOOTNOTE = re.compile(r"\[\^[^\[\]\s]{1,60}\]:?")
_TASK = re.compile(r"^\[[ xX]\]\s+")
_ATTRIBUTES = re.compile(r" ?\{[#.:][^{}]*\}$")
# Front matter that is longer is text: YAML's parser is quadratic in brackets that never end.
_LONGEST_FRONT = 1 << 13
_LONGEST_PART = 1 << 19
_URLS = ("url", "canonical_url", "permalink", "link", "source")


def _read_markdown(source: Source) -> Iterator[Document]:
    front, text = _front_matter(source.text())
    anchors: list[list[str]] = []
    parts: list[tuple[int, str, list[str]]] = [(0, "", [])]
    heading = 0
    cells: list[str] | None = None

    def add(*lines: str) -> None:
        parts[-1][2].extend(filter(str.strip, lines))

    for token in itertools.chain.from_iterable(map(_markdown().parse, _parts(_BOX.sub("", text)))):
        if token.type == "heading_open":
            heading = int(token.tag[1])
        elif token.type == "tr_open":
            cells = []
        elif token.type == "tr_close":
            add(" | ".join(cells or ()))
            cells = None
        elif token.type == "inline":
            line = _inline(token.children or (), anchors)
            if heading:
                parts.append((heading, _ATTRIBUTES.sub("", line), []))
                heading = 0
            elif cells is not None:
                cells.append(line)
            else:
                add(_TASK.sub("", line))
        elif token.type in ("fence", "code_block"):
            add(*(line.rstrip() for line in token.content.split("\n")))
        elif token.type == "html_block":
            inner = parsed(token.content)
            add(*(one for part in inner.headed() for one in (part.heading, part.text)))
            anchors += inner.anchors
    title = str(front.pop("title", "") or "")
    url = next((front.pop(key) for key in _URLS if isinstance(front.get(key), str)), "")
    headed = [Headed(level, head, "\n".join(lines)) for level, head, lines in parts]
    meta = {"url": url, "front_matter": front, "anchors": anchors}
    yield page(source, title, headed, meta)


def _parts(text: str) -> Iterator[str]:
    """A text whole, or, if it is long, in parts that end with a paragraph: tokens take up to a
    thousand times its length."""
    start = 0
    while len(text) - start > _LONGEST_PART:
        stop = text.rfind("\n\n", start, start + _LONGEST_PART) + 2
        stop = stop if stop > start + 1 else start + _LONGEST_PART
        yield text[start:stop]
        start = stop
    yield text[start:]


@functools.cache
def _markdown() -> Any:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def _inline(tokens: Iterable[Any], anchors: list[list[str]]) -> str:
    """A line as it is read: without the marks of links, emphasis and tags."""
    parts: list[str] = []
    links: list[tuple[str, int]] = []
    for token in tokens:
        if token.type == "link_open":
            links.append((str(token.attrs.get("href", "")), len(parts)))
        elif token.type == "link_close":
            target, begin = links.pop()
            label = " ".join("".join(parts[begin:]).split())
            if target and label and token.info != "auto":
                anchors.append([target, label])
        elif token.type in ("softbreak", "hardbreak") or token.content.startswith("<br"):
            parts.append(" ")
        elif token.type == "text":
            parts.append(_FOOTNOTE.sub("", token.content))
        elif token.type != "html_inline":
            parts.append(token.content)
    return " ".join("".join(parts).split())


def _front_matter(text: str) -> tuple[dict[str, Any], str]:
    """The YAML between two lines of --- at the top, and the rest."""
    import yaml

    if not text.startswith(("---\n", "--- ")):
        return {}, text
    top, divider, rest = f"{text}\n"[text.index("\n") + 1 :].partition("\n---\n")
    if not divider or len(top) > _LONGEST_FRONT:
        return {}, text
    try:
        events = yaml.parse(top, Loader=yaml.CBaseLoader)
        if any(isinstance(event, yaml.AliasEvent) for event in events):
            return {}, text  # a few of them may stand for gigabytes
        front = yaml.load(top, Loader=yaml.CBaseLoader)
    except (yaml.YAMLError, RecursionError):
        return {}, text
    return (front, rest) if isinstance(front, dict) else ({}, text)


# reStructuredText: its marks come off as those of docstrings do. A reader of the page does not see
# what these directives hold, nor comments and substitutions.

_UNSEEN = re.compile(
    r"^( *)\.\.(?: (?:toctree|contents|include|literalinclude|raw|meta|index|image|highlight|role"
    r"|default-role|sectnum|only|(?:current)?module|auto\w+|plot|graphviz|math|title|date)::.*"
    r"| (?![\w:+.-]+::|\[).*|)$(?:\n(?:\1 +\S.*| *$))*",
    re.MULTILINE,
)
_RULE = re.compile(r"([^\w\s])\1{2,}$")
_LINK = re.compile(r"`([^`<>]{1,200})\s<([^`<>\s]{1,2000})>`_")


def _read_rst(source: Source) -> Iterator[Document]:
    text = _UNSEEN.sub("", source.text().expandtabs(8)).replace(" ::\n", "::\n")
    lines = [line.rstrip() for line in text.split("\n")] + ["", ""]
    parts: list[tuple[int, str, list[str]]] = [(0, "", [])]
    styles: dict[str, int] = {}  # how headings are marked, from the highest level
    number = 0
    while number < len(lines) - 2:
        first, second, third = lines[number : number + 3]
        ruled, below = _RULE.match(first), _RULE.match(second)
        over = ruled and second and first == third
        if over or first and not ruled and below and len(second) >= len(first.strip()):
            style = f"{first[0]} above" if over else second[0]
            level = styles.setdefault(style, min(len(styles) + 1, 6))
            heading = docstrings.plain((second if over else first).strip())
            parts.append((level, heading, []))
            number += 3 if over else 2
            continue
        if not ruled:
            parts[-1][2].append(first)
        number += 1
    headed = [Headed(n, head, "\n".join(docstrings.paragraphs(body))) for n, head, body in parts]
    anchors = [[target, " ".join(label.split())] for label, target in _LINK.findall(text)]
    title = next((part.heading for part in headed if part.heading), "")
    yield page(source, title, headed, {"anchors": anchors})


# PDF.

# A word that is divided at the end of a line.
_DIVIDED = re.compile(r"(?<=[a-zß-ÿ])-\n(?=[a-zß-ÿ])")
MISSING = "PDF without the package pypdf (pip install pypdf)"


def _read_pdf(source: Source) -> Iterator[Document]:
    try:
        import pypdf
    except ImportError:
        raise NotRead(MISSING, "or install the extra: pip install 'qac_jax[pdf]'") from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it logs every flaw of a file
    pages: list[str] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader = pypdf.PdfReader(io.BytesIO(source.raw(LONGEST_FILE)), strict=False)
            if reader.is_encrypted and not reader.decrypt(""):
                raise NotRead("PDF with a password")
            for number, one in enumerate(reader.pages, 1):
                try:
                    pages.append(one.extract_text() or "")
                except Exception as error:
                    source.skip("damaged page of a PDF", f"page {number}: {error!r:.200}")
                    pages.append("")
            title = str((reader.metadata and reader.metadata.title) or "")
    except NotRead:
        raise
    except Exception as error:  # of many types: pypdf reads what others have written badly
        raise NotRead("damaged PDF", f"{error!r:.200}") from None
    headed = [Headed(0, "", paragraphs(_DIVIDED.sub("", text))) for text in pages]
    further = [{"page": number} for number in range(1, len(pages) + 1)]
    yield page(source, " ".join(title.split()), headed, {"pages": len(pages)}, further)


def pdf_version() -> str:
    """Of the package pypdf; "" where it is not installed."""
    from importlib import metadata

    try:
        return metadata.version("pypdf")
    except metadata.PackageNotFoundError:
        return ""


PAGE_FORMATS = {
    "markdown": PageFormat(
        (".md", ".markdown", ".mdown", ".mkd", ".mdx", ".qmd", ".rmd"), _read_markdown
    ),
    "pdf": PageFormat((".pdf",), _read_pdf),
    "restructuredtext": PageFormat((".rst", ".rest"), _read_rst),
    # Without a suffix: README, LICENSE.
    "text": PageFormat(
        (".txt", ".text", ".log", ""),
        lambda source: [page(source, source.name, [Headed(0, "", paragraphs(source.text()))])],
    ),
}
