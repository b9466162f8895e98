"""`qac fuse`: several runs of the same queries → one fused run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, option
from qac_jax.stages.search import RUN


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fuse(Stage):
    """Fuses rankings, such as BM25's and an encoder's, by ranks or by scores."""

    VERB: ClassVar[str] = "fuse"
    KIND: ClassVar[str] = "run"
    VERSION: ClassVar[int] = 2
    EXAMPLE: ClassVar[str] = "qac fuse --runs bm25.trec,dense.trec --out out/fused"

    runs: Ref = input(
        "runs of qac search, or TREC files",
        kinds=("run", FILE),
        many=True,
        aliases=("run", "searched", "against"),
    )
    method: str = option(
        "rrf",
        "rrf: sum of weight / (k + rank); scores: weighted sum of scores",
        choices=("rrf", "scores"),
    )
    k: float = option(60.0, "k of rrf; the larger, the less the first ranks dominate")
    weights: tuple[float, ...] = option((), "weights of the runs, in their order (default: 1 each)")
    normalization: str = option(
        "min_max",
        "scores: scale each query's to 0 .. 1, or none where the scales are equal",
        choices=("min_max", "none"),
    )
    depth: int = option(1000, "passages per query in the fused run (0: all)")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        return {"method": self.method}

    def check(self) -> None:
        super().check()
        if self.depth < 0:
            raise UserError(f"depth={self.depth}; expected 0 (all) or more passages a query")
        if (count := len([part for part in self.runs.split(",") if part.strip()])) < 2:
            raise UserError(f"{count} run cannot be fused; give two or more, by --runs A,B")

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats import runs as run_files
        from qac_jax.retrieval import fusion

        paths = run_files.run_files(",".join(map(os.fspath, inputs.paths("runs"))))
        runs = [run_files.read_run(path) for path in paths.values()]
        depth = self.depth or None
        if self.method == "rrf":
            fused = fusion.reciprocal_rank(runs, k=self.k, weights=self.weights, depth=depth)
        else:
            fused = fusion.weighted_scores(
                runs, weights=self.weights, normalization=self.normalization, depth=depth
            )
        with out.open(RUN) as file:
            run_files.write_lines(file, fused)
        out.count = len(fused)
        out.info["runs"] = list(paths)
