"""A grid in two slices, the second on a machine with little software, is `qac run` of the grid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import toy_evidence

from qac_jax import cli
from qac_jax.data import store
from qac_jax.evidence import __main__ as command
from qac_jax.evidence import layout, running, slices
from qac_jax.pipeline import grid
from qac_jax.training import interrupt


ROOT = Path(__file__).parents[2]
# What a bare machine does not have.
ABSENT = (
    *("tensorflow", "tensorflow_datasets", "seqio", "scann", "gin", "nltk", "grain"),
    *("array_record", "bm25s", "Stemmer", "pytrec_eval", "psutil", "tqdm", "pyarrow", "zstandard"),
)


@pytest.mark.slow
def test_two_slices_are_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grid, "_forget_compiled", lambda: None)
    arguments = toy_evidence.write(tmp_path)
    bundle, made, out = (str(tmp_path / name) for name in ("bundle.qac", "made", "slice"))
    assert command.main(["bundle", bundle, *arguments, "--made", made]) == 0
    assert cli.main(["run", *arguments, "--out", made]) == 0
    expected = json.loads((tmp_path / "made" / "summary.json").read_text())

    # The first slice ends in the middle of the third training.
    monkeypatch.setenv(store.PLAIN, "1")
    monkeypatch.setattr(running, "supervised", _in_this_process)
    with monkeypatch.context() as patch:
        patch.setattr(interrupt.Watch, "stop", _stopped_at(15))
        assert command.main(["run", bundle, "--out", out, "--minutes", "10"]) == 0
    record = slices.read(tmp_path / "slice", layout.described(Path(bundle)))
    assert record is not None and record["done"] == 1
    assert "saved at step 3 of 6" in capsys.readouterr().err
    assert command.main(["merge", bundle, out, "--out", str(tmp_path / "part")]) == 0
    assert json.loads((tmp_path / "part" / "summary.json").read_text())["missing"]

    # The second goes on with the bundle's own code, and nothing that is absent there.
    (tmp_path / "site").mkdir()
    absent = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in ABSENT)
    (tmp_path / "site" / "sitecustomize.py").write_text(absent)
    done = subprocess.run(
        [str(ROOT / "launch/evidence.sh"), "run", bundle, "--out", out, "--minutes", "10"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "QAC_PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "resuming after step 3 of 6" in done.stderr
    assert command.main(["merge", bundle, out, "--out", str(tmp_path / "table")]) == 0
    summary = json.loads((tmp_path / "table" / "summary.json").read_text())
    assert not summary.pop("missing")
    assert summary == expected


def _in_this_process(inner: Sequence[str], code: Path, end: float) -> int:
    running.work(Path(inner[4]), "0/1", time.time() + 600)
    return 0


def _stopped_at(steps: int) -> Callable[[interrupt.Watch, int], bool]:
    """SIGTERM after this number of steps of all trainings."""
    taken = []

    def stop(signals: interrupt.Watch, step: int) -> bool:
        taken.append(step)
        signals.number = signal.SIGTERM if len(taken) == steps else 0
        return bool(signals.number)

    return stop
