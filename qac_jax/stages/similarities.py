"""`qac similarities`: positives nearer to their query than to negatives? PAIR's Figure 4."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import Inputs, Stage, artifact_input, option, source


if TYPE_CHECKING:
    from qac_jax.evaluation.similarity import Similarity
    from qac_jax.formats.records import Records
    from qac_jax.formats.runs import Run


FIGURES, PLOT, TABLE = "similarities.json", "similarities.svg", "similarities.md"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Similarities(Stage):
    """Compares s(p+, q) with s(p+, p-) over the first passages of each encoder's own run."""

    VERB: ClassVar[str] = "similarities"
    KIND: ClassVar[str] = "similarities"
    EXAMPLE: ClassVar[str] = (
        "qac similarities --encoders out/pair,out/without --ranked pair.trec,without.trec "
        "--passages out/passages --queries queries.jsonl --qrels qrels/test.tsv --out out/figure_4"
    )

    encoders: str = source("folders of encoders, joined by commas")
    ranked: str = source("their runs, in the same order (one: for all of them)")
    passages: str = artifact_input("the passages that were searched", kind="passages")
    queries: str = source("the queries of the runs")
    qrels: str = source("their judgements")
    depth: int = option(100, "passages of a ranking that are looked at")
    at_most: int = option(1000, "queries (0: all)")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        return {"encoders": len(self._parts(self.encoders)), "depth": self.depth}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.evaluation import similarity
        from qac_jax.formats import runs
        from qac_jax.formats.judgements import by_query, read_judgements
        from qac_jax.formats.queries import read_queries
        from qac_jax.formats.records import Records
        from qac_jax.report import analyses

        passages = inputs["passages"]
        assert isinstance(passages, Artifact)
        folders = self._parts(self.encoders)
        files = list(runs.run_files(self.ranked).values())
        if len(files) not in (1, len(folders)):
            raise UserError(
                f"{len(folders)} encoders and {len(files)} runs; give one run each, or one for all"
            )
        files = files * len(folders) if len(files) == 1 else files
        texts = {query.id: query.text for query in read_queries(self.queries)}
        judged = by_query(read_judgements(self.qrels))
        records = Records(passages)
        found: dict[str, similarity.Similarity] = {}
        for name, folder, file in zip(names_of(folders), folders, files, strict=True):
            run = runs.read_run(file, self.depth)
            found[name] = self._compared(folder, run, texts, judged, records)
            progress.say(
                f"{name}: s(p+, q) {found[name].to_query:.3f}, s(p+, p-) "
                f"{found[name].to_negatives:.3f}, the query nearer in {found[name].nearer:.1%}"
            )
        with out.open(FIGURES) as json_file:
            json.dump({name: dataclasses.asdict(s) for name, s in found.items()}, json_file)
        with out.open(PLOT) as svg_file:
            svg_file.write(analyses.similarity_svg(found))
        with out.open(TABLE) as table_file:
            table_file.write(analyses.similarity_table(found) + "\n")
        out.count = len(found)

    def summary(self, artifact: Artifact) -> str:
        return artifact.file(TABLE).read_text().rstrip()

    def _parts(self, value: str) -> list[str]:
        return [part.strip() for part in value.split(",") if part.strip()]

    def _compared(
        self,
        folder: str,
        run: Run,
        texts: Mapping[str, str],
        judged: Mapping[str, Mapping[str, int]],
        records: Records,
    ) -> Similarity:
        import numpy as np

        from qac_jax.evaluation.similarity import compare
        from qac_jax.inference.encoder import Encoder

        chosen: list[tuple[str, str, dict[str, int]]] = []
        for query, ranking in run.items():
            right = [name for name, grade in judged.get(query, {}).items() if grade > 0]
            if query in texts and right:
                wrong = {n: r for r, n in enumerate(ranking.ids, 1) if n not in right}
                if wrong:
                    chosen.append((query, right[0], wrong))
        chosen = chosen[: self.at_most or None]
        if not chosen:
            raise UserError("no query of the run has a judged positive and negatives; check both")
        names = list(dict.fromkeys(n for _, right, wrong in chosen for n in (right, *wrong)))
        places = records.positions(names)
        if None in places:
            raise UserError(
                f"passage {names[places.index(None)]!r} is not among the passages; give those "
                "that were searched"
            )
        encoder = Encoder.load(folder)
        bodies = [encoder.passage_text(records[place or 0]) for place in places]
        vectors = encoder.encode(bodies)
        rows = {name: row for row, name in enumerate(names)}
        asked = encoder.encode([texts[query] for query, _, _ in chosen], "query")
        return compare(
            asked,
            vectors[[rows[right] for _, right, _ in chosen]],
            [vectors[[rows[n] for n in wrong]] for _, _, wrong in chosen],
            [np.fromiter(wrong.values(), np.int64) for _, _, wrong in chosen],  # type: ignore[misc]
            self.depth,
        )


def names_of(folders: list[str]) -> list[str]:
    """What encoders are called: by the part of their paths that tells them apart."""
    paths = [os.path.normpath(folder).split(os.sep) for folder in folders]
    if len({path[-1] for path in paths}) == len(paths):
        return [path[-1] for path in paths]
    while all(len(path) > 1 for path in paths) and len({path[-1] for path in paths}) == 1:
        paths = [path[:-1] for path in paths]
    while all(len(path) > 1 for path in paths) and len({path[0] for path in paths}) == 1:
        paths = [path[1:] for path in paths]
    return ["/".join(path) for path in paths]
