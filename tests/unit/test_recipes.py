"""Every recipe and grid builds; what would stop a stage is said before the first one runs."""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import pytest
import toy_recipes
import toy_retrieval as toy
import toy_stages
from toy_process import Qac

from qac_jax import recipes
from qac_jax.errors import UserError
from qac_jax.hub import huggingface
from qac_jax.pipeline import readiness, recipe
from qac_jax.pipeline import stage as stage_lib
from qac_jax.pipeline.inputs import FILE, TOKENIZER
from qac_jax.pipeline.recipe import Recipe
from qac_jax.pipeline.sharding import Workers
from qac_jax.pipeline.stage import Ref, Stage, input, model_input, part
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


def test_recipes_are_listed(qac: Qac) -> None:
    listed = {found["name"]: found for found in qac.json("recipes")}
    assert listed.keys() == recipes.headers().keys()
    assert listed["claim_qac"]["grid"] and not listed["msmarco_qac_cotmae"]["grid"]
    assert "launch/demo.sh" in qac("recipes", "demo").out
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
    for name, split in (("hybrid_1", "validation"), ("index", "test")):
        assert asked[name].qrels == f"stage:questions/{split}.tsv"
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Many(Stage):
    """Takes everything."""

    VERB: ClassVar[str] = "many"
    KIND: ClassVar[str] = "many"

    numbers: Ref = input("numbers", "numbers", default="")
    files: Ref = input("files", FILE, default="")
    model: Ref = model_input("a model", default="")
    words: Ref = input("a vocabulary", TOKENIZER, default="")
    pool: Workers = part(Workers)


def lacks(data_dir: str = "", **inputs: Any) -> str:
    return " | ".join(readiness.missing(Many(**inputs), data_dir))


def test_what_is_there_and_what_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "a,b.txt").write_text("x")
    stage_lib.execute(toy_stages.Numbers(count=2), tmp_path / "n")
    for given, sentence in (
        ({"numbers": "n"}, ""),
        ({"numbers": "stage:first"}, ""),
        ({"numbers": "m"}, "numbers: m does not exist"),
        ({"numbers": "out"}, "numbers: out is not an artefact; expected numbers"),
        ({"files": "a,b.txt"}, ""),
        ({"model": "owner/name@v1"}, ""),
        ({"model": "out/none"}, "model: out/none does not exist"),
        ({"model": "shipped:qgn"}, "did you mean 'qgen'?"),
        ({"words": "wordpiece-16k"}, ""),
    ):
        said = lacks(**given)
        assert sentence in said and bool(said) == bool(sentence), given
    assert lacks(str(tmp_path), numbers="data:n", files="data:") == ""
    monkeypatch.setattr(readiness.importlib.util, "find_spec", lambda name: None)
    assert "needs datasets, which is not installed" in lacks(files="hf:x")


def test_nothing_runs_before_everything_is_there(tmp_path: Path) -> None:
    described = Recipe(
        stages={
            "first": toy_stages.Numbers(count=2),
            "other": toy_stages.Numbers(base="data:number.txt"),
        }
    )
    with pytest.raises(UserError, match="nothing was run, since other.base: data:number.txt lies"):
        recipe.run(described, tmp_path / "out")
    wrong = dataclasses.replace(described, data_dir=str(tmp_path / "no"))
    with pytest.raises(UserError, match="--data_dir .*no does not exist"):
        recipe.run(wrong, tmp_path / "out")
    described = dataclasses.replace(described, data_dir=str(tmp_path))
    with pytest.raises(UserError, match="other.base: .*number.txt does not exist"):
        recipe.run(described, tmp_path / "out")
    assert not (tmp_path / "out/stages/first").exists()
    assert [one["missing"] for one in recipe.plan(described)][1]
    (tmp_path / "number.txt").write_text("3")
    assert len(recipe.run(described, tmp_path / "out")) == 2


def test_stages_take_what_others_make() -> None:
    stages = {"first": toy_stages.Numbers(count=2), "many": Many(model="stage:first")}
    with pytest.raises(
        UserError,
        match="many.model = 'stage:first', which makes numbers; expected parameters or model",
    ):
        recipe.ordered(Recipe(stages=stages))
    for given in ({"files": "stage:first"}, {"model": "stage:first/best"}):
        assert recipe.ordered(Recipe(stages={**stages, "many": Many.make(**given)}))


def test_a_verb_says_it_in_its_dry_run(qac: Qac) -> None:
    shown = qac("bm25", "--passages", "/nowhere/at/all", "--dry_run").out
    assert "it would not start: inputs that are not there: 1" in shown
