"""AugTriever's recipes with every strategy: what a dry run says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qac_jax.cli import main


GIN = Path(__file__).parents[2] / "gin_configs"
RECIPES = ["wiki_inbatch", "cc_moco", "wiki_moco", "cc_inbatch"]
ADDED = {"generated", "own_generator", "augq", "own_questions"}  # included by others, or put on top
STRATEGIES = sorted(p.stem for p in (GIN / "overlays/strategies").glob("*.gin"))
EXPECTED = set(
    "random_crop qext_self qext_bm25 qext_plm doc_title doc_anchor tqgen_topic tqgen_title "
    "tqgen_absum tqgen_exsum qgen_d2q paq hybrid_all hybrid_tqgen hybrid_tqgen_plus".split()
)


def plan(capsys: Any, recipe: str, *more: str) -> dict[str, dict[str, Any]]:
    name, _, loss = recipe.partition("_")
    arguments = ["run", str(GIN / f"recipes/augtriever_{name}.gin"), "--dry_run", "--json"]
    code = main([*arguments, *([f"--gin.LOSS='{loss}'"] if loss else []), *more])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return {stage["stage"]: stage for stage in json.loads(printed.out)["stages"]}


def overlay(name: str) -> list[str]:
    return ["--gin_file", str(GIN / f"overlays/{name}.gin")]


def check(stages: dict[str, dict[str, Any]], recipe: str, strategy: str) -> None:
    fields = stages["encoder"]["fields"]
    objective, optimizer = fields["objective"], fields["optimizer"]
    plus = strategy == "hybrid_tqgen_plus"
    assert fields["steps"] == (200_000 if plus else 100_000)
    # The paper: on CC 2,048 for QGen, TQGen and hybrid strategies, 1,024 otherwise.
    written = strategy.startswith(("tqgen", "qgen", "hybrid"))
    assert fields["batch_size"] == (2048 if plus or written and "cc" in recipe else 1024)
    assert objective["temperature"] == 0.05 and objective["model"]["config"]["pooling"] == "mean"
    assert optimizer["learning_rate"] == 5e-5 and optimizer["warmup_steps"] == 10_000
    assert optimizer["weight_decay"] == 0
    share = fields["settings"]["random_crop_share"]
    if recipe.endswith("moco"):
        assert objective["queue_size"] == 16_384 and objective["momentum"] == 0.9995
        assert share == (0.0 if strategy.startswith("hybrid") else 0.5)
    else:
        assert objective["remote_key_grad"] and share == 0
    weights = fields["settings"]["strategies"]
    assert sum(weights.values()) == pytest.approx(1)
    asked = set(weights) - {"random_crop", "qext_self"}
    contexts = stages["pairs"]["fields"]["contexts"]
    assert bool(contexts) == bool(asked)
    cut = stages["documents"]["fields"]["cut"]
    assert cut == ("lines" if recipe.startswith("wiki") and strategy != "paq" else "none")


def test_every_strategy_of_the_paper_is_there() -> None:
    assert set(STRATEGIES) - ADDED == EXPECTED


@pytest.mark.parametrize("number", range(len(EXPECTED)))
def test_a_recipe_with_a_strategy(capsys: Any, number: int) -> None:
    strategy, recipe = sorted(EXPECTED)[number], RECIPES[number % len(RECIPES)]
    check(plan(capsys, recipe, *overlay(f"strategies/{strategy}")), recipe, strategy)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("strategy", sorted(EXPECTED))
def test_every_recipe_with_every_strategy(capsys: Any, recipe: str, strategy: str) -> None:
    check(plan(capsys, recipe, *overlay(f"strategies/{strategy}")), recipe, strategy)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_share_of_crops_is_one_binding(capsys: Any, share: float) -> None:
    given = [*overlay("strategies/tqgen_topic"), f"--gin.RANDOM_CROP_SHARE={share}"]
    stages = plan(capsys, "wiki_moco", *given)
    assert stages["encoder"]["fields"]["settings"]["random_crop_share"] == share
    generated = stages["generated"]["fields"]
    assert list(generated["prompts"]) == ["topic"] and generated["top_p"] == 0.9
    assert generated["prompts"]["topic"]["after"].endswith("main topic of the above text?")


@pytest.mark.parametrize("strategy", ["tqgen_topic", "qgen_d2q", "hybrid_all"])
def test_published_queries_take_the_place_of_generated_ones(capsys: Any, strategy: str) -> None:
    given = [*overlay(f"strategies/{strategy}"), *overlay("strategies/augq")]
    stages = plan(capsys, "cc_moco", *given)
    generated = stages["generated"]["fields"]
    assert generated["imported"] == stages["documents"]["fields"]["documents"] == "data:augq.jsonl"
    assert not generated["generator"]


def test_as_released(capsys: Any) -> None:
    given = [*overlay("strategies/qext_plm"), *overlay("released")]
    stages = plan(capsys, "cc_inbatch", *given)
    fields = stages["encoder"]["fields"]
    assert not fields["objective"]["remote_key_grad"] and fields["objective"]["device_group"] == 128
    assert fields["settings"]["random_crop_share"] == 0.5
    assert stages["extracted"]["fields"]["likelihood"] == "released"


def test_domain_adaptation_and_fine_tuning(capsys: Any) -> None:
    encoder = "--gin.ENCODER='out/encoder'"
    adapted = plan(capsys, "adaptation", encoder)["encoder"]["fields"]
    assert (adapted["steps"], adapted["batch_size"]) == (5000, 1024)
    assert adapted["optimizer"]["learning_rate"] == 1e-5
    assert adapted["settings"]["strategies"] == {"tqgen_topic": 1.0}
    stages = plan(capsys, "finetuning", encoder)
    tuned = stages["retriever"]["fields"]
    assert (tuned["steps"], tuned["batch_size"], tuned["kind"]) == (20_000, 1024, "triples")
    assert tuned["settings"]["n_passages"] == 2
    assert tuned["objective"]["type"].endswith("InBatch")
    judged = stages["beir"]["fields"]
    assert (judged["title"], judged["max_length"]) == ("marked", 512)
