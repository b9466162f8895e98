"""`qac search` and `qac fuse`: queries and an index → a TREC run; several runs → one."""

import dataclasses
import os
import shutil
from collections.abc import Iterable, Sequence

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.fields import option, part
from qac_jax.formats import runs as run_files
from qac_jax.formats.queries import read_queries
from qac_jax.inference.settings import Inference, RerankerOptions
from qac_jax.pipeline import costs
from qac_jax.pipeline.engines import Loaded
from qac_jax.pipeline.inputs import one_of
from qac_jax.pipeline.sharding import ShardFile, sharded
from qac_jax.pipeline.stage import FILE, Inputs, Plan, Plans, Ref, Stage, input, model_input
from qac_jax.retrieval import fusion
from qac_jax.retrieval.fusion import SCALES, THEORETICAL


RUN = "run.trec"
# Pairs of a reranked piece: an interruption loses at most one piece.
_PAIRS = 1 << 15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search(Stage):
    """Searches with every query of a file; the artefact holds a TREC run.

    With --reranker, a cross-encoder reranks the top passages of the index, or of an existing run
    (--candidates).
    """

    VERB = "search"
    KIND = "run"
    VERSION = 4
    DIVIDED = True
    EXAMPLE = 'qac search --index out/index "how do plants grow?"'

    GROUPS = (one_of("index", "candidates"),)

    index: Ref = input("index of any kind", "index", "bm25", "hybrid", "live", default="")
    queries: Ref = input("queries", FILE)
    encoder: Ref = model_input("encoder of the index, if it was moved", default="")
    k: int = option(1000, "top k passages per query", at_least=1)
    candidates: Ref = input("or a run to rerank", "run", FILE, default="")
    reranker: Ref = model_input("cross-encoder that reranks the top passages", default="")
    rerank_depth: int = option(0, "passages per query that are reranked (0: all k)", at_least=0)
    passages: Ref = input("passage texts (default: the index's)", "passages", default="")
    where: str = option("", 'of a living index: filter such as {"lang": "en"}')
    hybrid: float | None = option(None, "of a living index: weight of BM25's score")
    vectors: Ref = input(
        "passage vectors of ScaNN's index, to search --sample of the queries exactly, too",
        "vectors",
        default="",
    )
    sample: int = option(500, "--vectors: queries that tell what the index loses", at_least=1)
    pairs: RerankerOptions = part(RerankerOptions)
    inference: Inference = part(Inference)

    def plan(self, inputs: Plans) -> Plan:
        queries = costs.count_of(inputs, "queries", "candidates")
        plan: Plan = {"count": queries}
        if self.index:
            plan |= costs.searching(inputs, "index", queries)
        if self.reranker:
            tokens = queries and queries * self._depth() * costs.PAIR_TOKENS
            plan |= costs.of_model(inputs, "reranker", tokens)
        return plan

    def check(self) -> None:
        super().check()
        if self.candidates and not (self.reranker and self.passages):
            raise UserError("--candidates are reranked; give --reranker MODEL and --passages DIR")

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.inference.reranker import Reranker
        from qac_jax.live import convert
        from qac_jax.retrieval import search

        if "index" in inputs:
            known = search.approximation(inputs.artifact("index"), self.k)
            if known is not None:
                out.info["approximate"] = known
        if not self.reranker:
            searched, pieces = self._search(inputs, out)
            out.count = sum(piece.items for piece in pieces)
            _join(out, searched, pieces)
            if "vectors" in inputs and "approximate" in out.info:
                self._measure(inputs, out)
            return
        work = out.inner("rerank")
        rankings = run_files.read_run(self._candidates(inputs, out, work), self.k)
        texts = {q.id: q.text for q in read_queries(self.queries) if q.id in rankings}
        if absent := [name for name in rankings if name not in texts]:
            raise UserError(
                f"{len(absent)} queries of the run have no text in {self.queries}, such as "
                f"{min(absent)!r}; give the queries that were searched with"
            )
        depth = self._depth()

        def load() -> Loaded:
            if given := inputs.get_artifact("passages"):
                read = search.passage_texts([given])
            else:
                read = convert.texts_of(inputs.artifact("index"))
            reranker = Reranker.load(self.reranker, self.pairs, self.inference)

            def rerank(piece: ShardFile, bar: progress.Bar) -> None:
                some = {query: rankings[query] for query in piece.job}
                found = search.reranked(some, texts, read, depth, reranker)
                run_files.write_run(work.part(piece.name), found)

            return Loaded(rerank)

        pieces = _pieces(rankings, max(1, _PAIRS // depth))
        sharded(work, pieces, load, "rerank", "queries")
        _join(out, work, pieces)
        out.count = len(rankings)

    def _search(self, inputs: Inputs, out: Writer) -> tuple[Writer, list[ShardFile]]:
        """The run of the index, in pieces of some queries each, and where they are."""
        from qac_jax.live.convert import opened_index
        from qac_jax.retrieval import search

        work = out.inner("search")
        texts = {query.id: query.text for query in read_queries(self.queries)}
        if not texts:
            raise UserError(f"{self.queries} holds no queries; give a file of them")

        def load() -> Loaded:
            index = opened_index(inputs.path("index"), self.encoder, self.where, self.hybrid)

            def find(piece: ShardFile, bar: progress.Bar) -> None:
                run = index.run({name: texts[name] for name in piece.job}, self.k)
                run_files.write_run(work.part(piece.name), run)

            return Loaded(find)

        pieces = _pieces(texts, search.TOGETHER)
        sharded(work, pieces, load, "search", "queries")
        return work, pieces

    def _measure(self, inputs: Inputs, out: Writer) -> None:
        """Searches a sample of the queries exactly as well: what the approximation loses."""
        from qac_jax.retrieval import search
        from qac_jax.retrieval.index import Index

        near = Index(inputs.artifact("index"), encoder=inputs.text("encoder"))
        texts = {query.id: query.text for query in read_queries(self.queries)}
        of = inputs.artifact("vectors"), texts, self.k, self.sample, self.seed
        exact, out.info["approximate"] = search.compared(near, *of)
        with out.open(run_files.EXACT) as file:
            run_files.write_lines(file, exact)

    def _depth(self) -> int:
        return min(self.rerank_depth or self.k, self.k)

    def _candidates(self, inputs: Inputs, out: Writer, work: Writer) -> str:
        """The run of --candidates, or of the index."""
        if "candidates" in inputs:
            (run,) = run_files.run_files(inputs.path("candidates")).values()
            return run
        if RUN not in work.done:
            _join(work, *self._search(inputs, out))
        return os.fspath(work.path / RUN)


def _pieces(queries: Iterable[str], size: int) -> list[ShardFile]:
    names = list(queries)
    groups = [names[start : start + size] for start in range(0, len(names), size)]
    return [ShardFile(f"piece-{n:06d}.trec", len(some), some) for n, some in enumerate(groups)]


def _join(out: Writer, work: Writer, pieces: Sequence[ShardFile]) -> None:
    """One run of its pieces."""
    with out.open(RUN, "wb") as file:
        for piece in pieces:
            with (work.path / piece.name).open("rb") as part:
                shutil.copyfileobj(part, file)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fuse(Stage):
    """Fuses rankings, such as an encoder's and BM25's, by ranks or by scores; or merges those of
    indexes that hold different passages."""

    VERB = "fuse"
    KIND = "run"
    VERSION = 2
    EXAMPLE = "qac fuse --runs bm25.trec,dense.trec --out out/fused"

    runs: Ref = input("runs of qac search, or TREC files", "run", FILE, many=True)
    method: str = option(
        "rrf",
        "rrf: sum of weight / (k + rank); convex: weighted mean of scores; merge: by the scores as "
        "they are, for runs of one encoder over indexes of different passages",
        choices=("rrf", "convex", "merge"),
    )
    k: float = option(60.0, "k of rrf; the larger, the less the first ranks dominate", at_least=0)
    weights: tuple[float, ...] = option((), "weights of the runs, in their order (default: 1 each)")
    normalization: str = option(
        "",
        "convex: scale of a query's scores, from the lowest possible (theoretical, the default) or "
        "the run's lowest (min_max) to the highest",
        choices=("", *SCALES),
    )
    depth: int = option(1000, "passages per query in the fused run (0: all)", at_least=0)

    def check(self) -> None:
        super().check()
        if (count := len([part for part in self.runs.split(",") if part.strip()])) < 2:
            raise UserError(f"{count} run cannot be fused; give two or more, by --runs A,B")
        if self.method == "merge" and self.weights:
            raise UserError("--method merge takes all scores as they are; leave --weights out")

    def run(self, inputs: Inputs, out: Writer) -> None:
        paths = run_files.run_files(inputs.text("runs"))
        runs = [run_files.read_run(path) for path in paths.values()]
        depth, weights = self.depth or None, self.weights
        if self.method == "merge":
            fused = fusion.merged(runs, depth)
        elif self.method == "rrf":
            fused = fusion.reciprocal_rank(runs, k=self.k, weights=weights, depth=depth)
        else:
            scale = self.normalization or THEORETICAL
            fused = fusion.convex(runs, weights=weights, normalization=scale, depth=depth)
        with out.open(RUN) as file:
            run_files.write_lines(file, fused)
        out.count = len(fused)
        out.info["runs"] = list(paths)
