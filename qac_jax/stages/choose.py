"""`qac choose`: models and their runs on validation questions → the model to use."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import FILE, MODEL, Inputs, Ref, Stage, input, option


CHOICE, CHOSEN, INDEX = "choice.json", "model", "index"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choose(Stage):
    """Keeps the model whose run on the validation questions is best.

    The start that the others were trained from is kept unless one is better by more than noise. The
    folder `model` in the artefact is a copy of the one that is chosen, `index` its index.
    """

    VERB: ClassVar[str] = "choose"
    KIND: ClassVar[str] = "choice"
    EXAMPLE: ClassVar[str] = (
        "qac choose --start models/start --models out/retriever --runs out/run_start,out/run "
        "--qrels qrels/dev.tsv --out out/choice"
    )

    start: Ref = input("model that the others were trained from", kinds=("parameters", MODEL))
    models: Ref = input("the others", kinds=("parameters", MODEL), many=True)
    runs: Ref = input(
        "runs of the start and of the others on the validation questions",
        kinds=("run", FILE),
        many=True,
    )
    indexes: Ref = input(
        "dense indexes of the start and of the others, of which the chosen one's is kept too",
        kinds=("index",),
        many=True,
        default="",
    )
    qrels: Ref = input("relevance judgements of the validation questions", kinds=(FILE,))
    measure: str = option(
        "mrr@10",
        "the measure to choose by",
        choices=("mrr@10", "ndcg@10", "hit@1", "recall@100"),
    )
    level: float = option(
        0.05, "the highest p-value at which a difference to the first model is more than noise"
    )
    permutations: int = option(10_000, "permutations of the randomisation test")

    def check(self) -> None:
        super().check()
        models, runs = 1 + len(self.models.split(",")), len(self.runs.split(","))
        if models != runs:
            raise UserError(
                f"{models} models with the start and {runs} runs; give one run for each, the "
                "start's first"
            )
        if self.indexes and len(self.indexes.split(",")) != models:
            raise UserError(f"--indexes are one for each of the {models} models; give all of them")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        return {"measure": self.measure, "level": self.level}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.evaluation import benchmarks, significance
        from qac_jax.evaluation.benchmarks import Judging
        from qac_jax.formats import runs
        from qac_jax.hub import names
        from qac_jax.retrieval import index

        rules = Judging(measures=(self.measure,)).resolved()
        judge = benchmarks.by_judgements(inputs.text("qrels"), rules)
        paths = runs.run_files(",".join(map(os.fspath, inputs.paths("runs"))))
        results = [judge(name, runs.read_run(path)) for name, path in paths.items()]
        found = significance.choose(
            results,
            rules.measures[0],
            level=self.level,
            permutations=self.permutations,
            seed=self.seed,
        )
        models = [inputs.path("start"), *inputs.paths("models")]
        model = names.folder(models[found.place])
        if self.indexes:
            index.link_whole(inputs["indexes"][found.place], INDEX, out)
        shutil.rmtree(out.path / CHOSEN, ignore_errors=True)
        shutil.copytree(model, out.path / CHOSEN)
        out.adopt(CHOSEN)
        with out.open(CHOICE) as file:
            json.dump(dataclasses.asdict(found), file, indent=1)
        out.info["choice"] = dataclasses.asdict(found)
        out.count = len(results)
        progress.say(f"choose: {found.chosen}; {_shown(found.candidates)}")

    def summary(self, artifact: Artifact) -> str:
        return f"chosen: {artifact.info['choice']['chosen']}"


def _shown(candidates: Any) -> str:
    return ", ".join(f"{c.name} {c.mean:.3f} (p = {c.p:.2g})" for c in candidates)
