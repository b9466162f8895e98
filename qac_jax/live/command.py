"""Living indexes on the command line: `qac index FOLDER --add …`, `qac search` on the screen."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qac_jax import artifacts, progress
from qac_jax.errors import UserError, plain
from qac_jax.formats.files import whole_text


if TYPE_CHECKING:
    from qac_jax.artifacts import Artifact
    from qac_jax.live.convert import LiveSearch
    from qac_jax.live.index import LiveIndex
    from qac_jax.retrieval.corpus import Searchable


ABOUT = "a folder → a living index with passages added, replaced or deleted"
EXAMPLE = "qac index out/live --add data/notes"
_ENCODER = "shipped:minilm"
# Hits that are reranked for a question.
_READ_AGAIN = 100


def add_index_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qac index FOLDER --add`."""
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="living index; made where there is none")
    sources = "a folder or file of documents (added again: only what changed), passages or an index"
    add("--add", metavar="DOCS", nargs="+", default=[], help=sources)
    replaced = "the same; passages with these ids are replaced"
    add("--replace", metavar="DOCS", nargs="+", default=[], help=replaced)
    deleted = "delete passages by their ids (@FILE: those in a file, one a line)"
    add("--delete", metavar="ID", nargs="+", default=[], help=deleted)
    pruned = "delete the passages of files that are in none of the folders that are added"
    add("--prune", action="store_true", help=pruned)
    add("--compact", action="store_true", help="leave out what was deleted")
    add("--format", metavar="NAME", default="auto", help="format of documents (default: auto)")
    encoder = f"encoder of a new index (default: {_ENCODER}), or where it is if it was moved"
    add("--encoder", "--model", metavar="M", default="", help=encoder)
    weight = "of a new index: weight of BM25's score (default: 0.25, or that of an index added)"
    add("--weight", type=float, metavar="W", help=weight)
    add("--json", action="store_true", help="print the result as JSON")


def change(options: argparse.Namespace) -> int:
    """Runs `qac index FOLDER --add …`; returns the exit code."""
    with artifacts.nothing_left(options.folder):
        return _changed(options)


def _changed(options: argparse.Namespace) -> int:
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
    done, known = convert.Changes(), False
    try:
        for number, source in enumerate(sources):
            replace = number >= len(options.add)
            if isinstance(source, str):
                known |= convert.add_documents(live, source, done, options.format, replace)
            else:
                done.added += convert.add(live, source, replace=replace)
    except BaseException:
        if new and not len(live):  # its settings may be part of what was wrong
            artifacts.remove(options.folder)
        raise
    if options.prune and not known:
        raise UserError("--prune compares the index with its folders; give them: --add FOLDER …")
    done.deleted += len(live.delete(names)) if names else 0
    paths = live.snapshot.having("id, value", "path") if known else []
    gone = {name: path for name, path in paths if path not in done.documents}
    kept = "gone (they stay; --prune deletes them)"
    done.documents |= dict.fromkeys(gone.values(), "gone" if options.prune else kept)
    done.deleted += len(live.delete([*gone])) if options.prune else 0
    state = {"added": done.added, "deleted": done.deleted}
    if options.compact:
        state["rows_before"] = live.snapshot.rows
        live.compact()
    state |= {"passages": len(live), "rows": live.snapshot.rows}
    if options.json:
        counts = Counter(how.split()[0] for how in done.documents.values())
        print(json.dumps({**state, "documents": counts, "version": live.snapshot.version}))
        return 0
    for how in dict.fromkeys(done.documents.values()):
        found = [name for name, this in done.documents.items() if this == how]
        some = ", ".join(found[:3]) + ", …" * (len(found) > 3)
        progress.say(f"index: {len(found):,} {how}: {some}")
    shown = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in state.items())
    print(f"{live.folder}: {shown}")
    if done.added:
        print(f'next: qac search --index {shlex.quote(options.folder)} "a question"')
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
            raise UserError("--weight is for a new index; leave it out, and give searches --hybrid")
        return LiveIndex(options.folder, encoder=options.encoder)
    if not sources:
        raise UserError(f"there is no living index at {options.folder}; make one with --add DOCS")
    progress.say(f"index: {options.folder} is new")
    # The settings of the first index or vectors that are added, if there are any.
    kinds = (*convert.KINDS, KIND)
    like = (s for s in sources if not isinstance(s, str) and s.kind in kinds)
    source = next(like, None)
    place = options.encoder or ("" if source else _ENCODER)
    return convert.create(options.folder, source, place=place, weight=options.weight)


