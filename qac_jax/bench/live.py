"""`qac bench live`: a large living index that loses passages and gains others."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax import progress
from qac_jax.fields import option


_TOGETHER = 1 << 14


@dataclasses.dataclass(frozen=True)
class Live:
    """Recall of a living index of clustered random vectors as it is built, after deletions and
    after additions; seconds of each change; memory, without the pages of mapped files.

    Recall compares with all products of the vectors that are there.
    """

    EXAMPLE = "qac bench live --rows 1000000 --dimension 384"

    rows: int = option(1_000_000, "passages at the start")
    dimension: int = option(384, "dimensions of a vector")
    changed: float = option(0.1, "share that is deleted, and then the share that is added")
    full: bool = option(True, "compact in full at the end: every segment is built once more")
    queries: int = option(200, "queries of which recall is measured")
    k: int = option(100, "k of recall@k")
    folder: str = option("", "folder for the index (default: a temporary one)")

    def run(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="qac_jax-", dir=self.folder or None) as place:
            return self._run(Path(place))

    def _run(self, place: Path) -> dict[str, Any]:
        from qac_jax.live.index import LiveIndex
        from qac_jax.live.manifest import LiveSettings

        rng = np.random.default_rng(0)
        centres = rng.normal(size=(max(self.rows // 500, 1), self.dimension)).astype(np.float32)
        settings = LiveSettings({"path": "none"}, self.dimension, cosine=True)
        live = LiveIndex.create(place / "live", settings)
        figures: dict[str, Any] = {"rows": self.rows, "dimension": self.dimension}
        figures["load_before"] = os.getloadavg()[0]
        file = np.lib.format.open_memmap(
            place / "all.npy", "w+", np.float32, (self.rows + self._changes, self.dimension)
        )
        for start in range(0, len(file), _TOGETHER):
            stop = min(start + _TOGETHER, len(file))
            file[start:stop] = _clustered(rng, centres, stop - start)
        queries = _clustered(rng, centres, self.queries)
        there = np.zeros(len(file), bool)

        began = time.perf_counter()
        for start in range(0, self.rows, _TOGETHER):
            stop = min(start + _TOGETHER, self.rows)
            live.add(_records(range(start, stop)), np.asarray(file[start:stop]))
        figures["add_all_seconds"] = time.perf_counter() - began
        began = time.perf_counter()
        with _Peak() as peak:
            live.compact()
        figures["compact_seconds"] = time.perf_counter() - began
        figures["compact_peak_mb"] = peak.bytes / 1e6
        progress.say(f"live: built, at most {peak.bytes / 1e6:,.0f} MB")
        there[: self.rows] = True
        figures |= self._measured("built", live, queries, file, there)

        gone = rng.choice(self.rows, self._changes, replace=False)
        began = time.perf_counter()
        live.delete([f"d{row}" for row in gone.tolist()])
        figures["delete_seconds"] = time.perf_counter() - began
        there[gone] = False
        figures |= self._measured("after_deletions", live, queries, file, there)

        seconds = []
        for start in range(self.rows, len(file), 10_000):
            stop = min(start + 10_000, len(file))
            began = time.perf_counter()
            live.add(_records(range(start, stop)), np.asarray(file[start:stop]))
            seconds.append(time.perf_counter() - began)
        figures["add_10000_seconds"] = float(np.median(seconds))
        there[self.rows :] = True
        figures |= self._measured("after_additions", live, queries, file, there)
        figures["vectors_mb"] = self.rows * self.dimension * 4 / 1e6
        if self.full:
            began = time.perf_counter()
            with _Peak() as peak:
                live.compact(full=True)
            figures["full_compact_seconds"] = time.perf_counter() - began
            figures["full_compact_peak_mb"] = peak.bytes / 1e6
            figures |= self._measured("after_full_compaction", live, queries, file, there)
        figures["segments"] = len(live.snapshot.segments)
        figures["load_after"] = os.getloadavg()[0]
        return figures

    @property
    def _changes(self) -> int:
        return round(self.rows * self.changed)

    def _measured(
        self, name: str, live: Any, queries: np.ndarray, file: np.ndarray, there: np.ndarray
    ) -> dict[str, Any]:
        """Recall, and the seconds of a query on its own."""
        snapshot, texts = live.snapshot, [""] * len(queries)
        snapshot.find(texts[:1], queries[:1], self.k, weight=0)
        began = time.perf_counter()
        for query in queries[:50]:
            snapshot.find([""], query[None], self.k, weight=0)
        seconds = (time.perf_counter() - began) / min(50, len(queries))
        found = snapshot.find(texts, queries, self.k, weight=0)
        expected = _exact(queries, file, there, self.k)
        hits = 0
        for ranking, wanted in zip(found, expected, strict=True):
            numbers = [int(snapshot.record(row)["_id"][1:]) for row in ranking.rows.tolist()]
            hits += len(wanted.intersection(numbers))
        recall = hits / sum(map(len, expected))
        figures = {f"recall_{name}": recall, f"query_ms_{name}": 1000 * seconds}
        memory = _memory() / 1e6
        progress.say(f"live: {name}, recall {recall:.4f}, {memory:,.0f} MB")
        return {**figures, f"memory_mb_{name}": memory}


def _memory() -> int:
    """Bytes in memory but for the pages of mapped files, which the system may drop."""
    import psutil

    memory = psutil.Process().memory_info()
    return memory.rss - getattr(memory, "shared", 0)


class _Peak:
    """The highest `_memory` while it is open, `bytes`."""

    def __enter__(self) -> _Peak:
        self.bytes, self._done = _memory(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            self.bytes = max(self.bytes, _memory())

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def _clustered(rng: np.random.Generator, centres: np.ndarray, count: int) -> np.ndarray:
    """Vectors of length 1 in clusters, as those of texts are."""
    noise = rng.normal(size=(count, centres.shape[1])).astype(np.float32)
    found = centres[rng.integers(0, len(centres), count)] + 0.7 * noise
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def _records(rows: range) -> list[dict[str, Any]]:
    return [{"_id": f"d{row}", "text": f"passage {row}", "group": row % 10} for row in rows]


def _exact(queries: np.ndarray, file: np.ndarray, there: np.ndarray, k: int) -> list[set[int]]:
    """The nearest of the vectors that are there, block by block."""
    scores = np.zeros((len(queries), 0), np.float32)
    numbers = np.zeros((len(queries), 0), np.int64)
    for start, block in _blocks(file):
        products = np.where(there[start : start + len(block)], queries @ block.T, -np.inf)
        every = np.concatenate([scores, products], 1)
        rows = np.broadcast_to(np.arange(start, start + len(block)), products.shape)
        rows = np.concatenate([numbers, rows], 1)
        best = np.argpartition(-every, min(k, every.shape[1] - 1), axis=1)[:, :k]
        scores = np.take_along_axis(every, best, 1)
        numbers = np.take_along_axis(rows, best, 1)
    return [set(row) for row in numbers.tolist()]


def _blocks(file: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for start in range(0, len(file), _TOGETHER):
        yield start, np.asarray(file[start : start + _TOGETHER])
