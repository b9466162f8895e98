"""Pages in a folder: plain text, Markdown (markdown-it), reStructuredText (docutils), PDF (pypdf).

Links and emphasis become their text, code stays as it is, tables become lines of their cells.
Nothing is executed or included.
"""

import contextlib
import functools
import io
import logging
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from qac_jax.formats.documents import Document
from qac_jax.formats.readers.documents import paragraphs
from qac_jax.formats.readers.folder import Headed, NotRead, PageFormat, Source, page
from qac_jax.formats.readers.web import parsed


class _Sections:
    """The sections of a page while it is read; the first is what stands before any heading."""

    def __init__(self) -> None:
        self.anchors: list[list[str]] = []
        self._headed: list[tuple[int, str, list[str]]] = [(0, "", [])]

    def begin(self, level: int, heading: str) -> None:
        self._headed.append((level, heading, []))

    def add(self, *lines: str) -> None:
        self._headed[-1][2].extend(filter(str.strip, lines))

    def link(self, target: str, label: str) -> None:
        if label := " ".join(label.split()):
            self.anchors.append([target, label])

    def headed(self) -> list[Headed]:
        return [Headed(level, heading, "\n".join(lines)) for level, heading, lines in self._headed]


def _read_text(source: Source) -> Iterator[Document]:
    yield page(source, source.name, [Headed(0, "", paragraphs(source.text()))])


# Markdown.

# ::: note, as Pandoc, Docusaurus and MyST mark boxes.
_BOX = re.compile(r"^ {0,3}:{3,}.*$", re.MULTILINE)
_FOOTNOTE = re.compile(r"\[\^[^\[\]\s]{1,60}\]:?")
_TASK = re.compile(r"^\[[ xX]\]\s+")
_ATTRIBUTES = re.compile(r" ?\{[#.:][^{}]*\}$")
# Front matter that is longer is text: YAML's parser is quadratic in brackets that never end.
_LONGEST_FRONT = 1 << 13
_URLS = ("url", "canonical_url", "permalink", "link", "source")


def _read_markdown(source: Source) -> Iterator[Document]:
    front, text = _front_matter(source.text())
    sections = _Sections()
    tokens = _markdown().parse(_BOX.sub("", text))
    heading = 0
    cells: list[str] | None = None
    for token in tokens:
        if token.type == "heading_open":
            heading = int(token.tag[1])
        elif token.type == "tr_open":
            cells = []
        elif token.type == "tr_close":
            sections.add(" | ".join(cells or ()))
            cells = None
        elif token.type == "inline":
            line = _inline(token.children or (), sections)
            if heading:
                sections.begin(heading, _ATTRIBUTES.sub("", line))
                heading = 0
            elif cells is not None:
                cells.append(line)
            else:
                sections.add(_TASK.sub("", line))
        elif token.type in ("fence", "code_block"):
            sections.add(*(line.rstrip() for line in token.content.split("\n")))
        elif token.type == "html_block":
            inner = parsed(token.content)
            sections.add(*(one for part in inner.headed() for one in (part.heading, part.text)))
            sections.anchors += inner.anchors
    title = str(front.pop("title", "") or "")
    url = next((front.pop(key) for key in _URLS if isinstance(front.get(key), str)), "")
    meta = {"url": url, "front_matter": front, "anchors": sections.anchors}
    yield page(source, title, sections.headed(), meta)


@functools.cache
def _markdown() -> Any:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def _inline(tokens: Iterable[Any], sections: _Sections) -> str:
    """A line as it is read: without the marks of links, emphasis and tags."""
    parts: list[str] = []
    links: list[tuple[str, int]] = []
    for token in tokens:
        if token.type == "link_open":
            links.append((str(token.attrs.get("href", "")), len(parts)))
        elif token.type == "link_close":
            target, begin = links.pop()
            if target and token.info != "auto":
                sections.link(target, "".join(parts[begin:]))
        elif token.type in ("softbreak", "hardbreak") or token.content.startswith("<br"):
            parts.append(" ")
        elif token.type == "text":
            parts.append(_FOOTNOTE.sub("", token.content))
        elif token.type != "html_inline":
            parts.append(token.content)
    return " ".join("".join(parts).split())


