"""Wikipedia's XML dumps (pages-articles), read as a stream: articles only, and wikitext as text.

Redirects and pages outside the article namespace are left out and counted. A dump that comes in
many files is shared out file by file. Templates, tables, references, files and markup go; what a
reader of the page would read stays. Anchors and phrases are what AugTriever's Doc-Anchor reads
(Meng et al., 2022): labels of [[target|label]], and bold, italic or doubly quoted words.
"""

import html
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import IO, Any, NamedTuple

from lxml import etree

from qac_jax.errors import DataError
from qac_jax.formats.bad_lines import BadLines, Place
from qac_jax.formats.documents import Document, DocumentFormat, Pieces, Section, Shard, sharer
from qac_jax.formats.files import LONGEST_LINE, open_bytes


_FILE, _CATEGORY = "6", "14"
_PART = re.compile(r"\.xml-p\d+p\d+(?=\.|$)")


def _share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    # .xml, and in a folder the endings of parts such as ….xml-p1p41242.
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    parts = dict.fromkeys(match[0] for match in map(_PART.search, names) if match)
    return sharer(".xml", *parts, cut=False)(path, count, options)


def _read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    for piece in shard.pieces:
        names: dict[str, str] = {}  # of name spaces, by their keys
        with open_bytes(piece.file) as file:
            # Texts of more than 10 MB are errors, and no entity of a DTD is resolved.
            source = _Pages(file, piece.file)
            elements = etree.iterparse(
                source, tag=("{*}page", "{*}namespace"), resolve_entities=False
            )
            try:
                for _, element in elements:
                    source.left = LONGEST_LINE
                    if element.tag.endswith("namespace"):
                        names[element.get("key", "")] = (element.text or "").lower()
                        continue
                    place = Place(piece.file, element.sourceline)
                    if document := _document(element, names, place, bad):
                        yield document
                    above = element.getparent()
                    while above is not None and above[0] is not element:
                        del above[0]
                    element.clear(keep_tail=False)
            except etree.XMLSyntaxError as error:
                said = f"not a whole XML dump: {error.msg}; fetch the file again"
                raise DataError(said, file=piece.file, line=error.lineno) from error


class _Pages:
    """A dump's bytes, at most `left` of them before the next page ends."""

    def __init__(self, file: IO[bytes], path: str):
        self._file, self._path, self.left = file, path, LONGEST_LINE

    def read(self, size: int) -> bytes:
        raw = self._file.read(size)
        self.left -= len(raw)
        if self.left < 0:
            said = f"a page of more than {LONGEST_LINE:,} bytes; leave it out of the dump"
            raise DataError(said, file=self._path)
        return raw


def _document(page: Any, names: Mapping[str, str], place: Place, bad: BadLines) -> Document | None:
    if page.find("{*}redirect") is not None:
        bad.leave_out("redirects")
        return None
    if page.findtext("{*}ns", "0") != "0":
        bad.leave_out("pages that are not articles")
        return None
    text = page.findtext("{*}revision/{*}text", "")
    found = parse(text, {names[key] for key in (_FILE, _CATEGORY) if names.get(key)})
    name = page.findtext("{*}id", "")
    if name and text.strip() and not found.sections:
        bad.leave_out("articles without prose")
        return None
    sections = tuple(Section(*section) for section in found.sections)
    about = {"anchors": found.anchors, "phrases": found.phrases}
    meta = {key: value for key, value in about.items() if value}
    title = page.findtext("{*}title", "")
    return Document(name, title, sections, (), "wikipedia", meta, place)


DOCUMENT_FORMATS = {"wikipedia": DocumentFormat(_share, _read)}


# Wikitext.

# Sections without prose: apparatus that would make worthless passages.
APPARATUS = frozenset(
    "references|notes|footnotes|citations|sources|bibliography|see also|notes and references|"
    "references and notes|further reading|external links|works cited|general references|"
    "cited references|gallery|navigation".split("|")
)


