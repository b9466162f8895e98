"""`qac split`: passages → those for training, for validation or for the test, by document."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax import fields, progress
from qac_jax.artifacts import Writer
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, option
from qac_jax.queries.splitting import PARTS, TEST, VALIDATION, Splitting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split(Stage):
    """Keeps one part of the passages: the hash of a passage's document says which.

    A part whose questions people judged (qrels/ of --collection) is not kept aside: it is empty,
    and its passages are for training.
    """

    VERB: ClassVar[str] = "split"
    KIND: ClassVar[str] = "passages"
    EXAMPLE: ClassVar[str] = (
        "qac split --passages out/passages --collection data/mine --part test --out out/test"
    )

    passages: Ref = input("passages to split", kinds=("passages",))
    collection: Ref = input(
        "folder whose qrels/ may hold judged test and dev questions", kinds=(FILE,), default=""
    )
    part: str = option("train", "the part to keep", choices=PARTS)
    settings: Splitting = fields.part(Splitting)

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        count = inputs.get("passages", {}).get("count")
        aside = self.settings.target(count) if count else 0
        # Of two parts that are kept aside; where questions are judged, one of them is empty.
        kept = aside if self.part != "train" else (count or 0) - 2 * aside
        return {"part": self.part, "count": kept or None}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats.records import Records, write_records
        from qac_jax.queries import questions, splitting

        judged = questions.judged_parts(inputs.text("collection"))
        aside = [name for name in (VALIDATION, TEST) if name not in judged]
        records = Records(inputs.artifact("passages"))
        found = splitting.split(records, self.settings, aside=aside, seed=self.seed)
        kept = (r for r, name in zip(records, found.parts, strict=True) if name == self.part)
        write_records(out, kept)
        out.info.update(
            part=self.part,
            by=found.by,
            counts={name: found.count(name) for name in PARTS},
            judged=judged,
        )
        if out.count or self.part not in judged:
            progress.say(f"split: {out.count:,} of {len(records):,} passages, by {found.by}")
        else:
            progress.say(f"split: none for {self.part}, whose questions are {judged[self.part]}")