def _front_matter(text: str) -> tuple[dict[str, Any], str]:
    """What stands between two lines of --- (YAML) at the top, and the rest."""
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


# reStructuredText. docutils knows its own directives and roles; those of Sphinx are read by what
# they hold, but for these, whose content a reader of the page does not see.

_HIDDEN = frozenset(
    {
        "toctree", "contents", "include", "literalinclude", "raw", "meta", "index", "image",
        "highlight", "default-role", "role", "sectnum", "section-numbering", "only",
        "currentmodule", "module", "plot", "graphviz", "math", "title", "unicode", "date",
        "target-notes",
    }
)  # fmt: skip
_CODE = frozenset({"testcode", "ipython", "prompt", "console", "doctest"})
_SAID = {
    "deprecated": "Deprecated since",
    "versionadded": "Added in",
    "versionchanged": "Changed in",
}
_NAMES = re.compile(r"^[ \t]*\.\.[ \t]+(?:\|[^|\n]*\|[ \t]+)?([\w:.+\-]+)::", re.MULTILINE)
_ROLES = re.compile(r":([a-zA-Z][\w:+.\-]{0,60}):`|`:([a-zA-Z][\w:+.\-]{0,60}):")
# What is left of references that nothing resolves here.
_MARKS = re.compile(r"^[`|]|[`|]?_{0,2}$")


def _read_rst(source: Source) -> Iterator[Document]:
    from docutils import frontend, nodes, utils
    from docutils.parsers.rst import Parser

    text = source.text().expandtabs(8)
    _know(text)
    settings = frontend.get_default_settings(Parser)
    vars(settings).update(
        {
            "file_insertion_enabled": False, "raw_enabled": False, "report_level": 5,
            "halt_level": 6, "syntax_highlight": "none", "line_length_limit": 1 << 24,
        }
    )  # fmt: skip
    tree = utils.new_document(source.path, settings)
    Parser().parse(text, tree)
    # Fields at the top, or below the title: author, version.
    fields = {}
    tops: list[Any] = [tree, *tree.children[:1]]
    for top in tops:
        for node in [one for one in top.children[:2] if isinstance(one, nodes.field_list)]:
            for name, body in (field.children for field in node.children):
                fields[name.astext()] = " ".join(body.astext().split())
            top.remove(node)
    sections = _Sections()
    _add(tree, 0, sections)
    headed = sections.headed()
    first = next((part.heading for part in headed if part.heading), "")
    meta = {"anchors": sections.anchors, "front_matter": fields}
    yield page(source, first, headed, meta)


def _know(text: str) -> None:
    """Tells docutils of the directives and roles of a text that it does not have."""
    from docutils import nodes, utils
    from docutils.parsers.rst import Directive, directives, languages, roles

    class Further(Directive):
        """Its argument as a line, then what it holds."""

        has_content = True
        optional_arguments = 1
        final_argument_whitespace = True
        option_spec = defaultdict(lambda: directives.unchanged, {"class": directives.unchanged})

        def run(self) -> list[nodes.Node]:
            if self.name in _HIDDEN or self.name.startswith("auto"):
                return []
            if self.name in _CODE:
                return [nodes.literal_block("", "\n".join(self.content))]
            made: list[nodes.Node] = []
            if self.arguments:
                said = f"{_SAID[self.name]} " if self.name in _SAID else ""
                inline, _ = self.state.inline_text(said + self.arguments[0], self.lineno)
                made.append(nodes.paragraph("", "", *inline))
            inner = nodes.Element()
            self.state.nested_parse(self.content, self.content_offset, inner)
            return [*made, *inner.children]

    def role(name: str, raw: str, text: str, *further: Any, **named: Any) -> Any:
        """:ref:`label <target>` is its label, :func:`~package.name` its last part."""
        text = utils.unescape(text)
        label, bracket, target = text.partition("<")
        if not (bracket and label.strip()):
            label = (target if bracket else text).strip("<>! ")
            label = label[1:].rsplit(".", 1)[-1] if label.startswith("~") else label
        return [nodes.inline("", label.strip())], []

    english: Any = languages.get_language("en")
    reporter = utils.Reporter("", 5, 6)
    for name in {match[1].lower() for match in _NAMES.finditer(text)} | _HIDDEN:
        known = directives.directive(name, english, utils.new_document(""))[0]
        if not known or name in _HIDDEN:
            directives.register_directive(name, Further)
    for name in {(match[1] or match[2]).lower() for match in _ROLES.finditer(text)}:
        if roles.role(name, english, 0, reporter)[0] is None:
            roles.register_local_role(name, role)