_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_SINGLE = re.compile(r"<(?:ref|references)\b[^<>]*/>|<nowiki\s*/>", re.IGNORECASE)
_LITERAL = re.compile(r"</(nowiki)>|<(nowiki)>", re.IGNORECASE)
_NAMES = (
    "ref|references|math|gallery|timeline|source|syntaxhighlight|score|imagemap|hiero|chem|ce|graph"
    "|mapframe|maplink|templatedata|includeonly|style|script"
)
_HIDDEN = re.compile(rf"</({_NAMES})\s*>|<({_NAMES})\b[^<>]*>", re.IGNORECASE)
_PARAMETER = re.compile(r"\{\{\{[^{}]*\}\}\}")
_BRACES = re.compile(r"(\{\{|\}\})")
_TABLES = re.compile(r"(^[ :]*\{\||^[ ]*\|\}(?!\}))", re.MULTILINE)
_LINKS = re.compile(r"(\[\[|\]\])")
_PIPED = re.compile(r"\[\[([^\[\]|]+)\|([^\[\]]+)\]\]")
_INTERWIKI = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*|simple")
_EXTERNAL = re.compile(r"\[(?:https?:|ftp:)?//[^\s\[\]]++[ \t]*+([^\[\]\n]*)\]")
_HEADING = re.compile(r"^(=.*=)[ \t]*$", re.MULTILINE)
_TAG = re.compile(r"</?[a-zA-Z][^<>\n]*>")
_SWITCH = re.compile(r"__[A-Z]+__")
_LISTS = re.compile(r"^[*#:;]+[ \t]*|^-{4,}", re.MULTILINE)
_EMPTY = re.compile(r" ?\([ ,;:]*\)")
_BEFORE = re.compile(r"\( ?[,;][ ,;]*")
_SPACES = re.compile(r"[ \t\xa0]+")
_GAP = re.compile(r" +([,.;:)])(?=\s|$)")

_EMPHASIS = (
    re.compile(r"'''''([^'\n](?:(?!'').)*)'''''"),
    re.compile(r"'''([^'\n](?:(?!''').)*)'''"),
    re.compile(r"''\"([^\"\n]*)\"''"),
    re.compile(r"''([^'\n](?:(?!'').)*)''"),
    re.compile(r'""([^"\n]+)""'),
)
_QUOTES = re.compile(r"'{2,5}")
# A longer one is not a phrase but a passage that happens to be set in italics.
_LONGEST_PHRASE = 200
# Headings have levels 1 to 6.
_NOWHERE = 7
# Templates and links that are nested more deeply are read as their text.
_DEEPEST = 40
# Python refuses to read more digits than some thousand.
_NO_CHARACTER = re.compile(r"&#[0-9]{8,}+;?")


class Wikitext(NamedTuple):
    """A page. Anchors are [title, label] of piped links."""

    sections: list[tuple[str, str]]
    anchors: list[list[str]]
    phrases: list[str]


def parse(text: str, hidden: Collection[str] = ()) -> Wikitext:
    """`hidden`: what files and categories are called in the wiki's own language."""
    page = Wikitext([], [], [])
    unseen = {"file", "image", "media", "category", *hidden}

    def leads_elsewhere(target: str, piped: bool) -> bool:
        """Whether a link does not lead to an article: to a file, category or language."""
        space = target.partition(":")[0].strip().lower() if ":" in target else ""
        return space in unseen or bool(not piped and _INTERWIKI.fullmatch(space))

    def label_of(inner: str) -> str:
        """The visible text of a link."""
        target, bar, label = inner.partition("|")
        target = target.strip()
        if target.startswith(":"):
            return label or target[1:]
        if leads_elsewhere(target, bool(bar)):
            return ""
        return label if bar else target

    # Comments, references and elements that show no words go.
    text = _elements(_LITERAL, _COMMENT.sub("", text), _literal)
    text = _elements(_HIDDEN, _SINGLE.sub("", text), lambda inner: "")
    # The anchors of tables and boxes count too.
    for match in _PIPED.finditer(text):
        anchor = [_title(match[1]), _plain(_QUOTES.sub("", match[2]))]
        if all(anchor) and not leads_elsewhere(match[1].strip(), piped=True):
            page.anchors.append(anchor)
    text = _nested(_BRACES, _PARAMETER.sub("", text), _template)
    text = _nested(_TABLES, text, lambda inner: "")
    below = _NOWHERE
    for level, heading, body in _split(text):
        if level <= below:
            below = level if level and heading.lower() in APPARATUS else _NOWHERE
        if level and below < _NOWHERE:
            continue
        if plain := _plain(_emphasis(_nested(_LINKS, body, label_of), page.phrases)):
            heading = _QUOTES.sub("", _nested(_LINKS, heading, label_of))
            page.sections.append((_plain(heading), plain))
    return page._replace(phrases=list(dict.fromkeys(page.phrases)))


