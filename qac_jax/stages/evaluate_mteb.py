"""`qac evaluate-mteb`: an encoder and tasks of MTEB by name → metrics."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from importlib import metadata
from typing import Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.inference.settings import EncoderOptions, Inference
from qac_jax.pipeline import inputs as inputs_lib
from qac_jax.pipeline.stage import MODEL, Inputs, Ref, Stage, input, option, part


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateMteb(Stage):
    """Evaluates an encoder on tasks of MTEB, which the package mteb fetches and measures.

    Each task's own record is kept in `mteb/TASK.json`, as its leaderboard reads it. A finished task
    is not done again.
    """

    VERB: ClassVar[str] = "evaluate-mteb"
    KIND: ClassVar[str] = "metrics"
    EXAMPLE: ClassVar[str] = "qac evaluate --mteb NanoBEIR --encoder out/retriever --out out/nano"

    encoder: Ref = input("dual encoder", kinds=("parameters", MODEL), aliases=("model",))
    mteb: tuple[str, ...] = option(
        (),
        "tasks and benchmarks",
        shown=(
            "a task such as NanoNFCorpus or SciFact",
            "a benchmark such as NanoBEIR",
            "a folder in BEIR's layout",
        ),
    )
    options: EncoderOptions = part(EncoderOptions)
    inference: Inference = part(Inference)

    def check(self) -> None:
        from qac_jax.evaluation import mteb_tasks

        super().check()
        if not self.mteb:
            raise UserError("no task is named; pass --mteb TASK, such as NanoBEIR or SciFact")
        mteb_tasks.check_installed()

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        return {"tasks": ", ".join(self.mteb), "encoder": self.encoder}

    def environment(self) -> dict[str, str]:
        """The version of mteb, and what the folders hold."""
        folders = [name for name in self.mteb if os.path.isdir(name)]
        return {
            "mteb": _version(),
            **{name: inputs_lib.identity(name) for name in folders},
        }

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.evaluation import mteb_tasks, results
        from qac_jax.inference.encoder import Encoder

        place = inputs.path("encoder")
        tasks = mteb_tasks.tasks(self.mteb)
        encoder = Encoder.load(place, self.options, self.inference)
        revision = inputs_lib.identities(inputs)["encoder"]
        model = mteb_tasks.Model(encoder, f"qac_jax/{place.name}", revision)
        judged = []
        for task in tasks:
            name = task.metadata.name
            file = f"mteb/{name}.json"
            if file not in out.done:
                result, record = mteb_tasks.evaluate(model, task)
                facts = {"mean": result.mean, "queries": result.queries}
                with out.open(file, facts=facts) as stream:
                    json.dump(record, stream, indent=1, default=str)
            known = out.facts(file)
            judged.append(results.Result(name, known["mean"], {}, known["queries"]))
            progress.say(f"{name}: main score {known['mean'][mteb_tasks.MAIN]:.4f}")
        results.store(out, judged, {"comparisons": []})
        out.count = len(judged)

    def summary(self, artifact: Artifact) -> str:
        from qac_jax.evaluation import results
        from qac_jax.report import tables

        judged, _ = results.read(artifact)
        table = tables.figures({result.name: result.mean for result in judged}, "task")
        if len(judged) < 2:
            return table
        mean = sum(result.mean["main_score"] for result in judged) / len(judged)
        return f"{table}\n\nmean of {len(judged)} tasks' main scores: {mean:.4f}"


def _version() -> str:
    return metadata.version("mteb")
