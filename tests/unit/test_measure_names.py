"""ir_measures' names: accepted, printed, and the same figures as ir_measures' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qac_jax import artifacts, cli
from qac_jax.errors import UserError
from qac_jax.evaluation import benchmarks, metrics
from qac_jax.evaluation.benchmarks import Judging
from qac_jax.evaluation.metrics import IR_MEASURES, MEASURES
from qac_jax.evaluation.results import read
from qac_jax.formats import runs
from qac_jax.formats.runs import ranked


NAMES = ("nDCG@10", "RR@10", "R@5", "AP", "AP@3", "P@2", "Success@1", "Rprec", "RR", "NumRet")
RUN = {
    "q1": ranked(["a", "b", "c", "d"], [4.0, 3.0, 2.0, 1.0]),
    "q2": ranked(["c", "a", "b"], [9.0, 8.0, 7.5]),
    "q3": ranked(["d", "c", "b", "a"], [0.4, 0.3, 0.2, 0.1]),
}
QRELS = "q1 0 a 1\nq1 0 d 2\nq1 0 c 0\nq2 0 b 1\nq2 0 x 1\nq3 0 d 2\nq3 0 a 1\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    with open(tmp_path / "own.trec", "w") as file:
        runs.write_lines(file, RUN)
    (tmp_path / "qrels.trec").write_text(QRELS)
    return str(tmp_path / "own.trec"), str(tmp_path / "qrels.trec")


def test_every_name_has_one_of_ours() -> None:
    known = [metrics.own_name(name.replace("K", "10")) for name in IR_MEASURES]
    metrics.check(known)
    for name in IR_MEASURES:
        name = name.replace("K", "10")
        assert metrics.ir_name(metrics.own_name(name)) == name
    for name in MEASURES:
        assert metrics.own_name(name.replace("K", "10")) == name.replace("K", "10")
    assert metrics.ir_name("P_10") == "P_10" and metrics.own_name("unknown@3") == "unknown@3"


@pytest.mark.parametrize("level", [1, 2])
def test_the_figures_are_those_of_ir_measures(files: tuple[str, str], level: int) -> None:
    """From the same TREC files, which both read."""
    theirs: Any = pytest.importorskip("ir_measures")
    named = [metrics.ir_name(metrics.own_name(name), level) for name in NAMES]
    expected = theirs.calc_aggregate(
        [theirs.parse_measure(name) for name in named],
        theirs.read_trec_qrels(files[1]),
        theirs.read_trec_run(files[0]),
    )
    rules = Judging(measures=tuple(named), level=level).resolved()

    found = benchmarks.by_judgements(files[1], rules)("own", runs.read_run(files[0])).mean
    assert {
        name: pytest.approx(found[own]) for name, own in zip(named, rules.measures, strict=True)
    } == {str(measure): value for measure, value in expected.items()}


def test_names_are_printed_as_given(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", "--runs", files[0], "--qrels", files[1]]
    out = str(tmp_path / "out")
    assert (
        cli.main([*words, "--measures", "nDCG@10,RR(rel=2)@10", "--level", "2", "--out", out]) == 0
    )
    head = capsys.readouterr().out.splitlines()[0].split()
    assert head == ["run", "nDCG@10", "RR(rel=2)@10"]
    (result,), _ = read(artifacts.load(out))
    assert list(result.mean) == ["ndcg@10", "mrr@10"]
    words += ["--names", "ir_measures", "--measures", "mrr@10,map", "--out", f"{out}2"]
    assert cli.main(words) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["run", "RR@10", "AP"]


def test_grades_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(UserError, match=r"counts grades from 2 on .*but .* 1 on; pass --level 2"):
        Judging(measures=("AP(rel=2)",)).resolved()
    with pytest.raises(UserError, match="nDCG uses all grades; write nDCG@10"):
        metrics.own_name("nDCG(rel=2)@10", 2)
