"""How rankings are judged, as settings: light to import, so that the command line can list them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from qac_jax.fields import option


if TYPE_CHECKING:
    from qac_jax.evaluation.benchmarks import Protocol


# The forms of measures (metrics.py): K is a number.
MEASURES = (
    *("ndcg@K", "mrr@K", "recall@K", "hit@K", "map@K", "precision@K", "capped_recall@K"),
    *("map", "ndcg", "recip_rank", "Rprec", "bpref", "num_ret", "num_rel", "num_rel_ret"),
    *("ndcg_cut_K", "recall_K", "map_cut_K", "P_K", "success_K"),
)


@dataclasses.dataclass(frozen=True)
class Judging:
    """How rankings are judged."""

    protocol: str = option(
        "own",
        "evaluation protocol",
        choices=("own", "msmarco", "trec_dl", "beir"),
    )
    measures: tuple[str, ...] = option(
        (),
        "metrics, such as ndcg@10,mrr@10,map (default: the protocol's)",
        shown=MEASURES,
    )
    level: int = option(0, "lowest grade that counts as relevant (0: the protocol's)")
    over: str = option(
        "",
        "queries to average over: judged, retrieved or answerable (default: the protocol's)",
        choices=("", "judged", "retrieved", "answerable"),
    )
    depth: int = option(
        0,
        "evaluate at most N passages of each ranking (0: all, or the protocol's number)",
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
