"""`qac evaluate` from the command line: figures, comparisons, answers, mistakes."""

import numpy as np
import pytest

from qac_jax import artifacts, cli
from qac_jax.evaluation import results
from qac_jax.formats.records import write_records
from qac_jax.formats.runs import ranked, read_run, write_run


QUERIES = 30


@pytest.fixture
def files(tmp_path):
    """Judgements of one relevant passage a query; `good` finds it early, `bad` late."""
    rng = np.random.default_rng(0)
    lines = ["query-id\tcorpus-id\tscore"]
    runs: dict = {"good": {}, "bad": {}}
    for q in range(QUERIES):
        lines.append(f"q{q}\td{q}\t1")
        for name, latest in (("good", 4), ("bad", 40)):
            ids = [f"d{d}" for d in rng.permutation(100) if d != q]
            ids.insert(int(rng.integers(latest)), f"d{q}")
            runs[name][f"q{q}"] = ranked(ids, -np.arange(100))
    (tmp_path / "test.tsv").write_text("\n".join(lines) + "\n")
    for name, run in runs.items():
        write_run(tmp_path / f"{name}.trec", run)
    return tmp_path


def evaluate(files, *arguments: str) -> int:
    out = str(files / "out")
    return cli.main(["evaluate", *[a.format(d=files) for a in arguments], "--out", out])


def test_runs_are_compared(files, capsys):
    both = ("--runs", "{d}/bad.trec,{d}/good.trec", "--qrels", "{d}/test.tsv")
    assert evaluate(files, *both, "--measures", "mrr@10,ndcg@10", "--permutations", "999") == 0
    assert "good − bad" in capsys.readouterr().out
    found, facts = results.read(artifacts.load(files / "out"))
    assert [result.name for result in found] == ["bad", "good"]
    first = facts["comparisons"][0]
    assert first["wins"] + first["losses"] + first["ties"] == QUERIES
    expected = found[1].mean["mrr@10"] - found[0].mean["mrr@10"]
    assert first["wins"] > first["losses"] and first["difference"] == pytest.approx(expected)
    assert first["randomization"] < 0.01 and first["t_test"] < 0.01


def test_settings_reach_the_figures(files, capsys):
    common = ("--runs", "{d}/bad.trec", "--qrels", "{d}/test.tsv", "--overwrite")
    assert evaluate(files, *common, "--depth", "5", "--measures", "hit@50,hit@5") == 0
    assert "5 passages a query are few for hit@50" in capsys.readouterr().err
    (cut,), _ = results.read(artifacts.load(files / "out"))
    assert cut.mean["hit@50"] == cut.mean["hit@5"]
    level = ("--protocol", "msmarco", "--level", "2", "--measures", "map")
    assert evaluate(files, *common, *level) == 0
    (nothing,), facts = results.read(artifacts.load(files / "out"))
    assert nothing.mean["map"] == 0 and facts["over"] == "answerable"


def test_answers(files, capsys):
    texts = ["The river Nile", "Mars is a planet.", "Nothing here"]
    with artifacts.create(files / "passages", kind="passages") as writer:
        listed = [{"_id": f"d{i}", "title": "Venus", "text": t} for i, t in enumerate(texts)]
        write_records(writer, listed)
    (files / "nq.jsonl").write_text(
        '{"question": "which planet?", "answer": ["mars"]}\n'
        '{"question": "which goddess?", "answer": ["Venus"]}\n'
    )
    run = {q: ranked(["d0", "d1", "d2"], [3, 2, 1]) for q in ("0", "1")}
    write_run(files / "nq.trec", run)
    common = ("--runs", "{d}/nq.trec", "--queries", "{d}/nq.jsonl", "--passages", "{d}/passages")
    assert evaluate(files, *common) == 0
    (found,), facts = results.read(artifacts.load(files / "out"))
    assert found.mean == {"hit@5": 0.5, "hit@20": 0.5, "hit@100": 0.5}, "titles do not count"
    assert facts["protocol"] == "answers" and found.hit_rates() == found.mean
    write_run(files / "nq.trec", {"0": ranked(["d0", "elsewhere"], [2, 1])})
    assert evaluate(files, *common, "--overwrite") == 2
    assert "'elsewhere' is not among the passages" in capsys.readouterr().err


def test_runs_are_fused(files, capsys):
    runs = ["--runs", f"{files}/good.trec,{files}/bad.trec"]
    assert cli.main(["fuse", *runs, "--weights", "1,0", "--out", str(files / "ranks")]) == 0
    fused, good = read_run(files / "ranks" / "run.trec"), read_run(files / "good.trec")
    assert all(fused[query].ids == good[query].ids for query in good)
    assert cli.main(["fuse", "--runs", f"{files}/good.trec", "--out", str(files / "x")]) == 2
    assert "give two or more" in capsys.readouterr().err


def test_a_table_of_many_sets(files, capsys):
    """Figures that were made one by one, and the averages that are whole."""
    for name, run in (("msmarco", "good"), ("nfcorpus", "bad")):
        words = ["--runs", f"{files}/{run}.trec", "--qrels", f"{files}/test.tsv"]
        assert cli.main(["evaluate", *words, "--out", str(files / name)]) == 0
    (single,), _ = results.read(artifacts.load(files / "msmarco"))
    capsys.readouterr()
    step = ["step", "suite", "--out", str(files / "out"), "--metrics"]
    assert cli.main([*step, f"{files}/msmarco,{files}/nfcorpus"]) == 0
    printed = capsys.readouterr().out
    rows = [line.split("|") for line in printed.split("\n") if "|" in line]
    lines = {row[1].strip(): row[-2].strip() for row in rows}
    assert lines["MM"] == lines["MS MARCO"] == f"{100 * single.mean['ndcg@10']:.1f}"
    assert lines["QA4"] == lines["BEIR14"] == "–"


def test_runs_and_judgements_that_do_not_fit_are_refused(files, capsys):
    (files / "broken.trec").write_text("q0 Q0 d0 1 0.5 t\nq0 Q0 d0 2 0.4 t\n")
    (files / "other.tsv").write_text("a\tb\n")
    for run, qrels, said in (
        ("broken.trec", "test.tsv", "passage 'd0' was ranked"),
        ("good.trec", "other.tsv", "none of"),
    ):
        assert evaluate(files, "--runs", f"{files}/{run}", "--qrels", f"{files}/{qrels}") == 2
        assert said in capsys.readouterr().err
