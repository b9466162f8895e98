"""Settings that change nothing are refused, with the nearest name that would."""

from __future__ import annotations

from pathlib import Path

import pytest
import toy_stages

from qac_jax import cli, config, gin_files
from qac_jax.config import Settings
from qac_jax.pipeline import recipe


RECIPE = """
from __gin__ import dynamic_registration
import toy_stages
from qac_jax.pipeline import recipe

BUDGET = "small"
SPARE = 1
COUNT = @recipe.choose()
recipe.choose.of = %BUDGET
recipe.choose.options = {"small": 10, "tiny": 2}
big/toy_stages.Numbers.count = %COUNT
double/toy_stages.Doubled.numbers = "stage:first"
recipe.Recipe.stages = {
    "first": @big/low/toy_stages.Numbers(),
    "second": @double/toy_stages.Doubled(),
}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "toy.gin"
    path.write_text(RECIPE)
    return str(path)


def unused(file: str, *bindings: str, overlays: tuple[str, ...] = ()) -> list[str]:
    config.register([recipe.Recipe])
    config.apply(Settings([file], bindings=bindings, overlays=overlays))
    config.build(recipe.Recipe)
    return list(config.unused().values())


def test_what_is_used(file: str) -> None:
    for binding in (
        "BUDGET=tiny",
        "SPARE=2",  # the file names it, though nothing needs it
        "big/toy_stages.Numbers.shards=3",
        "big/low/toy_stages.Numbers.shards=3",
        "toy_stages.Numbers.count=10",  # in every scope, although big/ sets another
        "Doubled.factor=3",
        "recipe.Recipe.title=a title, with a comma",
    ):
        assert unused(file, binding) == [], binding


@pytest.mark.parametrize(
    "binding, sentence",
    [
        ("BUGET=tiny", "--gin.BUGET changes nothing: nothing uses the macro BUGET; did you mean"),
        (
            "bgi/toy_stages.Numbers.shards=3",
            "no toy_stages.Numbers is made in the scope 'bgi'",
        ),
        ("low/toy_stages.Numbers.shards=3", "in the scope 'low'; did you mean 'big/low'?"),
        ("toy_stages.Summed.numbers=x", "nothing makes a toy_stages.Summed; did you mean"),
    ],
)
def test_what_is_not(file: str, binding: str, sentence: str) -> None:
    config.register([toy_stages.Summed])
    (found,) = unused(file, binding)
    assert sentence in found


def test_overlays_of_users_and_those_that_ship(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay = tmp_path / "more.gin"
    overlay.write_text('BUDGET = "tiny"\nOTHER = 3\n')
    (found,) = unused(file, overlays=(str(overlay),))
    assert found.startswith(f"{overlay}: OTHER changes nothing: nothing uses the macro OTHER")
    assert config.build(recipe.Recipe).stages["first"].count == 2
    monkeypatch.setattr(gin_files, "ships", lambda path: True)
    assert unused(file, overlays=(str(overlay),)) == []
    overlay.write_text("OTHER = 3\n")
    assert len(unused(file, overlays=(str(overlay),))) == 1


def test_what_an_overlay_includes_may_say_more(file: str, tmp_path: Path) -> None:
    base, overlay = tmp_path / "base.gin", tmp_path / "more.gin"
    base.write_text("OTHER = 3\nBUDGET = 'none'\n")
    overlay.write_text(f"include '{base}'\nBUDGET = 'tiny'\n")
    assert unused(file, overlays=(str(overlay),)) == []
    assert config.build(recipe.Recipe).stages["first"].count == 2
    overlay.write_text(f"include '{base}'\nTHIRD = 'tiny'\n")
    config.apply(Settings([file], overlays=(str(overlay),)))
    assert "THIRD changes nothing" in next(iter(config.unused().values()))


def test_the_command_line_refuses_them(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("run", "plan"):
        assert cli.main([verb, file, "--gin.BUGET=tiny"]) == 2
        assert "did you mean 'BUDGET'?" in capsys.readouterr().err
    assert cli.main(["run", file, "--dry_run", "--gin.BUDGET=tiny"]) == 0


@pytest.mark.parametrize(
    "binding, written",
    [
        ("A=tiny", "A='tiny'"),
        ("A=shipped:minilm, data/x", "A='shipped:minilm, data/x'"),
        ("A= 1e-3", "A= 1e-3"),
        ("A=None", "A=None"),
        ('A="x"', 'A="x"'),
        ("A=@x.Y()", "A=@x.Y()"),
        ("A=%B", "A=%B"),
        ("A=[%B, 1]", "A=[%B, 1]"),
    ],
)
def test_quotes(binding: str, written: str) -> None:
    assert config.quoted(binding) == written


def test_a_class_without_brackets(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", file, "--dry_run", "--gin.OBJECTIVE=@x.Y"]) == 2
    assert "write --gin.OBJECTIVE='@x.Y()', with brackets and quotes" in capsys.readouterr().err
