"""How rankings are judged, as settings: light to import, so that the command line can list them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from qac_jax.fields import option


if TYPE_CHECKING:
    from qac_jax.evaluation.benchmarks import Protocol


@dataclasses.dataclass(frozen=True)
class Judging:
    """How rankings are judged."""

    protocol: str = option(
        "own",
        "whose rules hold: own, msmarco, trec_dl or beir",
        choices=("own", "msmarco", "trec_dl", "beir"),
    )
    measures: tuple[str, ...] = option((), "instead of the protocol's, such as ndcg@10,mrr@10,map")
    level: int = option(0, "from which grade a passage is relevant (0: as the protocol says)")
    over: str = option(
        "",
        "queries a mean is over: all judged, those of them retrieved, or those answerable",
        choices=("", "judged", "retrieved", "answerable"),
    )
    depth: int = option(
        0,
        "passages of each ranking that are judged (0: all; of a collection the protocol's number)",
    )

    @property
    def chosen(self) -> bool:
        """Whether anything differs from what a collection's own protocol says."""
        return bool(self.protocol != "own" or self.measures or self.level or self.over)

    def resolved(self) -> Protocol:
        """The protocol with what was chosen instead."""
        from qac_jax.evaluation import benchmarks

        rules = benchmarks.protocol(self.protocol)
        return dataclasses.replace(
            rules,
            measures=tuple(self.measures) or rules.measures,
            level=self.level or rules.level,
            over=self.over or rules.over,
        )
