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
    from qac_jax.evaluation.relatedness import Item, Sample


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

    pairs: Ref = input(
        "contexts (with --passages) or examples", kinds=("contexts", "examples"), default=""
    )
    passages: Ref = input("passages of the contexts", kinds=("passages",), default="")
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
    sheet_of: str = option(
        "pairs",
        "items of the sheet: the pairs, pseudo-labels (--labels) or titles (--passages)",
        choices=("pairs", "labels", "titles"),
    )
    sheet_items: int = option(200, "items per kind of context on the sheet")
    labels: Ref = input("pseudo-labels for the sheet", kinds=("negatives",), default="")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        return {"passages, at most": self.at_most, "sheet": self.sheet or None}

    def check(self) -> None:
        super().check()
        needed = {"pairs": "pairs", "labels": "labels", "titles": "passages"}[self.sheet_of]
        if self.sheet and not getattr(self, needed):
            raise UserError(
                f"a sheet of {self.sheet_of} needs --{needed}; give that, or another --sheet_of"
            )
        if self.sheet and self.sheet_of == "labels" and not self.passages:
            raise UserError("a sheet of labels shows passages; pass --passages")
        if self.at_most < 1 or self.sheet_items < 1:
            raise UserError(
                f"at_most={self.at_most} and sheet_items={self.sheet_items}; expected 1 or more"
            )
        if self.labels and not self.pairs and not self.sheet:
            raise UserError("there is nothing to do with --labels alone; pass --sheet FILE")
        if not self.pairs and not self.sheet:
            raise UserError("relate needs contexts or examples; pass --pairs DIR")

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.evaluation import results

        sample = self._sample(inputs) if "pairs" in inputs else None
        if sample is not None:
            self._measure(sample, inputs, out)
        if self.sheet:
            self._write_sheet(self._items(sample, inputs), out)
        if sample is None:
            results.store(out, [], {})

    def summary(self, artifact: Artifact) -> str:
        from qac_jax.evaluation import results
        from qac_jax.evaluation.significance import Comparison
        from qac_jax.report import tables

        sorts, facts = results.read(artifact)
        if not sorts:
            return ""
        parts = [tables.figures({r.name: r.mean for r in sorts}, "context")]
        if facts["comparisons"]:
            parts.append(tables.comparisons([Comparison(**c) for c in facts["comparisons"]]))
        parts.append(f"plot: {artifact.file(PLOT)}")
        return "\n\n".join(parts)

    def _sample(self, inputs: Inputs) -> Sample:
        from qac_jax.evaluation import relatedness
        from qac_jax.formats.records import Records

        artifact, passages = inputs.artifact("pairs"), inputs.get_artifact("passages")
        if artifact.kind == "examples":
            return relatedness.sample_of_examples(artifact, self.at_most, self.seed)
        if passages is None:
            raise UserError("--pairs of contexts needs --passages, which they are about")
        return relatedness.sample_of_contexts(
            Records(passages), Records(artifact), self.at_most, self.seed
        )

    def _measure(self, sample: Sample, inputs: Inputs, out: Writer) -> None:
        """Writes the metrics of every kind of context and their plot."""
        from qac_jax.evaluation import relatedness, results, significance
        from qac_jax.report import plots

        pairs = sample.pairs
        places = relatedness.lexical(sample.texts(), pairs) if pairs else []
        cosine: Any = ()
        odds: Any = ()
        if self.encoder and pairs:
            from qac_jax.inference.encoder import Encoder

            encode = Encoder.load(inputs.path("encoder")).encode
            cosine = relatedness.cosines(encode, pairs, sample.text)
        if self.cross_encoder and pairs:
            from qac_jax.inference import reranker

            judge = reranker.Reranker.load(inputs.path("cross_encoder"))
            contexts = [pair.context for pair in pairs]
            scores = judge.score(contexts, [sample.text(pair.passage) for pair in pairs])
            odds = reranker.probability(scores)
        copies = [relatedness.copied(pair.context, sample.text(pair.passage)) for pair in pairs]
        sorts = relatedness.measured(pairs, places, cosine, odds, copies)
        compared = significance.compared(sorts, list(sorts[0].mean), seed=self.seed)
        shares = relatedness.groups(pairs, places)
        label = "rank of the passage in BM25's results for its context"
        drawn = plots.columns(shares, label, "share of pairs")
        with out.open(PLOT) as file:
            file.write(drawn.file() if drawn else "")
        facts = {"comparisons": [dataclasses.asdict(c) for c in compared], "places": shares}
        results.store(out, sorts, facts)

    def _items(self, sample: Sample | None, inputs: Inputs) -> list[Item]:
        """The items of the sheet: equally many of each kind."""
        from qac_jax.evaluation import relatedness
        from qac_jax.formats.records import Records

        if self.sheet_of == "labels":
            labels, passages = inputs.artifact("labels"), inputs.artifact("passages")
            items = relatedness.of_labels(Records(labels), Records(passages), self.seed)
        elif self.sheet_of == "titles":
            items = relatedness.of_titles(Records(inputs.artifact("passages")), self.seed)
        else:
            assert sample is not None
            items = relatedness.of_pairs(sample.pairs, sample.text)
        if not (kept := relatedness.first_of_each(items, self.sheet_items)):
            raise UserError(f"there are no {self.sheet_of} to put on a sheet; check the inputs")
        return kept

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
