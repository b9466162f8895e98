"""`qac leaks`: refuses training data and expansions that contain validation or test questions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import Inputs, Ref, Stage, input


if TYPE_CHECKING:
    from qac_jax.queries.splitting import Used


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaks(Stage):
    """Compares everything that trains a model or expands an index with the questions kept aside."""

    VERB: ClassVar[str] = "leaks"
    KIND: ClassVar[str] = "leaks"
    EXAMPLE: ClassVar[str] = (
        "qac leaks --questions out/questions --aside out/test --training out/groups --out out/leaks"
    )

    questions: Ref = input("questions of qac collect", kinds=("questions",))
    aside: Ref = input(
        "passages kept aside, whose generated queries are validation or test questions",
        kinds=("passages",),
        many=True,
        default="",
    )
    training: Ref = input(
        "contexts, negatives, candidates and groups that train a model or expand an index",
        kinds=("contexts", "negatives", "groups"),
        many=True,
    )

    def check(self) -> None:
        super().check()
        if not self.questions:
            raise UserError("leaks needs the questions kept aside; give --questions")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        return {"compared": len(self.training.split(","))}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats.queries import read_queries
        from qac_jax.formats.records import Records
        from qac_jax.queries import splitting
        from qac_jax.queries.splitting import TEST, VALIDATION

        questions = inputs.artifact("questions")
        asked = {
            f"{part} {query.id}": query.text
            for part in (TEST, VALIDATION)
            if part in questions.info
            for query in read_queries(questions.file(f"{part}_queries.jsonl"))
        }
        aside = {name for artifact in inputs.get("aside", ()) for name in Records(artifact).ids()}
        counts = splitting.check_leaks(self._used(inputs), asked, aside)
        with out.open("leaks.json") as file:
            json.dump({"leaks": 0, **counts}, file, indent=1)
        out.info.update(counts)
        out.count = counts["texts"]
        progress.say(
            f"leaks: none of {counts['texts']:,} texts is one of {counts['questions']:,} questions "
            f"or was made of one of {counts['passages']:,} passages kept aside"
        )

    def summary(self, artifact: Artifact) -> str:
        return f"no leak in {artifact.count:,} texts"

    def _used(self, inputs: Inputs) -> Iterator[Used]:
        from qac_jax.formats.queries import read_queries
        from qac_jax.formats.records import Records
        from qac_jax.queries import splitting

        reads = {
            "contexts": splitting.of_contexts,
            "negatives": splitting.of_negatives,
            "groups": splitting.of_groups,
        }
        train = inputs.artifact("questions").file("train_queries.jsonl")
        yield from splitting.of_queries({q.id: q.text for q in read_queries(train)}, "training")
        for artifact in inputs["training"]:
            yield from reads[artifact.kind](Records(artifact), artifact.path.name)
