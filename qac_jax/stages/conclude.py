"""`qac conclude`: metrics, a choice and where questions come from → a verdict in words."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import Inputs, Ref, Stage, input, option


if TYPE_CHECKING:
    from qac_jax.report.verdict import Provenance


SUMMARY = "summary.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conclude(Stage):
    """Writes summary.json: rows with figures, provenance of the questions, which system to use.

    Which retriever, and whether with BM25, was decided by the validation questions; the test
    questions only measure it.
    """

    VERB: ClassVar[str] = "conclude"
    KIND: ClassVar[str] = "summary"
    VERSION: ClassVar[int] = 2
    EXAMPLE: ClassVar[str] = (
        "qac conclude --metrics out/metrics --choice out/choice --validation out/validation "
        "--questions out/questions --alone run_start,run_1 --out out/summary"
    )

    metrics: Ref = input("metrics of all systems on the test questions", kinds=("metrics",))
    validation: Ref = input("metrics of them on the validation questions", kinds=("metrics",))
    choice: Ref = input("the model that was chosen", kinds=("choice",))
    questions: Ref = input("questions of qac collect", kinds=("questions",))
    index: Ref = input(
        "index of the chosen model and BM25, whose weight was chosen", kinds=("hybrid",), default=""
    )
    leaks: Ref = input("the comparison of qac leaks", kinds=("leaks",), default="")
    bm25: str = option("run_bm25", "BM25's run among the metrics")
    alone: tuple[str, ...] = option((), "runs of the models, in the order of the choice")
    fused: tuple[str, ...] = option((), "the same fused with BM25's (default: none)")
    names: Mapping[str, str] | None = option(None, "names of the runs to show")

    def check(self) -> None:
        super().check()
        if not self.alone or self.fused and len(self.fused) != len(self.alone):
            raise UserError(
                f"{len(self.alone)} runs of models and {len(self.fused)} fused ones; give --alone, "
                "and --fused for each of them or for none"
            )

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.evaluation import results
        from qac_jax.evaluation.significance import Candidate, Comparison, ModelChoice
        from qac_jax.report import verdict

        rows, facts = results.read(inputs.artifact("metrics"))
        chosen = inputs.artifact("choice").info["choice"]
        choice = ModelChoice(
            **{**chosen, "candidates": tuple(Candidate(**c) for c in chosen["candidates"])}
        )
        systems = verdict.Systems(self.bm25, tuple(self.alone), tuple(self.fused))
        validated = {r.name: r.mean for r in results.read(inputs.artifact("validation"))[0]}
        searched = inputs.artifact("index").info if "index" in inputs else {}
        weight, windows = float(searched.get("weight", 0.0)), float(searched.get("windows", 0.0))
        questions = _questions(inputs.artifact("questions"))
        comparisons = [Comparison(**c) for c in facts["comparisons"]]
        names = dict(self.names or {})
        sentences = verdict.verdict(
            rows, comparisons, choice, systems, weight, windows, questions["test"], names
        )
        use = systems.used(choice.place, weight)
        summary = {
            "verdict": sentences,
            "opening": verdict.opening(questions),
            "use": {
                "system": use,
                "name": names.get(use, use),
                "weight of BM25": weight,
                "share of the best window": windows,
                "trained": choice.changed,
            },
            "rows": [{"system": r.name, "name": names.get(r.name, r.name), **r.mean} for r in rows],
            "validation": {names.get(name, name): mean for name, mean in validated.items()},
            "choice": chosen,
            "questions": {
                name: {**dataclasses.asdict(q), "makers": q.makers, "filters": q.filters}
                for name, q in questions.items()
            },
            "leaks": json.loads(inputs.artifact("leaks").file("leaks.json").read_text())
            if "leaks" in inputs
            else None,
        }
        with out.open(SUMMARY) as file:
            json.dump(summary, file, indent=1, ensure_ascii=False, default=str)
            file.write("\n")
        out.count = len(rows)

    def summary(self, artifact: Artifact) -> str:
        return "\n".join(json.loads(artifact.file(SUMMARY).read_text())["verdict"])


def _questions(artifact: Artifact) -> dict[str, Provenance]:
    """Each part of the questions and where it comes from."""
    from qac_jax.queries.splitting import PARTS
    from qac_jax.report.verdict import Provenance

    makers = artifact.info.get("made_by", {})
    found = {}
    for part in reversed(PARTS):
        if part in artifact.info:
            info = artifact.info[part]
            found[part] = Provenance(
                part,
                info["queries"],
                info["from"],
                generated=part in makers and ".tsv" not in info["from"],
                made_by=makers.get(part, ()),
                removed=info.get("removed", {}),
            )
    return found
