"""MTEB's tasks: the encoder as mteb sees it, names, records; and mteb itself on a local task."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import toy_retrieval as toy

from qac_jax import artifacts, cli
from qac_jax.errors import UserError
from qac_jax.evaluation import mteb_tasks
from qac_jax.evaluation.results import read
from qac_jax.inference import encoder
from qac_jax.report import suites
from qac_jax.stages import evaluate_mteb


class PromptType(Enum):
    """As mteb.types.PromptType."""

    query = "query"
    document = "document"


class Letters:
    """An encoder without a network: how often each letter occurs; it keeps what it read."""

    width = 26
    limits = {"query": 8, "passage": 16}
    module = SimpleNamespace(config=SimpleNamespace(normalize=False))

    def __init__(self) -> None:
        self.read: list[tuple[str, str]] = []

    def passage_text(self, record: Mapping[str, Any]) -> str:
        return f"{record['title']}[SEP]{record['text']}" if record["title"] else record["text"]

    def encode(self, texts: Sequence[str], side: str = "passage") -> np.ndarray:
        self.read += [(side, text) for text in texts]
        return np.array([[t.count(chr(97 + n)) for n in range(26)] for t in texts], np.float32)


class Task:
    """Two passages and a query, evaluated as mteb's retrieval tasks are."""

    def __init__(self, name: str):
        self.metadata = SimpleNamespace(name=name, main_score="ndcg_at_10")

    def scores(self, model: Any) -> dict[str, float]:
        known = {"task_metadata": self.metadata, "hf_split": "test", "hf_subset": "default"}
        kind = PromptType.query
        asked = model.encode(iter([{"text": ["bees"]}]), prompt_type=kind, batch_size=32, **known)
        batches = [
            {"text": ["Zoo zebra"], "body": ["zebra"], "title": ["Zoo"], "id": ["0"]},
            {"text": ["bees sting"], "body": ["bees sting"], "id": ["1"]},
        ]
        kind = PromptType.document
        passages = model.encode(batches, prompt_type=kind, show_progress_bar=False, **known)
        best = int(np.argmax(model.similarity(asked, passages)[0]))
        return {"main_score": best, "ndcg_at_10": best, "recall_at_100": 1.0, "nauc_at_10": 0.5}


