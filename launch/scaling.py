"""Bytes, hours and money of every step for 1e7 to 1e9 passages, and a simulation of lost hosts.

    python launch/scaling.py > tables.md            # the tables of docs/scaling.md
    python launch/scaling.py --hosts 64 --gpu_dollars 1.8 --passages 1e8

The simulation follows qac_jax/pipeline/dividing.py: shard n belongs to host n mod N; a host that is
lost comes back after a while or never; the others take over its shards one at a time, once it has
been silent for 90 seconds and their own shards are done.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import math
from collections.abc import Iterator, Sequence

import numpy as np

from qac_jax.pipeline.costs import CORE, DECODER_MFU, ENCODER_MFU, MEASURED_ROWS
from qac_jax.retrieval import memory as scann


PATIENCE = 90.0  # seconds, as in qac_jax/pipeline/following.py
PEAK = 989e12  # an H100's, dense bf16


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of the road: `rate` passages a second on one device (a GPU or a core)."""

    name: str
    device: str  # "GPU" or "core"
    rate: float
    source: str  # where the rate comes from
    bytes: float  # written for a passage
    shard: int  # passages of a shard
    rows: float = 0.0  # of the index it was measured on, where its time grows with the index


def by_flops(parameters: float, tokens: float, mfu: float) -> float:
    """Passages a second of an encoder's forward pass: 2 FLOPs a parameter and token."""
    return PEAK * mfu / (2 * parameters * tokens)


def on_core(step: str, shard: int, name: str = "", each: float = 1.0, rows: float = 0.0) -> Step:
    """A step of text, at the rate that plans assume."""
    rate = CORE[step]
    return Step(
        name or step, "core", rate.per_second, rate.source, each * rate.bytes_each, shard, rows
    )


# Passages of 80 tokens and 400 bytes, BERT-base (85 million parameters beside the embeddings).
# Text: measured on the two cores of docs/results/data.md. GPU: pre-training was measured
# (docs/results/speed.md); applied models are computed from FLOPs at the share of the peak that
# pre-training reaches there without dropout, 35 %, a decoder at 5 % (it reads its weights for every
# token).
ENCODER, QUERIES, QUERY_TOKENS = 85e6, 5, 12
_EMBED = by_flops(ENCODER, 80, ENCODER_MFU)
_RERANK = by_flops(ENCODER, 20 * 96, ENCODER_MFU)
STEPS = (
    on_core("prepare", 500_000),
    on_core("clean", 500_000),
    Step(
        "generate, 5 queries",
        "GPU",
        by_flops(110e6, QUERIES * QUERY_TOKENS, DECODER_MFU),
        "FLOPs, 5 %",
        400,
        8192,
    ),
    on_core("extract", 8192, "extract, BM25"),
    on_core("tokenize", 500_000),
    Step("pre-train, 1 epoch", "GPU", 3_721, "measured, speed.md", 0, 0),
    Step("embed, 768 × float16", "GPU", _EMBED, "FLOPs, 35 %", 1540, 65536),
    on_core("search", 1024, "search, 1 query a passage", 100, MEASURED_ROWS["search"]),
    Step("rerank, 20 a query", "GPU", _RERANK, "FLOPs, 35 %", 20 * 24, 1600),
)
_EVENTS = 4096


@dataclasses.dataclass(frozen=True)
class Cluster:
    hosts: int = 16
    gpus: int = 8
    cores: int = 96
    spread: float = 0.08  # standard deviation of log speed between hosts: stragglers
    lost_every: float = 24.0  # hours until a host is lost, on average
    back: float = 0.25  # hours until it is replaced
    never: float = 0.1  # share of losses that are not replaced
    gpu_dollars: float = 2.5  # an hour
    core_dollars: float = 0.04

    def devices(self, kind: str) -> int:
        return self.hosts * (self.gpus if kind == "GPU" else self.cores)

    def dollars(self, kind: str) -> float:
        return self.gpu_dollars if kind == "GPU" else self.core_dollars


def simulate(
    shards: int, seconds: float, cluster: Cluster, seed: int = 0, takeover: bool = True
) -> float:
    """Seconds until all shards are done; `seconds` are those of one shard on a usual host."""
    rng = np.random.default_rng(seed)
    count = cluster.hosts
    pace = np.exp(rng.normal(0.0, cluster.spread, count)) * seconds
    left = [list(range(n, shards, count))[::-1] for n in range(count)]
    up = np.zeros(count)  # when a host is there again; infinite: never
    silent = np.full(count, math.inf)  # since when it sends nothing
    loss = rng.exponential(cluster.lost_every * 3600, count)
    events = [(0.0, n) for n in range(count)]
    heapq.heapify(events)
    end, done = 0.0, 0
    while events and done < shards:
        now, host = heapq.heappop(events)
        if loss[host] <= now:  # it is lost: its next event is its return
            gone = rng.random() < cluster.never
            silent[host], up[host] = loss[host], math.inf if gone else now + cluster.back * 3600
            loss[host] = up[host] + rng.exponential(cluster.lost_every * 3600)
            if not gone:
                heapq.heappush(events, (up[host], host))
            continue
        silent[host] = math.inf
        of = host if left[host] else _orphan(left, silent, now) if takeover else None
        if of is None:
            if any(left):
                heapq.heappush(events, (now + max(1.0, seconds / 10), host))
            continue
        finish = now + pace[host]
        if loss[host] < finish:  # the shard is begun anew by whoever gets it
            heapq.heappush(events, (loss[host], host))
            continue
        left[of].pop()
        done, end = done + 1, max(end, finish)
        heapq.heappush(events, (finish, host))
    return end if done == shards else math.inf


