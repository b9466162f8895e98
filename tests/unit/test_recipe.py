"""Recipes: what is skipped, what is made again, what a failure leaves behind."""

import dataclasses

import pytest
from toy_stages import Doubled, Numbers, Summed

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.pipeline import recipe
from qac_jax.pipeline.recipe import Recipe
from qac_jax.pipeline.stage import Stage
from qac_jax.retrieval import corpus


def three(count: int = 10, factor: int = 2, **options) -> Recipe:
    return Recipe(
        stages={
            "total": Summed(numbers="stage:twice"),
            "twice": Doubled(numbers="stage:first", factor=factor),
            "first": Numbers(count=count, **options),
        }
    )


@pytest.fixture
def ran(monkeypatch):
    """Which stages really ran."""
    names: list[str] = []
    for cls in (Numbers, Doubled, Summed):
        original = cls.run

        def run(self, inputs, out, original=original):
            names.append(type(self).__name__)
            original(self, inputs, out)

        monkeypatch.setattr(cls, "run", run)

    def taken() -> list[str]:
        result = list(names)
        names.clear()
        return result

    return taken


def test_a_changed_field_redoes_its_stage_and_its_dependants(tmp_path, ran, monkeypatch):
    done = recipe.run(three(), tmp_path / "out", documentation="# one")
    assert ran() == ["Numbers", "Doubled", "Summed"]
    assert (done["total"].path / "sum.json").read_text() == "90"
    # Neither of these affects the result.
    recipe.run(three(pause=0.001), tmp_path / "out", documentation="# two")
    assert ran() == []
    assert artifacts.load(tmp_path / "out/stages/first").info["gin"] == "# one"
    recipe.run(three(factor=3), tmp_path / "out")
    assert ran() == ["Doubled", "Summed"]
    recipe.run(three(count=11, factor=3), tmp_path / "out")
    assert ran() == ["Numbers", "Doubled", "Summed"]
    # Another way to the same content: the dependants keep their key.
    stages = {**three(11, 3).stages, "twice": Doubled(numbers="stage:first", factor=3, seed=5)}
    recipe.run(dataclasses.replace(three(), stages=stages), tmp_path / "out")
    assert ran() == ["Doubled"]
    monkeypatch.setattr(Doubled, "VERSION", 2)
    recipe.run(three(11, 3), tmp_path / "out")
    assert ran() == ["Doubled"]
    assert [row["plan"] for row in recipe.plan(three(count=12))][1] == {"items": 12}


def test_a_changed_source_or_a_damaged_output_is_made_again(tmp_path, ran):
    (tmp_path / "base").write_text("1")
    recipe.run(three(base=str(tmp_path / "base")), tmp_path / "out")
    ran()
    (tmp_path / "base").write_text("2")
    recipe.run(three(base=str(tmp_path / "base")), tmp_path / "out")
    assert ran() == ["Numbers", "Doubled", "Summed"]
    (tmp_path / "elsewhere").write_text("2")
    recipe.run(three(base=str(tmp_path / "elsewhere")), tmp_path / "out")
    assert ran() == [], "where a source lies does not matter"
    (tmp_path / "out/stages/first" / "numbers-00001.jsonl").write_text("{}")
    recipe.run(three(base=str(tmp_path / "base")), tmp_path / "out")
    assert ran() == ["Numbers"]


def test_a_failure_names_the_stage_and_keeps_what_is_finished(tmp_path, ran, capsys):
    with pytest.raises(RuntimeError, match="fails on purpose"):
        recipe.run(three(fail_at=1), tmp_path / "out", command="qac run x")
    said = capsys.readouterr().err
    assert "stage first failed" in said and "continue with: qac run x" in said
    ran()
    assert (tmp_path / "out/stages/first" / "numbers-00000.jsonl").exists()
    recipe.run(three(), tmp_path / "out")
    assert ran() == ["Numbers", "Doubled", "Summed"]


def test_from_redoes_a_stage_and_what_depends_on_it(tmp_path, ran):
    recipe.run(three(), tmp_path / "out")
    ran()
    recipe.run(three(), tmp_path / "out", start="twice")
    assert ran() == ["Doubled"], "its result is the same, so the sum still holds"


class Pointing(Summed):
    """Refers to what it was made of, as an index does to its texts."""

    def run(self, inputs, out):
        super().run(inputs, out)
        out.info["texts"] = [corpus.location(inputs.artifact("numbers"), out.path)]


def test_only_results_and_what_they_refer_to_are_kept(tmp_path, ran, capsys, monkeypatch):
    """A run cut short while it removes goes on removing; all is made again where that is asked."""
    stages = {**three().stages, "index": Pointing(numbers="stage:first")}
    described, out = Recipe(stages, published={"n.json": "stage:twice/x"}), tmp_path / "out"
    remove = artifacts.remove
    monkeypatch.setattr(artifacts, "remove", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        recipe.run(described, out, keep="none")
    assert len(ran()) == 4
    monkeypatch.setattr(artifacts, "remove", remove)
    (out / "n.json").write_text("1")  # as if the stage had published it
    left = recipe.run(described, out, keep="none")
    assert set(left) == {"total", "index"} and ran() == []
    assert [p.name for p in (out / "stages").iterdir()] == ["first"]
    capsys.readouterr()
    assert set(recipe.run(described, out)) == {"total", "index"} and ran() == []
    assert "nothing is done; --keep all makes" in capsys.readouterr().err
    assert len(recipe.run(described, out, keep="all")) == 4
    assert ran() == ["Doubled"], "the others are as they were"
    assert len(recipe.run(described, out)) == 4, "nothing is missing any more"
    recipe.run(described, out, keep="none")
    assert ran() == []
    changed = dataclasses.replace(described, stages={**stages, "first": Numbers(count=3)})
    recipe.run(changed, out, keep="none")
    assert len(ran()) == 4


def test_recipes_that_cannot_run(tmp_path):
    circle: dict[str, Stage] = {"a": Doubled(numbers="stage:b"), "b": Doubled(numbers="stage:a")}
    cases: tuple[tuple[dict[str, Stage], str], ...] = (
        ({"a": Doubled(numbers="stage:b")}, "a.numbers = 'stage:b', but the recipe has no stage"),
        (circle, "take their inputs from one another in a circle"),
        ({"a": Doubled()}, "a.numbers is not set"),
    )
    for stages, sentence in cases:
        with pytest.raises(UserError, match=sentence):
            recipe.run(Recipe(stages=stages), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_foreign_folder_is_not_touched(tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to_mother.txt").write_text("dear")
    with pytest.raises(UserError, match="not empty and not a folder of this recipe"):
        recipe.run(three(), tmp_path / "letters")
    assert [p.name for p in (tmp_path / "letters").iterdir()] == ["to_mother.txt"]
