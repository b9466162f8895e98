"""A stage of slow shards for the tests on a cluster of three nodes, and the driver of one."""

import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.pipeline import engines, sharding, stage
from qac_jax.pipeline.engines import Engine, Loaded
from qac_jax.pipeline.sharding import ShardFile, Workers
from qac_jax.pipeline.stage import Inputs, Stage, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class Squares(Stage):
    """A file for each number; `trace` gets a file for each that is begun, with its node's name."""

    VERB: ClassVar[str] = "squares"
    KIND: ClassVar[str] = "squares"

    count: int = option(9, "shards")
    by_tasks: bool = option(False, "as work for many cores", affects_result=False)
    seconds: float = option(0.0, "how long each takes", affects_result=False)
    slow: str = option("", "on this node it takes ten times as long", affects_result=False)
    trace: str = option("", "folder", affects_result=False)

    def run(self, inputs: Inputs, out: Writer) -> None:
        shards = [ShardFile(f"squares-{n}.txt", 1, (n, self)) for n in range(self.count)]

        def write(shard: ShardFile, bar: progress.Bar) -> dict[str, Any]:
            return square(shard.job, os.fspath(out.part(shard.name)))

        if self.by_tasks:
            sharding.pooled(out, shards, square, Workers(1), "square")
        else:
            sharding.sharded(out, shards, lambda: Loaded(write), "square", "shards")
        out.count = self.count


def square(job: tuple[int, Squares], path: str) -> dict[str, Any]:
    number, how = job
    seconds = how.seconds
    if how.trace:
        import ray

        node = ray.get_runtime_context().get_node_id()
        Path(how.trace, f"{number}-{time.monotonic_ns()}").write_text(node)
        seconds *= 10 if node == how.slow else 1
    time.sleep(seconds)
    Path(path).write_text(f"{number**2}\n")
    return {"value": number}


def begun(trace: Path) -> list[tuple[int, str]]:
    """The shards that were begun, each with its node."""
    return [(int(p.name.split("-")[0]), p.read_text()) for p in trace.iterdir()]


if __name__ == "__main__":
    address, out, trace = sys.argv[1:]
    with engines.use(Engine(address)):
        stage.execute(Squares(seconds=0.7, by_tasks=True, trace=trace), out)
