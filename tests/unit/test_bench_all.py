"""`qac bench all`: what it makes of the benchmarks' figures, of failures and of an earlier run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qac_jax.bench import everything
from qac_jax.errors import UserError


FIGURES: dict[str, dict[str, Any]] = {
    "train": {
        "qac_jax_examples_per_second": 12.7,
        "pytorch_examples_per_second": 12.4,
        "ratio": 1.024,
        "gflops_per_second": 50.0,
    },
    "pretrain": {
        "cotmae": {
            "passage_query": {"examples_per_second": 9.81, "tflops": 0.025},
            "pytorch_examples_per_second": 7.9,
            "ratio": 1.24,
        }
    },
    "search": {
        "scann_queries_per_second": 2631.0,
        "faiss_ivf_flat_queries_per_second": 1300.0,
        "faiss_hnsw_queries_per_second": 3530.0,
        "ratio": 0.745,
    },
}


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was started; benchmarks without figures end with a sentence."""
    started: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        started.append(command)
        if (found := FIGURES.get(command[4])) is None:
            why = "a warning\nqac: the peer of this benchmark is missing (torch)\n"
            return subprocess.CompletedProcess(command, 2, "", why)
        return subprocess.CompletedProcess(command, 0, f"a line\n{json.dumps(found)}\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(everything, "_product_rate", lambda: 100.0)
    monkeypatch.setattr(everything, "_copy_rate", lambda: 10.0)
    return started


def test_a_table_of_ours_and_theirs(programs: list[list[str]], tmp_path: Path) -> None:
    first = everything.All(only=("train", "cotmae", "scann", "encode"))
    figures = first.run()
    earlier = tmp_path / "earlier.json"
    figures["rows"][0]["ratio"] = 0.93
    earlier.write_text(json.dumps(figures))
    again = everything.All(quick=True, only=first.only, baseline=str(earlier))
    lines = again.shown(again.run()).splitlines()
    assert lines[5] == "| train | examples | 12.7 | 12.4 | 1.02 | 0.93 | 50% |"
    assert lines[6] == "| cotmae | examples | 9.81 | 7.90 | 1.24 | 1.24 | 25% |"
    assert lines[7] == "| scann | queries | 2,631 | 3,530 | 0.74 | 0.74 |  |"
    assert "not measured: qac: the peer of this benchmark is missing (torch)" in lines[8]


def test_bad_requests_are_one_sentence(programs: list[list[str]], tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    with pytest.raises(UserError, match="cannot be read"):
        everything.All(baseline=str(file)).run()
    for text in ("", "[]", '{"rows": 3}', '{"rows": [{"ratio": 1}]}'):
        file.write_text(text)
        with pytest.raises(UserError, match="does not hold the figures"):
            everything.All(baseline=str(file)).run()
    with pytest.raises(UserError, match="'trian' is not a row"):
        everything.All(only=("trian",)).run()
    assert not programs


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra bench")
def test_a_row_of_its_own() -> None:
    command = [sys.executable, "-m", "qac_jax.cli", "bench", "all", "--quick", "--only", "train"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    (row,) = figures["rows"]
    assert row["ours"] > 0 and row["peer"] > 0
    assert row["ratio"] == pytest.approx(row["ours"] / row["peer"])
    assert 0 < row["share_of_products"] < 2
    assert figures["environment"]["cores"] and figures["ceilings"]["copy_gb_per_second"] > 0
