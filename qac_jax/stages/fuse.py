"""`qac fuse`: several runs of the same queries → one fused run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, option
from qac_jax.retrieval.fusion import SCALES
from qac_jax.stages.search import RUN


if TYPE_CHECKING:
    from qac_jax.formats.runs import Ranking, Run


# Method -> the normalisations that it knows, the default first.
_NORMALIZATIONS = {
    "rrf": (),
    "convex": SCALES,
    "merge": (),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fuse(Stage):
    """Fuses rankings, such as an encoder's and BM25's, by ranks or by scores; or merges those of
    indexes that hold different passages.

    With --choose_on, judgements choose the weight of the second of two runs: the one nearest to
    its --weights (default: one half) whose MRR@10 is within one standard error of the best.
    """

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
        "rrf: sum of weight / (k + rank); convex: mean of scores with weights that sum to 1 (`qac "
        "hybrid` does the same to two indexes); merge: by the scores as they are, for runs of one "
        "encoder over indexes of different passages",
        choices=tuple(_NORMALIZATIONS),
    )
    k: float = option(60.0, "k of rrf; the larger, the less the first ranks dominate")
    weights: tuple[float, ...] = option((), "weights of the runs, in their order (default: 1 each)")
    normalization: str = option(
        "",
        "convex: scale of each query's scores: theoretical (lowest possible to highest), min_max, "
        "z or none (the scores as they are)",
        choices=("", *SCALES),
    )
    lowest: tuple[float, ...] = option(
        (), "theoretical: lowest possible scores of the runs (default: by their range)"
    )
    choose_on: Ref = input(
        "convex: judgements that the weight of the second of two runs is chosen on",
        kinds=(FILE,),
        default="",
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
        if self.choose_on and (self.method != "convex" or count != 2):
            raise UserError(
                "--choose_on chooses the weight between two runs; give two and --method convex"
            )
        if self.weights and self.method == "merge":
            raise UserError("--method merge takes all scores as they are; leave --weights out")
        known = _NORMALIZATIONS[self.method]
        if self.normalization and self.normalization not in known:
            raise UserError(
                f"normalization={self.normalization!r} has no meaning with method={self.method!r}; "
                f"expected {' or '.join(known) or 'none at all'}"
            )

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats import runs as run_files
        from qac_jax.formats.runs import open_run
        from qac_jax.retrieval.fusion import Merged

        paths = run_files.run_files(",".join(map(os.fspath, inputs.paths("runs"))))
        fused: Mapping[str, Ranking]
        if self.method == "merge":
            fused = Merged([open_run(path) for path in paths.values()], self.depth or None)
        else:
            fused = self._fused([run_files.read_run(path) for path in paths.values()], out)
        with out.open(RUN) as file:
            run_files.write_lines(file, fused)
        out.count = len(fused)
        out.info["runs"] = list(paths)

    def summary(self, artifact: Artifact) -> str:
        from qac_jax.retrieval import fusion

        choice = artifact.info.get("choice")
        return str(fusion.Choice(**choice)) if choice else ""

    def _fused(self, runs: Sequence[Run], out: Writer) -> Run:
        from qac_jax.formats.judgements import by_query, read_judgements
        from qac_jax.retrieval import fusion

        depth, weights = self.depth or None, self.weights
        if self.method == "rrf":
            return fusion.reciprocal_rank(runs, k=self.k, weights=weights, depth=depth)
        normalization = self.normalization or _NORMALIZATIONS[self.method][0]
        if self.choose_on:
            choice = fusion.choose_on_runs(
                runs,
                by_query(read_judgements(self.choose_on)),
                prior=float(fusion.shares_of(weights, runs)[1]),
                normalization=normalization,
                lowest=self.lowest,
            )
            weights = (1 - choice.weight, choice.weight)
            out.info["choice"] = dataclasses.asdict(choice)
            progress.say(f"fuse: {choice}")
        return fusion.convex(
            runs, weights=weights, normalization=normalization, lowest=self.lowest, depth=depth
        )
