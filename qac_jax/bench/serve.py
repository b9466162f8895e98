"""`qac bench serve`: a server under load, with batches and without."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax.errors import UserError
from qac_jax.fields import option


_START_SECONDS = 600
_WARM_SECONDS = 3.0
# Of a number of requests: memory is read after each.
_PARTS = 10


@dataclasses.dataclass(frozen=True)
class Serve:
    """Seconds of a search and searches/s of `qac serve` on this machine, clients included.

    Every client sends its next query when it has its answer. What batching is compared with,
    "unbatched", is the same server and load with batches of one query (--max_batch 1 --wait_ms 0).
    """

    EXAMPLE = "qac bench serve --index out/live --clients 8 --seconds 60"

    index: str = option("", "index that is served")
    encoder: str = option("", "encoder of the index, if it was moved")
    queries: str = option("", "file of queries ('': sentences of the index's passages)")
    clients: int = option(8, "clients at one time")
    seconds: float = option(60.0, "seconds of each measurement")
    requests: int = option(0, "searches of the first measurement, however long they take (0: none)")
    k: int = option(10, "hits of a search")
    hybrid: float = option(0.3, "weight of BM25's score, 0 to 1")
    unbatched: bool = option(True, "measure batches of one query too")
    overload: int = option(512, "clients that must get 503 from a queue of 64 (0: leave it out)")

    def run(self) -> dict[str, Any]:
        if not self.index:
            raise UserError("there is nothing to serve; give --index FOLDER")
        bodies = self._bodies()
        figures: dict[str, Any] = {"clients": self.clients, "queries": len(bodies)}
        figures["load_before"] = os.getloadavg()[0]
        with self._server() as server:
            figures |= self._measured(server, bodies, self.requests)
        if self.unbatched:
            with self._server("--max_batch", "1", "--wait_ms", "0") as server:
                alone = self._measured(server, bodies)
            names = ("searches_per_second", "p50_ms", "p99_ms")
            figures |= {f"unbatched_{name}": alone[name] for name in names}
            rates = figures["searches_per_second"], alone["searches_per_second"]
            figures["batched_over_unbatched"] = rates[0] / rates[1]
        if self.overload:
            with self._server("--queue", "64") as server:
                seconds = min(self.seconds, 10)
                done = asyncio.run(_load(server.port, bodies, self.overload, seconds))
            figures["overload_statuses"] = _counted(done)
        figures["load_after"] = os.getloadavg()[0]
        return figures

    def _measured(
        self, server: _Server, bodies: Sequence[bytes], requests: int = 0
    ) -> dict[str, Any]:
        asyncio.run(_load(server.port, bodies, self.clients, _WARM_SECONDS))
        done, memory = list[tuple[int, float]](), [server.memory()]
        began = time.perf_counter()
        if requests:  # memory after each tenth
            for _ in range(_PARTS):
                share = requests // _PARTS
                done += asyncio.run(_load(server.port, bodies, self.clients, math.inf, share))
                memory.append(server.memory())
        else:
            done = asyncio.run(_load(server.port, bodies, self.clients, self.seconds))
            memory.append(server.memory())
        took = time.perf_counter() - began
        answered = [1000 * seconds for status, seconds in done if status == 200]
        if not answered:
            raise UserError(f"no search was answered with 200 ({_counted(done)}); see its log")
        p50, p95, p99 = np.percentile(answered, (50, 95, 99)).tolist()
        return {
            "searches_per_second": len(answered) / took,
            "p50_ms": p50,
            "p95_ms": p95,
            "p99_ms": p99,
            "searches": len(answered),
            "errors": len(done) - len(answered),
            "memory_mb": [bytes / 1e6 for bytes in memory] if requests else memory[-1] / 1e6,
            "memory_growth_mb": (memory[-1] - memory[0]) / 1e6,
        }

    def _bodies(self) -> list[bytes]:
        if self.queries:
            from qac_jax.formats.queries import read_queries

            texts = [query.text for query in read_queries(self.queries)]
        else:
            texts = _sentences(self.index)
        settings = {"k": self.k, "hybrid": self.hybrid}
        return [json.dumps({"query": text, **settings}).encode() for text in texts]

    @contextmanager
    def _server(self, *flags: str) -> Iterator[_Server]:
        words = ["serve", "--index", self.index, "--port", "0", *flags]
        words += ["--encoder", self.encoder] if self.encoder else []
        with tempfile.TemporaryDirectory(prefix="qac_jax-") as folder:
            log = Path(folder) / "log"
            with log.open("w") as file:
                command = [sys.executable, "-m", "qac_jax.cli", *words]
                process = subprocess.Popen(command, stderr=file, env=dict(os.environ))
            try:
                yield _Server(process, _port(process, log))
            finally:
                process.terminate()
                process.wait()


@dataclasses.dataclass(frozen=True)
class _Server:
    process: subprocess.Popen[bytes]
    port: int

    def memory(self) -> int:
        import psutil

        return psutil.Process(self.process.pid).memory_info().rss


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(r"http://[\d.]+:(\d+)", log.read_text()):
            time.sleep(0.5)
            return int(found[1])
        time.sleep(0.1)
    raise UserError(f"the server did not start ({log.read_text()[-300:]}); try `qac serve` itself")


def _sentences(index: str) -> list[str]:
    """A few words from the middle of passages."""
    from qac_jax.live.index import LiveIndex

    snapshot = LiveIndex(index).snapshot
    rng, texts = random.Random(0), []
    for _ in range(500):
        row = rng.randrange(int(snapshot.starts[-1]))
        words = snapshot.record(row)["text"].split()
        start = rng.randrange(max(len(words) - 8, 1))
        texts.append(" ".join(words[start : start + 8]) or "nothing")
    return texts


async def _load(
    port: int, bodies: Sequence[bytes], clients: int, seconds: float, requests: float = math.inf
) -> list[tuple[int, float]]:
    """(status, seconds) of every request, until one of the limits; 0 where there was no answer."""
    end = time.perf_counter() + seconds
    done: list[tuple[int, float]] = []

    async def client(number: int) -> None:
        rng = random.Random(number)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end and len(done) < requests:
            began = time.perf_counter()
            try:
                status = await _asked(reader, writer, rng.choice(bodies))
            except (OSError, ValueError, asyncio.IncompleteReadError):
                status = 0
            done.append((status, time.perf_counter() - began))
            if status == 503:
                await asyncio.sleep(0.1)
            elif status == 0:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return done


async def _asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> int:
    head = (
        "POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    answer = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = re.search(r"content-length: (\d+)", answer, re.I)
    await reader.readexactly(int(length[1]) if length else 0)
    return int(answer.split()[1])


def _counted(done: Sequence[tuple[int, float]]) -> dict[str, int]:
    statuses = [status for status, _ in done]
    return {str(status): statuses.count(status) for status in sorted(set(statuses))}
