"""`qac evaluate` and `qac analyse` from the command line: figures, sheets, mistakes."""

import csv
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from toy_examples import written
from toy_process import Qac

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.evaluation import relatedness, results
from qac_jax.evaluation.results import read
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


def evaluate(files: Path, *arguments: str) -> list[str]:
    out = str(files / "out")
    return ["evaluate", *[a.format(d=files) for a in arguments], "--out", out]


def test_runs_are_compared(files: Path, qac: Qac) -> None:
    both = ("--runs", "{d}/bad.trec,{d}/good.trec", "--qrels", "{d}/test.tsv")
    measures = ("--measures", "mrr@10,ndcg@10", "--permutations", "999")
    assert "good − bad" in qac(*evaluate(files, *both, *measures)).out
    found, facts = results.read(artifacts.load(files / "out"))
    assert [result.name for result in found] == ["bad", "good"]
    first = facts["comparisons"][0]
    assert first["wins"] + first["losses"] + first["ties"] == QUERIES
    expected = found[1].mean["mrr@10"] - found[0].mean["mrr@10"]
    assert first["wins"] > first["losses"] and first["difference"] == pytest.approx(expected)
    assert first["randomization"] < 0.01 and first["t_test"] < 0.01


def test_settings_reach_the_figures(files: Path, qac: Qac) -> None:
    common = ("--runs", "{d}/bad.trec", "--qrels", "{d}/test.tsv", "--overwrite")
    said = qac(*evaluate(files, *common, "--depth", "5", "--measures", "hit@50,hit@5")).err
    assert "5 passages a query are few for hit@50" in said
    (cut,), _ = results.read(artifacts.load(files / "out"))
    assert cut.mean["hit@50"] == cut.mean["hit@5"]
    level = ("--protocol", "msmarco", "--level", "2", "--measures", "map")
    qac(*evaluate(files, *common, *level))
    (nothing,), facts = results.read(artifacts.load(files / "out"))
    assert nothing.mean["map"] == 0 and facts["over"] == "answerable"


def test_answers(files: Path, qac: Qac) -> None:
    texts = ["The river Nile", "Mars is a planet.", "Nothing here"]
    listed = [{"_id": f"d{i}", "title": "Venus", "text": t} for i, t in enumerate(texts)]
    written(files / "passages", "passages", listed)
    (files / "nq.jsonl").write_text(
        '{"question": "which planet?", "answer": ["mars"]}\n'
        '{"question": "which goddess?", "answer": ["Venus"]}\n'
    )
    run = {q: ranked(["d0", "d1", "d2"], [3, 2, 1]) for q in ("0", "1")}
    write_run(files / "nq.trec", run)
    common = ("--runs", "{d}/nq.trec", "--queries", "{d}/nq.jsonl", "--passages", "{d}/passages")
    qac(*evaluate(files, *common))
    (found,), facts = results.read(artifacts.load(files / "out"))
    assert found.mean == {"hit@5": 0.5, "hit@20": 0.5, "hit@100": 0.5}, "titles do not count"
    assert facts["protocol"] == "answers" and found.hit_rates() == found.mean
    write_run(files / "nq.trec", {"0": ranked(["d0", "elsewhere"], [2, 1])})
    said = qac.refused(*evaluate(files, *common, "--overwrite"))
    assert "'elsewhere' is not among the passages" in said


def test_runs_are_fused(files: Path, qac: Qac) -> None:
    runs = f"{files}/good.trec,{files}/bad.trec"
    qac("fuse", "--runs", runs, "--weights", "1,0", "--out", files / "ranks")
    fused, good = read_run(files / "ranks" / "run.trec"), read_run(files / "good.trec")
    assert all(fused[query].ids == good[query].ids for query in good)
    alone = qac.refused("fuse", "--runs", files / "good.trec", "--out", files / "x")
    assert "give two or more" in alone


def test_a_table_of_many_sets(files: Path, qac: Qac) -> None:
    """Figures that were made one by one, and the averages that are whole."""
    for name, run in (("msmarco", "good"), ("nfcorpus", "bad")):
        words = ["--runs", files / f"{run}.trec", "--qrels", files / "test.tsv"]
        qac("evaluate", *words, "--out", files / name)
    (single,), _ = results.read(artifacts.load(files / "msmarco"))
    metrics = f"{files}/msmarco,{files}/nfcorpus"
    printed = qac("step", "suite", "--out", files / "out", "--metrics", metrics).out
    rows = [line.split("|") for line in printed.split("\n") if "|" in line]
    lines = {row[1].strip(): row[-2].strip() for row in rows}
    assert lines["MM"] == lines["MS MARCO"] == f"{100 * single.mean['ndcg@10']:.1f}"
    assert lines["QA4"] == lines["BEIR14"] == "–"


def test_runs_and_judgements_that_do_not_fit_are_refused(files: Path, qac: Qac) -> None:
    (files / "broken.trec").write_text("q0 Q0 d0 1 0.5 t\nq0 Q0 d0 2 0.4 t\n")
    (files / "other.tsv").write_text("a\tb\n")
    for run, qrels, said in (
        ("broken.trec", "test.tsv", "passage 'd0' was ranked"),
        ("good.trec", "other.tsv", "none of"),
    ):
        words = evaluate(files, "--runs", f"{files}/{run}", "--qrels", f"{files}/{qrels}")
        assert said in qac.refused(*words)


