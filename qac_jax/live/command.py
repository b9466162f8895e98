"""Living indexes on the command line: `qac index FOLDER --add …`, `qac search` on the screen."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qac_jax import artifacts, progress
from qac_jax.errors import UserError, plain
from qac_jax.formats.files import whole_text


if TYPE_CHECKING:
    from qac_jax.artifacts import Artifact
    from qac_jax.live.index import LiveIndex


ABOUT = "a folder → a living index with passages added, replaced or deleted"
EXAMPLE = "qac index out/live --add corpus.jsonl --encoder out/retriever"
# Hits that are reranked for a question.
_READ_AGAIN = 100


def add_index_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qac index FOLDER --add`."""
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="living index; made where there is none")
    sources = "add the passages of these: a corpus, an artefact of passages, vectors, or an index"
    add("--add", metavar="DOCS", nargs="+", default=[], help=sources)
    replaced = "the same; passages with these ids are replaced"
    add("--replace", metavar="DOCS", nargs="+", default=[], help=replaced)
    deleted = "delete passages by their ids (@FILE: those in a file, one a line)"
    add("--delete", metavar="ID", nargs="+", default=[], help=deleted)
    add("--compact", action="store_true", help="leave out what was deleted")
    add("--format", metavar="NAME", default="auto", help="format of a corpus")
    encoder = "encoder of a new index, or where the encoder is if it was moved"
    add("--encoder", "--model", metavar="M", default="", help=encoder)
    weight = "of a new index: weight of BM25's score (default: 0.25, or that of an index added)"
    add("--weight", type=float, metavar="W", help=weight)
    add("--json", action="store_true", help="print the result as JSON")


def change(options: argparse.Namespace) -> int:
    """Runs `qac index FOLDER --add …`; returns the exit code."""
    from qac_jax.live import convert

    names = _names(options.delete)
    for place in filter(os.path.exists, (*options.add, *options.replace)):
        artifacts.refuse_overlap(options.folder, place, "")
    sources = [
        artifacts.load(place) if artifacts.peek(place) is not None else place
        for place in (*options.add, *options.replace)
    ]
    new = artifacts.peek(options.folder) is None
    live = _opened(options, sources)
    count = 0
    try:
        for number, source in enumerate(sources):
            replace = number >= len(options.add)
            count += convert.add(live, source, format=options.format, replace=replace)
    except BaseException:
        if new and not len(live):  # its settings may be part of what was wrong
            artifacts.remove(options.folder)
        raise
    deleted = live.delete(names) if names else []
    done = {"added": count, "deleted": len(deleted)}
    if options.compact:
        done["rows_before"] = live.snapshot.rows
        live.compact()
    state = {**done, "passages": len(live), "rows": live.snapshot.rows}
    if options.json:
        print(json.dumps({**state, "version": live.snapshot.version}))
    else:
        shown = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in state.items())
        print(f"{live.folder}: {shown}")
    return 0


def _names(words: Sequence[str]) -> list[str]:
    """The ids, and those of files (@FILE)."""
    given = (whole_text(w[1:]).splitlines() if w[0] == "@" else [w] for w in words if w)
    return [name for names in given for name in names if name]


def _opened(options: argparse.Namespace, sources: Sequence[Artifact | str]) -> LiveIndex:
    from qac_jax.live import convert
    from qac_jax.live.index import LiveIndex
    from qac_jax.live.store import KIND

    known = artifacts.peek(options.folder)
    if known is not None:
        if known["kind"] != KIND:
            raise UserError(
                f"{options.folder} is of kind {known['kind']!r}, which does not change; make a "
                f"living index of it: qac index NEW_FOLDER --add {options.folder}"
            )
        if options.weight is not None:
            raise UserError("--weight is for a new index; leave it out, or give it to a search")
        return LiveIndex(options.folder, encoder=options.encoder)
    if not sources:
        raise UserError(f"there is no living index at {options.folder}; make one with --add DOCS")
    progress.say(f"index: {options.folder} is new")
    # The settings of the first index or vectors that are added, if there are any.
    kinds = (*convert.KINDS, KIND)
    like = (s for s in sources if not isinstance(s, str) and s.kind in kinds)
    source = next(like, None)
    if source is None and not options.encoder:
        raise UserError(f"{options.folder} is new; say which encoder it has: --encoder M")
    return convert.create(options.folder, source, place=options.encoder, weight=options.weight)


def add_search_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a search on the screen."""
    add = parser.add_argument
    add("question", nargs="*", metavar="QUESTION", help="question to answer on screen")
    add("--index", metavar="DIR", required=True, help="index: dense, BM25, hybrid or living")
    add("--queries", metavar="FILE", help="queries, instead of a question, with --out")
    add("--out", metavar="DIR", help="folder for their TREC run")
    add("--k", type=int, metavar="N", default=10, help="top k passages (default: 10)")
    encoder = "encoder of the index, if it was moved"
    add("--encoder", "--model", metavar="DIR", default="", help=encoder)
    reranker = "cross-encoder that reranks the top 100"
    add("--reranker", "--rerank", metavar="DIR", default="", help=reranker)
    where = 'of a living index: filter by metadata, such as {"lang": "en", "year": {">=": 2020}}'
    add("--where", metavar="JSON", default="", help=where)
    add("--hybrid", type=float, metavar="W", help="of a living index: weight of BM25's score")
    add("--json", action="store_true", help="print hits as JSON")


def answer(options: argparse.Namespace) -> int:
    """Runs `qac search` without --out; returns the exit code."""
    question = " ".join(options.question)
    if not question or options.queries or options.k < 1:
        raise UserError(
            'search needs a question ("how do plants grow?") and --k of 1 or more, or --queries '
            "FILE with --out DIR; give one or the other"
        )
    from qac_jax.live import convert
    from qac_jax.retrieval import search

    index = convert.opened_index(options.index, options.encoder, options.where, options.hybrid)
    k = options.k
    (hits,) = index.ask([question], max(k, _READ_AGAIN) if options.reranker else k)
    if options.reranker:
        hits = search.reranked_hits(question, hits, options.reranker)[:k]
    if options.json:
        records = [dataclasses.asdict(hit) for hit in hits]
        records = [{k: v for k, v in r.items() if k != "scores" or v} for r in records]
        print(plain(json.dumps(records, ensure_ascii=False)))
    else:
        print(plain(search.shown(question, hits)))
    if isinstance(index, convert.LiveSearch):
        for sentence in () if hits else index.live.snapshot.unknown_fields(index.where):
            progress.say(f"search: {sentence}")
        return 0
    for place in index.texts.missing:
        progress.say(f"search: the texts are not at {place} any more, so only ids are shown")
    return 0
