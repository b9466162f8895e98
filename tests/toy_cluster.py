"""For the tests on a cluster of three nodes: a stage of slow shards, and work of any stage that
waits in the middle of it, so that its node or its driver can be lost."""

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.artifacts.writing import ApartWriter
from qac_jax.pipeline import engines, sharding
from qac_jax.pipeline.engines import Loaded
from qac_jax.pipeline.sharding import ShardFile, Workers
from qac_jax.pipeline.stage import Inputs, Stage, option
from qac_jax.retrieval import search


@dataclasses.dataclass(frozen=True, kw_only=True)
class Squares(Stage):
    """A file for each number; `trace` gets a file for each that is begun, with its node's name."""

    VERB: ClassVar[str] = "squares"
    KIND: ClassVar[str] = "squares"

    count: int = option(9, "shards")
    seconds: float = option(0.0, "how long each takes", affects_result=False)
    slow: str = option("", "on this node it takes ten times as long", affects_result=False)
    trace: str = option("", "folder", affects_result=False)

    def run(self, inputs: Inputs, out: Writer) -> None:
        shards = [ShardFile(f"squares-{n}.txt", 1, (n, self)) for n in range(self.count)]

        sharding.pooled(out, shards, square, Workers(1), "square")
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


class Mark(NamedTuple):
    """A file that is written and of which the driver does not know yet."""

    job: str
    node: str
    process: str
    name: str


def marks(trace: Path) -> list[Mark]:
    return [Mark(*path.name.split()) for path in trace.glob("* * * *")]


def marked(file: str | Path, trace: Path) -> str:
    return os.path.relpath(file, trace.parent).replace("/", "|")


def wait(out: Writer, name: str) -> None:
    """The first file of all is reported at once; the others wait until the test lets them go."""
    import ray

    trace = next(p / "trace" for p in Path(out.path).parents if (p / "trace").is_dir())
    context, file = ray.get_runtime_context(), Path(out.path, name)
    (said := trace / f"{os.getpid()}-{time.monotonic_ns()}").write_text(os.fspath(file))
    with contextlib.suppress(FileExistsError):
        os.link(said, trace / "first")  # whole from the beginning
        return
    mark = (context.get_job_id(), context.get_node_id(), str(os.getpid()), marked(file, trace))
    (trace / " ".join(mark)).touch()
    while not (trace / "go").exists():
        time.sleep(0.05)


def make_wait(patch: pytest.MonkeyPatch) -> None:
    """Shards that this driver sends wait when they are written, and searches of a grid's cells
    after a part of their queries."""
    patch.setattr(engines, "_one", _one)
    patch.setattr(engines, "_Actor", _Actor)
    patch.setattr(engines, "_called", _called)


def _one(here: str, out: ApartWriter, shard: ShardFile, function: Callable[..., Any]) -> Any:
    def write(job: Any, path: str) -> Any:
        facts = function(job, path)
        wait(out, shard.name)
        return facts

    return engines._one(here, out, shard, write)


class _Actor(engines._Actor):
    @functools.cached_property
    def _loaded(self) -> tuple[ApartWriter, Loaded]:
        out, loaded = super()._loaded

        def work(shard: ShardFile, bar: progress.Bar) -> Any:
            facts = loaded.work(shard, bar)
            wait(out, shard.name)
            return facts

        return out, loaded._replace(work=work)


def _called(here: str, function: Callable[..., Any], *given: Any) -> Any:
    def keep(out: Writer, name: str, *how: Any, **named: Any) -> None:
        kept(out, name, *how, **named)
        if name.startswith("piece-"):
            wait(out, name)

    kept = Writer.keep
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "TOGETHER", 2)
        patch.setattr(Writer, "keep", keep)
        return engines._called(here, function, *given)
