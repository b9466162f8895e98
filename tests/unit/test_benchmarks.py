"""The benchmarks' rules, the papers' own averages, collections in folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qac_jax.errors import UserError
from qac_jax.evaluation import benchmarks, metrics
from qac_jax.evaluation.benchmarks import (
    BEIR14,
    FORUMS,
    PROTOCOLS,
    Collection,
    Suite,
    evaluate_collection,
    evaluate_folder,
    judge,
    protocol,
)
from qac_jax.formats.runs import ranked
from qac_jax.report import suites, tables


# AugTriever, Table 6, as printed: MS MARCO, the 14 BEIR sets, R@5/20/100 of six question sets.
PUBLISHED = {
    "Contriever": (
        "20.6 27.5 31.7 25.4 48.1 24.5 37.9 16.7 29.2 14.9 68.2 15.5 64.9 83.5 28.4 36.9 "
        "47.2 67.2 81.3 59.5 74.2 83.2 44.0 65.8 79.8 67.7 85.5 93.1 44.2 63.1 78.4 "
        "50.3 64.7 76.3 52.1 70.1 82.0",
        "20.6 36.9 40.7 73.1 63.9",
    ),
    "Hybrid-TQGen+": (
        "24.6 59.5 32.7 32.7 57.1 26.9 41.2 17.8 32.6 16.8 65.5 16.4 67.8 79.3 29.4 41.1 "
        "49.5 69.7 82.7 64.1 76.6 84.3 51.1 70.7 82.3 69.9 86.9 93.4 43.9 63.4 78.0 "
        "56.6 68.5 78.7 55.8 72.6 83.3",
        "24.6 41.1 45.2 76.0 65.9",
    ),
}


def published(row: str) -> tuple[Suite, list[float]]:
    values = [float(value) / 100 for value in row.split()]
    ndcg = dict(zip(["msmarco", *BEIR14], values, strict=False))
    rates = values[16:]
    hits = {
        name: {f"hit@{k}": rates[3 * i + j] for j, k in enumerate((5, 20, 100))}
        for i, name in enumerate(benchmarks.QUESTIONS)
    }
    return Suite(ndcg, hits), values


@pytest.mark.parametrize("system", PUBLISHED)
def test_averages_are_the_papers(system):
    row, summary = PUBLISHED[system]
    suite, values = published(row)
    # The paper's sets were not rounded to three digits when it averaged them.
    assert list(suite.columns().values()) == pytest.approx(values, abs=0.0011)
    expected = [float(value) / 100 for value in summary.split()]
    assert list(suite.summary().values()) == pytest.approx(expected, abs=0.0011)


def test_an_average_needs_all_its_sets():
    suite, _ = published(PUBLISHED["Contriever"][0])
    ndcg = dict(suite.ndcg)
    del ndcg["quora"]
    less = Suite(ndcg, {name: v for name, v in suite.hits.items() if name != "webq"})
    assert less.missing() == ["Quora"]
    expected = [True, False, False, False, True]
    assert [value is not None for value in less.summary().values()] == expected
    text = tables.suites({"whole": suite, "less": less})
    assert "less: 1 of the 14 BEIR sets are missing: Quora" in text
    assert "less: 1 of the 6 question sets are missing: WebQ" in text
    lines = {line.split("  ")[0]: line.split() for line in text.split("\n")}
    assert lines["Quora"][-2:] == ["83.5", "–"]
    assert lines["BEIR Avg (14)"][-2:] == ["36.9", "–"]
    assert lines["SQ&EQ"][-2:] == ["63.9", "63.9"]


def test_groups_are_the_appendixs():
    suite, _ = published(PUBLISHED["Contriever"][0])
    groups = suite.groups()
    assert groups["argument"] == pytest.approx((0.379 + 0.167) / 2)
    assert None not in groups.values() and len(groups) == 14
    for names in benchmarks.GROUPS.values():
        assert set(names) <= BEIR14.keys()
    assert Suite({"arguana": 1.0}).groups()["argument"] is None


def test_ms_marco_by_hand():
    """Three queries and one that has no relevant passage: the script divides by three."""
    judgements = {"a": {"1": 1}, "b": {"2": 1, "3": 1}, "c": {"4": 1}, "d": {"5": 0}}
    run = {
        "a": ranked(["9", "1"], [2, 1]),
        "b": ranked(["8"] + [f"x{i}" for i in range(10)] + ["2", "3"], range(13, 0, -1)),
        "d": ranked(["5"], [1]),
    }
    outcome = judge("dev", run, judgements, protocol("msmarco"))
    assert outcome.mean["mrr@10"] == pytest.approx(0.5 / 3), "rank 12 is too deep, c is missing"
    assert outcome.mean["hit@50"] == pytest.approx(2 / 3), "a hit-rate, though 2 and 3 are there"
    assert outcome.mean["hit@1"] == 0
    assert outcome.queries == 3 and outcome.missing == 1
    assert outcome.per_query.keys() == {"a", "b", "c"}


def test_trec_dl_counts_from_grade_two_on_and_all_judged_queries():
    judgements = {"a": {"1": 1, "2": 2, "3": 3}, "b": {"4": 3}, "c": {"5": 1}}
    run = {"a": ranked(["1", "2", "3"], [3, 2, 1]), "c": ranked(["5"], [1])}
    outcome = judge("dl19", run, judgements, protocol("trec_dl"))
    assert outcome.mean["mrr@10"] == pytest.approx((1 / 2) / 3)
    assert outcome.mean["map"] == pytest.approx(((1 / 2 + 2 / 3) / 2) / 3)
    assert outcome.mean["recall@100"] == pytest.approx(1 / 3)
    ndcg = (1 + 2 / 1.5849625 + 3 / 2) / (3 + 2 / 1.5849625 + 1 / 2)
    assert outcome.mean["ndcg@10"] == pytest.approx((ndcg + 1) / 3), "grades, not yes and no"


def test_beir_does_not_let_a_query_find_itself():
    judgements = {"a": {"a": 1, "b": 1}}
    run = {"a": ranked(["a", "b", "c"], [3, 2, 1])}
    assert judge("arguana", run, judgements, protocol("beir")).mean["mrr@10"] == 1
    run = {"a": ranked(["a", "c", "b"], [3, 2, 1])}
    assert judge("arguana", run, judgements, protocol("beir")).mean["mrr@10"] == 1 / 2
    assert judge("arguana", run, judgements, protocol("own")).mean["mrr@10"] == 1
    only = {"a": ranked(["a"], [1])}
    with pytest.raises(UserError, match="none of the 1 judged"):
        judge("arguana", only, judgements, protocol("beir"))


def test_names_and_protocols():
    assert benchmarks.protocol_of("cqadupstack/gis") == "beir"
    assert benchmarks.protocol_of("Touche2020") == "beir"
    assert benchmarks.protocol_of("msmarco") == "beir"
    assert benchmarks.protocol_of("wikisquad") == "own"
    with pytest.raises(UserError, match="did you mean 'trec_dl'"):
        protocol("trecdl")
    for rules in PROTOCOLS.values():
        metrics.check(rules.measures)
        assert rules.over in metrics.OVER


def test_unknown_measures_and_means_are_named():
    with pytest.raises(UserError, match="did you mean 'ndcg@10'"):
        metrics.check(["ncdg@10"])
    for wrong in ("mrr@0", "hit", "gm_map", "ndcg@-1", "runid", ""):
        with pytest.raises(UserError, match="unknown measure"):
            metrics.check([wrong])
    with pytest.raises(UserError, match="no measure"):
        metrics.check([])
    scores = metrics.evaluate({"a": ranked(["1"], [1])}, {"a": {"1": 1}}, ["map"])
    with pytest.raises(UserError, match="did you mean 'judged'"):
        scores.mean("map", "juged")
    with pytest.raises(UserError, match="expected 1 or more"):
        metrics.evaluate({}, {"a": {"1": 1}}, ["map"], level=0)
    with pytest.raises(UserError, match="no judgements"):
        metrics.evaluate({}, {}, ["map"])


# Collections in folders


def make(folder: Path, split: str = "test", queries: int = 2) -> Path:
    """A collection whose query i is answered by passage d{i}."""
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"d{i}", "title": "", "text": f"text {i}"} for i in range(5)]
    asked = [{"_id": f"q{i}", "text": f"question {i}"} for i in range(queries + 1)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(c) + "\n" for c in corpus))
    (folder / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in asked))
    lines = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(queries))]
    (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def searcher(asked: list) -> benchmarks.Searcher:
    """Finds everything, with the first query's answer first."""

    def open_collection(collection: Collection) -> benchmarks.SearchFunction:
        def search(queries, k):
            asked.append((collection.name, [q.id for q in queries], k))
            return {q.id: ranked([q.id, "d0", "d1", "d2"], [4, 3, 2, 1]).top(k) for q in queries}

        return search

    return open_collection


