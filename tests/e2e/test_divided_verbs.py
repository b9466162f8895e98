"""Every verb that divides its shards among hosts gives what one host gives, byte for byte."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toy_cross_encoder
import toy_generation
import toy_hosts
import toy_retrieval

from qac_jax.artifacts import Artifact
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval import search
from qac_jax.stages import mine as label_stage
from qac_jax.stages import mine as mine_stage
from qac_jax.stages import search as search_stage
from qac_jax.stages.embed import Embed
from qac_jax.stages.extract import Extract
from qac_jax.stages.generate import Generate
from qac_jax.stages.index import Bm25
from qac_jax.stages.mine import Label, Mine
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.search import Search


@dataclasses.dataclass
class Road:
    folder: Path
    data: Path

    def __getitem__(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def queries(self) -> str:
        return str(self.data / "queries.jsonl")

    @property
    def qrels(self) -> str:
        return str(self.data / "qrels" / "test.tsv")


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Road:
    folder = tmp_path_factory.mktemp("divided")
    road = Road(folder, toy_retrieval.write_collection(folder / "data", passages=24, queries=6))
    documents = str(road.data)
    prepare = Prepare.make(documents=documents, format="beir", cut="none", workers=1)
    execute(prepare, folder / "passages")
    execute(Bm25(passages=road["passages"]), folder / "bm25")
    execute(Search(index=road["bm25"], queries=road.queries, k=8), folder / "run")
    return road


def extract(road: Road) -> Callable[..., Any]:
    given = {"passages": road["passages"], "shard_passages": 5, "keep": 2, "workers": 1}
    return lambda **host: Extract.make(**given, **host)


def searched(road: Road) -> Callable[..., Any]:
    return lambda **host: Search.make(index=road["bm25"], queries=road.queries, k=5, **host)


def mine(road: Road) -> Callable[..., Any]:
    given = {"bm25": road["bm25"], "passages": road["passages"], "depth": 8}
    return lambda **host: Mine.make(**given, queries=road.queries, qrels=road.qrels, **host)


def label(road: Road) -> Callable[..., Any]:
    given = {"candidates": road["run"], "passages": road["passages"], "depth": 6}
    return lambda **host: Label.make(**given, queries=road.queries, qrels=road.qrels, **host)


def taught(road: Road) -> Callable[..., Any]:
    teacher = toy_cross_encoder.save_cross_encoder(road.folder / "teacher", labels=2)
    given = {"candidates": road["run"], "passages": road["passages"], "teacher": str(teacher)}
    rule = {"depth": 6, "positive": 0.501, "negative": 0.5, "max_length": 32}
    return lambda **host: Label.make(**given, **rule, queries=road.queries, **host)


def reranked(road: Road) -> Callable[..., Any]:
    reranker = toy_cross_encoder.save_cross_encoder(road.folder / "reranker")
    given = {"index": road["bm25"], "reranker": str(reranker), "max_length": 32}
    return lambda **host: Search.make(
        **given, queries=road.queries, k=5, passages=road["passages"], **host
    )


def generate(road: Road) -> Callable[..., Any]:
    t5 = toy_generation.save_generator(road.folder / "t5")
    given = {"passages": road["passages"], "generator": str(t5), "samples": 1, "max_tokens": 3}
    return lambda **host: Generate.make(**given, max_input=16, shard_passages=8, **host)


def embed(road: Road) -> Callable[..., Any]:
    encoder = toy_retrieval.save_encoder(road.folder / "encoder")
    corpus = str(road.data / "corpus.jsonl")
    return lambda **host: Embed.make(encoder=str(encoder), passages=corpus, shard_rows=7, **host)


SLOW = [pytest.param(verb, 2, marks=pytest.mark.slow) for verb in (taught, reranked, generate)]
SLOW.append(pytest.param(embed, 4, marks=pytest.mark.slow))


@pytest.mark.parametrize(
    ("verb", "hosts"), [(extract, 4), (searched, 2), (mine, 2), (label, 4), *SLOW]
)
def test_hosts_are_one(verb, hosts, road, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(search, "TOGETHER", 2)
    monkeypatch.setattr(search_stage, "_PAIRS", 10)
    monkeypatch.setattr(label_stage, "_LABELLED", 2)
    monkeypatch.setattr(mine_stage, "_MINED", 2)
    toy_hosts.be_impatient(monkeypatch)
    stage_of = verb(road)
    whole = execute(stage_of(), tmp_path / "whole")
    ends = toy_hosts.execute(
        lambda number: stage_of(processes=hosts, process=number), tmp_path / "out", range(hosts)
    )
    assert all(isinstance(end, Artifact) for end in ends), ends
    for end in ends:
        assert end.identity == whole.identity
        assert _hashes(end) == _hashes(whole)


def _hashes(artifact: Artifact) -> dict[str, str]:
    files = artifact.files.items()
    return {name: entry["sha256"] for name, entry in files if not name.startswith("texts/")}
