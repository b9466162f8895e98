"""`qac similarities`: encoders and runs → similarity of positives to queries and negatives."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.inference.settings import Inference
from qac_jax.pipeline import inputs as declared
from qac_jax.pipeline.stage import FILE, MODEL, Inputs, Ref, Stage, input, option, part


FIGURES, PLOT, TABLE = "similarities.json", "similarities.svg", "similarities.md"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Similarities(Stage):
    """Compares s(p+, q) with s(p+, p-) over the top passages of each run (PAIR, Figure 4)."""

    VERB: ClassVar[str] = "similarities"
    KIND: ClassVar[str] = "similarities"
    VERSION: ClassVar[int] = 2
    EXAMPLE: ClassVar[str] = (
        "qac similarities --encoders out/pair,out/without --runs pair.trec,without.trec "
        "--passages out/passages --queries queries.jsonl --qrels qrels/test.tsv --out out/figure_4"
    )

    encoders: Ref = input("dual encoders", kinds=("parameters", MODEL), many=True)
    runs: Ref = input(
        "runs of the encoders, in the same order (or one run for all)",
        kinds=("run", FILE),
        many=True,
        aliases=("ranked",),
    )
    passages: Ref = input("passages that were searched", kinds=("passages",))
    queries: Ref = input("queries of the runs", kinds=(FILE,))
    qrels: Ref = input(
        "relevance judgements of the queries (without: passages with an answer are relevant)",
        kinds=(FILE,),
        default="",
    )
    depth: int = option(100, "top k passages of each ranking to compare with")
    at_most: int = option(1000, "at most N queries (0: all)")
    inference: Inference = part(Inference)

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        return {"encoders": len(declared.split(self, "encoders")), "depth": self.depth}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.evaluation import similarity
        from qac_jax.formats import runs
        from qac_jax.formats.judgements import by_query, read_judgements
        from qac_jax.formats.queries import read_queries
        from qac_jax.formats.records import Records
        from qac_jax.inference.encoder import Encoder
        from qac_jax.report import plots, tables

        folders = [os.fspath(path) for path in inputs.paths("encoders")]
        files = [next(iter(runs.run_files(path).values())) for path in inputs.paths("runs")]
        if len(files) not in (1, len(folders)):
            raise UserError(
                f"{len(folders)} encoders and {len(files)} runs; give one run each, or one for all"
            )
        files = files * len(folders) if len(files) == 1 else files
        asked = list(read_queries(inputs.text("queries")))
        texts = {query.id: query.text for query in asked}
        judged = by_query(read_judgements(inputs.text("qrels"))) if self.qrels else None
        passages = Records(inputs.artifact("passages"))
        similarities: dict[str, similarity.Similarity] = {}
        for name, folder, file in zip(similarity.names_of(folders), folders, files, strict=True):
            run = runs.read_run(file, self.depth)
            similarities[name] = similarity.of_run(
                Encoder.load(folder, inference=self.inference),
                run,
                texts,
                similarity.by_answers(run, asked, passages, depth=self.depth, at_most=self.at_most)
                if judged is None
                else judged,
                passages,
                depth=self.depth,
                at_most=self.at_most,
            )
            progress.say(
                f"{name}: s(p+, q) {similarities[name].to_query:.3f}, s(p+, p-) "
                f"{similarities[name].to_negatives:.3f}, the query nearer in "
                f"{similarities[name].nearer:.1%}"
            )
        with out.open(FIGURES) as json_file:
            json.dump({name: dataclasses.asdict(s) for name, s in similarities.items()}, json_file)
        drawn = plots.similarity(similarities)
        with out.open(PLOT) as svg_file:
            svg_file.write(drawn.file() if drawn else "")
        with out.open(TABLE) as table_file:
            table_file.write(tables.similarities(similarities) + "\n")
        out.count = len(similarities)

    def summary(self, artifact: Artifact) -> str:
        return artifact.file(TABLE).read_text().rstrip()
