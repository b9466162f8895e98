"""Wikitext to text: sections, link anchors, emphasised phrases, categories.

Templates, tables, references, files and markup go; what a reader of the page would read stays.
Anchors and phrases are what AugTriever's Doc-Anchor reads (Meng et al., 2022): labels of
[[target|label]], and bold, italic or doubly quoted words.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field


# Sections without prose: apparatus that would make worthless passages.
APPARATUS = frozenset(
    {
        "references", "notes", "footnotes", "citations", "sources", "bibliography", "see also",
        "notes and references", "references and notes", "further reading", "external links",
        "works cited", "general references", "cited references", "gallery", "navigation",
    }
)  # fmt: skip

_SEE_ALSO = "see also"
_FILES = frozenset({"file", "image", "media"})
_CATEGORIES = frozenset({"category"})

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_NOWIKI = re.compile(r"<nowiki>(.*?)</nowiki>|<nowiki\s*/>", re.DOTALL | re.IGNORECASE)
_SINGLE = re.compile(r"<(?:ref|references)\b[^<>]*/>", re.IGNORECASE)
_HIDDEN = re.compile(
    r"<(ref|references|math|gallery|timeline|source|syntaxhighlight|score|imagemap|hiero|chem|ce"
    r"|graph|mapframe|maplink|templatedata|includeonly|style|script)\b[^<>]*>.*?</\1\s*>",
    re.DOTALL | re.IGNORECASE,
)
_PARAMETER = re.compile(r"\{\{\{[^{}]*\}\}\}")
_BRACES = re.compile(r"(\{\{|\}\})")
_TABLES = re.compile(r"(^[ :]*\{\||^[ ]*\|\}(?!\}))", re.MULTILINE)
_LINKS = re.compile(r"(\[\[|\]\])")
_PIPED = re.compile(r"\[\[([^\[\]|]+)\|([^\[\]]+)\]\]")
_INTERWIKI = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*|simple")
_EXTERNAL = re.compile(r"\[(?:https?:|ftp:)?//[^\s\[\]]+[ \t]*([^\[\]\n]*)\]")
_HEADING = re.compile(r"^(={1,6})[ \t]*(.+?)[ \t]*\1[ \t]*$", re.MULTILINE)
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


@dataclass
class Page:
    """A page. Anchors are (title, label) of piped links, links the titles that it links to."""

    sections: list[tuple[str, str]] = field(default_factory=list)
    anchors: list[tuple[str, str]] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    phrases: list[str] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)
    see_also: list[str] = field(default_factory=list)


def parse(text: str, files: Collection[str] = (), categories: Collection[str] = ()) -> Page:
    """`files` and `categories`: what these namespaces are called in the wiki's own language."""
    page = Page()
    links = _Links(page, _FILES | set(files), _CATEGORIES | set(categories))
    text = _visible(text)
    page.anchors = links.anchors(text)
    below = _NOWHERE
    for level, heading, body in _split(_without_boxes(text)):
        if level <= below:
            below = level if level and heading.lower() in APPARATUS else _NOWHERE
        shown, targets = links.shown(body)
        if level and below < _NOWHERE:
            if heading.lower() == _SEE_ALSO:
                page.see_also += targets
            continue
        page.links += targets
        plain = _plain(_emphasis(shown, page.phrases))
        if plain:
            page.sections.append((_plain(_QUOTES.sub("", links.shown(heading)[0])), plain))
    for name in ("links", "phrases", "categories", "see_also"):
        setattr(page, name, list(dict.fromkeys(getattr(page, name))))
    return page


def _visible(text: str) -> str:
    """Without comments, references and elements that show no words."""
    text = _NOWIKI.sub(_literal, _COMMENT.sub("", text))
    return _HIDDEN.sub("", _SINGLE.sub("", text))


def _without_boxes(text: str) -> str:
    """Without templates and tables."""
    text = _nested(_BRACES, _PARAMETER.sub("", text), _template)
    return _nested(_TABLES, text, lambda inner: "")


def _literal(match: re.Match[str]) -> str:
    """What <nowiki> protects, spelled in entities until the markup is gone."""
    return re.sub(r"[\[\]{}'=*#:;|<>_]", lambda m: f"&#{ord(m[0])};", match[1] or "")


def _nested(marks: re.Pattern[str], text: str, replace: Callable[[str], str]) -> str:
    """Replaces what stands between opening and closing marks, innermost first.

    A mark without its partner is dropped and the text around it stays.
    """
    stack: list[list[str]] = [[]]
    for number, part in enumerate(marks.split(text)):
        if number % 2 == 0:
            stack[-1].append(part)
        elif part.strip(" :")[0] in "{[":
            stack.append([])
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
    parts = _HEADING.split(text)
    yield 0, "", parts[0]
    for marks, heading, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        yield len(marks), heading, body


class _Links:
    """Replaces links by their labels and notes where they lead."""

    def __init__(self, page: Page, files: Collection[str], categories: Collection[str]):
        self._page, self._files, self._categories = page, files, categories
        self._targets: list[str] = []

    def shown(self, text: str) -> tuple[str, list[str]]:
        """The text as a reader sees it, and the titles it links to."""
        self._targets = []
        return _nested(_LINKS, text, self._link), self._targets

    def anchors(self, text: str) -> list[tuple[str, str]]:
        """(title, label) of all piped links, those in tables and boxes too."""
        piped = []
        for match in _PIPED.finditer(text):
            title, label = _title(match[1]), _plain(_QUOTES.sub("", match[2]))
            if title and label and not self._special(match[1].strip(), piped=True):
                piped.append((title, label))
        return piped

    def _link(self, inner: str) -> str:
        target, bar, label = inner.partition("|")
        target = target.strip()
        if target.startswith(":"):
            return label or target[1:]
        space = self._special(target, bool(bar))
        if space in self._categories:
            self._page.categories.append(target.partition(":")[2].strip())
        if space:
            return ""
        if title := _title(target):
            self._targets.append(title)
        return label if bar else target

    def _special(self, target: str, piped: bool) -> str:
        """The name space of links that do not lead to an article: files, categories, languages."""
        space = target.partition(":")[0].strip().lower() if ":" in target else ""
        if space in self._files or space in self._categories:
            return space
        return space if space and not piped and _INTERWIKI.fullmatch(space) else ""


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
    text = html.unescape(text)
    text = _BEFORE.sub("(", _EMPTY.sub("", _SPACES.sub(" ", text)))
    text = _GAP.sub(r"\1", text)
    return "\n".join(line for line in (part.strip() for part in text.split("\n")) if line)