DOCUMENTS, EACH = 8, 5


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> list[str]:
    """Passages of words of their own and of their document's, and queries of their own words."""
    root = tmp_path_factory.mktemp("pairs")
    passages, contexts = [], []
    for d, p in itertools.product(range(DOCUMENTS), range(EACH)):
        words = [f"own{d}x{p}y{w}" for w in range(4)] + [f"topic{d}z{w}" for w in range(2)]
        passage = {"_id": f"d{d}-{p}", "doc": f"d{d}", "position": p, "title": ""}
        passages.append(passage | {"text": " ".join(words)})
        query = {"text": f"what is own{d}x{p}y1", "origin": "text2query", "score": 0.0}
        contexts.append({"_id": f"d{d}-{p}", "contexts": [query]})
    pairs = written(root / "contexts", "contexts", contexts)
    return ["--pairs", pairs, "--passages", written(root / "passages", "passages", passages)]


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_queries_lead_back_to_their_passages(asked, tmp_path, qac: Qac) -> None:
    printed = qac("analyse", *asked, "--out", tmp_path / "out").out
    found, _ = read(artifacts.load(tmp_path / "out"))
    means = {result.name: result.mean for result in found}
    assert {result.queries for result in found} == {DOCUMENTS * EACH}
    assert means[relatedness.QUERY]["bm25 mrr"] == 1.0
    assert means[relatedness.QUERY]["copied"] == pytest.approx(1 / 3)  # not "what is"
    # A sibling shares the topic with all four others: it cannot tell them apart.
    for sort in (relatedness.RANDOM, relatedness.NEARBY):
        assert 0.2 < means[sort]["bm25 mrr"] < 0.9 and means[sort]["bm25 hit@10"] == 1.0
    assert relatedness.QUERY in printed and "t-test" in printed


def test_a_sheet_is_blind_and_votes_are_counted(asked, tmp_path, qac: Qac) -> None:
    sheet = tmp_path / "out" / "sheet.csv"
    qac("analyse", *asked, "--sheet", "--sheet_items", 6, "--out", tmp_path / "out")
    rows = table(sheet)
    assert len(rows) == 18 and set(rows[0]) == set(relatedness.SHEET)
    assert "nearby" not in sheet.read_text()
    key = {int(r["number"]): r["sort"] for r in table(tmp_path / "out" / "key.csv")}
    order = [key[int(row["number"])] for row in rows]
    assert order != sorted(order)  # shuffled
    # Three judges: queries are related to two of them, passages to one.
    for judge in range(3):
        with (tmp_path / f"judge{judge}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, relatedness.SHEET)
            writer.writeheader()
            for row in rows:
                query = key[int(row["number"])] == relatedness.QUERY
                row["vote"] = "yes" if judge == 0 or (query and judge == 1) else "0"
                writer.writerow(row)
    filled = ",".join(str(tmp_path / f"judge{judge}.csv") for judge in range(3))
    counted = ["--sheets", filled, "--key", tmp_path / "out" / "key.csv"]
    printed = qac("analyse", *counted, "--out", tmp_path / "votes").out
    record = json.loads((tmp_path / "votes" / "metrics.json").read_text())
    rates = {name: mean["highly related"] for name, mean in record["mean"].items()}
    assert rates == {relatedness.QUERY: 1.0, relatedness.RANDOM: 0.0, relatedness.NEARBY: 0.0}
    # By hand: every item has two alike of three, P = 1/3; yes is 4/9 of the votes.
    chance = (4 / 9) ** 2 + (5 / 9) ** 2
    assert record["kappa"] == pytest.approx((1 / 3 - chance) / (1 - chance))
    assert "kappa" in printed


def test_a_sheet_of_labels(asked, tmp_path, qac: Qac) -> None:
    """A positive and a negative of each query, whatever the number of lines that it has."""
    sides = {"positives": ["d0-0"], "negatives": ["d1-1", "d2-2"]}
    lines = [{"_id": f"q{n}", "query": f"what is own0x0y{n % 4}", **sides} for n in (0, 0, 1)]
    labels = ["--pairs", written(tmp_path / "labels", "negatives", lines), *asked[2:]]
    qac("analyse", *labels, "--sheet", "--out", tmp_path / "out")
    rows, key = (table(tmp_path / "out" / name) for name in ("sheet.csv", "key.csv"))
    assert sorted(r["sort"] for r in key) == ["negatives", "negatives", "positives", "positives"]
    for row, (sort, name) in zip(rows, ((r["sort"], r["name"]) for r in key), strict=True):
        assert row["second"] == f"what is own0x0y{name[1:]}"
        assert row["first"].startswith("own0x0") == (sort == "positives")
    (right, wrong), _ = read(artifacts.load(tmp_path / "out"))
    assert (right.mean["bm25 mrr"], wrong.mean["bm25 mrr"]) == (1.0, 0.0)


def test_a_bad_vote_names_its_line(tmp_path):
    key, sheet = tmp_path / "key.csv", tmp_path / "sheet.csv"
    key.write_text("number,sort,name\n1,a,x\n2,b,y\n")
    for row, said in (("2,a,b,perhaps\n", "sheet.csv.*3.*'perhaps' on number 2"), ("", "1 of 2")):
        sheet.write_text(f"number,first,second,vote\n1,a,b,1\n{row}")
        with pytest.raises(UserError, match=said):
            relatedness.read_votes(sheet, relatedness.read_key(key))
