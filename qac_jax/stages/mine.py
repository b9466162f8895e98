"""`qac mine`: hard negatives for queries, from an index, from BM25, or from both."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import Inputs, Stage, artifact_input, option, source


if TYPE_CHECKING:
    from qac_jax.formats.records import Records
    from qac_jax.retrieval.hits import Searchable
    from qac_jax.retrieval.mining import Question


# Queries of one file: what an interruption loses at most.
_TOGETHER = 8192
_FILES = "negatives"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(Stage):
    """Takes negatives out of the rankings of an encoder, of BM25, or of both."""

    VERB: ClassVar[str] = "mine"
    KIND: ClassVar[str] = "negatives"
    EXAMPLE: ClassVar[str] = (
        "qac mine --index out/index --passages out/passages --queries queries.jsonl "
        "--qrels qrels/train.tsv --out out/negatives"
    )

    passages: str = artifact_input("the passages that were indexed", kind="passages")
    index: str = artifact_input("an encoder's index", kind="index", default="")
    bm25: str = artifact_input("BM25's index", kind="bm25", default="")
    negatives: str = option(
        "all",
        "which of the two are used: mined (the encoder's), bm25, mined+bm25, or all there are",
        choices=("all", "mined", "bm25", "mined+bm25"),
    )
    queries: str = source("queries", "")
    qrels: str = source("their judgements", "")
    contexts: str = artifact_input(
        "or generated queries, whose passages are their positives", kind="contexts", default=""
    )
    model: str = source("where the index's encoder is, if it was moved", "")
    depth: int = option(200, "passages of each ranking that negatives are drawn from")
    keep: int = option(128, "negatives of a query")
    seed: int = option(42, "of drawing them")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        self._check()
        count = inputs.get("contexts", {}).get("count")
        return {"from": ", ".join(self._systems()), "passages with queries": count}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats.records import Records, shard_name, write_lines, write_offsets
        from qac_jax.retrieval import mining

        self._check()
        passages = Records(_artifact(inputs, "passages"))
        questions = self._questions(inputs, passages)
        if not questions:
            raise UserError("no query has a positive passage; check the queries and judgements")
        searchers = self._searchers(inputs)
        choice = mining.Choice(self.depth, self.keep, self.seed)
        miner = mining.Miner(passages, searchers, choice)
        shards = -(-len(questions) // _TOGETHER)
        with progress.Bar("mine", total=len(questions), unit="queries") as bar:
            for number in range(shards):
                name = shard_name(_FILES, number, shards)
                piece = questions[number * _TOGETHER : (number + 1) * _TOGETHER]
                if name in out.done:
                    bar.skip(len(piece))
                    continue
                told = write_lines(out.part(name), _mined(miner, piece, bar))
                out.keep(name, sha256=told["sha256"], facts={"records": told["records"]})
        write_offsets(out, _FILES, shards)
        out.info["systems"] = {
            name: {"path": str(s.artifact.path), "identity": s.artifact.identity}
            for name, s in searchers.items()
        }

    def _check(self) -> None:
        if self.depth < 1 or self.keep < 1:
            raise UserError(f"depth={self.depth}, keep={self.keep}; expected 1 or more of both")
        if bool(self.contexts) == bool(self.queries) or bool(self.queries) != bool(self.qrels):
            raise UserError(
                "mine needs queries whose positives are known; pass --queries with --qrels, or "
                "--contexts"
            )
        missing = [name for name in self._systems() if not getattr(self, _INPUTS[name])]
        if missing or not self._systems():
            wanted = " and ".join(f"--{_INPUTS[name]}" for name in missing) or "--index or --bm25"
            raise UserError(f"negatives={self.negatives!r} needs an index; pass {wanted}")

    def _systems(self) -> list[str]:
        if self.negatives == "all":
            return [name for name, field in _INPUTS.items() if getattr(self, field)]
        return self.negatives.split("+")

    def _searchers(self, inputs: Inputs) -> dict[str, Searchable]:
        from qac_jax.retrieval import search

        return {
            name: search.open_index(_artifact(inputs, _INPUTS[name]).path, self.model)
            for name in self._systems()
        }

    def _questions(self, inputs: Inputs, passages: Records) -> Sequence[Question]:
        from qac_jax.data.judged import generated_id
        from qac_jax.formats.judgements import by_query, read_judgements
        from qac_jax.formats.queries import read_queries
        from qac_jax.formats.records import Records
        from qac_jax.retrieval import mining

        if "contexts" in inputs:
            contexts = Records(_artifact(inputs, "contexts"))
            texts, judged = {}, {}
            for record in contexts:
                for place, query in enumerate(record["contexts"]):
                    name = generated_id(record["_id"], place)
                    texts[name], judged[name] = query["text"], {record["_id"]: 1}
            return mining.questions_of(texts, judged, passages)
        texts = {query.id: query.text for query in read_queries(self.queries)}
        judged = by_query(read_judgements(self.qrels, queries=texts))
        return mining.questions_of(texts, judged, passages)


# What a system is called -> the input it comes from.
_INPUTS = {"mined": "index", "bm25": "bm25"}


def _mined(miner: Any, questions: Sequence[Question], bar: progress.Bar) -> Iterator[Any]:
    """Records, with the searches in pieces so that the bar moves."""
    step = 512
    for start in range(0, len(questions), step):
        yield from miner.mine(questions[start : start + step])
        bar.advance(len(questions[start : start + step]))


def _artifact(inputs: Inputs, name: str) -> Artifact:
    found = inputs[name]
    assert isinstance(found, Artifact)
    return found
