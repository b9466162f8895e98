"""`qac extract` on its road: prepare, extract, inspect, tokenize, train; resumed and sharded."""

from pathlib import Path
from typing import Any

import pytest
import toy_retrieval as toy

from qac_jax import artifacts
from qac_jax.cli import main
from qac_jax.data.loader import Loader
from qac_jax.formats.records import Records


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.collected(tmp_path_factory.mktemp("extract"), 30) / "passages"


def extracted(passages: Path, out: Path, *more: str) -> Records:
    arguments = ["--passages", str(passages), "--out", str(out), "--workers", "1"]
    assert main(["extract", *arguments, *more]) == 0
    return Records(artifacts.load(out, "contexts"))


def test_spans_are_ranked(passages: Path, tmp_path: Path) -> None:
    found = extracted(passages, tmp_path / "bm25", "--keep", "16", "--shard_passages", "8")
    texts = {record["_id"]: record["text"] for record in Records(artifacts.load(passages))}
    assert [record["_id"] for record in found] == list(texts)
    for record in found:
        contexts = record["contexts"]
        scores = [context["score"] for context in contexts]
        assert scores == sorted(scores, reverse=True)
        whole = " ".join(texts[record["_id"]].split())
        assert all(c["text"] in whole and c["origin"] == "qext_bm25" for c in contexts)
        assert contexts or len(whole.split()) < 8


def test_what_there_is_already_is_kept(passages: Path, tmp_path: Path, capsys: Any) -> None:
    extracted(passages, tmp_path / "spans")
    given = ("--contexts", str(tmp_path / "spans"))
    found = extracted(passages, tmp_path / "both", "--method", "title", *given)
    assert [c["origin"] for c in found[0]["contexts"]] == ["qext_bm25", "doc_title"]
    assert found[0]["contexts"][1]["text"] == "About river"

    examples = tmp_path / "examples"
    task = ["--task", "augtriever", "--contexts", str(tmp_path / "both"), "--out", str(examples)]
    assert main(["tokenize", "--passages", str(passages), *task]) == 0
    strategies = {"qext_bm25": 0.4, "doc_title": 0.3, "qext_self": 0.3}
    with Loader(str(examples), batch_size=10, settings={"strategies": strategies}) as loader:
        batch = next(loader)
    assert batch["spans"].shape == (10, 16, 32) and set(batch["extract"]) <= {0, 1}


def test_what_does_not_fit_is_refused(passages: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["extract", "--passages", str(passages), "--out", str(tmp_path / "no")]
    for flags, said in (("--method plm", "give --scorer"), ("--scorer .", "takes no model")):
        assert main([*words, *flags.split()]) == 2
        assert said in capsys.readouterr().err
