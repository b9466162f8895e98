"""Every figure's file parses, its command exists, its page prints it; `-m nightly` measures it."""

from __future__ import annotations

import dataclasses
import functools
import os
import shlex
from pathlib import Path

import pytest
import reproduce
import toy_recipes
from reproduce import ROOT, Reproduction

from qac_jax import cli, recipes
from qac_jax.verbs import VERBS


ALL = reproduce.read_all()
each = pytest.mark.parametrize("one", ALL.values(), ids=list(ALL))


@each
def test_its_page_prints_the_figure(one: Reproduction) -> None:
    text = (ROOT / one.page).read_text(encoding="utf-8")
    assert one.printed in text
    assert f"{one.value:g}".lstrip("0") in one.printed or f"{100 * one.value:.1f}" in one.printed
    assert 0 < one.tolerance < one.value / 5 and one.because and one.minutes > 0
    assert "{out}" in one.command


@each
def test_its_command_exists(one: Reproduction) -> None:
    program, verb, *rest = shlex.split(one.command)
    assert program == "qac"
    if verb == "run":
        assert recipes.header(rest[0]).grid
        bound = [word.split("=")[0] for word in rest[1:] if word.startswith("--gin.")]
        assert set(bound) <= {"--gin.grid.Grid.seeds", "--gin.grid.Grid.systems"}
        described = one.key[1]
        grid = _grid(rest[0])
        assert described["run"] in {**grid.rows, **grid.baselines}.values()
        assert one.key[-1] in grid.measures
        if "system" in described:
            assert described["system"] in _systems(rest[0])
        return
    stage = VERBS[verb].load(cli._target(VERBS[verb], rest))
    flags = {word.removeprefix("--") for word in rest if word.startswith("--")}
    assert flags <= _flags(stage) | {"out"}


def _flags(stage: type) -> set[str]:
    from qac_jax import fields
    from qac_jax.pipeline import inputs

    aliases = (f.metadata["aliases"] for f in inputs.declared(stage).values())
    return {*fields.flat(stage), *(alias for some in aliases for alias in some)}


_grid = functools.cache(toy_recipes.grid_of)


@functools.cache
def _systems(name: str) -> list[str]:
    return list(_grid(name).systems)


def test_figures_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(
        '{"rows": [{"system": "a", "run": "r", "mean": {"mrr@10": 0.5}}, {"system": "b"}]}'
    )
    one = ALL["claim_qac_none"]
    changed = dataclasses.replace(one, key=["rows", {"system": "a", "run": "r"}, "mean", "mrr@10"])
    assert changed.figure(tmp_path) == 0.5
    with pytest.raises(LookupError, match="0 rows"):
        one.figure(tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(0)
@each
def test_it_is_measured_again(one: Reproduction) -> None:
    """The commands of one folder run once: out/reproductions is kept between tests."""
    if one.stale:
        pytest.skip(one.stale)
    if not (data := os.environ.get("QAC_DATA")):
        pytest.skip("QAC_DATA does not name the folder of the collections")
    first = next(name for name in ALL if ALL[name].command == one.command)
    figure = reproduce.run(one, data, ROOT / "out" / "reproductions" / first)
    assert figure == pytest.approx(one.value, abs=one.tolerance)