def _orphan(left: Sequence[Sequence[int]], silent: np.ndarray, now: float) -> int | None:
    """A host that has been silent for long enough and has shards left."""
    lost = [n for n in range(len(left)) if left[n] and now - silent[n] > PATIENCE]
    return lost[0] if lost else None


def costs(passages: float, cluster: Cluster) -> Iterator[str]:
    """A table of all steps at one size of the corpus."""
    yield "| step | hours, no loss | hours, simulated | shards | dollars | written |"
    yield "|---|---|---|---|---|---|"
    hours = money = disk = 0.0
    for step in STEPS:
        rate = step.rate / max(1.0, passages / step.rows) if step.rows else step.rate
        ideal = passages / rate / cluster.devices(step.device) / 3600
        real, shards = ideal, math.ceil(passages / step.shard) if step.shard else 0
        if shards:
            in_host = rate * cluster.devices(step.device) / cluster.hosts
            at_once = max(1, shards // _EVENTS)  # shards that count as one
            seconds = at_once * step.shard / in_host
            real = simulate(math.ceil(shards / at_once), seconds, cluster) / 3600
        simulated = _hours(real)
        if math.isinf(real):  # so long that no host is left that is not replaced
            real, simulated = ideal, "all hosts lost"
        paid = real * cluster.devices(step.device) * cluster.dollars(step.device)
        written = step.bytes * passages
        hours, money, disk = hours + real, money + paid, disk + written
        shown = f"{shards:,}" if shards else "–"
        cells = (step.name, _hours(ideal), simulated, shown, f"{paid:,.0f}", _bytes(written))
        yield f"| {' | '.join(cells)} |"
    yield f"| **all** | | {_hours(hours)} | | {money:,.0f} | {_bytes(disk)} |"


def memory(passages: float, cluster: Cluster) -> str:
    """Building and searching ScaNN's index on one host."""
    count = int(passages)
    parts = scann.part_rows(count)
    largest = max(stop - start for start, stop in parts)
    sizes = (passages * 768 * 2, scann.build_bytes(largest, 768))
    searched = [scann.search_bytes(count, 768, kind) for kind in ("float32", "bfloat16", "int8")]
    hours = passages / CORE["index"].per_second / cluster.cores / 3600
    cells = [*map(_bytes, (*sizes, *searched, passages * 16)), f"{len(parts):,}", _hours(hours)]
    return f"| {passages:.0e} | {' | '.join(cells)} |"


def losses(cluster: Cluster) -> Iterator[str]:
    """What stragglers and losses cost, by the number of hosts, and what taking over saves."""
    yield "| hosts | stragglers | with losses | nobody takes over | runs that then never end |"
    yield "|---|---|---|---|---|"
    for hosts in (4, 16, 64, 256):
        here = dataclasses.replace(cluster, hosts=hosts)
        shards, seconds = hosts * 96, 300.0  # eight hours of work for each host
        ideal = 96 * seconds
        steady = dataclasses.replace(here, lost_every=1e9)
        seeds = range(6)
        plain = np.mean([simulate(shards, seconds, steady, s) for s in seeds]) / ideal
        taken = np.mean([simulate(shards, seconds, here, s) for s in seeds]) / ideal
        alone = [simulate(shards, seconds, here, s, takeover=False) for s in seeds]
        ended = [a for a in alone if math.isfinite(a)]
        slow = f"{np.mean(ended) / ideal:.2f}" if ended else "–"
        never = f"{len(alone) - len(ended)} of {len(alone)}"
        yield f"| {hosts} | {plain:.2f} | {taken:.2f} | {slow} | {never} |"


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 0.1 else f"{hours * 60:.1f} min"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def tables(cluster: Cluster, sizes: Sequence[float]) -> str:
    lines = ["| step | device | passages/s on one | from |", "|---|---|---|---|"]
    lines += [f"| {s.name} | {s.device} | {s.rate:,.0f} | {s.source} |" for s in STEPS]
    for size in sizes:
        lines += ["", f"**{size:.0e} passages**", "", *costs(size, cluster)]
    lines += [
        "",
        "| passages | vectors, float16 | building a part | searching: float32 | bfloat16 | int8 "
        "| ids | parts | hours of building |",
        "|---|---|---|---|---|---|---|---|---|",
        *(memory(size, cluster) for size in sizes),
        "",
        *losses(cluster),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for field in dataclasses.fields(Cluster):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    parser.add_argument("--passages", type=float, nargs="*", default=[1e7, 1e8, 1e9])
    options = vars(parser.parse_args())
    sizes = options.pop("passages")
    print(tables(Cluster(**options), sizes))


if __name__ == "__main__":
    main()
