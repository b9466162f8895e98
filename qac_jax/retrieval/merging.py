"""Runs of one encoder over different passages, read together as the run of one index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from qac_jax.formats.runs import Ranking, ranked


class Merged(Mapping[str, Ranking]):
    """The `depth` best passages of every query in all runs, by their scores (None: all of them).

    A ranking is merged when it is asked for, so runs that stay on the disk do not come into memory.
    A passage that several runs hold has the best of its scores.
    """

    def __init__(self, runs: Sequence[Mapping[str, Ranking]], depth: int | None):
        self._runs, self._depth = runs, depth
        self._queries = dict.fromkeys(query for run in runs for query in run)

    def __len__(self) -> int:
        return len(self._queries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._queries)

    def __getitem__(self, query: str) -> Ranking:
        if query not in self._queries:
            raise KeyError(query)
        best: dict[str, float] = {}
        for run in self._runs:
            if (ranking := run.get(query)) is not None:
                for name, score in zip(ranking.ids, ranking.scores.tolist(), strict=True):
                    best[name] = max(score, best.get(name, score))
        merged = ranked(tuple(best), list(best.values()))
        return merged if self._depth is None else merged.top(self._depth)
