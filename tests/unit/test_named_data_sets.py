"""Data sets by name: record ranges make the whole, and what is missing is said in one sentence."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import toy_hub

from qac_jax import artifacts, cli
from qac_jax.errors import UserError
from qac_jax.formats import documents
from qac_jax.formats.documents import Section
from qac_jax.formats.readers import named
from qac_jax.formats.registry import DOCUMENTS
from qac_jax.hub import names
from qac_jax.pipeline import inputs
from qac_jax.retrieval.corpus import read_passages


@pytest.fixture(autouse=True)
def fresh():
    """Every test opens its data sets anew."""
    yield
    named._data.cache_clear()


class Table(list[dict[str, Any]]):
    def select(self, numbers: range) -> list[dict[str, Any]]:
        return [self[number] for number in numbers]


@pytest.fixture
def calls(monkeypatch) -> list[Any]:
    """How `datasets` was called, which has one data set."""
    rows = [{"id": f"d{i}", "title": f"T{i}", "text": f"text {i}", "tags": ["x"]} for i in range(9)]
    seen: list[Any] = []

    def load_dataset(*names: Any, **options: Any) -> Table:
        seen.append((*names, options))
        return Table(rows)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return seen


def test_hugging_face(monkeypatch, calls):
    whole = list(documents.read("hf", "org/name:config", split="test"))
    assert calls == [("org/name", "config", {"split": "test"})]
    assert [d.id for d in whole] == [f"d{i}" for i in range(9)]
    assert whole[3].title == "T3" and whole[3].sections == (Section("", "text 3"),)
    parts = documents.shards("hf", "org/name:config", 4, {"split": "test"})
    assert [d for part in parts for d in documents.read_shard(part)] == whole and len(parts) == 4
    monkeypatch.setitem(sys.modules, "datasets", None)
    named._data.cache_clear()
    with pytest.raises(UserError, match="needs datasets.*`pip install datasets`"):
        list(documents.read("hf", "some/name"))


def test_a_name_says_its_format(calls, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    name = "hf:org/mills"
    assert DOCUMENTS.named(name) == ("hf", "org/mills")
    for other in ("jsonl:x", "hf", "hf:", "gs://bucket/x", "/tmp/x"):
        assert DOCUMENTS.named(other) is None
    (tmp_path / "hf:x").write_text("a file comes first")
    assert DOCUMENTS.named("hf:x") is None
    assert cli.main(["prepare", "--documents", name, "--cut", "none", "--out", "p"]) == 0
    made = artifacts.load("p")
    assert (made.count, made.inputs["documents"]) == (9, name)
    assert [r["_id"] for r in read_passages(name)] == [f"d{i}" for i in range(9)]


def test_the_commit_of_a_data_set_is_part_of_what_is_made(calls, monkeypatch, tmp_path):
    toy_hub.pin(monkeypatch, tmp_path)
    refs = tmp_path / "datasets--org--name" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("a" * 40)
    assert inputs.identity("hf:org/name:part") == f"hf:org/name:part@{'a' * 40}"
    assert inputs.identity("hf:org/other") == "hf:org/other"
    assert inputs.identity(f"hf:org/name@{'b' * 40}") == f"hf:org/name@{'b' * 40}"
    list(documents.read(*documents.source("auto", "hf:org/name:part@v2")))
    assert calls[0][-1]["revision"] == "v2"
    names.forget()
