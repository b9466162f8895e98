"""Recipes are listed from their own headers, and gin files resolve from any folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qac_jax import cli, config, gin_files
from qac_jax.errors import UserError


RECIPE = """\
# A small thing: with a part (Wu et al., 2023) and another. A second sentence.
#
#   qac run small --data_dir DATA
#
# Set: ENCODER (a folder); --data_dir, with corpus.jsonl. It
# may be large.
# Commonly overridden: STEPS,
# SEED.
include 'parts/stages.gin'

ENCODER = %gin.REQUIRED
WORDS = "given"
"""


def test_a_header_says_what_a_recipe_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gin_files, "_PACKAGE", tmp_path / "package")
    folder = tmp_path / "gin_configs"
    for name, text in (
        ("recipes/small.gin", RECIPE),
        ("parts/stages.gin", "WORDS = %gin.REQUIRED\nTARGET = %gin.REQUIRED  # where\n"),
    ):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    assert gin_files.folder() == folder
    (header,) = gin_files.recipes()
    assert header.name == "small" and not header.grid
    assert header.summary == "A small thing: with a part (Wu et al., 2023) and another"
    assert header.needs == "ENCODER (a folder); --data_dir, with corpus.jsonl"
    assert header.overridden == "STEPS, SEED"
    assert header.required == ("ENCODER", "TARGET")


def test_the_copy_inside_the_package_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gin_files, "_PACKAGE", tmp_path)
    (tmp_path / "gin_configs").mkdir()
    assert gin_files.folder() == tmp_path / "gin_configs"


def test_every_recipe_has_a_header() -> None:
    for header in gin_files.recipes():
        assert header.summary and header.overridden, header.name
        assert (
            "Set: " in header.text
            and f"recipes/{header.name}.gin" in header.text
            or (f"run {header.name}" in header.text)
        ), header.name


def test_the_verb_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recipes"]) == 0
    page = capsys.readouterr().out
    for name in gin_files.names("recipes"):
        assert f"\n{name} " in f"\n{page}"
    assert cli.main(["recipes", "own_corpus"]) == 0
    assert "Commonly overridden" in capsys.readouterr().out
    assert cli.main(["recipes", "demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["needs"] == ""
    assert cli.main(["recipes", "own_corpsu"]) == 2
    assert "did you mean 'own_corpus'?" in capsys.readouterr().err


def test_files_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    objectives = gin_files.folder() / "objectives" / "mlm.gin"
    for name in ("objectives/mlm.gin", "gin_configs/objectives/mlm.gin"):
        assert Path(config._resolve(name, ())) == objectives
    assert Path(config._resolve("demo", ())).name == "demo.gin"
    with pytest.raises(UserError, match="did you mean 'mlm.gin'"):
        config._resolve("objectives/mml.gin", ())
