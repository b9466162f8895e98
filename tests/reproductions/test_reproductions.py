"""Every figure's page prints it and its command exists; launch/reproduce.sh measures it.
launch/leaderboard.sh adds rows of the leaderboard."""

import dataclasses
import json
import os
import shlex
from pathlib import Path
from types import SimpleNamespace

import leaderboard
import pytest
import reproduce
import toy_recipes
from reproduce import FIGURES, ROOT, written

from qac_jax import fields, recipes
from qac_jax.cli import VERBS
from qac_jax.recipes.own_corpus import OwnCorpus


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


def test_a_row_of_the_leaderboard(tmp_path: Path) -> None:
    """Means are over what was measured, minutes over all stages and cores."""
    each = {}
    for name, gain in (("mixed", 0.0), ("cisi", 0.1)):
        out = tmp_path / name
        (out / "stages" / "a").mkdir(parents=True)
        # "run_index" is measured of questions that are given, else it is the system to use.
        systems = leaderboard.SYSTEMS if name == "cisi" else (*leaderboard.SYSTEMS[:3], "fused_1")
        rows = [{"system": s, "mrr@10": 0.5 + gain * n} for n, s in enumerate(systems)]
        summary = {"rows": rows, "use": {"system": systems[-1]}}
        (out / "summary.json").write_text(json.dumps(summary))
        (out / "stages" / "a" / "artifact.json").write_text('{"info": {"seconds": 90}}')
        each[name] = leaderboard.measured(out)
    line = leaderboard.row({"date": "2026-11-28"}, each)
    cells = [cell.strip() for cell in line.strip("|\n").split("|")]
    indexes = dict(zip(leaderboard.COLLECTIONS, cells[1:8], strict=True))
    assert (indexes["mixed"], indexes["cisi"], indexes["npl"]) == (".500", ".800", "")
    assert cells[8:12] == [".500", ".550", ".600", ".650"]
    assert cells[12] == f"{3 * (os.cpu_count() or 1)}"


def test_the_leaderboard_names_its_columns() -> None:
    """Every row of the page has as many cells as its head, which names the collections."""
    lines = leaderboard.PAGE.read_text(encoding="utf-8").splitlines()
    head, _, *rows = lines[next(n for n, line in enumerate(lines) if line.startswith("| date")) :]
    names = [name.strip() for name in head.strip("|").split("|")]
    assert names[4:11] == list(leaderboard.COLLECTIONS) and len(names) == 16
    assert rows and all(row.count("|") == head.count("|") for row in rows)


@pytest.mark.parametrize("labels", [False, True])
def test_the_leaderboards_command_exists(labels: bool, tmp_path: Path) -> None:
    """People's questions measure; with labels a collection's training questions are learned."""
    (tmp_path / "tales" / "qrels").mkdir(parents=True)
    (tmp_path / "tales" / "qrels" / "train.tsv").touch()
    cisi, tales = (
        leaderboard.command(name, str(tmp_path), tmp_path, labels, ["--rounds", "2"])
        for name in ("cisi", "tales")
    )
    program, verb, name, *flags = tales
    assert (program, verb, name) == ("qac", "run", "own_corpus")
    assert "--questions" in cisi and ("--questions" in flags) is not labels
    flags += cisi
    parameters = {field.name for field in dataclasses.fields(OwnCorpus)}
    named = {word.removeprefix("--") for word in flags if word.startswith("--")}
    assert named <= {*parameters, "data_dir", "out", "keep"}


def test_a_command_that_fails_ends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(words: list[str], *, check: bool = False, **_: object) -> SimpleNamespace:
        assert not check
        return SimpleNamespace(returncode=2)

    monkeypatch.setattr("subprocess.run", fail)
    given = ["--data", "nowhere", "--out", str(tmp_path)]
    assert leaderboard.main(given) == reproduce.main(["claim_qac_none", *given]) == 2
