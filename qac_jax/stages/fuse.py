"""`qac fuse`: several runs of the same queries into one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import Inputs, Stage, artifact_input, option, source
from qac_jax.stages.search import RUN


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fuse(Stage):
    """Joins rankings, such as BM25's and an encoder's, by their ranks or by their scores."""

    VERB: ClassVar[str] = "fuse"
    KIND: ClassVar[str] = "run"
    EXAMPLE: ClassVar[str] = "qac fuse --run bm25.trec,dense.trec --out out/fused"

    runs: str = source("TREC run files (or folders with one), joined by commas", "", flag="run")
    searched: str = artifact_input("or a run made by qac search", kind="run", default="")
    against: str = artifact_input("another one", kind="run", default="")
    method: str = option(
        "rrf",
        "rrf: the sum of weight / (k + rank); scores: the weighted sum of scores",
        choices=("rrf", "scores"),
    )
    k: float = option(60.0, "of rrf: the larger, the less the first ranks stand out")
    weights: tuple[float, ...] = option((), "of the runs, in their order (default: 1 each)")
    normalization: str = option(
        "min_max",
        "of scores: each query's to 0 .. 1, or none where they are of one scale",
        choices=("min_max", "none"),
    )
    depth: int = option(1000, "passages a query (0: all)")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        self._check()
        return {"method": self.method}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats import runs as run_files
        from qac_jax.retrieval import fusion

        self._check()
        named = [_path(inputs, name) for name in ("searched", "against") if name in inputs]
        paths = run_files.run_files(",".join(filter(None, [self.runs, *named])))
        if len(paths) < 2:
            raise UserError(f"{len(paths)} run cannot be fused; give two or more, by --run A,B")
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

    def _check(self) -> None:
        if self.depth < 0:
            raise UserError(f"depth={self.depth}; expected 0 (all) or more passages a query")


def _path(inputs: Inputs, name: str) -> str:
    found = inputs[name]
    assert isinstance(found, Artifact)
    return os.fspath(found.path)
