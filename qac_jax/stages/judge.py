"""`qac judge`: questions with the titles that answer them → queries and relevance judgements."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input


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

    questions: Ref = input(
        'questions as JSON lines {"_id", "text", "relevant": [names], "split"}', kinds=(FILE,)
    )
    passages: Ref = input(
        "passages whose titles or aliases are matched with the names", kinds=("passages",)
    )

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {"passages": inputs.get("passages", {}).get("count")}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats.judgements import judge_by_names, read_named, write_questions
        from qac_jax.formats.records import Records

        artifact = inputs.artifact("passages")
        asked = read_named(inputs.text("questions"))
        judged = judge_by_names(asked, Records(artifact))
        answered = [question for question in asked if judged[question.id]]
        if not answered:
            raise UserError(
                f"no passage of {artifact.path} has a name that answers a question of "
                f"{self.questions}; give the passages that the questions are about"
            )
        if len(answered) < len(asked):
            progress.say(
                f"judge: {len(asked) - len(answered):,} of {len(asked):,} questions are answered "
                "by none of the passages and are left out"
            )
        for split in sorted({question.split for question in answered}):
            texts = {question.id: question.text for question in answered if question.split == split}
            write_questions(out, split, texts, judged)
            out.info[split] = {"queries": len(texts)}
        out.info["left_out"] = len(asked) - len(answered)
        out.count = len(answered)
