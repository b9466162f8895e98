"""The recipes of query-as-context pre-training, with every overlay: what a dry run says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qac_jax import cli, hardware
from qac_jax.data.featurizer import settle
from qac_jax.data.form import Form
from qac_jax.pipeline import costs


GIN = Path(__file__).parents[2] / "gin_configs"
RECIPES = ("cotmae", "cocondenser")


def planned(capsys, recipe: str, *overlays: str) -> dict[str, dict[str, Any]]:
    files: list[str] = []
    for name in overlays:
        files += [f"--gin.{name}"] if "=" in name else ["--gin_file", f"overlays/{name}.gin"]
    path = str(GIN / "recipes" / f"msmarco_qac_{recipe}.gin")
    assert cli.main(["run", path, "--dry_run", "--json", *files]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    return {stage["stage"]: stage for stage in stages}


def test_the_papers_settings(capsys):
    cotmae = planned(capsys, "cotmae")["encoder"]
    fields, objective = cotmae["fields"], cotmae["fields"]["objective"]
    assert (fields["steps"], fields["batch_size"]) == (50_000, 16_384)
    assert cotmae["plan"]["learning_rate"] == fields["optimizer"]["learning_rate"] == 4e-4
    assert fields["lengths"]["passage"] == 144 and fields["settings"] == {"queries": 5}
    assert (objective["decoder"], objective["masking"]["rate"]) == ("mlm", 0.30)
    assert objective["decoder_masking"]["rate"] == 0.45 and not objective["symmetric"]
    cocondenser = planned(capsys, "cocondenser")["encoder"]
    fields, objective = cocondenser["fields"], cocondenser["fields"]["objective"]
    assert (fields["steps"], fields["batch_size"]) == (120_000, 2048)
    assert cocondenser["plan"]["learning_rate"] == 1e-4
    assert (objective["mlm_scale"], objective["pad_contexts"]) == (1.0, False)
    assert fields["lengths"] == {"passage": 144, "context": 32}


def test_as_released(capsys):
    stages = planned(capsys, "cotmae", "released")
    objective = stages["encoder"]["fields"]["objective"]
    assert (objective["decoder"], objective["window"]) == ("causal", 3)
    assert objective["causal_layers"] == 1 and stages["spans"]["fields"]["overshoot"]
    objective = planned(capsys, "cocondenser", "released")["encoder"]["fields"]["objective"]
    assert (objective["mlm_scale"], objective["mlm_group"]) == (2.0, 64)
    assert objective["pad_contexts"] and objective["start_head"] == "random"


@pytest.mark.parametrize("count", [1, 5, 10, 20])
def test_numbers_of_queries(capsys, count):
    stages = planned(capsys, RECIPES[count % 2], f"QUERIES={count}")
    assert stages["encoder"]["fields"]["settings"] == {"queries": count}
    generated = stages["queries"]["fields"]
    assert generated["samples"] == 20 and not generated["drop_repeats"]  # once for all counts


@pytest.mark.parametrize("recipe", RECIPES)
def test_other_contexts(capsys, recipe):
    stages = planned(capsys, recipe, "QUERIES=10", "mixed")
    fields = stages["encoder"]["fields"]
    assert fields["kind"] == stages["pairs"]["fields"]["task"] == "mixed"
    weights = fields["settings"]["probabilities"]
    assert weights["query"] == pytest.approx(sum(weights.values()) / 2, abs=1e-3)
    assert fields["settings"]["queries"] == 10
    overlay, baseline = {
        "cotmae": ("passage_pairs", "passage_passage"),
        "cocondenser": ("two_spans", "two_spans"),
    }[recipe]
    stages = planned(capsys, recipe, overlay)
    fields = stages["encoder"]["fields"]
    assert fields["kind"] == stages["pairs"]["fields"]["task"] == baseline
    assert fields["lengths"]["context"] == 144 and "queries" not in stages
    for kind, settings in (("mixed", {"probabilities": weights}), (baseline, {})):
        settle(kind, Form(), settings=settings)  # what the loader will be asked for


def test_hours_and_memory_of_every_device(capsys):
    plan = planned(capsys, "cotmae")["encoder"]["plan"]
    assert plan["mfu"] == costs.PACKED_MFU == 0.566  # the recipe leaves padding out
    for name, device in hardware.DEVICES.items():
        hours = plan["flops"] / (device.peak_flops * plan["mfu"]) / 3600
        assert plan["hours"][name] == pytest.approx(hours)
    assert plan["hours"]["H100"] < 38
    assert planned(capsys, "cocondenser")["encoder"]["plan"]["hours"]["H100"] < 22
    # BERT-base at 144 tokens: about 6 FLOPs a parameter of the layers and token, forward and back.
    flops = plan["step_flops"] / 16_384 / 144
    assert 6 * 85e6 < flops < 1.3 * 6 * 85e6


@pytest.mark.parametrize("recipe", RECIPES)
def test_without_the_corpus_one_sentence(recipe, tmp_path, capsys):
    path = str(GIN / "recipes" / f"msmarco_qac_{recipe}.gin")
    for extra, expected in (
        ([], "say where it is with --data_dir DIR"),
        (["--data_dir", str(tmp_path / "nothing")], "msmarco-docs.tsv does not exist"),
    ):
        assert cli.main(["run", path, "--out", str(tmp_path / "out"), *extra]) == 2
        last = capsys.readouterr().err.strip().split("\n")[-1]
        assert last.startswith("qac: ") and expected in last
