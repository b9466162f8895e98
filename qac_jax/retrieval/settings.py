"""Settings of labelling and mining, without heavy imports, so that the command line is fast."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

from qac_jax import extras
from qac_jax.errors import UserError
from qac_jax.fields import option


POSITIVES = ("best", "all")
ORDERS = ("ranked", "sampled")
# How convex fusion brings a query's scores to one scale.
THEORETICAL, MIN_MAX, Z = SCALES = ("theoretical", "min_max", "z")
# Weights of BM25 that are tried.
GRID = tuple(n / 10 for n in range(11))


def stemmers() -> tuple[str, ...]:
    """The languages of the stemmers that are installed, and none."""
    try:
        import Stemmer
    except ImportError:
        return ()
    return ("", *Stemmer.algorithms())


def check_faiss(index: Any) -> None:
    """Raises UserError where settings of `qac index` ask FAISS for what it does not have."""
    if index.method == "faiss":
        if importlib.util.find_spec("faiss") is None:
            raise UserError(
                f"--method faiss needs FAISS, which is not installed; {extras.remedy('faiss')}, or "
                "give --method scann"
            )
        if index.soar:
            raise UserError(f"soar={index.soar} is of ScaNN; leave it out, or give --method scann")
    elif index.faiss != "auto" and (index.method != "auto" or not index.base):
        raise UserError(f"faiss={index.faiss!r} goes with --method faiss; give that as well")
    if index.faiss == "hnsw":
        for name, own in (("leaves", -1), ("dims_per_block", 2), ("reordering", "float32")):
            if (given := getattr(index, name)) != own:
                raise UserError(
                    f"{name}={given!r} does not go with faiss='hnsw', a graph over the vectors "
                    "themselves; leave it out, or give --faiss ivf"
                )


@dataclasses.dataclass(frozen=True)
class Labelling:
    """How a teacher's scores become labels (`retrieval/labelling.py`)."""

    positive: float = option(0.9, "probability above which a candidate is a positive")
    negative: float = option(0.1, "probability below which it is a negative")
    positives: str = option(
        "best",
        "the best candidate above the threshold (released), or all of them (paper)",
        choices=POSITIVES,
    )
    order: str = option(
        "ranked",
        "negatives as the retriever ranks them (released), or drawn at random",
        choices=ORDERS,
    )
    count: int = option(4, "negatives per query")
    depth: int = option(50, "candidates per query that the teacher scores")
    extend: bool = option(False, "judged queries get positives by their scores too")
    fill: int = option(
        0,
        "judged queries: add unscored candidates to their negatives, drawn at random from the "
        "ranks after depth up to this one (released, MS MARCO; 0: none)",
    )

    def __post_init__(self) -> None:
        if not 0.0 <= self.negative < self.positive <= 1.0:
            raise UserError(
                f"thresholds positive={self.positive} and negative={self.negative}; expected "
                "0 <= negative < positive <= 1"
            )
        if self.count < 1 or self.depth < 1:
            raise UserError(f"count={self.count}, depth={self.depth}; expected 1 or more of both")
        if self.fill and self.fill <= self.depth:
            raise UserError(f"fill={self.fill} is a rank after depth={self.depth}; raise it")


@dataclasses.dataclass(frozen=True)
class Mining:
    """How hard negatives are drawn from rankings."""

    depth: int = option(200, "passages of each ranking that negatives are drawn from")
    keep: int = option(128, "negatives per query")

    def __post_init__(self) -> None:
        if self.depth < 1 or self.keep < 1:
            raise UserError(f"depth={self.depth}, keep={self.keep}; expected 1 or more of both")


@dataclasses.dataclass(frozen=True)
class Fusion:
    """How a hybrid index joins its two rankings (`retrieval/fusion.py`)."""

    weight: float = option(0.3, "weight of BM25's score; the vectors' score has the rest of 1")
    normalization: str = option(
        THEORETICAL,
        "scale of a query's scores: theoretical (lowest possible score to the query's highest), "
        "min_max (lowest to highest) or z (mean and standard deviation) of its first passages",
        choices=SCALES,
    )
    depth: int = option(100, "first passages of each ranking that are scaled and fused, at least")
    windows: float = option(
        0.7, "share of the best window in a passage's dense score, where the index has windows"
    )

    def __post_init__(self) -> None:
        if not 0.0 <= self.weight <= 1.0:
            raise UserError(f"weight={self.weight}; expected 0 (vectors alone) to 1 (BM25 alone)")
        if self.depth < 1:
            raise UserError(f"depth={self.depth}; expected 1 passage or more")
        if not 0.0 <= self.windows <= 1.0:
            raise UserError(f"windows={self.windows} is not a share; expected 0 to 1")
