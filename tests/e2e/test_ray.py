"""Shards that Ray makes on three nodes, here on loopback: the bytes are those of one process, also
where the driver and a node are lost. As a program, the driver that a test kills."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import test_grid_run
import toy_cluster
import toy_generation
import toy_retrieval
from toy_cluster import Mark, Squares, begun, marked, marks

from qac_jax import artifacts, cli
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError
from qac_jax.pipeline import engines
from qac_jax.pipeline.engines import Engine
from qac_jax.pipeline.stage import Stage, execute
from qac_jax.retrieval import search
from qac_jax.stages import mine as mine_stage
from qac_jax.stages import search as search_stage
from qac_jax.stages.embed import Embed
from qac_jax.stages.extract import Extract
from qac_jax.stages.generate import Generate
from qac_jax.stages.mine import Label, Mine
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize


# Ray forks to start a node's processes, which never use JAX's threads.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")]
_NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}


class Nodes:
    """A cluster of a head and two more nodes of a core each, which asks every so often whether a
    node is there, and takes it for lost after five times."""

    def __init__(self, milliseconds: int = 500) -> None:
        from ray.cluster_utils import Cluster

        asking = {"health_check_initial_delay_ms": 0, "health_check_period_ms": milliseconds}
        head = {**_NODE, "include_dashboard": False, "_system_config": asking}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.added = {node.node_id: node for node in (self.add(), self.add())}

    def add(self) -> Any:
        return self.cluster.add_node(**_NODE)

    def lose(self, name: str) -> None:
        self.cluster.remove_node(self.added.pop(name), allow_graceful=False)


@contextlib.contextmanager
def started(*asked: int) -> Iterator[Nodes]:
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # nodes import what we import
        made = Nodes(*asked)
        yield made
        made.cluster.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with started() as made:
        yield made


@pytest.fixture(scope="module")
def ray(nodes: Nodes) -> Iterator[Engine]:
    engine = Engine(nodes.cluster.address)
    with engines.use(engine):
        yield engine


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = toy_retrieval.collected(tmp_path_factory.mktemp("divided"), queries=6)
    execute(Search(**places(folder, index="bm25", queries=QUERIES), k=8), folder / "run")
    toy_retrieval.save_cross_encoder(folder / "teacher", labels=2)
    toy_retrieval.save_cross_encoder(folder / "reranker")
    toy_generation.save_generator(folder / "t5")
    toy_retrieval.save_encoder(folder / "encoder")
    for name, text in test_grid_run.FILES.items():
        (folder / f"{name}.gin").write_text(text)
    return folder


QUERIES, QRELS = "data/queries.jsonl", "data/qrels/test.tsv"


def places(folder: Path, **names: str) -> dict[str, Any]:
    return {field: str(folder / name) for field, name in names.items()}


OF = {"passages": "passages"}
ASKED = {**OF, "queries": QUERIES}
TAUGHT = {"depth": 6, "positive": 0.501, "negative": 0.5, "max_length": 32}
SHORT = {"samples": 1, "max_tokens": 3, "max_input": 16, "shard_passages": 8}
# Name -> stage, its inputs, its settings.
VERBS: dict[str, tuple[type[Stage], dict[str, str], dict[str, Any]]] = {
    "prepare": (Prepare, {"documents": "data/corpus.jsonl"}, {"shards": 3}),
    "tokenize": (Tokenize, OF, {"task": "mlm", "shards": 3}),
    "extract": (Extract, OF, {"shard_passages": 5, "keep": 2}),
    "search": (Search, {**ASKED, "index": "bm25"}, {"k": 5}),
    "mine": (Mine, {**ASKED, "qrels": QRELS, "bm25": "bm25"}, {"depth": 8}),
    "label": (Label, {**ASKED, "candidates": "run", "teacher": "teacher"}, TAUGHT),
    "rerank": (
        Search,
        {**ASKED, "index": "bm25", "reranker": "reranker"},
        {"max_length": 32, "k": 5},
    ),
    "generate": (Generate, {**OF, "generator": "t5"}, SHORT),
    "embed": (Embed, {"encoder": "encoder", "passages": "data/corpus.jsonl"}, {"shard_rows": 7}),
}


def make(name: str, road: Path, out: Path, engine: str) -> None:
    """A verb's artefact, or a grid."""
    if name == "grid":
        words = [f"--gin_search_paths={road}", f"--data_dir={road / 'data'}", f"--engine={engine}"]
        words = [str(road / "grid.gin"), "--gin_modules=test_grid_run", *words, f"--out={out}"]
        assert cli.main(["run", *words]) == 0
        return
    cls, inputs, settings = VERBS[name]
    with engines.use(Engine(engine)):
        execute(cls.make(**places(road, **inputs), **settings), out)


def contents(folder: Path) -> dict[str, Any]:
    """Of every artefact below a folder what it is, its files' hashes and all files' names."""
    found = {}
    for record in folder.rglob("artifact.json"):
        one, names = artifacts.load(record.parent), sorted(p.name for p in record.parent.iterdir())
        one.verify()
        hashes = {n: e["sha256"] for n, e in one.files.items() if not n.startswith("texts/")}
        found[str(record.relative_to(folder))] = one.identity, hashes, names
    return found


