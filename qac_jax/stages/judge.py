"""`qac judge`: questions judged by names into queries and judgements of the passages at hand."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import Inputs, Stage, artifact_input, source


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judge(Stage):
    """Writes SPLIT_queries.jsonl and SPLIT.tsv for every split of a file of questions.

    A passage answers a question if its title, or an alias of it, is one of the question's names.
    """

    VERB: ClassVar[str] = "judge"
    KIND: ClassVar[str] = "questions"
    EXAMPLE: ClassVar[str] = (
        "qac judge --questions qac_jax/assets/demo/questions.jsonl --passages out/passages "
        "--out out/natural"
    )

    questions: str = source('JSON lines {"_id", "text", "relevant": [names], "split"}')
    passages: str = artifact_input("whose titles and aliases are such names", kind="passages")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {"passages": inputs.get("passages", {}).get("count")}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats import named_questions
        from qac_jax.formats.records import Records

        given = inputs["passages"]
        assert isinstance(given, Artifact)
        asked = named_questions.read(str(inputs["questions"]))
        judged = named_questions.judge(asked, Records(given))
        answered = [question for question in asked if judged[question.id]]
        if not answered:
            raise UserError(
                f"no passage of {given.path} has a name that answers a question of "
                f"{self.questions}; give the passages that the questions are about"
            )
        if len(answered) < len(asked):
            progress.say(
                f"judge: {len(asked) - len(answered):,} of {len(asked):,} questions are answered "
                "by none of the passages and are left out"
            )
        for split in sorted({question.split for question in answered}):
            chosen = [question for question in answered if question.split == split]
            with out.open(f"{split}_queries.jsonl") as file:
                for question in chosen:
                    record = {"_id": question.id, "text": question.text}
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
            with out.open(f"{split}.tsv") as file:
                file.write("query-id\tcorpus-id\tscore\n")
                for question in chosen:
                    grades = judged[question.id]
                    file.writelines(f"{question.id}\t{p}\t{grade}\n" for p, grade in grades.items())
            out.info[split] = {"queries": len(chosen)}
        out.info["left_out"] = len(asked) - len(answered)
        out.count = len(answered)