def add_search_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a search on the screen."""
    add = parser.add_argument
    asked = "question to answer on screen; without one, asks for questions until an empty line"
    add("question", nargs="*", metavar="QUESTION", help=asked)
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
    least = "leave out hits of a lower score: reranker's, else the encoder's, else BM25's"
    add("--min_score", type=float, metavar="S", help=least)
    add("--json", action="store_true", help="print hits as JSON, a line for each question")


def answer(options: argparse.Namespace) -> int:
    """Runs `qac search` without --out; returns the exit code."""
    from qac_jax.live.convert import opened_index

    index = opened_index(options.index, options.encoder, options.where, options.hybrid)
    if not options.question and sys.stdin.isatty():
        index.ask(["a question"], 1)  # loads the model: the first answer is as quick as the others
    for question in _asked(options):
        _answer(question, index, options)
    return 0


def _asked(options: argparse.Namespace) -> Iterator[str]:
    """The question that was given, else those of a prompt, or lines of the standard input."""
    wrong = options.queries or options.k < 1
    if options.question and not wrong:
        yield " ".join(options.question)
    elif not wrong and sys.stdin.isatty():
        import readline  # noqa: F401 (lines can be edited and called back)

        with contextlib.suppress(EOFError):
            yield from iter(lambda: input("question (empty: the end)> ").strip(), "")
    elif not wrong and (questions := [*filter(None, map(str.strip, sys.stdin))]):
        yield from questions
    else:
        raise UserError(
            'search needs a question ("how do plants grow?") and --k of 1 or more, or --queries '
            "FILE with --out DIR; give one or the other"
        )


def _answer(question: str, index: Searchable | LiveSearch, options: argparse.Namespace) -> None:
    """Prints the hits of a question."""
    from qac_jax.live import convert
    from qac_jax.live.snapshot import UNLIKELY
    from qac_jax.retrieval import search
    from qac_jax.retrieval.corpus import Hits

    k, least = options.k, options.min_score
    (hits,) = index.ask([question], max(k, _READ_AGAIN) if options.reranker else k)
    likely = hits.likely if isinstance(hits, Hits) else None
    if isinstance(index, convert.LiveSearch):
        missing, cosine = [], index.live.settings.cosine
    else:
        missing, cosine = index.texts.missing, index.artifact.info.get("cosine", False)
    if options.reranker:
        hits = search.reranked_hits(question, hits, options.reranker)[:k]
    if hits and least is not None:
        scores = [h.score if options.reranker else h.scores.get("dense", h.score) for h in hits]
        hits = [hit for hit, score in zip(hits, scores, strict=True) if score >= least]
        if not hits:
            progress.say(f"search: the best score is {max(scores):.4g}, --min_score {least:g}")
    if likely is not None and likely < UNLIKELY:
        progress.say(f"search: nothing in this index seems to answer (probability {likely:.2g})")
    if options.json:
        records = [dataclasses.asdict(hit) for hit in hits]
        records = [{k: v for k, v in r.items() if k != "scores" or v} for r in records]
        print(plain(json.dumps(records, ensure_ascii=False)))
    else:
        print(plain(search.shown(question, hits, "cosine" if cosine else "dense")))
    for place in missing:
        progress.say(f"search: the texts are not at {place} any more, so only ids are shown")
