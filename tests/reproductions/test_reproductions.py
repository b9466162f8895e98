"""Every figure's page prints it and its command exists; launch/reproduce.sh measures it."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import toy_recipes
from reproduce import FIGURES, ROOT, written

from qac_jax import fields, recipes
from qac_jax.cli import VERBS


def test_the_pages_print_the_figures() -> None:
    for name, one in FIGURES.items():
        text = (ROOT / one.page).read_text(encoding="utf-8")
        assert one.printed in text, name
        shown = (f"{one.value:g}".lstrip("0"), f"{100 * one.value:.1f}")
        assert any(figure in one.printed for figure in shown), name
        assert 0 < one.tolerance < one.value / 5 and one.because and one.minutes > 0, name


def test_the_commands_exist() -> None:
    for name, one in FIGURES.items():
        program, verb, *rest = shlex.split(one.command)
        assert program == "qac" and "{out}" in one.command, name
        if verb != "run":
            stage = VERBS[verb].load(rest)
            known = {*fields.flat(stage), "out"}
            assert {word.removeprefix("--") for word in rest if word.startswith("--")} <= known
            continue
        assert recipes.header(rest[0]).grid
        bound = [word.split("=")[0] for word in rest[1:] if word.startswith("--gin.")]
        assert set(bound) <= {"--gin.grid.Grid.seeds", "--gin.grid.Grid.systems"}
        grid, described = toy_recipes.grid_of(rest[0]), one.key[1]
        assert described["run"] in {**grid.rows, **grid.baselines}.values()
        assert one.key[-1] in grid.measures
        assert described.get("system", next(iter(grid.systems))) in grid.systems


def test_figures_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(
        '{"rows": [{"system": "a", "run": "r", "mean": {"mrr@10": 0.5}}, {"system": "b"}]}'
    )
    key = ["rows", {"system": "a", "run": "r"}, "mean", "mrr@10"]
    assert written(SimpleNamespace(file="summary.json", key=key), tmp_path) == 0.5
    with pytest.raises(ValueError):
        written(FIGURES["claim_qac_none"], tmp_path)
