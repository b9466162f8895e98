"""The front door: documents from files of any known format, as a stream or in shards.

    for document in documents.read("msmarco_docs", "msmarco-docs.tsv.gz"): …

For many processes: `shards(format, path, count)` cuts the corpus, `read_shard(shard, bad)` reads
one part anywhere, and `repeated_documents` finds ids that occur twice over all of them.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from qac_jax.errors import UserError, nearest
from qac_jax.formats import files
from qac_jax.formats.bad_lines import BadLines, Place
from qac_jax.formats.files import Line, Piece
from qac_jax.formats.identities import IdSet, id_hash
from qac_jax.formats.registry import DOCUMENTS, Recognise, never


# What a document says of places in its text; a passage keeps what it contains.
LOCAL = ("anchors", "phrases")
# Characters of a document's id, title and metadata, where it has many passages or a long text.
MOST_SHARED, _MANY = 1 << 16, 100


class Section(NamedTuple):
    heading: str
    text: str


class Passage(NamedTuple):
    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Document:
    """One document: either sections that are still to be cut, or passages that are fixed.

    `meta` is JSON: "url", "summary", "aliases", "anchors" [[target, label], …], "phrases"
    (emphasised words), or keys of the source's own.
    """

    id: str
    title: str = ""
    sections: tuple[Section, ...] = ()
    passages: tuple[Passage, ...] = ()
    source: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    place: Place | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """All of it, sections or passages divided by a line end."""
        parts = self.passages or self.sections
        return "\n".join(part.text for part in parts if part.text)


@dataclass(frozen=True)
class Shard:
    """A part of a corpus that one process reads; can be sent anywhere."""

    format: str
    path: str
    pieces: tuple[Piece, ...]
    index: int = 0
    options: Mapping[str, str] = field(default_factory=dict)


Pieces = list[tuple[Piece, ...]]


@dataclass(frozen=True)
class DocumentFormat:
    """A way to store documents; the modules of `readers` list them in DOCUMENT_FORMATS.

    share: (path, count, options) -> the parts of the corpus, in at most `count` shards (None: as
        many as suit the data).
    read: (shard, bad) -> the documents of one of them.
    options: what `--options name=value` may set, with the defaults, all as text.
    recognise: how sure it is that a sample of a file is its own.
    by_name: whether its path is the name of a data set, which NAME:PATH then stands for.
    """

    share: Callable[[str, int | None, Mapping[str, str]], Pieces]
    read: Callable[[Shard, BadLines], Iterator[Document]]
    options: Mapping[str, str] = field(default_factory=dict)
    recognise: Recognise = never
    by_name: bool = False


def line_format(
    parse: Callable[[Line, Mapping[str, str]], Document | None],
    suffixes: Sequence[str],
    options: Mapping[str, str] | None = None,
    recognise: Recognise = never,
) -> DocumentFormat:
    """A format of one document a line; `parse` gives None for a line without one (a header)."""

    def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
        for piece in shard.pieces:
            yield from files.parsed(piece, bad, lambda line: parse(line, shard.options))

    return DocumentFormat(sharer(*suffixes), read, options or {}, recognise)


def sharer(
    *suffixes: str, cut: bool = True
) -> Callable[[str, int | None, Mapping[str, str]], Pieces]:
    """Shares out files with these suffixes; without `cut` each file stays whole."""
    return lambda path, count, options: files.share_out(
        files.expand(path, suffixes), count, cut=cut
    )


def source(format: str, path: str) -> tuple[str, str]:
    """The format and path of documents: a name such as hf:squad says its format itself."""
    named = DOCUMENTS.named(path)
    if named and format not in (named[0], "auto"):
        raise UserError(f"{path} is a data set of {named[0]}, not of format {format}; leave it out")
    return named or (format, path)


def shards(
    format: str,
    path: str | os.PathLike[str],
    count: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[Shard]:
    """The corpus in at most `count` nearly equal parts in its order; without a count, of 64 MB."""
    reader = DOCUMENTS.get(format)
    chosen = _checked(format, reader.options, options or {})
    path = os.fspath(path)
    pieces = reader.share(path, count, chosen)
    return [Shard(format, path, part, index, chosen) for index, part in enumerate(pieces)]


def read_shard(
    shard: Shard, bad: BadLines | None = None, drop: Mapping[int, bool] | None = None
) -> Iterator[Document]:
    """The documents of one part. Those numbered in `drop` are repeated: left out if they are the
    same record as before (True), otherwise bad records.
    """
    bad = BadLines() if bad is None else bad
    every = DOCUMENTS.get(shard.format).read(shard, bad)
    taken = (document for document in every if _accepted(document, shard, bad))
    for number, document in enumerate(taken):
        if drop and number in drop:
            _repeated(document, shard, bad, same=drop[number])
        else:
            yield document


def read(
    format: str, path: str | os.PathLike[str], *, bad: BadLines | None = None, **options: Any
) -> Iterator[Document]:
    """All documents, one after the other. Give `bad` to see afterwards what was skipped."""
    bad = BadLines() if bad is None else bad
    parts = shards(format, path, options=options)
    known, contents = IdSet(), IdSet()
    for shard in parts:
        for document in read_shard(shard, bad):
            repeats = [i for i in ids_of(document) if not known.add(i)]
            new = contents.add(str(content_hash(document)))
            if repeats:
                _repeated(document, shard, bad, same=not new)
            else:
                yield document


def _refuse(message: str, document: Document, shard: Shard, bad: BadLines) -> None:
    bad.add(message, document.place or Place(shard.path))


def _accepted(document: Document, shard: Shard, bad: BadLines) -> bool:
    """Whether a document is read. One without text is left out; a passage without text stays,
    because judgements may name it. Both are counted. One without an id is a bad record, and a long
    one whose passages would each repeat more than MOST_SHARED characters.
    """
    if not document.id.strip() or not all(passage.id.strip() for passage in document.passages):
        _refuse(f"an id is missing or empty ({document.id!r})", document, shard, bad)
        return False
    empty = (passage for passage in document.passages if not (passage.text + passage.title).strip())
    if count := sum(1 for _ in empty):
        bad.kept["passages without text"] += count
    if (shared := _shared(document)) > MOST_SHARED:
        message = f"each passage would repeat {shared:,} characters of id, title and metadata"
        _refuse(f"{message} (at most {MOST_SHARED:,})", document, shard, bad)
        return False
    if document.passages or any(section.text.strip() for section in document.sections):
        return True
    bad.leave_out("documents without text")
    return False


def _shared(document: Document) -> int:
    """The characters that every passage of a long document repeats; 0 for others."""
    parts = document.passages or document.sections
    if sum(len(part.text) for part in parts) < MOST_SHARED and len(parts) < _MANY:
        return 0
    heading = max((len(section.heading) for section in document.sections), default=0)
    known = (len(str(v)) for key, v in document.meta.items() if key not in (*LOCAL, "parts"))
    return len(document.id) + len(document.title) + heading + sum(known)


def ids_of(document: Document) -> list[str]:
    """Documents and passages have names of their own; fixed passages are what is judged."""
    if document.passages:
        return [f"p {passage.id}" for passage in document.passages]
    return [f"d {document.id}"]


def options_of(text: str, **further: str) -> dict[str, str]:
    """The options in `--options`, and those of other flags unless they are empty."""
    options = {}
    for item in text.split():
        name, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"options: {item!r} is not of the form name=value")
        options[name] = value
    return options | {name: value for name, value in further.items() if value}


def _checked(format: str, known: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, str]:
    """All options of a format: the given ones, and the defaults of the others."""
    chosen = dict(known)
    for name, value in given.items():
        if name not in known:
            raise UserError(f"format {format!r} has no option {name!r}; {nearest(name, known)}")
        chosen[name] = str(value).lower() if isinstance(value, bool) else str(value)
        if known[name] in ("true", "false") and chosen[name] not in ("true", "false"):
            raise UserError(f"option {name}={value!r} of {format!r}: expected true or false")
    return chosen


def _repeated(document: Document, shard: Shard, bad: BadLines, *, same: bool) -> None:
    if same:
        bad.leave_out("repeated documents")
    else:
        _refuse(f"the id of document {document.id!r} was there before", document, shard, bad)


def content_hash(document: Document) -> int:
    """A hash of a record, ids included: two of one hash are the same record."""
    parts = document.passages or document.sections
    texts = [getattr(part, "title", "") + "\n" + part.text for part in parts]
    return id_hash("\n".join([*ids_of(document), document.title, *texts]))


def id_rows(number: int, document: Document) -> Iterator[int]:
    """Of every id of a shard's document its hash, the document's number, and the hash of what it
    says, one behind the other."""
    says = content_hash(document)
    for name in ids_of(document):
        yield from (id_hash(name), number, says)


def repeated_documents(parts: Iterable[np.ndarray]) -> dict[int, dict[int, bool]]:
    """A global step over all parts' `id_rows`: part -> numbers of its documents with an id that
    was there before, and whether they are the same record; `read_shard(…, drop=…)` takes them.
    """
    every = list(parts)
    ids, numbers, says = np.concatenate(every).reshape(-1, 3).T
    part_of = np.repeat(np.arange(len(every)), [len(part) // 3 for part in every])
    order = np.argsort(ids, kind="stable")
    in_order = ids[order]
    again = np.flatnonzero(in_order[1:] == in_order[:-1]) + 1
    firsts = order[np.searchsorted(in_order, in_order[again], side="left")]
    by_part: dict[int, dict[int, bool]] = {}
    for place, first in zip(order[again].tolist(), firsts.tolist(), strict=True):
        known = by_part.setdefault(int(part_of[place]), {})
        number = int(numbers[place])
        known[number] = known.get(number, True) and bool(says[place] == says[first])
    return {part: dict(sorted(numbers.items())) for part, numbers in sorted(by_part.items())}
