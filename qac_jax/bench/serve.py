"""`qac bench serve`: a server under load, with batches and without."""

import contextlib
import dataclasses
import http.client
import itertools
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from qac_jax.errors import UserError
from qac_jax.fields import option


_WARM_SECONDS = 3.0


@dataclasses.dataclass(frozen=True)
class Serve:
    """Seconds of a search and searches/s of `qac serve` on this machine, clients included.

    Every client sends its next query, a few words of a passage, when it has its answer. What
    batching is compared with, "unbatched", is the same server and load with batches of one query
    (--max_batch 1 --wait_ms 0).
    """

    EXAMPLE = "qac bench serve --index out/live --clients 8 --seconds 60"

    index: str = option("", "living index that is served")
    clients: int = option(8, "clients at one time", at_least=1)
    seconds: float = option(60.0, "seconds of each measurement", above=0)

    def run(self) -> dict[str, Any]:
        if not self.index:
            raise UserError("there is nothing to serve; give --index FOLDER")
        bodies = [json.dumps({"query": text}).encode() for text in _texts(self.index)]
        batched = self._measured(bodies)
        alone = self._measured(bodies, "--max_batch", "1", "--wait_ms", "0")
        return {
            **batched,
            **{f"unbatched_{name}": value for name, value in alone.items()},
            "ratio": batched["searches_per_second"] / alone["searches_per_second"],
        }

    def _measured(self, bodies: list[bytes], *flags: str) -> dict[str, Any]:
        with _server("--index", self.index, "--port", "0", *flags) as port:
            self._load(port, bodies, _WARM_SECONDS)
            done = self._load(port, bodies, self.seconds)
        answered = [1000 * seconds for status, seconds in done if status == 200]
        if not answered:
            raise UserError(f"no search was answered with 200, but {done[:1]}")
        p50, p95, p99 = np.percentile(answered, (50, 95, 99)).tolist()
        rates = {"searches_per_second": len(answered) / self.seconds}
        errors = {"errors": len(done) - len(answered)}
        return {**rates, "p50_ms": p50, "p95_ms": p95, "p99_ms": p99, **errors}

    def _load(self, port: int, bodies: list[bytes], seconds: float) -> list[tuple[int, float]]:
        """(status, seconds) of every request of all clients; 0 where there was no answer."""
        end = time.perf_counter() + seconds
        headers = {"Content-Type": "application/json"}

        def client(number: int) -> list[tuple[int, float]]:
            done, chosen = [], random.Random(number)
            connection = http.client.HTTPConnection("127.0.0.1", port)
            while (began := time.perf_counter()) < end:
                try:
                    connection.request("POST", "/search", chosen.choice(bodies), headers)
                    answer = connection.getresponse()
                    answer.read()
                    status = answer.status
                except (OSError, http.client.HTTPException):
                    status = 0
                    connection.close()
                done.append((status, time.perf_counter() - began))
            connection.close()
            return done

        with ThreadPoolExecutor(self.clients) as pool:
            return [*itertools.chain(*pool.map(client, range(self.clients)))]


@contextlib.contextmanager
def _server(*flags: str) -> Iterator[int]:
    """A server's port, as long as it runs."""
    command = [sys.executable, "-m", "qac_jax.cli", "serve", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = []
            for line in process.stderr:
                if found := re.search(r"http://[\d.]+:(\d+)", line):
                    yield int(found[1])
                    return
                said.append(line)
            raise UserError(f"the server did not start ({' '.join(said)[-300:]})")
        finally:
            process.terminate()


def _texts(index: str) -> list[str]:
    """A few words from the middle of passages."""
    from qac_jax.live.index import LiveIndex

    snapshot = LiveIndex(index).snapshot
    rng, texts = random.Random(0), []
    for record in snapshot.records([rng.randrange(snapshot.rows) for _ in range(500)]):
        words = record["text"].split()
        start = rng.randrange(max(len(words) - 8, 1))
        texts.append(" ".join(words[start : start + 8]) or "nothing")
    return texts
