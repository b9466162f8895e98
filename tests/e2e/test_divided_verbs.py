"""Every verb that divides its shards among hosts gives what one host gives, byte for byte."""

from pathlib import Path
from typing import Any

import pytest
import toy_generation
import toy_hosts
import toy_retrieval

from qac_jax.artifacts import Artifact
from qac_jax.pipeline.stage import Stage, execute
from qac_jax.retrieval import search
from qac_jax.stages import mine as mine_stage
from qac_jax.stages import search as search_stage
from qac_jax.stages.embed import Embed
from qac_jax.stages.extract import Extract
from qac_jax.stages.generate import Generate
from qac_jax.stages.mine import Label, Mine
from qac_jax.stages.search import Search


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


QUESTIONS = {"queries": QUERIES}
TAUGHT = {"depth": 6, "positive": 0.501, "negative": 0.5, "max_length": 32}
SHORT = {"samples": 1, "max_tokens": 3, "max_input": 16, "shard_passages": 8}
# Name -> stage, hosts, its inputs beside the passages, its settings.
VERBS: dict[str, tuple[type[Stage], int, dict[str, str], dict[str, Any]]] = {
    "extract": (Extract, 4, {}, {"shard_passages": 5, "keep": 2, "workers": 1}),
    "search": (Search, 2, {**QUESTIONS, "index": "bm25"}, {"k": 5}),
    "mine": (Mine, 2, {**QUESTIONS, "qrels": QRELS, "bm25": "bm25"}, {"depth": 8}),
    "label": (Label, 4, {**QUESTIONS, "qrels": QRELS, "candidates": "run"}, {"depth": 6}),
    "taught": (Label, 2, {**QUESTIONS, "candidates": "run", "teacher": "teacher"}, TAUGHT),
    "reranked": (
        Search,
        2,
        {**QUESTIONS, "index": "bm25", "reranker": "reranker"},
        {"max_length": 32, "k": 5},
    ),
    "generate": (Generate, 2, {"generator": "t5"}, SHORT),
    "embed": (Embed, 4, {"encoder": "encoder", "passages": "data/corpus.jsonl"}, {"shard_rows": 7}),
}
SLOW = ("taught", "reranked", "generate", "embed")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in VERBS]
)
def test_hosts_are_one(name, road, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(search, "TOGETHER", 2)
    monkeypatch.setattr(search_stage, "_PAIRS", 10)
    monkeypatch.setattr(mine_stage, "_LABELLED", 2)
    monkeypatch.setattr(mine_stage, "_MINED", 2)
    toy_hosts.be_impatient(monkeypatch)
    cls, hosts, inputs, settings = VERBS[name]
    given = places(road, **{"passages": "passages", **inputs}) | settings
    whole = execute(cls.make(**given), tmp_path / "whole")
    ends = toy_hosts.execute(
        lambda _: cls.make(**given), tmp_path / "out", range(hosts), count=hosts
    )
    assert all(isinstance(end, Artifact) for end in ends), ends
    for end in ends:
        assert end.identity == whole.identity
        assert _hashes(end) == _hashes(whole)


def _hashes(artifact: Artifact) -> dict[str, str]:
    files = artifact.files.items()
    return {name: entry["sha256"] for name, entry in files if not name.startswith("texts/")}
