"""Near-duplicates by MinHash (Broder, 1997) in bands (Leskovec et al., Mining of Massive Datasets).

A text is the set of its shingles, five words in a row. Of `HASHES` hash functions the least value
over all shingles is kept: two texts agree in a share of them that estimates their Jaccard
similarity. Texts that agree in all of one band's values are compared, so nothing is compared with
everything.
"""

from __future__ import annotations

import functools
import hashlib
import re

import numpy as np


HASHES = 128
SHINGLE = 5

# Chinese, Japanese and Thai have no spaces between words: each character counts as one.
_WORD = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]|[^\W_]+")
# Of pairs that are just as similar as asked for, at least this share is compared.
_CAUGHT = 0.85
_BASE = np.uint64(0x9E3779B97F4A7C15)
_TOGETHER = 4096  # shingles that are hashed at a time


def sketch(text: str) -> np.ndarray:
    """uint32 [HASHES]; all zero for a text without words, which is like no other."""
    words = [match[0] for match in _WORD.finditer(text.lower())]
    if not words:
        return np.zeros(HASHES, np.uint32)
    shingles = _shingles(np.fromiter(map(_hash, words), np.uint64, len(words)))
    factors, offsets = _functions()
    least = np.full(HASHES, np.iinfo(np.uint32).max, np.uint32)
    for start in range(0, len(shingles), _TOGETHER):
        part = shingles[start : start + _TOGETHER, None]
        values = ((part * factors + offsets) >> np.uint64(32)).astype(np.uint32)
        np.minimum(least, values.min(axis=0), out=least)
    return np.maximum(least, 1)


def rows_of_band(threshold: float) -> int:
    """How many values of a sketch make up a band: as many as still catch most pairs."""
    for rows in (64, 32, 16, 8, 4, 2):
        if 1 - (1 - threshold**rows) ** (HASHES // rows) >= _CAUGHT:
            return rows
    return 1


def bands(sketches: np.ndarray, rows: int) -> np.ndarray:
    """uint64 [bands, texts]: a hash of each band; 0 for texts without words."""
    cut = sketches.reshape(len(sketches), HASHES // rows, rows).astype(np.uint64)
    mixed = np.zeros(cut.shape[:2], np.uint64)
    for row in range(rows):
        mixed = _mixed(mixed ^ cut[:, :, row])
    empty = ~sketches.any(axis=1)
    mixed[empty] = 0
    return np.ascontiguousarray(mixed.T)


def pairs(band: np.ndarray) -> np.ndarray:
    """int64 [pairs, 2], earlier first: each text of a bucket with the first and the one before."""
    order = np.argsort(band, kind="stable")
    values = band[order]
    same = np.flatnonzero((values[1:] == values[:-1]) & (values[1:] != 0)) + 1
    begins = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    firsts = begins[np.searchsorted(begins, same, side="right") - 1]
    both = np.concatenate(
        [
            np.stack([order[firsts], order[same]], axis=1),
            np.stack([order[same - 1], order[same]], axis=1),
        ]
    )
    return np.unique(both, axis=0)


def similarity(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The estimated Jaccard similarity of sketches, row by row."""
    return (first == second).mean(axis=-1)


def copies(count: int, alike: np.ndarray) -> np.ndarray:
    """int64 [count]: the first text of the group that each belongs to, itself where it is alone.

    Texts that are linked by similar pairs are one group, so the order of the pairs is of no matter.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = np.ones(len(alike), np.int8)
    graph = coo_array((links, (alike[:, 0], alike[:, 1])), shape=(count, count))
    _, groups = connected_components(graph, directed=False)
    _, firsts = np.unique(groups, return_index=True)
    return firsts[groups]


def _shingles(words: np.ndarray) -> np.ndarray:
    """The hashes of all different shingles; of a shorter text the one that it is."""
    length = min(SHINGLE, len(words))
    hashes = np.zeros(len(words) - length + 1, np.uint64)
    for place in range(length):
        hashes = _mixed(hashes ^ words[place : len(words) - length + 1 + place])
    return np.unique(hashes)


def _mixed(values: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser, so that all bits depend on all bits."""
    values = values + _BASE
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@functools.lru_cache(maxsize=1 << 16)
def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


@functools.cache
def _functions() -> tuple[np.ndarray, np.ndarray]:
    """Odd factors and offsets of the multiply-shift hash functions; the same on every machine."""
    values = _mixed(np.arange(2 * HASHES, dtype=np.uint64) * _BASE)
    return values[:HASHES] | np.uint64(1), values[HASHES:]
