"""`qac evaluate` from the command line: figures, comparisons, answers, mistakes."""

import json

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


def complaint(capsys, files, *arguments: str) -> str:
    assert evaluate(files, *arguments) == 2
    return capsys.readouterr().err.strip().split("\n")[-1]


def test_one_run(files, capsys):
    assert evaluate(files, "--runs", "{d}/good.trec", "--qrels", "{d}/test.tsv") == 0
    printed = capsys.readouterr().out
    record = json.loads((files / "out" / "metrics.json").read_text())
    assert record["name"] == "good" and record["queries"] == QUERIES
    for measure, mean in record["mean"].items():
        values = [values[measure] for values in record["per_query"].values()]
        assert mean == pytest.approx(np.mean(values)) and f"{mean:.4f}" in printed
    artifact = artifacts.load(files / "out", "metrics")
    (read,), facts = results.read(artifact)
    assert read.mean == record["mean"] and facts["protocol"] == "own"
    assert artifact.info["mean"] == {"good": record["mean"]}


def test_runs_are_compared(files, capsys):
    both = ("--runs", "{d}/bad.trec,{d}/good.trec", "--qrels", "{d}/test.tsv")
    assert evaluate(files, *both, "--measures", "mrr@10,ndcg@10", "--permutations", "999") == 0
    printed = capsys.readouterr().out
    assert "good − bad" in printed and "won/lost/tied" in printed
    found, facts = results.read(artifacts.load(files / "out"))
    assert [result.name for result in found] == ["bad", "good"]
    first = facts["comparisons"][0]
    assert first["wins"] + first["losses"] + first["ties"] == QUERIES
    assert first["wins"] > first["losses"] and first["difference"] > 0
    expected = found[1].mean["mrr@10"] - found[0].mean["mrr@10"]
    assert first["difference"] == pytest.approx(expected)
    assert first["randomization"] < 0.01 and first["t_test"] < 0.01


def test_settings_reach_the_figures(files, capsys):
    common = ("--runs", "{d}/bad.trec", "--qrels", "{d}/test.tsv", "--overwrite")
    assert evaluate(files, *common, "--depth", "5", "--measures", "hit@50,hit@5") == 0
    assert "holds at most 5 passages a query, so hit@50 may be too low" in capsys.readouterr().err
    (cut,), _ = results.read(artifacts.load(files / "out"))
    assert cut.mean["hit@50"] == cut.mean["hit@5"]
    assert evaluate(files, *common, "--measures", "hit@50,map", "--protocol", "msmarco") == 0
    (whole,), facts = results.read(artifacts.load(files / "out"))
    assert whole.mean["hit@50"] == 1.0 and facts["over"] == "answerable"
    assert evaluate(files, *common, "--level", "2", "--measures", "map") == 0
    (nothing,), _ = results.read(artifacts.load(files / "out"))
    assert nothing.mean["map"] == 0


def passages(folder):
    texts = ["The river Nile", "Mars is a planet.", "Nothing here"]
    records = [{"_id": f"d{i}", "title": "Venus", "text": t} for i, t in enumerate(texts)]
    with artifacts.create(folder, kind="passages") as writer:
        write_records(writer, records)
    return folder


def test_answers(files, capsys):
    passages(files / "passages")
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
    said = complaint(capsys, files, *common, "--overwrite")
    assert "'elsewhere' is not among the passages" in said


def test_runs_are_fused(files, capsys):
    runs = ["--runs", f"{files}/good.trec,{files}/bad.trec"]
    assert cli.main(["fuse", *runs, "--weights", "1,0", "--out", str(files / "ranks")]) == 0
    fused, good = read_run(files / "ranks" / "run.trec"), read_run(files / "good.trec")
    assert all(fused[query].ids == good[query].ids for query in good)
    assert cli.main(["fuse", "--runs", f"{files}/good.trec", "--out", str(files / "x")]) == 2
    assert "give two or more" in capsys.readouterr().err


def test_a_table_of_many_sets(files, capsys):
    """Figures that were made one by one, and the averages that are whole."""
    passages(files / "passages")
    (files / "asked.jsonl").write_text('{"question": "which planet?", "answer": ["mars"]}\n')
    write_run(files / "asked.trec", {"0": ranked(["d0", "d1"], [2, 1])})
    for name in ("squad", "entityquestions", "nq"):
        words = ["--runs", "asked.trec", "--queries", "asked.jsonl", "--passages", "passages"]
        words = [word if word.startswith("--") else f"{files}/{word}" for word in words]
        assert cli.main(["evaluate", *words, "--out", str(files / "asked" / name)]) == 0
    words = ["--runs", f"{files}/good.trec", "--qrels", f"{files}/test.tsv"]
    assert cli.main(["evaluate", *words, "--out", str(files / "msmarco")]) == 0
    (single,), _ = results.read(artifacts.load(files / "msmarco"))
    capsys.readouterr()
    sets = ",".join(f"{{d}}/asked/{name}" for name in ("squad", "entityquestions", "nq"))
    step = ["step", "suite", "--out", str(files / "out"), "--metrics"]
    assert cli.main([*step, f"{files}/msmarco,{sets.format(d=files)}"]) == 0
    printed = capsys.readouterr().out
    lines = {line.split("  ")[0]: line.split()[-1] for line in printed.split("\n") if line}
    assert lines["MM"] == lines["MS MARCO"] == f"{100 * single.mean['ndcg@10']:.1f}"
    assert lines["SQ&EQ"] == lines["EntityQuestions R@20"] == "100.0"
    assert lines["QA4"] == lines["BEIR14"] == "–"
    assert "3 of the 6 question sets are missing: TriviaQA, WebQ, CuratedTREC" in printed
    _, facts = results.read(artifacts.load(files / "out"))
    assert facts["averages"]["SQ&EQ"] == 1.0 and len(facts["missing_sets"]) == 14

    def refused(metrics: str) -> str:
        assert cli.main([*step, metrics, "--overwrite"]) == 2
        return capsys.readouterr().err

    nq = f"{files}/asked/nq"
    assert "has figures of questions/nq again" in refused(f"{nq},{nq}")
    (files / "asked" / "squad").rename(files / "asked" / "mine")
    assert "'mine' has figures of questions" in refused(f"{files}/asked/mine")


def test_mistakes_are_one_sentence(files, capsys):
    def error_of(*arguments: str) -> str:
        return complaint(capsys, files, *arguments)

    run = ("--runs", "{d}/good.trec")
    assert "needs one of --qrels, --queries" in error_of(*run)
    assert "belong together" in error_of(*run, "--queries", "{d}/test.tsv")
    judged = (*run, "--qrels", "{d}/test.tsv")
    assert "did you mean 'ndcg@10'" in error_of(*judged, "--measures", "ndgc@10")
    assert "at least 0" in error_of(*judged, "--level", "-1")
    (files / "broken.trec").write_text("q0 Q0 d0 1 0.5 t\nq0 Q0 d0 2 0.4 t\n")
    said = error_of("--runs", "{d}/broken.trec", "--qrels", "{d}/test.tsv")
    assert "passage 'd0' was ranked" in said
    for judgements in ("", "a\tb\n"):
        (files / "other.tsv").write_text(judgements)
        assert "none of" in error_of(*run, "--qrels", "{d}/other.tsv")
