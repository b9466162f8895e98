"""The retrieval probe: ranks by hand, settings, and one training in which everything is shown."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import toy_examples

from qac_jax import cli
from qac_jax.errors import UserError
from qac_jax.training import metrics, train
from qac_jax.training.checkpoints import Best
from qac_jax.training.options import Monitoring


def test_ranks() -> None:
    """Of the same passage twice one counts; equal scores count against a query."""
    ids = np.array([[1, 2], [3, 4], [1, 2], [5, 6]])
    passages = np.eye(4)[[0, 1, 0, 2]]
    queries = np.array([[3, 2, 1, 0], [3, 2, 1, 0], [1, 1, 0, 0], [9, 8, 7, 0]])
    assert metrics.ranks(queries, passages, ids).tolist() == [1, 2, 2, 3]
    assert metrics.ranks(np.zeros((4, 4)), passages, ids).tolist() == [3, 3, 3, 3]


def test_the_best_step_is_chosen_by_its_own_measurement() -> None:
    best = Best("probe/mrr")
    assert not best.improves(1, {"validation/loss": 0.5})
    assert best.improves(2, {"probe/mrr": 0.5}) and not best.improves(3, {"probe/mrr": 0.4})
    assert not Best("loss").improves(2, {"probe/mrr": 0.5})
    with pytest.raises(UserError, match="not measured in the probe"):
        Best("probe/mrl").improves(1, {"probe/mrr": 0.5})


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"probe_every": 10}, "probe_every=10 needs questions to ask; give --probe"),
        ({"best": "probe/mrr"}, "best='probe/mrr' needs questions"),
    ],
)
def test_settings_without_questions(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Monitoring(**chosen).check_probe("")
    with pytest.raises(UserError, match="at least 1"):
        dataclasses.replace(Monitoring(**chosen), probe_questions=0).check_probe("out/held_out")


def test_other_examples_are_refused() -> None:
    def examples(task: str, tokenizer: str) -> Any:
        return SimpleNamespace(path="held", info={"task": task, "tokenizer": tokenizer})

    nothing: Any = (Monitoring(), {}, None)
    with pytest.raises(UserError, match="task 'mlm'; --probe expects questions"):
        train.probe_loader(examples("mlm", "a"), examples("mlm", "a"), *nothing)
    with pytest.raises(UserError, match="different vocabularies"):
        train.probe_loader(examples("triples", "b"), examples("mlm", "a"), *nothing)


def test_probes_change_no_key() -> None:
    assert Monitoring(probe_every=5).decisive() == {}
    assert Monitoring(probe_every=5, best="probe/mrr").decisive() == {"probe": "5 300 cls"}


@pytest.mark.slow
def test_a_training_shows_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Log, metrics, TensorBoard, report and trace; the best step is the result."""
    words = toy_examples.tokenized(tmp_path, "mlm")
    asked = toy_examples.tokenized(tmp_path, "triples", random_negatives=0)
    out = tmp_path / "run" / "model"
    gin = Path(__file__).parents[1] / "toy_mlm.gin"
    command = ["pretrain", "--gin_file", gin, "--gin.bert.BertConfig.vocab_size=128"]
    command += ["--examples", words.path, "--probe", asked.path, "--probe_every", 1]
    command += ["--best", "probe/mrr", "--probe_questions", 16, "--tensorboard"]
    command += ["--profile", "0:1", "--steps", 2, "--log_every", 1, "--out", out]
    assert cli.main([str(word) for word in command]) == 0
    said = capsys.readouterr().err
    assert "step 1: probe/mrr" in said and f"the trace is in {out / 'profile'}" in said
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    measured = [row["probe/mrr"] for row in rows if "probe/mrr" in row]
    assert len(measured) == 2 and all(0 < value <= 1 for value in measured)
    (file,) = (out / "tensorboard" / "model").iterdir()
    assert b"probe/mrr" in file.read_bytes()
    assert list((out / "profile").rglob("*.xplane.pb"))
    assert cli.main(["report", "--folder", str(out.parent), "--out", str(tmp_path / "page")]) == 0
    assert "probe/mrr by step" in (tmp_path / "page" / "report.html").read_text()
