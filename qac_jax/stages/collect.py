"""`qac collect`: a collection, judged or not → training and test queries with judgements.

A folder in BEIR's layout may have judged queries for training, for testing, for both or for
neither (`queries/collecting.py`); the stages after this one read the same files in all cases.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, option, part
from qac_jax.queries.collecting import GENERATED, Questions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collect(Stage):
    """Writes training and test queries with their judgements as files that every stage reads."""

    VERB: ClassVar[str] = "collect"
    KIND: ClassVar[str] = "questions"
    VERSION: ClassVar[int] = 2
    EXAMPLE: ClassVar[str] = (
        "qac collect --collection data/mine --passages out/passages --contexts out/contexts "
        "--out out/questions"
    )

    collection: Ref = input(
        "folder in BEIR's layout; queries.jsonl and qrels/ may be missing",
        kinds=(FILE,),
        default="",
        aliases=("input",),
    )
    passages: Ref = input("passages of the collection", kinds=("passages",))
    contexts: Ref = input("queries generated for the passages", kinds=("contexts",), default="")
    summaries: bool = option(
        False,
        "python_docs: use docstrings' summary lines as queries; those of held-out modules are the "
        "test queries",
    )
    chosen: Questions = part(Questions)

    def check(self) -> None:
        super().check()
        self.chosen.check()
        train = self.chosen.train
        if not self.collection and not self.summaries:
            raise UserError(
                "collect needs queries; give --collection, or --summaries for docstrings"
            )
        if self.collection and self.summaries:
            raise UserError("--summaries replaces the questions of --collection; give one of them")
        if train == "none" and not self.summaries:
            raise UserError("train='none' is for --summaries; expected auto, judged or generated")
        if train in ("generated", "both") and not self.contexts:
            raise UserError(f"train={train!r} needs generated queries; give --contexts")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "passages": inputs.get("passages", {}).get("count"),
            "training questions": self.chosen.train,
        }

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats import questions
        from qac_jax.formats.records import Records
        from qac_jax.queries.collecting import Collector

        folder = inputs.text("collection")
        if folder and not os.path.isdir(folder):
            raise UserError(f"{folder} is not a folder; give one with corpus.jsonl in it")
        contexts = Records(inputs.artifact("contexts")) if "contexts" in inputs else None
        passages = Records(inputs.artifact("passages"))
        collector = Collector(self.chosen, passages, contexts, self.seed)
        train, test = collector.of_docstrings() if self.summaries else collector.of_folder(folder)
        for name, asked in (("train", train), ("test", test)):
            questions.write(out, name, asked.texts, asked.judged)
            out.info[name] = {"from": asked.origin, "queries": len(asked.texts)}
            progress.say(f"collect: {len(asked.texts):,} {name} questions ({asked.origin})")
        if test.origin == GENERATED:
            progress.say(
                f"collect: {folder} has no judged test questions; figures on generated ones "
                "compare systems, but do not predict the quality on real queries"
            )
        out.count = len(train.texts) + len(test.texts)

    def summary(self, artifact: Artifact) -> str:
        return "\n".join(
            f"{name:<6} {artifact.info[name]['queries']:>10,}  {artifact.info[name]['from']}"
            for name in ("train", "test")
        )
