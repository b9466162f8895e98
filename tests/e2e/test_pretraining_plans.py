"""The recipes of query-as-context pre-training, with every overlay: what a dry run says of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from qac_jax import cli, hardware
from qac_jax.data.featurizer import settle
from qac_jax.data.form import Form
from qac_jax.pipeline import costs


GIN = Path(__file__).parents[2] / "gin_configs"


def planned(capsys, recipe: str, *overlays: str) -> dict[str, dict[str, Any]]:
    files: list[str] = []
    for name in overlays:
        files += [f"--gin.{name}"] if "=" in name else ["--gin_file", f"overlays/{name}.gin"]
    path = str(GIN / "recipes" / f"msmarco_qac_{recipe}.gin")
    assert cli.main(["run", path, "--dry_run", "--json", *files]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    return {stage["stage"]: stage for stage in stages}


def test_mixed_contexts(capsys):
    stages = planned(capsys, "cotmae", "QUERIES=10", "mixed")
    fields = stages["encoder"]["fields"]
    assert fields["kind"] == stages["pairs"]["fields"]["task"] == "mixed"
    assert fields["settings"]["queries"] == 10
    weights = fields["settings"]["probabilities"]
    settle("mixed", Form(), settings={"probabilities": weights})  # as the loader will be asked


def test_hours_and_memory_of_every_device(capsys):
    plan = planned(capsys, "cotmae")["encoder"]["plan"]
    assert plan["mfu"] == costs.PACKED_MFU == 0.566  # the recipe leaves padding out
    for name, device in hardware.DEVICES.items():
        hours = plan["flops"] / (device.peak_flops * plan["mfu"]) / 3600
        assert plan["hours"][name] == pytest.approx(hours)
    # BERT-base at 144 tokens: about 6 FLOPs a parameter of the layers and token, forward and back.
    flops = plan["step_flops"] / 16_384 / 144
    assert 6 * 85e6 < flops < 1.3 * 6 * 85e6


def test_without_the_corpus_one_sentence(tmp_path, capsys):
    path = str(GIN / "recipes" / "msmarco_qac_cotmae.gin")
    for extra, expected in (
        ([], "say where it is with --data_dir DIR"),
        (["--data_dir", str(tmp_path / "nothing")], "msmarco-docs.tsv does not exist"),
    ):
        assert cli.main(["run", path, "--out", str(tmp_path / "out"), *extra]) == 2
        last = capsys.readouterr().err.strip().split("\n")[-1]
        assert last.startswith("qac: ") and expected in last
