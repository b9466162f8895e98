"""`qac search` on the screen: a question's hits, or a run of many queries without an artefact."""

from __future__ import annotations

import argparse
import dataclasses
import json

from qac_jax import progress
from qac_jax.artifacts import stores
from qac_jax.errors import UserError
from qac_jax.live import command


# Hits that are reranked for a question.
_READ_AGAIN = 100


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a search on the screen."""
    parser.add_argument(
        "question", nargs="*", metavar="QUESTION", help="question to answer on screen"
    )
    parser.add_argument(
        "--index", metavar="DIR", required=True, help="index: dense, BM25, hybrid or living"
    )
    parser.add_argument("--queries", metavar="FILE", help="queries, instead of a question")
    parser.add_argument("--run", metavar="FILE", help="write the TREC run to this file")
    parser.add_argument("--out", metavar="DIR", help="or write an artefact to this folder")
    parser.add_argument(
        "--k", type=int, metavar="N", help="top k passages (default: 10; 1000 for --queries)"
    )
    parser.add_argument(
        *("--encoder", "--model"),
        metavar="DIR",
        default="",
        help="encoder of the index, if it was moved",
    )
    parser.add_argument(
        *("--reranker", "--rerank"),
        metavar="DIR",
        default="",
        help="cross-encoder that reranks the top 100",
    )
    command.add_search_flags(parser)
    parser.add_argument("--json", action="store_true", help="print hits as JSON")


def answer(options: argparse.Namespace) -> int:
    """Runs `qac search` without --out; returns the exit code."""
    question = " ".join(options.question)
    if bool(question) == bool(options.queries) or bool(options.queries) != bool(options.run):
        raise UserError(
            'search needs a question ("how do plants grow?"), or --queries FILE with --run FILE '
            "or --out DIR; give one or the other"
        )
    if options.reranker and not question:
        raise UserError(
            "a reranked run is written as an artefact, which can be resumed; give --out DIR "
            "instead of --run FILE"
        )
    if question:
        return _ask(options, question)
    from qac_jax.live import runs
    from qac_jax.retrieval.search import write_file

    index = runs.opened_index(options.index, options.encoder, options.where, options.hybrid)
    k = 1000 if options.k is None else options.k
    with stores.written(options.run) as place:
        count = write_file(place, index, options.queries, k)
    progress.say(f"search: {count:,} queries in {options.run}")
    return 0


def _ask(options: argparse.Namespace, question: str) -> int:
    from qac_jax.retrieval import search

    k = 10 if options.k is None else options.k
    if k < 1:
        raise UserError(f"k={k}; expected at least one passage")
    first = max(k, _READ_AGAIN) if options.reranker else k
    hits, missing = command.hits(options, question, first)
    if options.reranker:
        from qac_jax.retrieval import search

        hits = search.reranked_hits(question, hits, options.reranker)[:k]
    if options.json:
        records = [dataclasses.asdict(hit) for hit in hits]
        records = [{k: v for k, v in r.items() if k != "scores" or v} for r in records]
        print(json.dumps(records, ensure_ascii=False))
    else:
        print(search.shown(question, hits))
    if options.where and not hits and (why := command.why_nothing(options.index, options.where)):
        progress.say(f"search: {why}")
    for place in missing:
        progress.say(f"search: the texts are not at {place} any more, so only ids are shown")
    return 0
