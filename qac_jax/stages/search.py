"""`qac search`: queries against an index into a run, or one question answered on the spot."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import Inputs, Stage, artifact_input, option, source


RUN = "run.trec"

# Hits for a question on the screen that a cross-encoder reads again.
_READ_AGAIN = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search(Stage):
    """Searches with every query of a file; the artefact holds a TREC run.

    A cross-encoder may put the first passages into a new order (--rerank, or in recipes
    `reranker`): those that an index finds, or those of a run that is there (`ranked`, `searched`).
    """

    VERB: ClassVar[str] = "search"
    KIND: ClassVar[str] = "run"
    EXAMPLE: ClassVar[str] = 'qac search --index out/index "how do plants grow?"'

    index: str = artifact_input("what is searched", kind=("index", "bm25"), default="")
    queries: str = source("a file of queries")
    model: str = source("where the index's encoder is, if it was moved", "")
    k: int = option(1000, "passages a query")
    ranked: str = source("or a TREC run, whose passages are put into a new order", "")
    searched: str = artifact_input("or such a run made by qac search", kind="run", default="")
    rerank: str = source("cross-encoder that puts the first passages into a new order", "")
    reranker: str = artifact_input("or one trained here", kind="parameters", default="")
    rerank_depth: int = option(0, "so many of them (0: all k)")
    passages: str = artifact_input(
        "texts of the passages (default: those that the index remembers)",
        kind="passages",
        default="",
    )
    max_length: int = option(160, "tokens that the cross-encoder reads of query and passage")
    precision: str = option("auto", "of its matrix products: auto, float32 or bfloat16")
    batch_tokens: int = option(0, "tokens a batch and device (0: by device)", affects_result=False)

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        self._check()
        depth = self._depth() if self._cross_encoder() else None
        return {"passages a query": self.k, "read by the cross-encoder": depth}

    def run(self, inputs: Inputs, out: Writer) -> None:
        self._check()
        if not self._cross_encoder():
            with out.open(RUN) as file:
                out.count = to_run(file, self.index, self.queries, self.k, self.model)
            return
        from qac_jax.inference.reranker import Settings
        from qac_jax.stages import reranking

        out.count = reranking.write(
            out,
            RUN,
            candidates=self._candidates(out),
            queries=self.queries,
            texts=reranking.texts_of(self.index, self.passages),
            model=self._cross_encoder(),
            settings=Settings(
                self.max_length, precision=self.precision, batch_tokens=self.batch_tokens
            ),
            k=self.k,
            depth=self._depth(),
        )

    def _check(self) -> None:
        given = [name for name in ("index", "ranked", "searched") if getattr(self, name)]
        if len(given) != 1:
            raise UserError(
                f"search takes its passages from {' and '.join(given) or 'nothing'}; give one of "
                "--index, --ranked and --searched"
            )
        if bool(self.rerank) and bool(self.reranker):
            raise UserError("--rerank and --reranker are both given; give one cross-encoder")
        if given != ["index"] and not self._cross_encoder():
            raise UserError(f"--{given[0]} is put into a new order; give --rerank MODEL")
        if given != ["index"] and not self.passages:
            raise UserError(f"the texts of --{given[0]} are needed; give --passages DIR")

    def _cross_encoder(self) -> str:
        return self.rerank or self.reranker

    def _depth(self) -> int:
        return min(self.rerank_depth or self.k, self.k)

    def _candidates(self, out: Writer) -> str:
        """A run file: the given one, or what the index finds, kept while this stage runs."""
        from qac_jax.formats import runs
        from qac_jax.stages import reranking

        if not self.index:
            (path,) = runs.run_files(self.ranked or self.searched).values()
            return path
        path = os.fspath(reranking.work_folder(out) / RUN)
        if not os.path.exists(path):
            with open(f"{path}.part", "w", encoding="utf-8", newline="\n") as file:
                to_run(file, self.index, self.queries, self.k, self.model)
            os.replace(f"{path}.part", path)
        return path


def to_run(file: Any, index: str, queries: str, k: int, model: str = "") -> int:
    """Writes the run of all queries; returns how many there were."""
    from qac_jax.formats.queries import read_queries
    from qac_jax.retrieval import search

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
    parser.add_argument(
        "--rerank", metavar="DIR", default="", help="cross-encoder that reads the first 100 again"
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
    if options.rerank and not question:
        raise UserError(
            "a run in a new order is an artefact, so that hours of work can be interrupted; give "
            "--out DIR instead of --run FILE"
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
    hits = found.ask([question], max(k, _READ_AGAIN) if options.rerank else k)[0]
    if options.rerank:
        from qac_jax.stages import reranking

        hits = reranking.hits(question, hits, options.rerank)[:k]
    if options.json:
        print(json.dumps([dataclasses.asdict(hit) for hit in hits], ensure_ascii=False))
    else:
        print(search.shown(question, hits))
    for place in found.texts.missing:
        progress.say(f"search: the texts are not at {place} any more, so only ids are shown")
    return 0
