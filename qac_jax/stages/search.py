"""`qac search`: queries against an index into a run, or one question answered on the spot."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.stages.stage import Inputs, Stage, artifact_input, option, source


RUN = "run.trec"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search(Stage):
    """Searches with every query of a file; the artefact holds a TREC run."""

    VERB: ClassVar[str] = "search"
    KIND: ClassVar[str] = "run"
    EXAMPLE: ClassVar[str] = 'qac search --index out/index "how do plants grow?"'

    index: str = artifact_input("what is searched", kind=("index", "bm25"))
    queries: str = source("a file of queries")
    model: str = source("where the index's encoder is, if it was moved", "")
    k: int = option(1000, "passages a query")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        return {"passages a query": self.k}

    def run(self, inputs: Inputs, out: Writer) -> None:
        given = inputs["index"]
        assert isinstance(given, Artifact)
        with out.open(RUN) as file:
            out.count = to_run(file, os.fspath(given.path), self.queries, self.k, self.model)


def to_run(file: Any, index: str, queries: str, k: int, model: str = "") -> int:
    """Writes the run of all queries; returns how many there were."""
    from qac_jax.retrieval import search
    from qac_jax.text.queries import read_queries

    if k < 1:
        raise UserError(f"k={k}; expected at least one passage a query")
    found = search.open_index(index, model)
    texts = {query.id: query.text for query in read_queries(queries)}
    with progress.Bar("search", total=len(texts), unit="queries") as bar:
        for count in search.write_run(file, found, texts, k):
            bar.advance(count)
    return len(texts)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Those of the command line beside the stage's."""
    parser.add_argument("question", nargs="*", metavar="QUESTION", help="what to look for")
    parser.add_argument("--index", metavar="DIR", required=True, help="an index, or BM25's")
    parser.add_argument("--queries", metavar="FILE", help="queries instead of a question")
    parser.add_argument("--run", metavar="FILE", help="write their rankings as a TREC run")
    parser.add_argument("--out", metavar="DIR", help="or as an artefact")
    parser.add_argument("--k", type=int, metavar="N", help="passages (default 10; of a run 1000)")
    parser.add_argument(
        "--model", metavar="DIR", default="", help="where the index's encoder is, if it was moved"
    )
    parser.add_argument("--json", action="store_true", help="hits as JSON")


def answer(options: argparse.Namespace) -> int:
    """What `qac search` does where no artefact is asked for; the exit code."""
    question = " ".join(options.question)
    if bool(question) == bool(options.queries) or bool(options.queries) != bool(options.run):
        raise UserError(
            'search needs a question ("how do plants grow?"), or --queries FILE with --run FILE '
            "or --out DIR; give one or the other"
        )
    if question:
        return _ask(options, question)
    part = f"{options.run}.part"
    try:
        with open(part, "w", encoding="utf-8", newline="\n") as file:
            k = 1000 if options.k is None else options.k
            count = to_run(file, options.index, options.queries, k, options.model)
        os.replace(part, options.run)
    finally:
        if os.path.exists(part):
            os.unlink(part)
    progress.say(f"search: {count:,} queries in {options.run}")
    return 0


def _ask(options: argparse.Namespace, question: str) -> int:
    from qac_jax.retrieval import search

    k = 10 if options.k is None else options.k
    if k < 1:
        raise UserError(f"k={k}; expected at least one passage")
    found = search.open_index(options.index, options.model)
    hits = found.ask([question], k)[0]
    if options.json:
        print(json.dumps([dataclasses.asdict(hit) for hit in hits], ensure_ascii=False))
    else:
        print(search.shown(question, hits))
    for place in found.texts.missing:
        progress.say(f"search: the texts are not at {place} any more, so only ids are shown")
    return 0
