"""`qac teach`: a teacher's ranking of queries → candidates with its scores, to distil."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, part
from qac_jax.retrieval.settings import Teaching


if TYPE_CHECKING:
    from qac_jax.formats.runs import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Teach(Stage):
    """Writes each query's candidates with a teacher's scores, such as those of a fused run.

    `qac tokenize --task triples --teacher --negatives DIR` stores them, and fine-tuning with
    distillation learns them.
    """

    VERB: ClassVar[str] = "teach"
    KIND: ClassVar[str] = "negatives"
    EXAMPLE: ClassVar[str] = (
        "qac teach --teacher out/fused --queries queries.jsonl --qrels qrels/train.tsv "
        "--out out/candidates"
    )

    teacher: Ref = input("run whose scores are learned", kinds=("run", FILE), aliases=("run",))
    candidates: Ref = input(
        "further runs, whose first passages are candidates too; one that the teacher does not "
        "rank gets its lowest score",
        kinds=("run", FILE),
        many=True,
        default="",
    )
    queries: Ref = input("queries of the runs", kinds=(FILE,))
    qrels: Ref = input(
        "relevant passages, such as those that queries were generated from; of queries without "
        "any the teacher's first passage is taken",
        kinds=(FILE,),
        default="",
    )
    rule: Teaching = part(Teaching)

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        return {"candidates a query": self.rule.count}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats.judgements import by_query, read_judgements
        from qac_jax.formats.queries import read_queries
        from qac_jax.formats.records import write_records
        from qac_jax.retrieval.teaching import Teacher

        texts = {query.id: query.text for query in read_queries(inputs.text("queries"))}
        judged = by_query(read_judgements(inputs.text("qrels"))) if self.qrels else {}
        (scored,) = self._runs([os.fspath(inputs.path("teacher"))])
        others = self._runs([os.fspath(path) for path in inputs.paths("candidates")])
        teacher = Teacher(scored, others, self.rule)
        write_records(out, teacher.records(texts, judged), "negatives")
        if not out.count:
            raise UserError(
                f"none of {len(texts):,} queries is left ({_shown(teacher.counts)}); check the "
                "runs, or raise --consistent"
            )
        out.info["counts"] = dict(teacher.counts)
        progress.say(f"teach: {_shown(teacher.counts)}")

    def summary(self, artifact: Artifact) -> str:
        return "\n".join(f"{name}: {count:,}" for name, count in artifact.info["counts"].items())

    def _runs(self, sources: list[str]) -> list[Run]:
        from qac_jax.formats import runs

        paths = [path for source in sources for path in runs.run_files(source).values()]
        return [runs.read_run(path, self.rule.depth) for path in paths]


def _shown(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
