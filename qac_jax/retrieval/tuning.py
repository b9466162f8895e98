"""Chooses the effort of an approximate index for a target recall, measured on a sample.

Recall grows with the leaves searched and with the candidates reordered. For each number of
candidates the search is for the fewest sufficient leaves, on one half of the sample. Of these
points the fastest is taken whose recall on the other half reaches the target too.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping

import numpy as np
from etils import epath

from qac_jax import progress
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError
from qac_jax.formats.queries import read_queries
from qac_jax.inference.encoder import Encoder
from qac_jax.retrieval.approximate import SLACK, Approximate, Effort
from qac_jax.retrieval.exact import Exact
from qac_jax.retrieval.index import place_of_encoder
from qac_jax.retrieval.vectors import Vectors


# Candidates that are tried, as multiples of k.
_MULTIPLES = (SLACK, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 20.0)
_TIMINGS = 3
# Twice the leaves without this much more recall: the candidates are too few, not the leaves.
_GAIN = 0.0003


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The chosen effort, and its recall on the queries that chose and on the others."""

    effort: Effort
    recall: float
    held_out_recall: float
    target: float
    k: int
    queries: int

    def __str__(self) -> str:
        """The recall that was reached, and a remedy where it is less than was wanted."""
        sentence = (
            f"recall@{self.k} {self.recall:.4f} (on other queries {self.held_out_recall:.4f}) with "
            f"{self.effort}"
        )
        if self.recall >= self.target:
            return sentence
        return (
            f"{sentence}: {self.target} is out of reach; raise --leaves or give --dims_per_block 1"
        )


def recall(rows: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The share of each query's true rows that are among `rows`; -1 is padding."""
    pairs = zip(rows, truth, strict=True)
    return np.array([np.isin(t[t >= 0], f).mean() if (t >= 0).any() else 1.0 for f, t in pairs])


def tune(
    searcher: Approximate,
    queries: np.ndarray,
    truth: np.ndarray,
    target: float,
    own: np.ndarray | None,
) -> Tuned:
    """Chooses among efforts by the first half of the queries, and confirms by the second.

    `truth` [queries, k]: the rows of exact search. `own`: the row of each query that is a vector.
    """
    half, k = len(queries) // 2, truth.shape[1]
    choosing, rest = slice(0, half), slice(half, len(queries))
    reached: dict[Effort, float] = {}
    rates: dict[Effort, float] = {}

    def shares(part: slice, effort: Effort) -> np.ndarray:
        """Recall of each query of a part; the search itself is timed."""
        began = time.perf_counter()
        _, rows = searcher.search(queries[part], k + (own is not None), effort)
        rate = len(rows) / (time.perf_counter() - began)
        recalls = recall(rows if own is None else without(rows, own[part]), truth[part])
        if part == choosing:  # the best of its timings: others may use the machine too
            rates[effort] = max(rate, rates.get(effort, 0.0))
            reached[effort] = float(recalls.mean())
        return recalls

    def lower_bound(reorder: int, leaves: int) -> float:
        """A margin of two standard errors: the best of many is chosen on a sample."""
        recalls = shares(choosing, Effort(leaves, reorder))
        return float(recalls.mean() - 2 * recalls.std() / len(recalls) ** 0.5)

    most = searcher.largest_effort(k)
    # Candidates to rescore, the most first. Fewer of them need more leaves; if all leaves do not
    # suffice, fewer candidates never do.
    wanted = {min(round(multiple * k), most.reorder) for multiple in _MULTIPLES}
    enough: list[Effort] = []
    fewest = min(most.leaves, 1)
    for reorder in sorted(wanted, reverse=True):
        leaves = least(functools.partial(lower_bound, reorder), target, fewest, most.leaves)
        if leaves is None:
            break
        enough.append(Effort(leaves, reorder))
        fewest = leaves
    candidates = enough or [max(reached, key=reached.__getitem__)]
    for _ in range(_TIMINGS):
        for effort in candidates:
            shares(choosing, effort)
    held_out: dict[Effort, float] = {}
    for effort in sorted(candidates, key=lambda e: -rates[e]):
        held_out[effort] = float(shares(rest, effort).mean())
        if held_out[effort] >= target:
            break
    best = max(held_out, key=held_out.__getitem__)
    return Tuned(best, reached[best], held_out[best], target, k, len(queries))


def tune_on_sample(
    searcher: Approximate,
    vectors: Vectors,
    queries: np.ndarray | None,
    *,
    sample: int,
    targets: Mapping[int, float],  # k -> the recall@k that is wanted
    seed: int,
) -> list[Tuned]:
    """`tune` with a sample of queries, or (None) of the vectors themselves, which are left out of
    their own rankings.
    """
    rng = np.random.default_rng(seed)
    own: np.ndarray | None = None
    if queries is None:
        own = rng.permutation(len(vectors))[:sample]
        queries = vectors.take(own).astype(np.float32)
    else:
        queries = queries[rng.permutation(len(queries))[:sample]]
    wanted = {min(k, len(vectors) - 1): target for k, target in sorted(targets.items())}
    progress.say(f"index: exact search of {len(queries):,} queries, to measure recall on")
    _, found = Exact(vectors).search(queries, max(wanted) + 1)
    truth = found[:, :-1] if own is None else without(found, own)
    return [tune(searcher, queries, truth[:, :k], target, own) for k, target in wanted.items()]


def queries_of(
    queries: Artifact | epath.Path, passages: Artifact, sample: int, seed: int
) -> np.ndarray:
    """The vectors of queries to tune on: an artefact of them, or for the encoder of these vectors
    some of a file."""
    if isinstance(queries, Artifact):
        of, place = Vectors.of(queries), queries.path
        vectors = of.read(0, len(of)).astype(np.float32)
    else:
        place, texts = queries, [query.text for query in read_queries(queries)]
        drawn = np.random.default_rng(seed).permutation(len(texts))[:sample]
        encoder = Encoder.remembered(passages.info["encoder"], place_of_encoder(passages))
        vectors = encoder.encode([texts[i] for i in drawn], "query")
    if len(vectors) < 2:
        raise UserError(f"{place} holds {len(vectors)} queries; tuning needs two or more")
    return vectors


def least(measure: Callable[[int], float], target: float, low: int, most: int) -> int | None:
    """The smallest number that reaches the target, within a sixteenth: doubles from `low`, since
    large numbers are slow, and gives up where doubling has no effect.
    """
    high, before = low, -1.0
    while (figure := measure(high)) < target:
        if high >= most or figure - before < _GAIN:
            return None
        low, high, before = high, min(2 * high, most), figure
    while high - low > max(1, high // 16):
        middle = (low + high) // 2
        if measure(middle) >= target:
            high = middle
        else:
            low = middle
    return high


def without(rows: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Rankings of k + 1 rows as rankings of k that leave out the query's own row."""
    k = rows.shape[1] - 1
    pairs = zip(rows, own, strict=True)
    return np.stack([ranking[ranking != row][:k] for ranking, row in pairs])
