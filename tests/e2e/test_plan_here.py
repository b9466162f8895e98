"""`qac plan --here`: sizes from the documents, models as they are, seconds on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import toy_retrieval as toy

from qac_jax import cli, here
from qac_jax.pipeline import recipe
from qac_jax.stages.embed import Embed
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.questions import Split


MINILM = 22_713_216
CUT = ["--passage_length=24", "--query_length=12", "--n_passages=4", "--n_queries=4"]


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], Any]:
    assert cli.main(["plan", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {one["stage"]: one["plan"] for one in found["stages"]}, found["totals"]


def test_what_starts_from_a_model_has_its_shape(capsys: pytest.CaptureFixture[str]) -> None:
    plans, _ = planned(capsys, "own_corpus", "--data_dir", "none", "--sizes", "passages=5000")
    assert plans["trained_1"]["parameters"] == MINILM
    # 2 FLOPs a parameter of the layers and token: no word embeddings.
    assert plans["vectors_start"]["flops"] == pytest.approx(2 * 10.6e6 * 5000 * 80, rel=0.05)
    parts = [plans[name]["count"] for name in ("training", "validation", "test")]
    assert sum(parts) == 5000 and parts[1] == parts[2] > 0
    assert plans["contexts"]["count"] == parts[0]


def test_documents_that_are_there_are_counted_as_they_are_cut(tmp_path: Path) -> None:
    toy.write_collection(tmp_path, passages=40)
    longer = tmp_path / "longer.jsonl"
    longer.write_text(
        "".join(
            json.dumps({"_id": f"d{n}", "text": "Lamps give light at night. " * 60}) + "\n"
            for n in range(5)
        )
    )
    cut = Prepare.make(documents=str(longer), format="jsonl", max_tokens=64)
    stages = {"whole": Prepare(documents="data:", format="beir"), "cut": cut}
    found = here.look_at(stages, str(tmp_path))
    assert found.passages["whole"] == 40 and found.passages["cut"] > 10
    assert len(found.some) == 40 and all(each > 0 for each in found.seconds.values())
    assert here.look_at({"gone": Prepare(documents="data:none")}, str(tmp_path)).passages == {}


def test_a_verb_is_tried_once_for_all_stages_like_it(tmp_path: Path) -> None:
    toy.write_collection(tmp_path, passages=20)
    encoder = str(toy.save_encoder(tmp_path / "encoder"))
    stages = {
        "passages": Prepare(documents="data:", format="beir"),
        "aside": Split.make(passages="stage:passages", part="test", share=0.2),
        "all": Embed(encoder=encoder, passages="stage:passages"),
        "some": Embed(encoder=encoder, passages="stage:aside"),
    }
    documents = here.look_at(stages, str(tmp_path))
    plans = recipe.plan(recipe.Recipe(stages, data_dir=str(tmp_path)), documents.passages)
    here.add(recipe.ordered(recipe.Recipe(stages)), plans, documents)
    seconds = {one["stage"]: one["plan"].get("seconds_here") for one in plans}
    sizes = {one["stage"]: one["plan"]["count"] for one in plans}
    assert sizes["passages"] == sizes["all"] == 20 > sizes["some"] > 0
    assert seconds["aside"] is None  # nothing that would be worth a word
    assert seconds["all"] > seconds["some"] > 0 and seconds["passages"] > 0


@pytest.mark.slow
def test_every_training_of_a_recipe_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy.write_collection(tmp_path, passages=30)
    small = ["--gin.MLM_STEPS=10", "--gin.PRETRAINING_STEPS=20", "--gin.FINETUNING_STEPS=10"]
    plans, totals = planned(capsys, "claim_cell", "--data_dir", str(tmp_path), *small, "--here")
    trainings = {name: plan for name, plan in plans.items() if "batch_size" in plan}
    assert len(trainings) == 4 and all(plan["seconds_here"] > 0 for plan in trainings.values())
    assert plans["contexts"]["seconds_here"] > 0 and plans["passages"]["count"] == 30
    whole = sum(plan.get("seconds_here") or 0 for plan in plans.values())
    assert totals["seconds_here"] == pytest.approx(whole)
    assert cli.main(["plan", "claim_qac", "--data_dir", str(tmp_path), "--here"]) == 2
    assert "is a grid; --here is for recipes" in capsys.readouterr().err
