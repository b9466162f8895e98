"""`qac relate`: passages and their contexts → metrics of how related they are."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import MODEL, Inputs, Ref, Stage, input, option


if TYPE_CHECKING:
    from qac_jax.evaluation.relatedness import Item


PLOT, SHEET, KEY = "relatedness.svg", "sheet.csv", "key.csv"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relate(Stage):
    """Measures how related contexts are to their passages, by kind of context, and writes a blind
    sheet for human judges (QAC, appendix A); `qac votes` evaluates their votes."""

    VERB: ClassVar[str] = "relate"
    KIND: ClassVar[str] = "metrics"
    EXAMPLE: ClassVar[str] = (
        "qac relate --pairs out/contexts --passages out/passages --out out/related"
    )

    pairs: Ref = input("contexts of the passages", kinds=("contexts",))
    passages: Ref = input("passages of the contexts", kinds=("passages",))
    encoder: Ref = input(
        "also measure the cosine similarity of this dual encoder",
        kinds=("parameters", MODEL),
        default="",
        aliases=("model",),
    )
    cross_encoder: Ref = input(
        "also measure the probability of this cross-encoder",
        kinds=("parameters", MODEL),
        default="",
    )
    at_most: int = option(1000, "at most N passages of --pairs, drawn at random")
    sheet: str = option("", "CSV file to write a blind annotation sheet to")
    sheet_items: int = option(200, "items per kind of context on the sheet")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        return {"passages, at most": self.at_most, "sheet": self.sheet or None}

    def check(self) -> None:
        super().check()
        if self.at_most < 1 or self.sheet_items < 1:
            raise UserError(
                f"at_most={self.at_most} and sheet_items={self.sheet_items}; expected 1 or more"
            )

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.evaluation import relatedness, results, significance
        from qac_jax.formats.records import Records
        from qac_jax.report import plots

        passages = Records(inputs.artifact("passages"))
        contexts = Records(inputs.artifact("pairs"))
        pairs = list(relatedness.drawn_pairs(passages, contexts, self.at_most, self.seed))
        every = (record["text"] for record in passages)
        ranks = relatedness.bm25_ranks(every, pairs) if pairs else []

        def text(row: int) -> str:
            return passages[row]["text"]

        further: dict[str, Any] = {}
        if self.encoder and pairs:
            from qac_jax.inference.encoder import Encoder

            encode = Encoder.load(inputs.path("encoder")).encode
            further["cosine"] = relatedness.cosines(encode, pairs, text)
        if self.cross_encoder and pairs:
            from qac_jax.inference import reranker

            judge = reranker.Reranker.load(inputs.path("cross_encoder"))
            scores = judge.score([p.context for p in pairs], [text(p.passage) for p in pairs])
            further["cross-encoder"] = reranker.probability(scores)
        further["copied"] = [relatedness.copied(p.context, text(p.passage)) for p in pairs]
        sorts = relatedness.measured(pairs, ranks, further)
        compared = significance.compared(sorts, list(sorts[0].mean), seed=self.seed)
        shares = relatedness.rank_groups(pairs, ranks)
        label = "rank of the passage in BM25's results for its context"
        drawn = plots.columns(shares, label, "share of pairs")
        with out.open(PLOT) as file:
            file.write(drawn.file() if drawn else "")
        facts = {"comparisons": [dataclasses.asdict(c) for c in compared], "places": shares}
        results.store(out, sorts, facts)
        if self.sheet:
            self._write_sheet(relatedness.sheet_items(pairs, text, self.sheet_items), out)

    def summary(self, artifact: Artifact) -> str:
        from qac_jax.evaluation import results
        from qac_jax.evaluation.significance import Comparison
        from qac_jax.report import tables

        sorts, facts = results.read(artifact)
        parts = [tables.figures({r.name: r.mean for r in sorts}, "context")]
        if facts["comparisons"]:
            parts.append(tables.comparisons([Comparison(**c) for c in facts["comparisons"]]))
        parts.append(f"plot: {artifact.file(PLOT)}")
        return "\n\n".join(parts)

    def _write_sheet(self, items: list[Item], out: Writer) -> None:
        from qac_jax.evaluation import relatedness

        sheet, key = io.StringIO(newline=""), io.StringIO(newline="")
        relatedness.write_sheet(sheet, key, items, self.seed)
        for name, content in ((SHEET, sheet), (KEY, key)):
            with out.open(name) as file:
                file.write(content.getvalue())
        with open(self.sheet, "w", newline="", encoding="utf-8") as file:
            file.write(sheet.getvalue())
        progress.say(f"{len(items)} items to judge: {self.sheet}; what they are: {out.path / KEY}")
