"""Every verb that divides its shards among hosts gives what one host gives, byte for byte."""

from pathlib import Path
from typing import Any

import pytest
import toy_cross_encoder
import toy_generation
import toy_hosts
import toy_retrieval

from qac_jax.artifacts import Artifact
from qac_jax.pipeline.stage import Stage, execute
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


Verb = tuple[type[Stage], dict[str, Any]]


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("divided")
    documents = str(toy_retrieval.write_collection(folder / "data", passages=24, queries=6))
    prepare = Prepare.make(documents=documents, format="beir", cut="none", workers=1)
    execute(prepare, folder / "passages")
    execute(Bm25(passages=str(folder / "passages")), folder / "bm25")
    execute(Search(**places(folder, index="bm25", queries=QUERIES), k=8), folder / "run")
    return folder


QUERIES, QRELS = "data/queries.jsonl", "data/qrels/test.tsv"


def places(folder: Path, **names: str) -> dict[str, Any]:
    return {field: str(folder / name) for field, name in names.items()}


def extract(road: Path) -> Verb:
    given = {"shard_passages": 5, "keep": 2, "workers": 1}
    return Extract, places(road, passages="passages") | given


def searched(road: Path) -> Verb:
    return Search, places(road, index="bm25", queries=QUERIES) | {"k": 5}


def mine(road: Path) -> Verb:
    given = places(road, bm25="bm25", passages="passages", queries=QUERIES, qrels=QRELS)
    return Mine, given | {"depth": 8}


def label(road: Path) -> Verb:
    given = places(road, candidates="run", passages="passages", queries=QUERIES, qrels=QRELS)
    return Label, given | {"depth": 6}


def taught(road: Path) -> Verb:
    toy_cross_encoder.save_cross_encoder(road / "teacher", labels=2)
    given = places(road, candidates="run", passages="passages", queries=QUERIES, teacher="teacher")
    return Label, given | {"depth": 6, "positive": 0.501, "negative": 0.5, "max_length": 32}


def reranked(road: Path) -> Verb:
    toy_cross_encoder.save_cross_encoder(road / "reranker")
    given = places(road, index="bm25", reranker="reranker", queries=QUERIES, passages="passages")
    return Search, given | {"max_length": 32, "k": 5}


def generate(road: Path) -> Verb:
    toy_generation.save_generator(road / "t5")
    given = {"samples": 1, "max_tokens": 3, "max_input": 16, "shard_passages": 8}
    return Generate, places(road, passages="passages", generator="t5") | given


def embed(road: Path) -> Verb:
    toy_retrieval.save_encoder(road / "encoder")
    return Embed, places(road, encoder="encoder", passages="data/corpus.jsonl") | {"shard_rows": 7}


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
    cls, given = verb(road)
    whole = execute(cls.make(**given), tmp_path / "whole")
    ends = toy_hosts.execute(
        lambda number: cls.make(**given, processes=hosts, process=number),
        tmp_path / "out",
        range(hosts),
    )
    assert all(isinstance(end, Artifact) for end in ends), ends
    for end in ends:
        assert end.identity == whole.identity
        assert _hashes(end) == _hashes(whole)


def _hashes(artifact: Artifact) -> dict[str, str]:
    files = artifact.files.items()
    return {name: entry["sha256"] for name, entry in files if not name.startswith("texts/")}
