"""`qac run GRID.gin`: a grid of two BM25s from raw files to its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import toy_grid
import toy_retrieval as toy

from qac_jax import cli
from qac_jax.pipeline import grid


CELL = """
from __gin__ import dynamic_registration
from qac_jax.pipeline import recipe
from qac_jax.stages import index
from qac_jax.stages import evaluate
from qac_jax.stages import prepare
from qac_jax.stages import search

TITLES = True
recipe.Recipe.stages = {"passages": @prepare.Prepare(), "index": @index.Bm25()}
SEARCH = {"run": @search.Search(), "metrics": @evaluate.Evaluate()}
recipe.Recipe.parts = [%SEARCH]
prepare.Prepare.format = "beir"
prepare.Prepare.documents = "data:"
prepare.Prepare.seed = %SEED
index.Bm25.passages = "stage:passages"
index.Bm25.titles = %TITLES
search.Search.index = "stage:index"
search.Search.queries = "data:queries.jsonl"
search.Search.k = 10
evaluate.Evaluate.runs = "stage:run"
evaluate.Evaluate.qrels = "data:qrels/test.tsv"
evaluate.Evaluate.permutations = 50
"""
GRID = """
from __gin__ import dynamic_registration
from qac_jax.pipeline import grid

grid.Grid.recipe = "cell.gin"
grid.Grid.systems = {"with": [], "without": ["untitled.gin"], "hard": ["index.Bm25.k1 = 5.0"]}
grid.Grid.seeds = [0]
grid.Grid.rows = {"run": "BM25"}
grid.Grid.measures = ["mrr@10", "ndcg@10"]
grid.Grid.permutations = 50
"""


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(grid, "_forget_compiled", lambda: None)
    toy.write_collection(tmp_path / "data", 40, 12)
    for name, text in (("cell", CELL), ("grid", GRID), ("untitled", "TITLES = False")):
        (tmp_path / f"{name}.gin").write_text(text)
    return [
        "run",
        str(tmp_path / "grid.gin"),
        f"--gin_search_paths={tmp_path}",
        f"--data_dir={tmp_path / 'data'}",
    ]


def test_a_grid_from_files_to_its_table(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*arguments, "--dry_run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [len(row["new"]) for row in plan["cells"]] == [4, 3, 3]
    assert plan["first_cell"][0]["verb"] == "prepare"
    assert not any(stage["missing"] for stage in plan["first_cell"])  # --data_dir is known

    out = tmp_path / "out"
    assert cli.main([*arguments, f"--out={out}"]) == 0
    shown = capsys.readouterr()
    assert "| without " in shown.out and "cell 3/3" in shown.err
    summary = json.loads((out / "summary.json").read_text())
    assert [row["system"] for row in summary["rows"]] == ["with", "without", "hard"]
    assert len(summary["comparisons"]) == 3
    assert (out / "hard" / "seed_0" / "run" / "run.trec").is_file()

    # Once more, with one system and another seed: bindings of the grid and of its cells.
    again = ["--gin.grid.Grid.seeds=[0,3]", "--gin.search.Search.k=10", f"--out={out}", "--json"]
    assert cli.main([*arguments, *again]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["seeds"] == [0, 3]
    assert shown.err.count("up to date") >= 10  # seed 0's


def test_a_misspelt_grid_is_told(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "grid.gin").write_text(GRID.replace("untitled.gin", "untitld.gin"))
    assert cli.main([*arguments, "--dry_run"]) == 2
    error = capsys.readouterr().err
    assert "untitld.gin" in error and "untitled" in error


@pytest.mark.slow
@pytest.mark.parametrize(
    "overlay, figure", [("retromae", "decoder_accuracy"), ("dupmae", "bag_loss")]
)
def test_rows_with_the_passage_itself_train(
    overlay: str, figure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = f'"overlays/{overlay}.gin"'
    systems = f'{{"own": [{file}, %OWN_TEXT], "queries": [{file}]}}'
    arguments = toy_grid.write(tmp_path, systems)
    assert cli.main(["run", *arguments, f"--out={tmp_path / 'out'}", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["system"] for row in rows} == {"", "own", "queries"}  # "": BM25
    for system in ("own", "queries"):
        log = tmp_path / "out" / system / "seed_0" / "encoder" / "metrics.jsonl"
        assert figure in log.read_text()  # not CoT-MAE's
