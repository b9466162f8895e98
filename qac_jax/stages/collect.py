"""`qac collect`: a collection, judged or not → training and test queries with judgements.

A folder in BEIR's layout may have judged queries for training, for testing, for both or for
neither (`queries/questions.py`); the stages after this one read the same files in all cases.
Where passages were kept aside for validation and test (`qac split`), their generated questions are
inputs of their own.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, option, part
from qac_jax.queries.questions import GENERATED, Questions
from qac_jax.queries.splitting import PARTS, TEST, TRAIN, VALIDATION


if TYPE_CHECKING:
    from qac_jax.queries.questions import JudgedQueries


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collect(Stage):
    """Writes training and test queries with their judgements as files that every stage reads."""

    VERB: ClassVar[str] = "collect"
    KIND: ClassVar[str] = "questions"
    VERSION: ClassVar[int] = 3
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
    contexts: Ref = input(
        "queries generated for the passages, or extracted from them",
        kinds=("contexts",),
        default="",
        many=True,
    )
    validation_contexts: Ref = input(
        "queries generated for passages kept aside, of which one each is a validation question",
        kinds=("contexts",),
        default="",
    )
    test_contexts: Ref = input(
        "the same for the test, where the collection has no judged test queries",
        kinds=("contexts",),
        default="",
    )
    summaries: bool = option(
        False,
        "python_docs: use docstrings' summary lines as queries; those of held-out modules are the "
        "test queries",
    )
    chosen: Questions = part(Questions)

    def check(self) -> None:
        super().check()
        train = self.chosen.train
        if not self.collection and not self.summaries:
            raise UserError(
                "collect needs queries; give --collection, or --summaries for docstrings"
            )
        if self.collection and self.summaries:
            raise UserError("--summaries replaces the questions of --collection; give one of them")
        if train == "none" and not self.summaries:
            raise UserError("train='none' is for --summaries; expected auto, judged or generated")
        if self.summaries and (self.validation_contexts or self.test_contexts):
            raise UserError("--summaries take no validation and test contexts; leave them out")
        if self.test_contexts and not self.validation_contexts:
            raise UserError("--test_contexts need --validation_contexts too; give both")
        if train in ("generated", "both") and not self.contexts:
            raise UserError(f"train={train!r} needs generated queries; give --contexts")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "passages": inputs.get("passages", {}).get("count"),
            "training questions": self.chosen.train,
        }

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats.judgements import write_questions
        from qac_jax.formats.records import Records
        from qac_jax.queries.questions import Collector

        folder = inputs.text("collection")
        if folder and not os.path.isdir(folder):
            raise UserError(f"{folder} is not a folder; give one with corpus.jsonl in it")
        contexts = [Records(artifact) for artifact in inputs.get("contexts", ())]
        passages = Records(inputs.artifact("passages"))
        if len(contexts) > 1 and not self.validation_contexts:
            raise UserError("several --contexts are for --validation_contexts; give one of them")
        first = contexts[0] if contexts else None
        collector = Collector(self.chosen, passages, self.seed)
        removed: Mapping[str, Mapping[str, int]] = {}
        if self.validation_contexts:
            aside = [inputs.get_artifact(f"{part}_contexts") for part in (VALIDATION, TEST)]
            validation, test = (None if made is None else Records(made) for made in aside)
            sets, removed = collector.of_split_corpus(folder, contexts, validation, test)
        elif self.summaries:
            sets = collector.of_docstrings(first)
        else:
            sets = collector.of_folder(folder, first)
        for name, asked in sets.items():
            write_questions(out, name, asked.texts, asked.judged)
            out.info[name] = {"from": asked.origin, "queries": len(asked.texts)}
            if lost := removed.get(name):
                out.info[name]["removed"] = dict(lost)
            progress.say(f"collect: {len(asked.texts):,} {name} questions ({asked.origin})")
            for reason, count in (lost or {}).items():
                progress.say(f"collect: {count:,} {name} questions removed: {reason}")
        if self.validation_contexts:
            out.info["made_by"] = self._makers(inputs, sets)
        elif sets[TEST].origin == GENERATED:
            progress.say(
                f"collect: {folder} has no judged test questions; figures on generated ones "
                "compare systems, but do not predict the quality on real queries"
            )
        out.count = sum(len(asked.texts) for asked in sets.values())

    def summary(self, artifact: Artifact) -> str:
        return "\n".join(
            f"{name:<10} {artifact.info[name]['queries']:>10,}  {artifact.info[name]['from']}"
            for name in PARTS
            if name in artifact.info
        )

    def _makers(self, inputs: Inputs, sets: Mapping[str, JudgedQueries]) -> dict[str, Any]:
        """Who made the questions of each part, where they are generated."""
        from qac_jax.queries.questions import made_by

        sources = {
            TRAIN: inputs.get("contexts", ()),
            VALIDATION: (inputs.artifact("validation_contexts"),),
            TEST: (inputs.artifact("test_contexts"),) if self.test_contexts else (),
        }
        return {
            part: [made_by(artifact) for artifact in made]
            for part, made in sources.items()
            if part == TRAIN or not sets[part].origin.endswith(".tsv")
        }
