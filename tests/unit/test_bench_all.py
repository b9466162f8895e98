"""`qac bench all`: a row of its own, and bad requests."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from qac_jax.bench import everything
from qac_jax.errors import UserError


def test_bad_requests_are_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **b: pytest.fail("a benchmark began"))
    file = tmp_path / "figures.json"
    with pytest.raises(UserError, match="cannot be read"):
        everything.All(baseline=str(file)).run()
    for text in ("", "[]", '{"rows": 3}', '{"rows": [{"ratio": 1}]}'):
        file.write_text(text)
        with pytest.raises(UserError, match="does not hold the figures"):
            everything.All(baseline=str(file)).run()
    with pytest.raises(UserError, match="'trian' is not a row"):
        everything.All(only=("trian",)).run()


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
