"""`qac run GRID.gin`: a grid of two BM25s from raw files to its table."""

import json
from pathlib import Path

import pytest
import toy_retrieval as toy
from toy_process import Qac

from qac_jax.pipeline import grid
from qac_jax.pipeline.grid import Grid
from qac_jax.pipeline.recipe import Run
from qac_jax.stages.evaluate import Evaluate
from qac_jax.stages.index import Bm25
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.search import Search


def cell(run: Run, titles: bool = True, depth: int = 10, seed: int = 0) -> None:
    """BM25 and its metrics."""
    passages = run(Prepare, "passages", format="beir", documents=run.data, seed=seed)
    index = run(Bm25, "index", passages=passages, titles=titles)
    found = run(Search, "run", index=index, queries="data:queries.jsonl", k=depth)
    run(Evaluate, "metrics", runs=found, qrels="data:qrels/test.tsv", permutations=50)


def table() -> Grid:
    """Three systems."""
    return Grid(
        recipe="cell.gin",
        systems={"with": {}, "without": {"gin": ["untitled.gin"]}, "hard": {"index.Bm25.k1": 5.0}},
        rows={"run": "BM25"},
        measures=("mrr@10", "ndcg@10"),
        permutations=50,
    )


FILES = {
    "cell": "import test_grid_run\nrecipe = @test_grid_run.cell()\n",
    "grid": "import test_grid_run\nrecipe = @test_grid_run.table()\ngrid.Grid.title = 'A table'\n",
    "untitled": "TITLES = False\n",
}


def test_a_grid_from_files_to_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qac: Qac
) -> None:
    monkeypatch.setattr(grid, "_forget_compiled", lambda: None)
    toy.write_collection(tmp_path / "data", 40, 12)
    for name, text in FILES.items():
        (tmp_path / f"{name}.gin").write_text(text)
    given = [f"--gin_search_paths={tmp_path}", f"--data_dir={tmp_path / 'data'}"]
    arguments = ["run", tmp_path / "grid.gin", "--gin_modules=test_grid_run", *given]
    plan = qac.json(*arguments, "--dry_run")
    assert [len(row["new"]) for row in plan["cells"]] == [4, 3, 3]
    assert plan["first_cell"][0]["verb"] == "prepare"
    assert not any(stage["missing"] for stage in plan["first_cell"])  # --data_dir is known

    out = tmp_path / "out"
    shown = qac(*arguments, f"--out={out}")
    assert "| without " in shown.out and "cell 3/3" in shown.err
    summary = json.loads((out / "summary.json").read_text())
    assert [row["system"] for row in summary["rows"]] == ["with", "without", "hard"]
    assert len(summary["comparisons"]) == 3
    assert (out / "hard" / "seed_0" / "run" / "run.trec").is_file()