@pytest.fixture
def mteb(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What of mteb's interface is used."""
    fake: Any = ModuleType("mteb")
    tasks = {name: Task(name) for name in ("NanoNFCorpusRetrieval", "NanoNQRetrieval", "STS12")}
    fake.get_tasks = lambda: list(tasks.values())
    fake.get_task = tasks.__getitem__
    nano = [tasks["NanoNFCorpusRetrieval"], tasks["NanoNQRetrieval"]]
    fake.get_benchmarks = lambda: [SimpleNamespace(name="NanoBEIR", aliases=[], tasks=nano)]

    def evaluate(model: Any, task: Task, **_: Any) -> Any:
        entry = {**task.scores(model), "hf_subset": "default", "languages": ["eng-Latn"]}
        record = {"task_name": task.metadata.name, "scores": {"test": [entry]}}
        return SimpleNamespace(task_results=[SimpleNamespace(to_dict=lambda: record)])

    fake.evaluate = evaluate
    monkeypatch.setitem(sys.modules, "mteb", fake)
    monkeypatch.setattr(mteb_tasks, "check_installed", lambda: None)
    monkeypatch.setattr(evaluate_mteb, "_version", lambda: "2")
    return fake


def test_texts_are_read_as_everywhere_else(mteb: ModuleType) -> None:
    letters: Any = Letters()
    model = mteb_tasks.Model(letters, "a/b", "c")
    result, record = mteb_tasks.evaluate(model, Task("Own"))
    assert letters.read == [
        ("query", "bees"),
        ("passage", "Zoo[SEP]zebra"),
        ("passage", "bees sting"),
    ]
    assert result.mean == {"main_score": 1.0, "ndcg@10": 1.0, "recall@100": 1.0}
    assert result.queries == 1 and record["task_name"] == "Own"
    rows = np.eye(2, 26, dtype=np.float32)
    np.testing.assert_array_equal(model.similarity(rows[0], rows), [[1, 0]])
    np.testing.assert_array_equal(model.similarity_pairwise(rows, rows[::-1]), [0, 0])


def test_names(mteb: ModuleType) -> None:
    def names(*asked: str) -> list[str]:
        return [task.metadata.name for task in mteb_tasks.tasks(asked)]

    nano = ["NanoNFCorpusRetrieval", "NanoNQRetrieval"]
    assert names("nanobeir") == nano == names("NanoNFCorpus", "NanoBEIR")
    assert names("STS12") == ["STS12"]
    with pytest.raises(UserError, match="no task or benchmark 'NanoBIER'.*did you mean 'NanoBEIR'"):
        names("NanoBIER")


def test_data_that_cannot_be_had(mteb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(mteb, "evaluate", evaluate)
    letters: Any = Letters()
    with pytest.raises(UserError, match=r"task STS12 cannot be had \(no route\); .*HF_HOME"):
        mteb_tasks.evaluate(mteb_tasks.Model(letters, "a/b", "c"), Task("STS12"))


def test_the_command(
    mteb: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(encoder.Encoder, "load", lambda *_, **__: Letters())
    place, out = tmp_path / "model", tmp_path / "out"
    place.mkdir()
    (place / "config.json").write_text("{}")
    words = ["evaluate", "--mteb", "NanoBEIR", "--encoder", str(place), "--out", str(out)]
    assert cli.main(words) == 0
    assert "mean of 2 tasks' main scores: 1.0000" in capsys.readouterr().out
    made = artifacts.load(out, "metrics")
    assert [result.name for result in read(made)[0]] == ["NanoNFCorpusRetrieval", "NanoNQRetrieval"]
    record = json.loads((made.path / "mteb" / "NanoNQRetrieval.json").read_text())
    assert record["scores"]["test"][0]["nauc_at_10"] == 0.5
    assert suites.of_collections(made)


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = evaluate_mteb.EvaluateMteb(encoder=str(tmp_path))
    with pytest.raises(UserError, match="no task is named; pass --mteb TASK"):
        stage.check()
    monkeypatch.setattr(mteb_tasks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs mteb, .*pip install 'qac_jax\[mteb\]'"):
        evaluate_mteb.EvaluateMteb(encoder=str(tmp_path), mteb=("STS12",)).check()


@pytest.fixture
def installed() -> Iterator[Any]:
    yield pytest.importorskip("mteb")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mteb_itself_on_a_local_task(installed: Any, tmp_path: Path) -> None:
    """Its figures are those of our own evaluation of the same folder."""
    from mteb.models import EncoderProtocol

    for name in ("encode", "similarity", "similarity_pairwise"):
        wanted = inspect.signature(getattr(EncoderProtocol, name)).parameters.values()
        given = inspect.signature(getattr(mteb_tasks.Model, name)).parameters.values()
        assert [(p.name, p.kind) for p in given] == [(p.name, p.kind) for p in wanted]
    data = toy.write_collection(tmp_path / "mine", 20, 6)
    place = toy.save_encoder(tmp_path / "encoder", title="separate")
    common = ["--encoder", str(place), "--out"]
    assert cli.main(["evaluate", "--mteb", str(data), *common, str(tmp_path / "mteb")]) == 0
    assert cli.main(["evaluate", "--beir", str(data), *common, str(tmp_path / "beir")]) == 0
    (theirs,), (ours,) = (read(artifacts.load(tmp_path / n))[0] for n in ("mteb", "beir"))
    assert theirs.queries == ours.queries == 6
    for measure in ("ndcg@10", "mrr@10", "recall@100"):
        assert theirs.mean[measure] == pytest.approx(ours.mean[measure], abs=1e-5)
    named = [task.metadata.name for task in mteb_tasks.tasks(["NanoBEIR"])]
    assert len(named) == 13 and named == [
        task.metadata.name for task in mteb_tasks.tasks([n[: -len("Retrieval")] for n in named])
    ]
