"""The report of a tiny run: everything is on the page, and the page needs nothing else."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import toy_report

from qac_jax import artifacts, cli
from qac_jax.errors import UserError
from qac_jax.evaluation import results
from qac_jax.evaluation.results import Result
from qac_jax.evaluation.significance import Comparison
from qac_jax.pipeline.stage import execute
from qac_jax.report import page
from qac_jax.report.content import Content, Evaluation
from qac_jax.report.html import html
from qac_jax.report.markdown import markdown
from qac_jax.stages.report import PAGE, TABLE, Report


VOID = {"meta", "path", "circle", "polyline", "polygon", "rect"}


class Checker(HTMLParser):
    """Every element is closed; text and attributes are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        values = dict(attrs)
        self.loads += [v for n in ("src", "href", "xlink:href") if (v := values.get(n))]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    return checker


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_report.build(tmp_path_factory.mktemp("report") / "run")


@pytest.fixture(scope="module")
def made(run: Path) -> artifacts.Artifact:
    return execute(Report(folder=str(run), title="Stones & rivers"), run / "report")


def test_everything_is_on_the_page(made: artifacts.Artifact) -> None:
    text = made.file(PAGE).read_text()
    checker = parsed(text)
    words = " ".join(checker.text)
    for expected in (
        "Stones & rivers",
        "retriever_2 against bm25, ndcg@10",
        "who likes a ladder & why?",
        "About stone <21>",
        "where is the",
        "10:05",
        "recall@10 0.9625",
        "train.Train.steps = 1000",
        '"steps": 1000',
        "score by retriever_2",
        "learning rate",
        "validation",
    ):
        assert expected in words, expected
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == [
        "Figures",
        "Wins and losses",
        "Distributions",
        "Training",
        "Index",
        "Samples",
        "Time and memory",
        "Configuration",
    ]


def test_the_page_stands_alone(made: artifacts.Artifact) -> None:
    text = made.file(PAGE).read_text()
    assert all(link.startswith("#") for link in parsed(text).loads)
    assert "<script" not in text and "http" not in text and "@import" not in text
    assert "prefers-color-scheme: dark" in text and "@media print" in text
    assert 'name="viewport"' in text


def test_figures_and_their_marks(made: artifacts.Artifact) -> None:
    table = made.file(TABLE).read_text()
    lines = [line for line in table.splitlines() if line.startswith(("| a", "| b", "| c"))]
    assert [line.split(" | ")[1] for line in lines] == ["bm25", "retriever_1", "retriever_2"]
    assert "^" not in lines[0] and "^ab" in lines[2] and "**" in lines[2]
    assert "<sup>ab</sup>" in made.file(PAGE).read_text()
    assert "24 questions" in table
    compared = [line.split(" | ")[:2] for line in table.splitlines() if " − " in line]
    assert compared == [
        ["| retriever_2 − bm25", "ndcg@10"],
        ["| retriever_2 − retriever_1", "ndcg@10"],
    ]
    assert "All 9 comparisons" in made.file(PAGE).read_text()


def test_marks_follow_the_test() -> None:
    results = [Result("x", {"map": 0.2}, {}, 9), Result("y", {"map": 0.3}, {}, 9)]

    def marks(p: float, difference: float) -> dict[str, str]:
        found = Comparison("x", "y", "map", 9, difference, 5, 4, 0, 0.0, 0.0, p, p)
        return Evaluation("t", results, [found]).better_than("map")

    assert marks(0.049, 0.1) == {"x": "", "y": "a"}
    assert marks(0.049, -0.1) == {"x": "b", "y": ""}
    assert marks(0.051, 0.1) == {"x": "", "y": ""}


def test_it_is_made_again_when_the_run_changes(run: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("report"))
    stage = Report(folder=str(moved))
    first = execute(stage, moved / "report")
    assert execute(stage, moved / "report").record["written"] == first.record["written"]
    assert first.identity == execute(stage, tmp_path / "elsewhere").identity
    artifacts.remove(moved / "encoder")
    again = execute(stage, moved / "report", replace=True)
    assert again.key != first.key
    assert "<h2>Training" not in again.file(PAGE).read_text()


def test_a_moved_run_still_has_its_texts(tmp_path: Path) -> None:
    toy_report.build(tmp_path / "made")
    moved = shutil.move(tmp_path / "made", tmp_path / "moved")
    text = execute(Report(folder=str(moved)), tmp_path / "out").file(PAGE).read_text()
    assert "where is the" in text and "About" in text and "best other" in text


def test_a_list_of_metrics_is_enough(run: Path, tmp_path: Path) -> None:
    stage = Report(metrics=str(run / "natural"), title="one", cases=1)
    made = execute(stage, tmp_path / "out")
    text = made.file(PAGE).read_text()
    assert made.count == 1 and text.count('class="case"') < 30
    assert "<h2>Training" in text, "what lies beside the metrics is shown too"


def test_collections_become_a_heat_map(tmp_path: Path) -> None:
    for name, figure in (("crops", 0.2), ("spans", 0.3)):
        of = [
            Result(c, {"ndcg@10": figure}, {f"{c}{i}": {"ndcg@10": figure} for i in "12"}, 2)
            for c in ("forum", "tales")
        ]
        fields = {"beir": "data"}
        with artifacts.create(
            tmp_path / "run" / name,
            kind="metrics",
            schema=1,
            key=name,
            stage="evaluate",
            fields=fields,
        ) as out:
            with out.open(results.FILE) as file:
                results.write(file, of, {"comparisons": []})
            out.count = 4
    assert (
        cli.main(["report", "--folder", str(tmp_path / "run"), "--out", str(tmp_path / "r")]) == 0
    )
    text = (tmp_path / "r" / "report.html").read_text()
    assert "Heat map" in text and "spans, tales" in text and "30.0" in text


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="pass --folder DIR"):
        execute(Report(), tmp_path / "a")
    with pytest.raises(UserError, match="is not a folder"):
        execute(Report(folder=str(tmp_path / "no")), tmp_path / "b")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no finished artefact"):
        execute(Report(folder=str(tmp_path / "empty")), tmp_path / "c")
    assert cli.main(["report", "--dry_run"]) == 2
    assert "report needs results to show" in capsys.readouterr().err


def test_tables_of_a_page() -> None:
    shown = page.table(["name", "n"], [["<a>", "1"], ["b ^x", "–"]], rich=True)
    assert "&lt;a&gt;" in shown and "<sup>x</sup>" in shown
    assert shown.count('class="word"') == 3, "the column of names only"


def test_a_report_of_nothing_is_empty() -> None:
    content = Content("nothing")
    assert "<h2>" not in html(content)
    assert markdown(content) == "# nothing\n"


def test_systems_are_called_as_they_are_named(run: Path, tmp_path: Path) -> None:
    stage = Report(folder=str(run), names={"bm25": "A baseline", "retriever_2": "Ours"})
    text = execute(stage, tmp_path / "named").file(TABLE).read_text()
    assert "A baseline" in text and "Ours" in text and "retriever_1" in text
    assert "bm25" not in text and "retriever_2" not in text
