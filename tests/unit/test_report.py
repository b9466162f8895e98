"""The report of a tiny run: everything is on the page, and the page needs nothing else."""

import json
import os
import re
import shutil
from html import escape
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from toy_retrieval import WORDS, sentence, write_collection

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.evaluation.benchmarks import BEIR14, GROUPS, Suite
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.records import write_records
from qac_jax.formats.runs import Ranking, ranked, write_lines
from qac_jax.pipeline.stage import execute
from qac_jax.report import plots, suites
from qac_jax.report.gathering import Content
from qac_jax.report.plots import Series
from qac_jax.report.render import html, markdown
from qac_jax.stages.evaluate import Evaluate
from qac_jax.stages.report import PAGE, TABLE, Report


PASSAGES, QUERIES = 40, 24
# How late the relevant passage comes at the most: the fewer, the better the system.
SYSTEMS = {"bm25": 30, "retriever_1": 8, "retriever_2": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """passages, contexts, encoder (with a history), runs and natural (metrics)."""
    root, rng = tmp_path_factory.mktemp("report"), np.random.default_rng(0)
    folder, names = root / "run", [f"p{n}" for n in range(PASSAGES)]
    with artifacts.create(folder / "passages", kind="passages", stage="prepare") as out:
        titles = [f"About {WORDS[n % 20]} <{n}>" for n in range(PASSAGES)]
        given = zip(names, titles, strict=True)
        write_records(out, [{"_id": n, "title": t, "text": sentence(rng, 20)} for n, t in given])
        out.info["seconds"] = 12.5
    with artifacts.create(folder / "queries", kind="contexts", stage="generate") as out:
        asked = [f"who likes a {WORDS[(n + 1) % 20]} & why?" for n in range(PASSAGES)]
        given = zip(names, asked, strict=True)
        found = [{"_id": n, "contexts": [{"text": text, "origin": "t5"}]} for n, text in given]
        write_records(out, found, "contexts")
        out.info.update(seconds=75.0, peak_resident_bytes=2**30)
    with artifacts.create(folder / "encoder", kind="parameters", stage="pretrain") as out:
        with out.open("metrics.jsonl") as file:
            for step in range(10, 1001, 10):
                row = {"step": step, "loss": 2 + 6 * float(np.exp(-step / 200)), "step_ms": 80.0}
                file.write(json.dumps(row) + "\n")
        out.info.update(seconds=605.0, gin="train.Train.steps = 1000\n")
    data = write_collection(root / "data", PASSAGES, QUERIES)
    qrels, fields = data / "qrels" / "test.tsv", {"queries": os.fspath(data / "queries.jsonl")}
    truth = {query: min(found) for query, found in by_query(read_judgements(qrels)).items()}
    for system, latest in SYSTEMS.items():
        with artifacts.create(folder / system, kind="run", stage="search", fields=fields) as out:
            with out.open("run.trec") as file:
                write_lines(file, {q: late(rng, p, latest) for q, p in truth.items()})
            out.count = QUERIES
            out.info["seconds"] = 1.0
    runs = ",".join(os.fspath(folder / system) for system in SYSTEMS)
    stage = Evaluate.make(runs=runs, qrels=os.fspath(qrels), permutations=999)
    execute(stage, folder / "natural")
    return folder


def late(rng: np.random.Generator, relevant: str, latest: int) -> Ranking:
    ids = [f"p{n}" for n in rng.permutation(PASSAGES) if f"p{n}" != relevant]
    ids.insert(int(rng.integers(latest)), relevant)
    return ranked(ids, 20 - np.arange(len(ids)) / 2)


@pytest.fixture(scope="module")
def made(run: Path) -> artifacts.Artifact:
    return execute(Report(folder=str(run), title="Stones & rivers"), run / "report")


def test_everything_is_on_the_page_and_it_stands_alone(made: artifacts.Artifact) -> None:
    text = made.file(PAGE).read_text()
    for expected in ("Stones & rivers", "who likes a ladder & why?", "About stone <21>"):
        assert escape(expected, quote=False) in text, expected
    headings = "Figures|Wins and losses|Training|Samples|Time and memory|Configuration"
    assert re.findall(r"<h2>(.*?)</h2>", text) == headings.split("|")
    loads = re.findall(r'\b(?:src|href)="([^"]*)"', text)
    assert loads and all(link.startswith("#") for link in loads)
    elsewhere = text.replace("http://www.w3.org/", "")  # names of SVG, which nobody loads
    assert "<script" not in text and "http" not in elsewhere and "@import" not in text


def test_figures_and_their_marks(made: artifacts.Artifact) -> None:
    table = re.sub(" +", " ", made.file(TABLE).read_text())
    lines = [line for line in table.splitlines() if line.startswith(("| a", "| b", "| c"))]
    assert [line.split(" | ")[1] for line in lines] == ["bm25", "retriever_1", "retriever_2"]
    assert "^" not in lines[0] and "^ab" in lines[2] and "**" in lines[2]
    assert "<sup>ab</sup>" in made.file(PAGE).read_text()
    assert "24 questions" in table and "mrr: the mean of 1 / rank of the first" in table
    dot = Content("dot", curves={"trained": [{"step": 1, "loss": 2.0}]})
    assert "<h2>Training" not in html(dot)


def test_it_is_made_again_when_the_run_changes(run: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("report"))
    stage = Report(folder=str(moved))
    first = execute(stage, moved / "report")
    assert execute(stage, moved / "report").record["written"] == first.record["written"]
    artifacts.remove(moved / "encoder")
    again = execute(stage, moved / "report", replace=True)
    assert again.key != first.key and "<h2>Training" not in again.file(PAGE).read_text()


def test_a_verdict_comes_first() -> None:
    asked = {"test": {"count": 1200, "makers": "people <x>", "filters": ""}}
    conclusion = {"verdict": ["1,200 questions.", "Use a & b."], "questions": asked}
    content = Content("mine", conclusion=conclusion)
    text = html(content)
    assert "Use a &amp; b." in text and "people &lt;x&gt;" in text and "1,200" in text
    assert "| test | 1,200 | people &lt;x> | none |" in re.sub(" +", " ", markdown(content))


def test_a_plot_has_its_lines_and_names_and_the_same_bytes_every_time() -> None:
    names = [f"system <{number}>" for number in range(9)]
    series = [Series(name, [0, 5, 10], [0, 1, float("nan")]) for name in names]
    series.append(Series("inf", [0], [float("inf")]))
    drawn, again = (plots.lines(series, "$x$", "y", reference=2) for _ in range(2))
    assert drawn is not None and drawn == again
    picture = ElementTree.fromstring(drawn)
    texts = [node.text for node in picture.iter() if node.tag.endswith("}text")]
    assert {*names, "$x$", "y"} <= set(texts) and "inf" not in texts and "nan" not in drawn


def test_groups_are_means_of_their_members() -> None:
    suite = Suite({name: float(name in ("arguana", "nq")) for name in BEIR14})
    groups = suite.groups()
    assert list(groups) == list(GROUPS) and groups["argument"] == 0.5  # beside Touché
    drawn = suites.heatmap({"a": suite, "b": suite})
    assert drawn and all(f">{name}</text>" in drawn for name in ("a", "b", *GROUPS))


def test_what_a_report_shows_is_not_written_over(run: Path) -> None:
    for out in (run, run / "natural", run / "natural" / "page", run.parent):
        with pytest.raises(UserError, match="lie in one another"):
            execute(Report(folder=str(run)), out, replace=True)
    artifacts.load(run / "natural").verify()
