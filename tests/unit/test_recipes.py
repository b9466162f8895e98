"""Every recipe and grid builds; what qac recipes says of them."""

import json
from pathlib import Path

import pytest
import toy_recipes
import toy_retrieval as toy

from qac_jax import cli, recipes
from qac_jax.errors import UserError
from qac_jax.hub import huggingface
from qac_jax.pipeline.stage import Stage
from qac_jax.recipes import own_corpus


def test_a_recipe_builds_and_takes_the_released_switches() -> None:
    for name in toy_recipes.RECIPES:
        stages = toy_recipes.stages(name)
        assert stages and all(isinstance(stage, Stage) for stage in stages.values()), name
        if name != "generators":  # which has no use for them
            assert toy_recipes.stages(name, "overlays/released.gin").keys() == stages.keys()
        for stage in stages.values():
            stage.check()


@pytest.mark.slow
def test_the_cells_of_a_grid_share_stages() -> None:
    for name in toy_recipes.GRIDS:
        found = toy_recipes.placed(toy_recipes.grid_of(name))
        places = {place for cell in found for place in cell.places.values()}
        assert len(places) < sum(len(cell.places) for cell in found), name


def test_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recipes", "--json"]) == 0
    listed = {found["name"]: found for found in json.loads(capsys.readouterr().out)}
    assert listed.keys() == recipes.headers().keys()
    assert listed["claim_qac"]["grid"] and not listed["msmarco_qac_cotmae"]["grid"]
    assert cli.main(["recipes", "demo"]) == 0
    assert "launch/demo.sh" in capsys.readouterr().out
    with pytest.raises(UserError, match="did you mean 'own_corpus'"):
        recipes.header("own_corpse")


def test_teachers_of_own_corpus(tmp_path: Path) -> None:
    cross = str(toy.save_cross_encoder(tmp_path / "cross"))
    found = toy_recipes.stages("own_corpus", teacher=cross, rounds=2)
    for number, index in enumerate(("start", "1"), 1):
        grouped, trained = found[f"groups_{number}"], found[f"trained_{number}"]
        assert grouped.reranker == cross and grouped.teacher == f"stage:hybrid_{index}"
        assert grouped.at_most * grouped.size * grouped.per_passage == 100 * 128
        assert trained.objective.teacher_temperature == 1
    # An artefact of ours says it in another file.
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "module.json").write_text('{"class": "CrossEncoder"}')
    assert huggingface.is_cross_encoder(tmp_path / "ours")
    found = toy_recipes.stages("own_corpus", teacher="shipped:minilm", rounds=2)
    assert found["vectors_teacher"].encoder == "shipped:minilm"
    for number in (1, 2):
        grouped, trained = found[f"groups_{number}"], found[f"trained_{number}"]
        assert grouped.teacher == "stage:hybrid_teacher" and not grouped.reranker
        assert trained.objective.teacher_temperature == 0.02
    assert "stage:index_teacher" not in found["choice"].indexes


def test_budgets_of_own_corpus() -> None:
    for budget, sizes in own_corpus.BUDGETS.items():
        found = toy_recipes.stages("own_corpus", budget=budget)
        assert ("retriever_2" in found) == (sizes.rounds == 2)
        assert found["trained_1"].schedule.steps == sizes.fine_steps
        assert found["trained_1"].init == "shipped:minilm" and "encoder" not in found
    scratch = toy_recipes.stages("own_corpus", budget=budget, start="none", rounds=1)
    assert scratch["base"].objective.model.config.hidden_size == sizes.width
    assert scratch["trained_1"].init == "stage:encoder" and scratch["encoder"].init == "stage:base"
    assert not scratch["retriever_1"].start and "retriever_2" not in scratch
    with pytest.raises(UserError, match="did you mean 'large'"):
        toy_recipes.stages("own_corpus", budget="larg")


def test_questions_of_ones_own_measure_and_choose() -> None:
    asked = toy_recipes.stages("own_corpus", questions="mine.tsv")
    assert asked["questions"].collection == "stage:asked" and "test_contexts" not in asked
    for name, part in (("hybrid_1", "validation"), ("index", "test")):
        assert asked[name].qrels == f"stage:questions/{part}.tsv"
    both = "stage:questions/validation.tsv,stage:questions/test.tsv"
    assert asked["choice"].qrels == both and "stage:run_index" in asked["metrics"].runs
    grid = toy_recipes.grid_of("own_corpus_grid")
    (system,) = grid.systems.values()
    measured = toy_recipes.stages("own_corpus", questions="mine.tsv", **system)
    assert measured["index"].qrels == measured["choice"].qrels == "stage:questions/validation.tsv"
    runs = measured["metrics"].runs.replace("stage:", "").split(",")
    assert {*grid.rows, *grid.baselines} <= set(runs) and not measured["summary"].own
    first, second, _ = toy_recipes.placed(grid)
    assert first.places["index_start"] == second.places["index_start"]
    assert first.places["trained_1"] != second.places["trained_1"]