def test_a_folder_of_collections(tmp_path, capsys):
    make(tmp_path / "scifact")
    make(tmp_path / "msmarco", split="dev")
    make(tmp_path / "mine", queries=1)
    for forum in FORUMS:
        # One forum with more queries weighs no more than the others.
        make(tmp_path / "cqadupstack" / forum, queries=4 if forum == "gis" else 1)
    (tmp_path / "notes").mkdir()
    asked: list = []
    kept: dict = {}
    results = evaluate_folder(
        tmp_path, searcher(asked), keep=lambda c, run: kept.update({c.name: run})
    )
    named = {result.name: result for result in results}
    assert len(results) == len(asked) + 1 == 3 + 12 + 1
    assert ("scifact", ["q0", "q1"], 1001) in asked, "judged queries only, one passage more"
    assert ("mine", ["q0"], 1000) in asked
    assert named["scifact"].mean["mrr@10"] == pytest.approx((1 + 1 / 2) / 2)
    assert kept["scifact"]["q0"].ids == ("d0", "d1", "d2"), "the query itself is gone"
    assert kept["mine"]["q0"].ids[0] == "q0"
    gis = named["cqadupstack/gis"].mean["mrr@10"]
    assert gis == pytest.approx((1 + 1 / 2 + 1 / 3 + 0) / 4)
    assert named["cqadupstack"].mean["mrr@10"] == pytest.approx((11 + gis) / 12)
    assert suites.is_known(results)
    suite = suites.suite(results)
    assert set(suite.ndcg) >= {"scifact", "msmarco", "cqadupstack"}
    assert suite.beir14() is None and len(suite.missing()) == 12
    assert "scifact: ndcg@10" in capsys.readouterr().err


