"""Shards that Ray makes on three nodes, here on loopback: the bytes are those of one process, also
where nodes and the driver are lost."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
import test_grid_run
import toy_cluster
import toy_generation
import toy_retrieval
from toy_cluster import Squares, begun

from qac_jax import cli
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
    """A cluster of a head and two more nodes of a core each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
        head = {**_NODE, "include_dashboard": False, "_system_config": quick}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.added = {node.node_id: node for node in (self.add(), self.add())}

    def add(self) -> Any:
        return self.cluster.add_node(**_NODE)

    def lose(self, name: str) -> None:
        self.cluster.remove_node(self.added.pop(name), allow_graceful=False)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Nodes import what this process imports, and need not compile what it has compiled.
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        compiled = jax.config.values["jax_compilation_cache_dir"]
        patch.setenv("JAX_COMPILATION_CACHE_DIR", compiled)
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        made = Nodes()
        yield made
        made.cluster.shutdown()


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


@pytest.mark.parametrize("name", VERBS)
def test_the_bytes_are_those_of_one_process(name, ray, road, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(search, "TOGETHER", 2)
    monkeypatch.setattr(search_stage, "_PAIRS", 10)
    monkeypatch.setattr(mine_stage, "_LABELLED", 2)
    monkeypatch.setattr(mine_stage, "_MINED", 2)
    cls, inputs, settings = VERBS[name]
    made = cls.make(**places(road, **inputs), **settings)
    with engines.use(Engine()):
        whole = execute(made, tmp_path / "whole")
    found = execute(made, tmp_path / "out")
    found.verify()
    assert found.identity == whole.identity
    assert _hashes(found) == _hashes(whole)
    assert sorted(p.name for p in found.path.iterdir()) == sorted(
        p.name for p in whole.path.iterdir()
    )


def test_a_grid_is_that_of_one_process(ray, tmp_path) -> None:
    toy_retrieval.write_collection(tmp_path / "data", 40, 12)
    for name, text in test_grid_run.FILES.items():
        (tmp_path / f"{name}.gin").write_text(text)
    words = [f"--gin_search_paths={tmp_path}", f"--data_dir={tmp_path / 'data'}"]
    words = ["run", str(tmp_path / "grid.gin"), "--gin_modules=test_grid_run", *words]
    for engine in (ray.engine, "local"):
        assert cli.main([*words, f"--engine={engine}", f"--out={tmp_path / engine[:5]}"]) == 0
    whole, found = tmp_path / "local", tmp_path / ray.engine[:5]
    assert (found / "summary.json").read_text() == (whole / "summary.json").read_text()
    for run in whole.glob("*/seed_0/run/run.trec"):
        assert (found / run.relative_to(whole)).read_bytes() == run.read_bytes()


def _hashes(artifact: Artifact) -> dict[str, str]:
    files = artifact.files.items()
    return {name: entry["sha256"] for name, entry in files if not name.startswith("texts/")}


def eventually(is_so: Callable[[], Any], what: str) -> None:
    ends = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < ends, what
        time.sleep(0.05)


def squares(**settings: Any) -> dict[str, str]:
    return {f"squares-{n}.txt": f"{n**2}\n" for n in range(Squares(**settings).count)}


def read(found: Artifact) -> dict[str, str]:
    found.verify()
    return {name: found.file(name).read_text() for name in found.files}


@pytest.mark.parametrize("by_tasks", [False, True])
def test_a_node_is_killed(by_tasks, nodes, ray, tmp_path) -> None:
    """Its shards are made by the others; a node that joins later works with them."""
    (trace := tmp_path / "trace").mkdir()
    lost = []

    def kill() -> None:
        eventually(lambda: {node for _, node in begun(trace)} & {*nodes.added}, "nothing begun")
        lost.extend([node for _, node in begun(trace) if node in nodes.added][:1])
        nodes.lose(lost[0])

    killer = threading.Thread(target=kill)
    killer.start()
    made = Squares(count=6, seconds=3.0, by_tasks=by_tasks, trace=str(trace))
    assert read(execute(made, tmp_path / "out")) == squares(count=6)
    killer.join()
    numbers = [number for number, _ in begun(trace)]
    assert len(numbers) > len(set(numbers)) == 6, "no shard was in work on the lost node"
    back = nodes.add()
    nodes.added[back.node_id] = back


def test_a_slow_node_gets_fewer_shards(nodes, ray, tmp_path) -> None:
    (trace := tmp_path / "trace").mkdir()
    slow = next(iter(nodes.added))
    made = Squares(count=16, seconds=0.3, slow=slow, by_tasks=True, trace=str(trace))
    assert read(execute(made, tmp_path / "out")) == squares(count=16)
    of_slow = [number for number, node in begun(trace) if node == slow]
    assert len(of_slow) <= 4


def test_the_driver_is_killed_and_started_again(nodes, ray, tmp_path) -> None:
    (trace := tmp_path / "trace").mkdir()
    out = tmp_path / "out"
    words = [toy_cluster.__file__, ray.engine, out, trace]
    driver = subprocess.Popen([sys.executable, *map(str, words)])

    def kept() -> set[str]:
        return {path.name for path in out.glob("squares-*.txt")}

    eventually(lambda: len(kept()) >= 2, "nothing finished")
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    before, marks = kept(), {path.name for path in trace.iterdir()}
    assert len(before) < 9
    time.sleep(2.0)  # Ray ends what the driver had in work
    found = execute(Squares(by_tasks=True, trace=str(trace)), out)
    assert read(found) == squares()
    again = {p.name.split("-")[0] for p in trace.iterdir() if p.name not in marks}
    assert not {f"squares-{number}.txt" for number in again} & before
    assert not (out / ".scratch").exists()


def test_what_is_wrong_is_said_in_a_sentence(ray, tmp_path, capsys) -> None:
    with pytest.raises(UserError, match="no node of the cluster has GPU=8"):
        with engines.use(Engine(ray.engine, resources="GPU=8")):
            execute(Squares(), tmp_path / "out")
    with pytest.raises(UserError, match="is not NAME=NUMBER"):
        with engines.use(Engine(ray.engine, resources="GPU")):
            execute(Squares(), tmp_path / "out")
    (bad := tmp_path / "bad.jsonl").write_text("no JSON\n")
    words = ["prepare", f"--documents={bad}", "--format=jsonl", f"--engine={ray.engine}"]
    assert cli.main([*words, f"--out={tmp_path / 'passages'}"]) == 2
    said = capsys.readouterr().err
    assert "bad.jsonl:1: " in said and "--skip_bad" in said
