"""`qac hybrid`: a dense index and a BM25 index → one index that fuses their scores."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer, arrays
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import FILE, MODEL, Inputs, Ref, Stage, input, option, part, together
from qac_jax.retrieval.fusion import GRID, THEORETICAL, Fusion


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hybrid(Stage):
    """Joins two indexes of the same passages by convex fusion (Bruch et al., 2023).

    The score of a passage is (1 - weight) x dense + weight x BM25, both brought to one scale for
    each query. With --queries and --qrels the weight is chosen: the one nearest to --weight whose
    MRR@10 is within one standard error of the best.
    """

    VERB: ClassVar[str] = "hybrid"
    KIND: ClassVar[str] = "hybrid"
    EXAMPLE: ClassVar[str] = "qac hybrid --index out/index --bm25 out/bm25 --out out/hybrid"

    GROUPS = (together("queries", "qrels"),)

    index: Ref = input("dense index", kinds=("index",))
    bm25: Ref = input("BM25 index of the same passages", kinds=("bm25",))
    encoder: Ref = input(
        "encoder of the index, if it was moved",
        kinds=("parameters", MODEL),
        default="",
        aliases=("model",),
    )
    queries: Ref = input("queries to choose the weight on", kinds=(FILE,), default="")
    qrels: Ref = input("relevance judgements of --queries", kinds=(FILE,), default="")
    fusion: Fusion = part(Fusion)
    grid: tuple[float, ...] = option(GRID, "weights that are tried")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        count = inputs.get("index", {}).get("count")
        return {"passages": count, "weight": "chosen" if self.queries else self.fusion.weight}

    def check(self) -> None:
        super().check()
        if not self.grid or not all(0 <= weight <= 1 for weight in self.grid):
            raise UserError(f"grid={self.grid}; expected weights from 0 to 1")

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats.judgements import by_query, read_judgements
        from qac_jax.formats.queries import read_queries
        from qac_jax.retrieval import corpus, hybrid, index
        from qac_jax.retrieval.bm25 import Bm25
        from qac_jax.retrieval.index import Index

        dense = Index(inputs.artifact("index"), encoder=inputs.text("encoder"))
        lexical = Bm25(inputs.artifact("bm25"))
        order, settings = hybrid.order_of(dense, lexical), self.fusion
        # Only this scale depends on what the dense scores are.
        cosine = settings.normalization == THEORETICAL and dense.encoder.module.config.normalize
        if self.queries:
            judged = by_query(read_judgements(self.qrels))
            texts = {query.id: query.text for query in read_queries(self.queries)}
            both = hybrid.Parts(dense, lexical, settings, cosine, order)
            choice = hybrid.choose_weight(both, dense.encoder, texts, judged, self.grid)
            settings = dataclasses.replace(settings, weight=choice.weight)
            out.info["choice"] = dataclasses.asdict(choice)
            progress.say(f"hybrid: {choice}")
        index.link_whole(dense.artifact, hybrid.DENSE, out)
        index.link_whole(lexical.artifact, hybrid.BM25, out)
        if len(order):
            with out.temporary(hybrid.ROWS) as path:
                arrays.save(path, order)
        with out.open(hybrid.DESCRIPTION) as file:
            json.dump(dataclasses.asdict(settings), file, indent=1)
        if corpus.IDS_OFFSETS not in out.done:
            corpus.write_ids(out, dense.ids)
        known = dense.artifact
        made_by = dict(known.info["encoder"])
        if self.encoder:  # where it is now
            made_by = {**made_by, "path": os.path.abspath(inputs.text("encoder"))}
            made_by.pop("relative", None)
        out.count = len(dense)
        out.info.update(
            weight=settings.weight,
            windows=settings.windows if dense.windows else 0.0,
            cosine=cosine,
            encoder=index.encoder_seen_from(made_by, out, os.fspath(known.path)),
            texts=index.texts_seen_from(known.path, known.info["texts"], out),
        )

    def summary(self, artifact: Artifact) -> str:
        from qac_jax.retrieval import fusion

        if choice := artifact.info.get("choice"):
            return str(fusion.Choice(**choice))
        return f"weight of BM25: {artifact.info['weight']:g}"
