"""`qac suite`: metrics of many collections → one table with the papers' averages."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax.artifacts import Artifact, Writer
from qac_jax.pipeline.stage import Inputs, Ref, Stage, input


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite(Stage):
    """Combines one system's metrics of qac evaluate and qac evaluate-beir into AugTriever's Tables
    1 and 6, with their averages if all collections are present."""

    VERB: ClassVar[str] = "suite"
    KIND: ClassVar[str] = "metrics"
    EXAMPLE: ClassVar[str] = "qac suite --metrics out/beir,out/nq,out/triviaqa --out out/table"

    metrics: Ref = input(
        "metrics of one system; those of a question set in a folder with the set's name",
        kinds=("metrics",),
        many=True,
        aliases=("suite",),
    )

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        return {"table of": self.metrics}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.evaluation import results
        from qac_jax.report import suites

        gathered = suites.gathered(",".join(map(os.fspath, inputs.paths("metrics"))))
        results.store(out, gathered, {"comparisons": [], **suites.facts(gathered)})

    def summary(self, artifact: Artifact) -> str:
        from qac_jax.evaluation import results
        from qac_jax.report import suites

        return suites.text(*results.read(artifact))