def test_cqadupstack_needs_its_twelve_forums(tmp_path, capsys):
    for forum in FORUMS[1:]:
        make(tmp_path / "cqadupstack" / forum)
    results = evaluate_folder(tmp_path / "cqadupstack", searcher([]))
    assert len(results) == 11
    assert "android is missing" in capsys.readouterr().err


def test_single_collections(tmp_path):
    make(tmp_path / "cqadupstack" / "gis")
    (alone,) = benchmarks.collections(tmp_path / "cqadupstack" / "gis")
    assert alone.name == "cqadupstack/gis" and alone.split == "test"
    make(tmp_path / "own", split="dev")
    (own,) = benchmarks.collections(tmp_path / "own", split="dev")
    outcome, run = evaluate_collection(own, searcher([])(own), protocol("beir"))
    assert outcome.queries == 2 and run["q1"].ids[0] == "d0"
    _, short = evaluate_collection(own, searcher([])(own), protocol("beir"), depth=1)
    assert {len(ranking.ids) for ranking in short.values()} == {1}


def test_bad_folders(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        benchmarks.collections(tmp_path / "none")
    with pytest.raises(UserError, match="holds no collection"):
        benchmarks.collections(tmp_path)
    folder = make(tmp_path / "mine")
    (collection,) = benchmarks.collections(folder, split="dev")
    with pytest.raises(UserError, match=r"no qrels/dev.tsv; splits there: test"):
        collection.judgements()
    with pytest.raises(UserError, match=r"2 judged queries .* such as 'x'"):
        collection.queries({"q0": {}, "x": {}, "y": {}})
