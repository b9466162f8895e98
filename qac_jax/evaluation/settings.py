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
# The same in ir_measures' names (measure_names.py); with (rel=N) before the @ where N is the level.
IR_MEASURES = (
    *("nDCG@K", "RR@K", "R@K", "Success@K", "AP@K", "P@K"),
    *("AP", "nDCG", "RR", "Rprec", "Bpref", "NumRet", "NumRel"),
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
        "metrics, such as ndcg@10,mrr@10,map or nDCG@10,RR@10,AP (default: the protocol's)",
        shown=(*MEASURES, *dict.fromkeys(name for name in IR_MEASURES if name not in MEASURES)),
    )
    names: str = option(
        "",
        "print measures by these names (default: as they were given)",
        choices=("", "own", "ir_measures"),
        affects_result=False,
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

    def own_measures(self, level: int = 1) -> tuple[str, ...]:
        """The chosen measures by our names."""
        from qac_jax.evaluation import measure_names

        return tuple(measure_names.ours(measure, level) for measure in self.measures)

    def printed(self, measure: str, level: int = 1) -> str:
        """The name that a measure is printed by."""
        from qac_jax.evaluation import measure_names

        given = "ir_measures" if measure_names.any_theirs(self.measures) else "own"
        return measure_names.theirs(measure, level) if (self.names or given) != "own" else measure

    def resolved(self) -> Protocol:
        """The protocol with what was chosen instead."""
        from qac_jax.evaluation import benchmarks

        rules = benchmarks.protocol(self.protocol)
        level = self.level or rules.level
        return dataclasses.replace(
            rules,
            measures=self.own_measures(level) or rules.measures,
            level=level,
            over=self.over or rules.over,
        )
