"""What would stop a stage is said before the first stage of a recipe runs, and in dry runs."""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import pytest
import toy_stages

from qac_jax import cli
from qac_jax.errors import UserError
from qac_jax.pipeline import readiness, recipe
from qac_jax.pipeline import stage as stage_lib
from qac_jax.pipeline.inputs import FILE, TOKENIZER
from qac_jax.pipeline.recipe import Recipe
from qac_jax.pipeline.sharding import Workers
from qac_jax.pipeline.stage import Ref, Stage, input, model_input, part


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


def test_a_verb_says_it_in_its_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bm25", "--passages", "/nowhere/at/all", "--dry_run"]) == 0
    assert "it would not start: inputs that are not there: 1" in capsys.readouterr().out
