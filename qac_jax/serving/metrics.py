"""Figures of the server in Prometheus's text format."""

from __future__ import annotations

import bisect
import collections
import math
import threading
from collections.abc import Mapping

import psutil


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, math.inf)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, math.inf)


class _Histogram:
    def __init__(self, edges: tuple[float, ...]):
        self.edges, self.counts, self.sum = edges, [0] * len(edges), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.edges, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str = "") -> list[str]:
        total, lines = 0, []
        joined = f"{labels}," if labels else ""
        for edge, count in zip(self.edges, self.counts, strict=True):
            total += count
            bound = "+Inf" if edge == math.inf else f"{edge:g}"
            lines.append(f'{name}_bucket{{{joined}le="{bound}"}} {total}')
        shown = f"{{{labels}}}" if labels else ""
        return [*lines, f"{name}_sum{shown} {self.sum:.6f}", f"{name}_count{shown} {total}"]


class Metrics:
    """Counted since the start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: collections.Counter[tuple[str, int]] = collections.Counter()
        self._seconds: dict[str, _Histogram] = {}
        self._batches = _Histogram(_SIZES)
        self._batch_seconds = _Histogram(_SECONDS)
        self._process = psutil.Process()

    def request(self, path: str, status: int, seconds: float) -> None:
        """`path`: one of the server's own, so that there are few."""
        with self._lock:
            self._requests[path, status] += 1
            self._seconds.setdefault(path, _Histogram(_SECONDS)).add(seconds)

    def batch(self, size: int, seconds: float) -> None:
        with self._lock:
            self._batches.add(size)
            self._batch_seconds.add(seconds)

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """`gauges`: name -> (what it is, its value now)."""
        memory = self._process.memory_info().rss
        gauges = {**gauges, "qac_memory_bytes": ("Resident memory of the server.", memory)}
        lines = []
        with self._lock:
            lines += _head("qac_requests_total", "counter", "Requests by path and status.")
            for (path, status), count in sorted(self._requests.items()):
                lines.append(f'qac_requests_total{{path="{path}",status="{status}"}} {count}')
            lines += _head("qac_request_seconds", "histogram", "Seconds of a request.")
            for path, seconds in sorted(self._seconds.items()):
                lines += seconds.lines("qac_request_seconds", f'path="{path}"')
            lines += _head("qac_batch_size", "histogram", "Queries and texts of a batch.")
            lines += self._batches.lines("qac_batch_size")
            lines += _head("qac_batch_seconds", "histogram", "Seconds of a batch.")
            lines += self._batch_seconds.lines("qac_batch_seconds")
        for name, (about, value) in gauges.items():
            lines += [*_head(name, "gauge", about), f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
