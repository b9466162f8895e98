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


def _whole(format: str, name: str, count: int, **options: Any) -> list[documents.Document]:
    parts = documents.shards(format, name, count, options)
    assert len(parts) <= count
    return [d for part in parts for d in documents.read_shard(part)]


def test_a_missing_library_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="needs datasets.*`pip install datasets`"):
        list(documents.read("hf", "some/name"))


class Table(list[dict[str, Any]]):
    def select(self, numbers: range) -> list[dict[str, Any]]:
        return [self[number] for number in numbers]


def test_hugging_face(monkeypatch):
    rows = [{"id": i, "title": f"T{i}", "text": f"text {i}", "tags": ["x"]} for i in range(250)]
    calls: list[tuple[Any, ...]] = []

    def load_dataset(path: str, config: str | None, split: str) -> Table:
        calls.append((path, config, split))
        return Table(rows)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    whole = list(documents.read("hf", "org/name:config", split="test"))
    assert calls == [("org/name", "config", "test")]
    assert [d.id for d in whole] == [str(i) for i in range(250)]
    assert whole[3].title == "T3" and whole[3].sections == (Section("", "text 3"),)
    assert _whole("hf", "org/name:config", 7, split="test") == whole


def test_a_name_says_its_format(monkeypatch, tmp_path):
    rows = [{"id": f"d{i}", "title": f"Mill {i}", "text": f"By sea {i}."} for i in range(3)]
    library = SimpleNamespace(load_dataset=lambda *_, **__: Table(rows))
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.chdir(tmp_path)
    name = "hf:org/mills"
    assert DOCUMENTS.named(name) == ("hf", "org/mills")
    for other in ("jsonl:x", "hf", "hf:", "gs://bucket/x", "/tmp/x"):
        assert DOCUMENTS.named(other) is None
    (tmp_path / "hf:x").write_text("a file comes first")
    assert DOCUMENTS.named("hf:x") is None
    assert cli.main(["prepare", "--documents", name, "--cut", "none", "--out", "p"]) == 0
    made = artifacts.load("p")
    assert (made.count, made.inputs["documents"]) == (3, name)
    assert [r["_id"] for r in read_passages(name)] == ["d0", "d1", "d2"]


def test_the_commit_of_a_data_set_is_part_of_what_is_made(monkeypatch, tmp_path):
    toy_hub.pin(monkeypatch, tmp_path)
    refs = tmp_path / "datasets--org--name" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("a" * 40)
    assert inputs.identity("hf:org/name:part") == f"hf:org/name:part@{'a' * 40}"
    assert inputs.identity("hf:org/other") == "hf:org/other"
    assert inputs.identity(f"hf:org/name@{'b' * 40}") == f"hf:org/name@{'b' * 40}"
    seen: list[Any] = []

    def load_dataset(*_: Any, **options: Any) -> Table:
        seen.append(options)
        return Table()

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    list(documents.read(*documents.source("jsonl", "hf:org/name:part@v2")))
    assert seen[0]["revision"] == "v2"
    names.forget()