def _add(node: Any, level: int, sections: _Sections) -> None:
    """Adds what docutils' tree holds below a node of this level."""
    from docutils import nodes

    def line(node: Any) -> str:
        return _line(node, sections)

    for child in node.children:
        if isinstance(child, _unread()):
            continue
        if isinstance(child, nodes.section):
            sections.begin(level + 1, line(child.children[0]))
            child.children = child.children[1:]
            _add(child, level + 1, sections)
        elif isinstance(child, nodes.literal_block | nodes.doctest_block):
            sections.add(*child.astext().split("\n"))
        elif isinstance(child, nodes.row):
            entries = (" ".join(map(line, entry.children)) for entry in child.children)
            sections.add(" | ".join(filter(None, entries)))
        elif isinstance(child, nodes.definition_list_item):
            # The terms and the beginning of the definition are one line.
            terms: list[Any] = list(child.children)
            definition = terms.pop()
            if definition.children and isinstance(definition.children[0], nodes.paragraph):
                terms.append(definition.pop(0))
            sections.add(" ".join(map(line, terms)))
            _add(definition, level, sections)
        elif isinstance(child, nodes.field):
            sections.add(" ".join(map(line, child.children)))
        elif isinstance(child, nodes.TextElement):
            sections.add(line(child))
        else:
            _add(child, level, sections)


@functools.cache
def _unread() -> tuple[type, ...]:
    from docutils import nodes

    return (
        nodes.comment, nodes.target, nodes.substitution_definition, nodes.system_message,
        nodes.raw, nodes.image, nodes.pending, nodes.label, nodes.math_block,
    )  # fmt: skip


def _line(node: Any, sections: _Sections) -> str:
    from docutils import nodes

    for reference in node.findall(nodes.reference):
        target, label = reference.get("refuri", ""), reference.astext()
        if target and target.removeprefix("mailto:") != label:
            sections.link(target, label)
    parts: list[str] = []
    for text in node.findall(nodes.Text):
        if not isinstance(text.parent, _unread()):
            unresolved = isinstance(text.parent, nodes.problematic)
            parts.append(_MARKS.sub("", text) if unresolved else str(text))
    return " ".join("".join(parts).split())


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
    raw = source.raw()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            title, pages = _pdf_pages(pypdf.PdfReader(io.BytesIO(raw), strict=False), source)
    except NotRead:
        raise
    except Exception as error:  # of many types: pypdf reads what others have written badly
        raise NotRead("damaged PDF", _reason(error)) from None
    headed = [Headed(0, "", paragraphs(_DIVIDED.sub("", text))) for text in pages]
    further = [{"page": number} for number in range(1, len(pages) + 1)]
    yield page(source, title, headed, {"pages": len(pages)}, further)


def _pdf_pages(reader: Any, source: Source) -> tuple[str, Sequence[str]]:
    if reader.is_encrypted:
        opened = False
        with contextlib.suppress(Exception):  # some ciphers need a further package
            opened = reader.decrypt("")
        if not opened:
            raise NotRead("PDF with a password")
    pages = []
    for number, one in enumerate(reader.pages, 1):
        try:
            pages.append(one.extract_text() or "")
        except Exception as error:
            source.skip("damaged page of a PDF", f"page {number}: {_reason(error)}")
            pages.append("")
    information = reader.metadata
    return " ".join(str((information and information.title) or "").split()), pages


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


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
    "text": PageFormat((".txt", ".text", ".log", ""), _read_text),
}