def _elements(tags: re.Pattern[str], text: str, replace: Callable[[str], str]) -> str:
    """Replaces elements from each opening tag to the next closing one of its name.

    A tag without its partner stays. One pass from the end says where each name is closed next, so
    that tags that are never closed do not cost a search through the rest each.
    """
    found = list(tags.finditer(text))
    closing: dict[str, int] = {}
    ends = [-1] * len(found)
    for number in range(len(found) - 1, -1, -1):
        closed, opened = found[number].groups()
        if closed:
            closing[closed.lower()] = number
        else:
            ends[number] = closing.get(opened.lower(), -1)
    parts, position = [], 0
    for match, end in zip(found, ends, strict=True):
        if end >= 0 and match.start() >= position:
            inner = text[match.end() : found[end].start()]
            parts += [text[position : match.start()], replace(inner)]
            position = found[end].end()
    return "".join([*parts, text[position:]])


def _literal(inner: str) -> str:
    """The content of <nowiki>, spelled in entities until the markup is gone."""
    return re.sub(r"[\[\]{}'=*#:;|<>_]", lambda m: f"&#{ord(m[0])};", inner)


def _nested(marks: re.Pattern[str], text: str, replace: Callable[[str], str]) -> str:
    """Replaces what stands between marks, innermost first; a mark without a partner goes."""
    stack: list[list[str]] = [[]]
    deeper = 0
    for number, part in enumerate(marks.split(text)):
        if number % 2 == 0:
            stack[-1].append(part)
        elif part.strip(" :")[0] in "{[":
            if len(stack) > _DEEPEST:
                deeper += 1
            else:
                stack.append([])
        elif deeper:
            deeper -= 1
        elif len(stack) > 1:
            inner = "".join(stack.pop())
            stack[-1].append(replace(inner))
    return "".join(part for level in stack for part in level)


def _template(inner: str) -> str:
    """Most templates are furniture; these few carry words of the sentence."""
    name, *arguments = inner.split("|")
    name = name.strip().lower().replace("_", " ")
    plain = [a.strip() for a in arguments if "=" not in a]
    if name in ("lang", "nihongo", "transl", "transliteration") or name.startswith("lang-"):
        return plain[0 if name.startswith(("lang-", "nihongo")) else -1] if plain else ""
    if name in ("convert", "cvt") and len(plain) > 1:
        return f"{plain[0]} {plain[1]}"
    if name in ("nowrap", "small", "smallcaps", "abbr", "ill", "sic") and plain:
        return plain[0]
    if name in ("ndash", "mdash", "snd", "spaced ndash"):
        return " – "
    return ""


def _split(text: str) -> Iterator[tuple[int, str, str]]:
    """(level, heading, body); the lead has level 0."""
    level, heading, start = 0, "", 0
    for match in _HEADING.finditer(text):
        line = match[1]
        marks = [len(line) - len(line.lstrip("=")), len(line) - len(line.rstrip("="))]
        if below := min(*marks, (len(line) - 1) // 2, _NOWHERE - 1):
            yield level, heading, text[start : match.start()]
            level, heading, start = below, line[below:-below].strip(" \t"), match.end()
    yield level, heading, text[start:]


def _title(target: str) -> str:
    return target.partition("#")[0].replace("_", " ").strip()


def _emphasis(text: str, phrases: list[str]) -> str:
    for pattern in _EMPHASIS:
        for match in pattern.finditer(text):
            phrase = _plain(_QUOTES.sub("", match[1])).strip('" ')
            if 0 < len(phrase) <= _LONGEST_PHRASE:
                phrases.append(phrase)
        quote = '"' if '"' in pattern.pattern else ""
        text = pattern.sub(lambda m, q=quote: f"{q}{m[1]}{q}", text)  # type: ignore[misc]
    return _QUOTES.sub("", text)


def _plain(text: str) -> str:
    """One paragraph a line, without what is left of markup."""
    text = _EXTERNAL.sub(r"\1", text)
    text = _LISTS.sub("", _SWITCH.sub("", _TAG.sub("", text)))
    text = html.unescape(_NO_CHARACTER.sub("\ufffd", text))
    text = _BEFORE.sub("(", _EMPTY.sub("", _SPACES.sub(" ", text)))
    text = _GAP.sub(r"\1", text)
    return "\n".join(line for line in (part.strip() for part in text.split("\n")) if line)
