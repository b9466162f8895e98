"""`qac bench serve`: a server under load, with batches and without."""

import contextlib
import dataclasses
import http.client
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax.errors import UserError
from qac_jax.fields import option


_START_SECONDS = 600
_WARM_SECONDS = 3.0


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
    clients: int = option(8, "clients at one time", at_least=1)
    seconds: float = option(60.0, "seconds of each measurement", above=0)
    k: int = option(10, "hits of a search", at_least=1)
    hybrid: float = option(0.3, "weight of BM25's score, 0 to 1", at_least=0, at_most=1)

    def run(self) -> dict[str, Any]:
        if not self.index:
            raise UserError("there is nothing to serve; give --index FOLDER")
        bodies = self._bodies()
        batched = self._measured(bodies)
        alone = self._measured(bodies, "--max_batch", "1", "--wait_ms", "0")
        return {
            **batched,
            **{f"unbatched_{name}": value for name, value in alone.items()},
            "ratio": batched["searches_per_second"] / alone["searches_per_second"],
        }

    def _measured(self, bodies: Sequence[bytes], *flags: str) -> dict[str, Any]:
        with self._server(*flags) as (process, port):
            self._load(port, bodies, _WARM_SECONDS)
            done = self._load(port, bodies, self.seconds)
            import psutil

            memory = psutil.Process(process.pid).memory_info().rss
        answered = [1000 * seconds for status, seconds in done if status == 200]
        if not answered:
            raise UserError(
                f"no search was answered with 200, but {done[:1]}; see the server's log"
            )
        p50, p95, p99 = np.percentile(answered, (50, 95, 99)).tolist()
        return {
            "searches_per_second": len(answered) / self.seconds,
            "p50_ms": p50,
            "p95_ms": p95,
            "p99_ms": p99,
            "errors": len(done) - len(answered),
            "memory_mb": memory / 1e6,
        }

    def _bodies(self) -> list[bytes]:
        if self.queries:
            from qac_jax.formats.queries import read_queries

            texts = [query.text for query in read_queries(self.queries)]
        else:
            texts = _sentences(self.index)
        settings = {"k": self.k, "hybrid": self.hybrid}
        return [json.dumps({"query": text, **settings}).encode() for text in texts]

    @contextlib.contextmanager
    def _server(self, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        words = ["serve", "--index", self.index, "--port", "0", *flags]
        words += ["--encoder", self.encoder] if self.encoder else []
        with tempfile.TemporaryDirectory(prefix="qac_jax-") as folder:
            log = Path(folder) / "log"
            with log.open("w") as file:
                command = [sys.executable, "-m", "qac_jax.cli", *words]
                process = subprocess.Popen(command, stderr=file, env=dict(os.environ))
            try:
                yield process, _port(process, log)
            finally:
                process.terminate()
                process.wait()

    def _load(self, port: int, bodies: Sequence[bytes], seconds: float) -> list[tuple[int, float]]:
        """(status, seconds) of every request of all clients; 0 where there was no answer."""
        end = time.perf_counter() + seconds

        def client(number: int) -> list[tuple[int, float]]:
            done, chosen = [], random.Random(number)
            connection = http.client.HTTPConnection("127.0.0.1", port)
            while (began := time.perf_counter()) < end:
                try:
                    body = chosen.choice(bodies)
                    connection.request(
                        "POST", "/search", body, {"Content-Type": "application/json"}
                    )
                    answer = connection.getresponse()
                    answer.read()
                    status = answer.status
                except (OSError, http.client.HTTPException):
                    status = 0
                    connection.close()
                done.append((status, time.perf_counter() - began))
            return done

        with ThreadPoolExecutor(self.clients) as pool:
            return [*itertools.chain(*pool.map(client, range(self.clients)))]


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
    for record in snapshot.records([rng.randrange(snapshot.rows) for _ in range(500)]):
        words = record["text"].split()
        start = rng.randrange(max(len(words) - 8, 1))
        texts.append(" ".join(words[start : start + 8]) or "nothing")
    return texts
