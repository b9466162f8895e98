"""`qac search`: queries and an index → a TREC run; or one question → its hits on screen."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.inference.settings import Inference, RerankerOptions
from qac_jax.pipeline import dividing
from qac_jax.pipeline.settings import Hosts
from qac_jax.pipeline.sharding import ShardFile, sharded
from qac_jax.pipeline.stage import FILE, MODEL, Inputs, Ref, Stage, input, one_of, option, part
from qac_jax.processes import Place


if TYPE_CHECKING:
    from qac_jax.inference.reranker import Texts
    from qac_jax.retrieval.reranking import Reranking


RUN = "run.trec"

# Hits that are reranked for a question on the screen.
_READ_AGAIN = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search(Stage):
    """Searches with every query of a file; the artefact holds a TREC run.

    With --reranker, a cross-encoder reranks the top passages of the index, or of an existing run
    (--candidates).
    """

    VERB: ClassVar[str] = "search"
    KIND: ClassVar[str] = "run"
    VERSION: ClassVar[int] = 3
    DIVIDED: ClassVar[bool] = True
    EXAMPLE: ClassVar[str] = 'qac search --index out/index "how do plants grow?"'

    GROUPS = (one_of("index", "candidates"),)

    index: Ref = input(
        "index: dense, BM25, hybrid or living",
        kinds=("index", "bm25", "hybrid", "live"),
        default="",
    )
    queries: Ref = input("queries", kinds=(FILE,))
    encoder: Ref = input(
        "encoder of the index, if it was moved",
        kinds=("parameters", MODEL),
        default="",
        aliases=("model",),
    )
    k: int = option(1000, "top k passages per query")
    candidates: Ref = input(
        "instead of an index: a run whose passages are reranked",
        kinds=("run", FILE),
        default="",
        aliases=("ranked", "searched"),
    )
    reranker: Ref = input(
        "cross-encoder that reranks the top passages",
        kinds=("parameters", MODEL),
        default="",
        aliases=("rerank",),
    )
    rerank_depth: int = option(0, "passages per query that are reranked (0: all k)")
    passages: Ref = input(
        "passage texts (default: those recorded with the index)",
        kinds=("passages",),
        default="",
    )
    where: str = option(
        "", 'of a living index: filter by metadata, such as {"lang": "en", "year": {">=": 2020}}'
    )
    hybrid: float | None = option(None, "of a living index: weight of BM25's score")
    pairs: RerankerOptions = part(RerankerOptions)
    inference: Inference = part(Inference)
    hosts: Hosts = part(Hosts)

    def place(self) -> Place:
        return self.hosts.place()

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        depth = self._depth() if self.reranker else None
        return {"passages a query": self.k, "read by the cross-encoder": depth}

    def check(self) -> None:
        super().check()
        if self.candidates and not self.reranker:
            raise UserError("--candidates are reranked by a cross-encoder; give --reranker MODEL")
        if self.candidates and not self.passages:
            raise UserError("--candidates need their passages' texts; give --passages DIR")

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.live import runs

        index = inputs.path("index") if "index" in inputs else None
        if index is not None and (known := runs.approximation(index)) is not None:
            out.info["approximate"] = known
        if not self.reranker:
            searched = out.inner("search")
            pieces = self._search(inputs, searched)
            out.count = sum(piece.items for piece in pieces)
            if out.joins:
                _join(out, searched, pieces)
            return
        work = out.inner("rerank")
        reranking = self._candidates(inputs, out, work)
        pieces = [
            ShardFile(f"piece-{number:06d}.trec", len(names), names)
            for number, names in enumerate(reranking.pieces())
        ]

        def rerank(piece: ShardFile, _: None) -> None:
            from qac_jax.formats import runs

            runs.write_run(work.part(piece.name), reranking.reranked(piece.job))

        with progress.Bar("rerank", total=len(reranking.run), unit="queries") as bar:
            sharded(work, pieces, rerank, bar)
        if out.joins:
            _join(out, work, pieces)
        out.count = len(reranking.run)

    def _search(self, inputs: Inputs, work: Writer) -> list[ShardFile]:
        """The run of the index, in pieces of some queries each."""
        from qac_jax.live.runs import opened_index
        from qac_jax.retrieval.search import Searching

        index = opened_index(inputs.path("index"), self.encoder, self.where, self.hybrid)
        searching = Searching.of(index, self.queries, self.k)
        pieces = [
            ShardFile(f"search-{number:06d}.trec", len(names), names)
            for number, names in enumerate(searching.pieces())
        ]

        def search(piece: ShardFile, _: None) -> None:
            lines = io.StringIO()
            searching.write(lines, piece.job)
            work.part(piece.name).write_bytes(lines.getvalue().encode())

        with progress.Bar("search", total=len(searching.queries), unit="queries") as bar:
            sharded(work, pieces, search, bar)
        return pieces

    def _depth(self) -> int:
        return min(self.rerank_depth or self.k, self.k)

    def _candidates(self, inputs: Inputs, out: Writer, work: Writer) -> Reranking:
        """The candidates of the cross-encoder: of --candidates, or the top k of the index."""
        from qac_jax.formats.runs import run_files
        from qac_jax.retrieval.reranking import Reranking

        if "candidates" in inputs:
            (run,) = run_files(inputs.path("candidates")).values()
        else:
            if RUN not in work.done:
                searched = out.inner("search")
                pieces = self._search(inputs, searched)
                dividing.once("candidates", lambda: _join(work, searched, pieces))
            run = os.fspath(work.path / RUN)
        return Reranking.read(
            run,
            self.queries,
            self._texts(inputs),
            k=self.k,
            depth=self._depth(),
            model=self.reranker,
            options=self.pairs,
            inference=self.inference,
        )

    def _texts(self, inputs: Inputs) -> Texts:
        from qac_jax.live import runs
        from qac_jax.retrieval import reranking

        artifact = inputs.get_artifact("passages")
        if artifact is not None:
            return reranking.passage_texts([artifact])
        return runs.texts_of(inputs.artifact("index"))


def _join(out: Writer, work: Writer, pieces: Sequence[ShardFile]) -> None:
    """One run of its pieces."""
    with out.open(RUN, "wb") as file:
        for piece in pieces:
            with (work.path / piece.name).open("rb") as part:
                shutil.copyfileobj(part, file)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a search on the screen."""
    from qac_jax.live import command

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
    count = write_file(options.run, index, options.queries, k)
    progress.say(f"search: {count:,} queries in {options.run}")
    return 0


def _ask(options: argparse.Namespace, question: str) -> int:
    from qac_jax.live import command
    from qac_jax.retrieval import search

    k = 10 if options.k is None else options.k
    if k < 1:
        raise UserError(f"k={k}; expected at least one passage")
    first = max(k, _READ_AGAIN) if options.reranker else k
    hits, missing = command.hits(options, question, first)
    if options.reranker:
        from qac_jax.retrieval import reranking

        hits = reranking.hits(question, hits, options.reranker)[:k]
    if options.json:
        records = [dataclasses.asdict(hit) for hit in hits]
        records = [{k: v for k, v in r.items() if k != "scores" or v} for r in records]
        print(json.dumps(records, ensure_ascii=False))
    else:
        print(search.shown(question, hits))
    for place in missing:
        progress.say(f"search: the texts are not at {place} any more, so only ids are shown")
    return 0
