"""Grids: what is shared, what is resumed, what the summary says."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import toy_retrieval
from toy_process import Qac
from toy_stages import Doubled, Numbers, values

from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.evaluation import results
from qac_jax.evaluation.benchmarks import GROUPS
from qac_jax.pipeline import grid
from qac_jax.pipeline.grid import Grid
from qac_jax.pipeline.recipe import Recipe
from qac_jax.pipeline.stage import Inputs, Ref, Stage, input
from qac_jax.recipes.augtriever import augtriever_tables
from qac_jax.report import grids


RAN: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def _compiled_programs_of_other_tests_stay():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "_forget_compiled", lambda: None)
        yield


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged(Stage):
    """Figures of two runs: the doubled numbers, and the same for every system."""

    VERB: ClassVar[str] = "judge"
    KIND: ClassVar[str] = "metrics"

    numbers: Ref = input("the numbers", "numbers")

    def run(self, inputs: Inputs, out: Writer) -> None:
        RAN.append(f"{self.VERB} {self.seed}")
        found = [
            _result("dense", [value + self.seed for value in values(inputs["numbers"])]),
            _result("bm25", [3.0, 4.0, 5.0, 6.0]),
        ]
        results.store(out, found, {"comparisons": []})
        out.count = 4


def _result(name: str, figures: Sequence[float]) -> results.Result:
    per_query = {f"q{i}": {"mrr@10": value} for i, value in enumerate(figures)}
    mean = {"mrr@10": sum(figures) / len(figures)}
    return results.Result(name, mean, per_query, len(figures))


def build(system: grid.System, seed: int) -> Recipe:
    """Numbers are the same in all cells, doubling in all seeds."""
    factor = system.get("factor", 1)
    return Recipe(
        stages={
            "first": Numbers(count=4, shards=1),
            "twice": Doubled(numbers="stage:first", factor=factor),
            "metrics": Judged(numbers="stage:twice", seed=seed),
        }
    )


def toy(**changes: Any) -> Grid:
    settings: dict[str, Any] = {
        "recipe": "toy",
        "systems": {"plain": {}, "double": {"factor": 2}},
        "seeds": (0, 1),
        "rows": {"dense": "retriever"},
        "baselines": {"bm25": "BM25"},
        "permutations": 100,
        "title": "Toys",
    }
    return Grid(**{**settings, **changes})


def run(given: Grid, out: Path) -> Mapping[str, Any]:
    RAN.clear()
    return grid.run(given, grid.cells(given, build), out, command="again")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Any]]:
    out = tmp_path_factory.mktemp("grid") / "out"
    return out, run(toy(), out)


def test_the_summary(done: tuple[Path, Any]) -> None:
    out, summary = done
    rows = {(row["system"], row["run"]): row for row in summary["rows"]}
    assert rows["plain", "retriever"]["mean"]["mrr@10"] == pytest.approx(2.0)  # 0..3, plus 0 or 1
    assert rows["double", "retriever"]["mean"]["mrr@10"] == pytest.approx(3.5)
    assert rows["double", "retriever"]["deviation"]["mrr@10"] == pytest.approx(0.5**0.5)
    assert rows["", "BM25"]["mean"]["mrr@10"] == 4.5
    assert (out / "double/seed_1/first").samefile(out / "plain/seed_0/first")
    families = {(c["family"], c["first"], c["second"]): c for c in summary["comparisons"]}
    between = families["retriever", "plain", "double"]
    assert between["difference"] == pytest.approx(1.5)
    assert (between["wins"], between["ties"]) == (3, 1)
    assert [of["difference"] for of in between["per_seed"].values()] == [1.5, 1.5]
    assert families["double", "BM25", "retriever"]["difference"] == pytest.approx(-1.0)
    text = (out / "summary.md").read_text()
    assert text.startswith("# Toys") and "3.5000 ± 0.7071" in text and "double − plain" in text


def test_only_what_is_new_runs(done: tuple[Path, Any]) -> None:
    out, _ = done
    run(toy(), out)
    assert RAN == []
    more = toy(systems={"plain": {}, "double": {"factor": 2}, "triple": {"factor": 3}})
    run(more, out)
    assert RAN == ["judge 0", "judge 1"]
    # Cells of some systems alone are those of the whole grid.
    assert {row["system"] for row in run(toy(only=["double"]), out)["rows"]} == {"double", ""}
    assert RAN == []
    with pytest.raises(UserError, match="no system 'dubble'.*double"):
        grid.cells(toy(only=["dubble"]), build)


def test_curves_are_drawn_of_the_systems_that_ran(tmp_path: Path) -> None:
    lines: dict[str, Any] = {"by hand": {"plain": 1, "double": 2, "absent": 3}}
    own: dict[str, Any] = {"measured": {"plain": 0.0, "double": "metrics/dense/mrr@10"}}
    curves = {"factor": grid.Curve("the factor", lines), "own": grid.Curve("its own", own)}
    done = run(toy(curves=curves, seeds=(0,)), tmp_path / "out")
    assert {*done["seconds"]} == {"plain", "double"} and done["seconds"]["plain"] > 0
    assert "Minutes of all stages of a system" in (tmp_path / "out/summary.md").read_text()
    for name, label in (("factor", "the factor"), ("own", "its own")):
        drawn = (tmp_path / f"out/{name}.svg").read_text()
        assert label in drawn and "mrr@10, retriever" in drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grids, "curves", lambda summary, lines, label: f"{lines}")
        run(toy(curves=curves, seeds=(0,)), tmp_path / "out")
    assert (tmp_path / "out/factor.svg").read_text() == "{'by hand': {'plain': 1, 'double': 2}}"
    assert "'double': 3.0" in (tmp_path / "out/own.svg").read_text()


def test_mistakes_name_their_cell_or_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="cannot be the name"):
        grid.cells(toy(systems={"a/b": {}}), build)
    with pytest.raises(UserError, match="'dens'.*'dense'"):
        run(toy(rows={"dens": "retriever"}), tmp_path / "third")

    def fail(self: Any, inputs: Any, out: Any) -> None:
        raise UserError("the sky fell")

    monkeypatch.setattr(Judged, "run", fail)
    with pytest.raises(UserError, match="plain/seed_0, stage metrics failed: the sky fell.*again"):
        run(toy(), tmp_path / "out")


def test_rows_that_are_collections_are_compared_between_systems_alone() -> None:
    def judged(shift: float) -> dict[str, results.Result]:
        forum = _result("forum", [shift, 1.0, 0.5])
        tales = _result("tales", [shift, 0.0])
        theirs = {f"t{i}": values for i, values in enumerate(tales.per_query.values())}
        return {"forum": forum, "tales": dataclasses.replace(tales, per_query=theirs)}

    figures = {"a": {0: judged(0.0)}, "b": {0: judged(1.0)}}
    summary = grids.summarize(figures, {"forum": "forum", "tales": "tales"}, {})
    assert [c["family"] for c in summary["comparisons"]] == ["forum", "tales"]
    rows = [{"system": "a", "run": run, "mean": {"ndcg@10": 0.2}} for run in ("forum", "tales")]
    drawn = grids.heatmap({"rows": [{"system": "", "run": "BM25", "mean": {}}, *rows]})
    assert drawn and all(text in drawn for text in (">forum<", ">tales<", ">20.0<"))
    printed = augtriever_tables().rows.values()  # "TREC-COVID" of trec-covid
    rows = [{"system": "a", "run": name, "mean": {"ndcg@10": 0.2}} for name in printed]
    drawn = grids.heatmap({"rows": rows})
    assert drawn and all(f">{name}<" in drawn for name in ("MS MARCO", *GROUPS))
    assert ">TREC-COVID<" not in drawn


def test_some_systems_of_a_grid_are_named(tmp_path: Path, qac: Qac) -> None:
    toy_retrieval.write_collection(tmp_path)
    run = ["run", "claim_qac", f"--data_dir={tmp_path}", "--out=out", "--dry_run"]
    assert "6 cells" in qac(*run, "--systems", "none,queries-cotmae").out
    # A parameter of the recipe beside it leaves the seed a choice of cells.
    shown = qac(*run, "--systems", "none", "--seed", 2, "--samples", 1).out
    assert re.search(r"1 cells.*\n\nnone/seed_2 ", shown)
    # A row that no stage will judge is refused before the first of them.
    given = ["--systems=none", "--seed=0", "--rounds=1", f"--out={tmp_path / 'out'}"]
    said = qac.refused("run", "claim_qac", f"--data_dir={tmp_path}", *given)
    assert "judges no run 'run_2', a row of the grid" in said
    assert not (tmp_path / "out").exists()
