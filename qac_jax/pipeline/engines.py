"""Where shards are made: on this host, or by Ray on the nodes of a cluster.

Work for many cores is a task a shard, and so is a stage of a grid. What loads a model or an index
is an actor, which loads it once. Ray starts them, moves those of a lost node to others, and asks an
autoscaler for more nodes. All nodes see the same folders: a shard is written apart, so that no file
has two writers even where a node that was taken for lost goes on, and this process takes it into
the artefact.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import functools
import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from qac_jax import extras
from qac_jax.artifacts import Writer
from qac_jax.artifacts.writing import ApartWriter
from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.progress import Bar


if TYPE_CHECKING:
    from qac_jax.pipeline.sharding import ShardFile


LOCAL, RAY = "local", "ray"
# How often a shard is given again whose process or node was lost; how often an actor is started
# again, so that a model that does not fit ends; how many tasks wait for a core.
_RETRIES, _RESTARTS, _WINDOW = 5, 20, 1000


@dataclasses.dataclass(frozen=True)
class Engine:
    """Where shards are made."""

    engine: str = option(
        LOCAL, "local; ray (as RAY_ADDRESS says, or on this host); ray://HOST:10001 or HOST:6379"
    )
    actors: int = option(
        0, "of Ray: how many load the model (0: as many as have room now)", at_least=0
    )
    resources: str = option(
        "", "of Ray: what each of them takes, such as GPU=1 (the default) or TPU=4,CPU=8"
    )

    def needs(self, ray: Any) -> tuple[dict[str, float], int]:
        """What an actor takes (by default a GPU; where there is none, a node), and for how many the
        cluster has room."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if self.resources:
            pairs = [part.partition("=")[::2] for part in self.resources.split(",")]
            try:
                needs = {name: float(value) for name, value in pairs}
            except ValueError:
                raise UserError(
                    f"resources={self.resources!r} is not NAME=NUMBER,…, such as GPU=1,CPU=4"
                ) from None
        elif any("GPU" in node for node in nodes):
            needs = {"GPU": 1.0}
        else:
            needs = {"CPU": min((node["CPU"] for node in nodes if node.get("CPU")), default=1.0)}
        room = sum(
            int(min(node.get(name, 0.0) // value for name, value in needs.items() if value))
            for node in nodes
        )
        if not (room or self.actors):
            raise UserError(
                f"no node of the cluster has {self.resources or needs}; change --resources, or "
                "give --actors to wait for nodes that an autoscaler adds"
            )
        return needs, room


_LOCALLY = Engine()
_current: contextvars.ContextVar[Engine] = contextvars.ContextVar("engine", default=_LOCALLY)


def is_local() -> bool:
    return _current.get().engine == LOCAL


@contextlib.contextmanager
def use(engine: Engine) -> Iterator[None]:
    """Shards are made by this engine in the block; a connection to Ray that is there is used."""
    ray: Any = _ray() if engine.engine != LOCAL else None
    ours = ray and not ray.is_initialized()
    if ours:
        if engine.engine not in (RAY, "auto") and ":" not in engine.engine:
            raise UserError(
                f"--engine {engine.engine} is not an engine; give local, ray, ray://HOST:10001 or "
                "HOST:6379"
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = {} if engine.engine == RAY else {"address": engine.engine}
        try:
            ray.init(**address, logging_level="warning")
        except (ConnectionError, TimeoutError) as error:
            raise UserError(
                f"no Ray cluster answers ({str(error).splitlines()[0]}); start one by `ray start "
                "--head`, or check --engine, RAY_ADDRESS and RAY_AUTH_MODE"
            ) from error
    token = _current.set(engine)
    try:
        yield
    finally:
        _current.reset(token)
        if ours:
            ray.shutdown()


def _ray() -> Any:
    return extras.load("ray", "ray", "--engine ray")


class Loaded(NamedTuple):
    """What writes a shard (`out.part(shard.name)`) and returns its facts; `ahead` prepares a job,
    such as by reading its tokens, during the work on another one."""

    work: Callable[[ShardFile, Bar], Mapping[str, Any] | None]
    ahead: Callable[[Any], Any] = lambda job: job


class Made(NamedTuple):
    """A shard that is complete, the folder that it is in, and the records of its files."""

    shard: ShardFile
    folder: str
    entries: dict[str, dict[str, Any]]


def by_tasks(
    out: Writer, shards: Sequence[ShardFile], function: Callable[[Any, str], Mapping[str, Any]]
) -> Iterator[Made]:
    """Shards as they are finished: `function(shard.job, path)` writes the file."""
    ray, here = _ray(), os.getcwd()
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_one)
    waiting, running = collections.deque(shards), dict[Any, Any]()
    try:
        while waiting or running:
            while waiting and len(running) < _WINDOW:
                shard = waiting.popleft()
                running[task.remote(here, out, shard, function)] = shard
            (ref, *_), _ = ray.wait([*running])
            running.pop(ref)
            yield _answer(ref)
    finally:
        for ref in running:
            ray.cancel(ref, force=True)


class Job(NamedTuple):
    """The arguments of a call, and the numbers of the jobs that must be done before."""

    arguments: tuple[Any, ...]
    before: Sequence[int]


def in_order(function: Callable[..., Any], jobs: Sequence[Job]) -> Iterator[Any]:
    """What the function returns for each job; on a cluster as many run as have room, which take
    what an actor takes."""
    if is_local():
        yield from (function(*job.arguments) for job in jobs)
        return
    ray, here = _ray(), os.getcwd()
    task = ray.remote(max_retries=_RETRIES, **_options(_current.get().needs(ray)[0]))(_called)
    made: list[Any] = []
    for job in jobs:
        made.append(task.remote(here, function, job.arguments, *(made[at] for at in job.before)))
    try:
        yield from map(_answer, made)
    finally:
        for ref in made:
            ray.cancel(ref, force=True)


def by_actors(
    out: Writer, shards: Sequence[ShardFile], load: Callable[[], Loaded]
) -> Iterator[Made]:
    """Shards as they are finished, by actors that call `load` once."""
    ray = _ray()
    needs, room = _current.get().needs(ray)
    count = min(len(shards), _current.get().actors or room)
    remote = ray.remote(
        max_restarts=_RESTARTS, max_task_retries=-1, max_concurrency=2, **_options(needs)
    )(_Actor)
    given = ray.put((os.getcwd(), out, load))
    # One that has no room yet waits for it and gets no shard before. Ray knows of a lost node after
    # some fifteen seconds, and calls fail at once until then: an actor that lost a shard, too, gets
    # none before it answers again.
    actors = [remote.remote([given]) for _ in range(count)]
    running: dict[Any, tuple[Any, ShardFile | None]] = {a.ready.remote(): (a, None) for a in actors}
    waiting, left, lost = collections.deque(shards), len(shards), collections.Counter[str]()
    try:
        while left:
            (ref, *_), _ = ray.wait([*running])
            actor, shard = running.pop(ref)
            others = [each for one, each in running.values() if one is actor]
            try:
                made = _answer(ref)
            except _LostError:
                if shard is None:
                    if running:
                        continue  # it was started too often; others go on
                    raise
                lost[shard.name] += 1
                if lost[shard.name] > _RETRIES:
                    raise
                waiting.appendleft(shard)
                if None not in others:
                    running[actor.ready.remote()] = actor, None
                continue
            if made:
                left -= 1
                yield made
            # The next shard is read ahead, but the last ones go to whoever is free.
            while (
                waiting and None not in others and len(others) < (2 if len(waiting) > count else 1)
            ):
                others.append(waiting.popleft())
                call = actor.write.options(max_task_retries=0)
                running[call.remote(others[-1])] = actor, others[-1]
            if not others:  # which makes room for those of a lost node
                ray.kill(actor)
    finally:
        for actor in actors:
            ray.kill(actor)


def _options(needs: Mapping[str, float]) -> dict[str, Any]:
    """What a task or an actor takes, as Ray wants it."""
    others = {name: value for name, value in needs.items() if name not in ("CPU", "GPU")}
    known = {"num_cpus": needs.get("CPU", 0), "num_gpus": needs.get("GPU", 0)}
    return {**known, "resources": others}


class _LostError(UserError):
    """Of the process that had the work, or of its node."""


def _answer(ref: Any) -> Any:
    import ray
    from ray import exceptions

    try:
        return ray.get(ref)
    except exceptions.RayTaskError as error:
        raise error.cause from error
    except exceptions.RayError as error:
        why = f"{type(error).__name__}: {str(error).strip().splitlines()[-1].strip()}"
        raise _LostError(
            f"Ray gave up, after {_RETRIES} attempts where a process was lost ({why}); nodes need "
            "the same packages and enough memory; then the same command continues"
        ) from error


class _Actor:
    """A process of the cluster that has loaded what makes shards."""

    def __init__(self, given: list[Any]):
        self._given, self._lock = given, threading.Lock()

    @functools.cached_property
    def _loaded(self) -> tuple[ApartWriter, Loaded]:
        here, out, load = _ray().get(self._given[0])
        _enter(here, os.fspath(out.path))
        return out, load()

    def ready(self) -> None:
        with self._lock:
            _ = self._loaded

    def write(self, shard: ShardFile) -> Made:
        self.ready()
        out, loaded = self._loaded
        ready = dataclasses.replace(shard, job=loaded.ahead(shard.job))
        with self._lock, Bar("", stream=io.StringIO()) as bar:
            return _made(out, shard, lambda: loaded.work(ready, bar))


def _one(
    here: str, out: ApartWriter, shard: ShardFile, function: Callable[[Any, str], Any]
) -> Made:
    _enter(here, os.fspath(out.path))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return _made(out, shard, lambda: function(shard.job, os.fspath(out.part(shard.name))))


def _called(here: str, function: Callable[..., Any], arguments: Sequence[Any], *_: Any) -> Any:
    _enter(here)
    return function(*arguments)


def _enter(*folders: str) -> None:
    """Paths mean what they mean to the process that sends the work, in the first of its folders."""
    for folder in folders:
        if not os.path.isdir(folder):
            raise UserError(
                f"{folder} is not on node {os.uname().nodename}; start from and write to folders "
                "that all nodes have mounted"
            )
    os.chdir(folders[0])


def _made(out: ApartWriter, shard: ShardFile, work: Callable[[], Any]) -> Made:
    out.begin_shard()
    out.keep(shard.name, work())
    return Made(dataclasses.replace(shard, job=None), *out.made())
