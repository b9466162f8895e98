"""`qac bench search` on a toy collection: the recall is kept on all sides, and figures for both."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest
import toy_retrieval as toy

from qac_jax import cli
from qac_jax.bench import faiss_peer
from qac_jax.errors import UserError


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs the extra bench")
def test_search(tmp_path, capsys) -> None:
    toy.write_collection(tmp_path / "toys", 200, 40)
    toy.save_encoder(tmp_path / "encoder")
    words = ["bench", "search", "--json", "--data_dir", tmp_path / "toys", "--repetitions", 1]
    words += ["--model", tmp_path / "encoder", "--rows", 3000, "--queries", 20, "--k", 10]
    assert cli.main([*map(str, words), "--recall", "0.9"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["data"].startswith("200 real passages and 2,800 copies of them")
    recalls = {name: value for name, value in figures.items() if name.endswith("_recall")}
    assert {"scann_recall", "faiss_hnsw_recall", "faiss_ivf_flat_recall"} < recalls.keys()
    assert min(recalls.values()) >= 0.88 and figures["exact_recall"] == 1.0
    assert figures["ratio"] > 0 and figures["bm25_ratio"] > 0 and figures["exact_ratio"] > 0
    best = figures["best_peer"] + "_queries_per_second"
    assert figures["ratio"] == figures["scann_queries_per_second"] / figures[best]


def test_a_missing_peer_is_one_sentence(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError, match="the peer of this benchmark is missing"):
        faiss_peer.load()
    assert cli.main(["bench", "search", "--rows", "100"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_unknown_systems_are_named(capsys) -> None:
    assert cli.main(["bench", "search", "--systems", "scan"]) == 2
    assert "unknown system 'scan'; did you mean 'scann'?" in capsys.readouterr().err