def many_shards(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(search, "TOGETHER", 2)
    patch.setattr(search_stage, "_PAIRS", 10)
    patch.setattr(mine_stage, "_LABELLED", 2)
    patch.setattr(mine_stage, "_MINED", 2)


def test_of_a_lost_node_ray_knows_late(road, tmp_path, monkeypatch) -> None:
    """As it is set up usually: after some fifteen seconds, in which calls fail at once. It stands
    before the others, whose connection stays."""
    make("embed", road, tmp_path / "whole", "local")
    (trace := tmp_path / "trace").mkdir()
    toy_cluster.make_wait(monkeypatch)
    with started(3000) as nodes, one_is_lost(nodes, trace):
        make("embed", road, tmp_path / "out", nodes.cluster.address)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", [*VERBS, "grid"])
def test_the_bytes_are_those_of_one_process(name, nodes, ray, road, tmp_path, monkeypatch) -> None:
    """The driver is killed when a shard is done and others are in work, and started again; then a
    node is killed that has one in work. What was done is not made again."""
    many_shards(monkeypatch)
    make(name, road, tmp_path / "whole", "local")
    (trace := tmp_path / "trace").mkdir()
    words = (__file__, ray.engine, name, road, tmp_path / "out")
    driver = subprocess.Popen([sys.executable, *map(str, words)])
    first = trace / "first"
    try:
        eventually(lambda: marks(trace) and first.exists(), "nothing in work")
        eventually(Path(first.read_text()).exists, "nothing done")
    finally:
        driver.kill()
        driver.wait()
    before = {*marks(trace)}
    ended(before)
    toy_cluster.make_wait(monkeypatch)
    with one_is_lost(nodes, trace, {mark.job for mark in before}) as lost:
        make(name, road, tmp_path / "out", ray.engine)
    back = nodes.add()
    nodes.added[back.node_id] = back
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    again = {m.name for m in marks(trace) if m not in before and m != lost[0]}
    assert marked(first.read_text(), trace) not in again
    # A grid's stage goes on after what was done of it.
    assert (lost[0].name in again) == (name != "grid")


@contextlib.contextmanager
def one_is_lost(nodes: Nodes, trace: Path, before: Iterable[str] = ()) -> Iterator[list[Mark]]:
    """Meanwhile a node is killed that has a shard in work, but for the jobs before."""
    lost = []

    def in_work() -> list[Mark]:
        return [m for m in marks(trace) if m.node in nodes.added and m.job not in before]

    def kill() -> None:
        eventually(in_work, "nothing in work")
        lost.append(in_work()[0])
        nodes.lose(lost[0].node)
        ended(lost)
        (trace / "go").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield lost
    finally:
        killer.join()


def eventually(is_so: Callable[[], Any], what: str) -> None:
    ends = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < ends, what
        time.sleep(0.05)


def ended(of: Iterable[Mark]) -> None:
    eventually(lambda: not any(psutil.pid_exists(int(m.process)) for m in of), "not ended")


def squares(**settings: Any) -> dict[str, str]:
    return {f"squares-{n}.txt": f"{n**2}\n" for n in range(Squares(**settings).count)}


def read(found: Artifact) -> dict[str, str]:
    found.verify()
    return {name: found.file(name).read_text() for name in found.files}


def test_a_slow_node_gets_fewer_shards(nodes, ray, tmp_path) -> None:
    (trace := tmp_path / "trace").mkdir()
    slow = next(iter(nodes.added))
    made = Squares(count=16, seconds=0.3, slow=slow, trace=str(trace))
    assert read(execute(made, tmp_path / "out")) == squares(count=16)
    of_slow = [number for number, node in begun(trace) if node == slow]
    assert len(of_slow) <= 4


def test_what_is_wrong_is_said_in_a_sentence(ray, road, tmp_path, capsys) -> None:
    made = Search(**places(road, index="bm25", queries=QUERIES))
    with pytest.raises(UserError, match="no node of the cluster has GPU=8"):
        with engines.use(Engine(ray.engine, resources="GPU=8")):
            execute(made, tmp_path / "out")
    with pytest.raises(UserError, match="is not NAME=NUMBER"):
        with engines.use(Engine(ray.engine, resources="GPU")):
            execute(made, tmp_path / "out")
    (bad := tmp_path / "bad.jsonl").write_text("no JSON\n")
    words = ["prepare", f"--documents={bad}", "--format=jsonl", f"--engine={ray.engine}"]
    assert cli.main([*words, f"--out={tmp_path / 'passages'}"]) == 2
    said = capsys.readouterr().err
    assert "bad.jsonl:1: " in said and "--skip_bad" in said


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patched:
        many_shards(patched)
        toy_cluster.make_wait(patched)
        address, verb, given, to = sys.argv[1:]
        make(verb, Path(given), Path(to), address)
