"""`qac votes`: annotated sheets of qac relate → shares of related contexts and agreement."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax.artifacts import Artifact, Writer
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input


@dataclasses.dataclass(frozen=True, kw_only=True)
class Votes(Stage):
    """Evaluates annotated sheets: the share of each kind of context that judges call highly
    related, and their agreement (Fleiss' kappa)."""

    VERB: ClassVar[str] = "votes"
    KIND: ClassVar[str] = "metrics"
    EXAMPLE: ClassVar[str] = (
        "qac votes --sheets ann.csv,bob.csv --key out/related/key.csv --out out/votes"
    )

    sheets: Ref = input(
        "annotated sheets, one per judge", kinds=(FILE,), many=True, aliases=("votes",)
    )
    key: Ref = input("key of the sheet: key.csv in the output of qac relate", kinds=(FILE,))

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        return {"judges": len(self.sheets.split(","))}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.evaluation import relatedness, results

        key = relatedness.read_key(os.fspath(inputs.path("key")))
        judges = [relatedness.read_votes(os.fspath(path), key) for path in inputs.paths("sheets")]
        facts = {"judges": len(judges), "kappa": relatedness.fleiss_kappa(judges)}
        results.store(out, relatedness.counted(key, judges), facts)

    def summary(self, artifact: Artifact) -> str:
        from qac_jax.evaluation import results
        from qac_jax.report import tables

        sorts, facts = results.read(artifact)
        table = tables.figures({result.name: result.mean for result in sorts}, "context")
        return f"{table}\n\njudges {facts['judges']}, Fleiss' kappa {facts['kappa']:.3f}"
