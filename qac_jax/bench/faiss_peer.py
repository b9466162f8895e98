"""FAISS on the CPU: the fastest index of each family that reaches a recall.

Built once, every index is searched as little as the recall allows (`nprobe`, `efSearch`); the
fastest of each family then takes part in the benchmark.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from qac_jax import extras, progress
from qac_jax.errors import UserError
from qac_jax.retrieval import approximate, tuning


# Lists of an inverted file, as multiples of the root of the rows.
_LISTS = (1.0, 2.0)
# Dimensions that one 4-bit code stands for, and candidates reordered, as multiples of k.
_DIMS = (2, 4)
_FACTORS = (1.5, 2.0, 3.0, 4.0)
_CODES = ("fs", "fsr")  # of the vectors, or of what their list's centre leaves of them
_GRAPHS = (approximate.Graph(links=32, construction=100),)
_TIMINGS = 2
# Queries that a configuration is chosen on; all queries evaluate and time it.
_SAMPLE = 250


class Search(Protocol):
    """Top rows of queries; the effort is `nprobe` or `efSearch`."""

    def __call__(self, queries: np.ndarray, effort: int) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class Found:
    """A configuration that reaches the recall."""

    family: str
    name: str
    recall: float
    queries_per_second: float
    search: Callable[[np.ndarray], np.ndarray]


def load() -> None:
    """Imports the package as its own users do; raises if it is not installed."""
    try:
        importlib.import_module("faiss")
    except ImportError as error:
        raise UserError(
            f"the peer of this benchmark is missing (faiss); {extras.remedy('bench')}, or leave "
            "faiss out of --systems"
        ) from error


def best(vectors: np.ndarray, queries: np.ndarray, truth: np.ndarray, target: float) -> list[Found]:
    """The fastest configuration of each family that reaches the recall on these queries."""
    k = truth.shape[1]
    queries, truth = queries[:_SAMPLE], truth[:_SAMPLE]
    fastest: dict[str, Found] = {}
    for family, name, search, least, most in _indexes(vectors, k):
        measured: dict[int, tuple[float, float]] = {}

        def judged(effort: int, search: Any = search, measured: Any = measured) -> float:
            began = time.perf_counter()
            rows = search(queries, effort)
            rate = len(queries) / (time.perf_counter() - began)
            # The best of its timings: others may use the machine too.
            rate = max(rate, measured.get(effort, (0.0, 0.0))[1])
            measured[effort] = float(tuning.recall(rows, truth).mean()), rate
            return measured[effort][0]

        effort = tuning.least(judged, target, least, most)
        if effort is None:
            progress.say(f"faiss: {name} stays at recall {max(measured.values())[0]:.4f}")
            continue
        for _ in range(_TIMINGS):
            judged(effort)
        recall, rate = measured[effort]
        progress.say(f"faiss: {name}, effort {effort}: recall {recall:.4f}, {rate:,.0f} queries/s")
        if family not in fastest or rate > fastest[family].queries_per_second:
            fastest[family] = Found(
                family,
                f"{name}, {'efSearch' if family == 'hnsw' else 'nprobe'} {effort}",
                recall,
                rate,
                functools.partial(search, effort=effort),
            )
    return list(fastest.values())


def flat(vectors: np.ndarray, k: int) -> Callable[[np.ndarray], np.ndarray]:
    """Its exact search."""
    index = approximate.coded("Flat", vectors)
    return lambda queries: index.search(queries, k)[1]


def _indexes(vectors: np.ndarray, k: int) -> Iterator[tuple[str, str, Search, int, int]]:
    """(family, name, search with an effort, the smallest effort, the largest)."""
    rows, width = vectors.shape
    for multiple in _LISTS:
        lists = max(1, round(multiple * rows**0.5))
        name = f"IVF{lists},Flat"
        yield "ivf_flat", name, _probing(approximate.coded(name, vectors), k, 0), 1, lists
        for dims, code in itertools.product(_DIMS, _CODES):
            name = f"IVF{lists},PQ{width // dims}x4{code}"
            refined = approximate.refined(approximate.coded(name, vectors), vectors)
            for factor in _FACTORS:
                search = _probing(refined, k, round(factor * k))
                yield "ivf_pq_refine", f"{name},RFlat, k_factor {factor:g}", search, 1, lists
    for preset in _GRAPHS:
        graph = approximate.graph(vectors, preset)
        yield "hnsw", f"HNSW{preset.links},Flat", _walking(graph, k), k, 64 * k


def _probing(index: Any, k: int, candidates: int) -> Search:
    def search(queries: np.ndarray, effort: int) -> np.ndarray:
        return approximate.search_lists(index, queries, k, effort, candidates)[1]

    return search


def _walking(index: Any, k: int) -> Search:
    def search(queries: np.ndarray, effort: int) -> np.ndarray:
        return approximate.search_graph(index, queries, k, effort)[1]

    return search
