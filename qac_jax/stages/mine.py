"""`qac mine`: queries and an index (dense, BM25 or both) → hard negatives for each query."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.pipeline import costs
from qac_jax.pipeline.settings import Hosts
from qac_jax.pipeline.sharding import ShardFile, cut, sharded
from qac_jax.pipeline.stage import FILE, MODEL, Inputs, Ref, Stage, input, option, part
from qac_jax.processes import Place
from qac_jax.retrieval.mining import Mining


if TYPE_CHECKING:
    from qac_jax.formats.records import Records
    from qac_jax.retrieval.corpus import Searchable
    from qac_jax.retrieval.mining import Question


# Queries per file (an interruption loses at most one file) and per search.
_TOGETHER, _SEARCHED = 8192, 512
_FILES = "negatives"
# System -> the input with its index.
_INPUTS = {"mined": "index", "bm25": "bm25"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(Stage):
    """Draws hard negatives from the rankings of an encoder, of BM25, or of both."""

    VERB: ClassVar[str] = "mine"
    KIND: ClassVar[str] = "negatives"
    VERSION: ClassVar[int] = 2
    DIVIDED: ClassVar[bool] = True
    EXAMPLE: ClassVar[str] = (
        "qac mine --index out/index --passages out/passages --queries queries.jsonl "
        "--qrels qrels/train.tsv --out out/negatives"
    )

    passages: Ref = input("indexed passages", kinds=("passages",))
    index: Ref = input("dense index, or hybrid", kinds=("index", "hybrid"), default="")
    encoder: Ref = input(
        "encoder of --index, if it was moved",
        kinds=("parameters", MODEL),
        default="",
        aliases=("model",),
    )
    bm25: Ref = input("BM25 index", kinds=("bm25", "rankings"), default="")
    negatives: str = option(
        "all",
        "rankings to draw from: mined (the encoder's), bm25, mined+bm25, or all that are given",
        choices=("all", "mined", "bm25", "mined+bm25"),
    )
    queries: Ref = input("queries", kinds=(FILE,), default="")
    qrels: Ref = input("relevance judgements of --queries", kinds=(FILE,), default="")
    contexts: Ref = input(
        "or generated queries, each with its own passage as the positive",
        kinds=("contexts",),
        default="",
    )
    mining: Mining = part(Mining)
    seed: int = option(42, "seed of drawing negatives")
    hosts: Hosts = part(Hosts)

    def place(self) -> Place:
        return self.hosts.place()

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        count = inputs.get("contexts", {}).get("count")
        plan: dict[str, Any] = {"from": ", ".join(self._systems()), "passages with queries": count}
        queries = costs.count_of(inputs, "queries", "contexts")
        for system in self._systems():
            found = costs.searching(inputs, _INPUTS[system], queries, self.mining.depth)
            plan |= {name: plan.get(name, 0.0) + cost for name, cost in found.items()}
        return plan

    def check(self) -> None:
        super().check()
        if bool(self.contexts) == bool(self.queries) or bool(self.queries) != bool(self.qrels):
            raise UserError(
                "mine needs queries whose positives are known; pass --queries with --qrels, or "
                "--contexts"
            )
        missing = [name for name in self._systems() if not getattr(self, _INPUTS[name])]
        if missing or not self._systems():
            wanted = " and ".join(f"--{_INPUTS[name]}" for name in missing) or "--index or --bm25"
            raise UserError(f"negatives={self.negatives!r} needs an index; pass {wanted}")

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats.records import shard_name, write_lines, write_offsets
        from qac_jax.retrieval.mining import Miner

        questions, passages = self.questions(inputs)
        searchers = self._searchers(inputs)
        miner, pieces = (
            Miner(passages, searchers, self.mining, self.seed),
            cut(len(questions), _TOGETHER),
        )
        shards = [
            ShardFile(shard_name(_FILES, number, len(pieces)), stop - start, questions[start:stop])
            for number, (start, stop) in enumerate(pieces)
        ]
        with progress.Bar("mine", total=len(questions), unit="queries") as bar:

            def mined(asked: Sequence[Question]) -> Iterator[Any]:
                for start, stop in cut(len(asked), _SEARCHED):
                    yield from miner.mine(asked[start:stop])
                    bar.advance(stop - start)

            sharded(
                out,
                shards,
                lambda shard, _: write_lines(out.part(shard.name), mined(shard.job)),
                bar,
            )
        if not out.joins:
            return
        write_offsets(out, _FILES, len(shards))
        out.info["systems"] = {
            name: {"path": str(s.artifact.path), "identity": s.artifact.identity}
            for name, s in searchers.items()
        }

    def _systems(self) -> list[str]:
        if self.negatives == "all":
            return [name for name, field in _INPUTS.items() if getattr(self, field)]
        return self.negatives.split("+")

    def _searchers(self, inputs: Inputs) -> dict[str, Searchable]:
        from qac_jax.retrieval import search

        encoder = inputs.text("encoder")
        return {
            name: search.open_index(inputs.path(_INPUTS[name]), encoder) for name in self._systems()
        }

    def questions(self, inputs: Inputs) -> tuple[list[Question], Records]:
        """What negatives are drawn for, and the passages that they are drawn from."""
        from qac_jax.formats.records import Records
        from qac_jax.retrieval import mining

        passages = Records(inputs.artifact("passages"))
        if "contexts" in inputs:
            found = mining.generated_queries(Records(inputs.artifact("contexts")), passages)
        else:
            queries, qrels = inputs.text("queries"), inputs.text("qrels")
            found = mining.judged_queries(queries, qrels, passages)
        if not found:
            raise UserError("no query has a positive passage; check the queries and judgements")
        return found, passages
