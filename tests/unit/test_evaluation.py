"""Evaluation: benchmarks, names of measures, answers, paired tests, and Figure 4 of PAIR."""

import importlib
import itertools
import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_examples

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.evaluation import answers, benchmarks, metrics, similarity
from qac_jax.evaluation.benchmarks import (
    BEIR14,
    FORUMS,
    PROTOCOLS,
    Collection,
    Suite,
    evaluate_folder,
    judge,
    with_forums_together,
)
from qac_jax.evaluation.significance import compare, holm, paired_t_test, randomization_test
from qac_jax.formats.queries import Query, read_queries
from qac_jax.formats.runs import Ranking, ranked
from qac_jax.report import suites


# Contriever in AugTriever's Table 6, as printed: MS MARCO, the 14 BEIR sets and their mean,
# R@5/20/100 of six question sets and their means.
PUBLISHED = (
    "20.6 27.5 31.7 25.4 48.1 24.5 37.9 16.7 29.2 14.9 68.2 15.5 64.9 83.5 28.4 36.9 "
    "47.2 67.2 81.3 59.5 74.2 83.2 44.0 65.8 79.8 67.7 85.5 93.1 44.2 63.1 78.4 "
    "50.3 64.7 76.3 52.1 70.1 82.0"
)
SUMMARY = (0.206, 0.369, 0.407, 0.731, 0.639)


def test_averages_are_the_papers():
    values = [float(value) / 100 for value in PUBLISHED.split()]
    ndcg = dict(zip(["msmarco", *BEIR14], values, strict=False))
    rates = values[16:]
    hits = {
        name: {f"hit@{k}": rates[3 * i + j] for j, k in enumerate((5, 20, 100))}
        for i, name in enumerate(benchmarks.QUESTIONS)
    }
    suite = Suite(ndcg, hits)
    # The paper's sets were not rounded to three digits when it averaged them.
    assert list(suite.columns().values()) == pytest.approx(values, abs=0.0011)
    assert list(suite.summary().values()) == pytest.approx(SUMMARY, abs=0.0011)


def test_trec_dl_counts_from_grade_two_on_and_all_judged_queries():
    judgements = {"a": {"1": 1, "2": 2, "3": 3}, "b": {"4": 3}, "c": {"5": 1}}
    run = {"a": ranked(["1", "2", "3"], [3, 2, 1]), "c": ranked(["5"], [1])}
    outcome = judge("dl19", run, judgements, PROTOCOLS["trec_dl"])
    assert outcome.mean["mrr@10"] == pytest.approx((1 / 2) / 3)
    assert outcome.mean["map"] == pytest.approx(((1 / 2 + 2 / 3) / 2) / 3)
    assert outcome.mean["recall@100"] == pytest.approx(1 / 3)
    ndcg = (1 + 2 / 1.5849625 + 3 / 2) / (3 + 2 / 1.5849625 + 1 / 2)
    assert outcome.mean["ndcg@10"] == pytest.approx((ndcg + 1) / 3), "grades, not yes and no"


def test_unknown_measures_are_named():
    with pytest.raises(UserError, match="unknown measure.*did you mean"):
        metrics.check(["ncdg@10"])


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
    with pytest.raises(UserError, match="holds no collection"):
        benchmarks.collections(tmp_path)
    make(tmp_path / "scifact")
    make(tmp_path / "msmarco", split="dev")
    make(tmp_path / "mine", queries=1)
    for forum in FORUMS:
        # One forum with more queries weighs no more than the others.
        make(tmp_path / "cqadupstack" / forum, queries=4 if forum == "gis" else 1)
    asked: list = []
    found = list(evaluate_folder(tmp_path, searcher(asked)))
    kept = {result.name: run for result, run in found}
    results = with_forums_together([result for result, _ in found])
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
    assert {"scifact", "msmarco", "cqadupstack"} <= suites.suite(results).ndcg.keys()
    assert len(with_forums_together([r for r, _ in found if "android" not in r.name])) == 14
    assert "without its forums android" in capsys.readouterr().err
    (alone,) = benchmarks.collections(tmp_path / "cqadupstack" / "gis")
    assert alone.name == "cqadupstack/gis" and alone.split == "test"


# (answer, passage, whether the passage holds the answer, why)
HARD = [
    ("Röntgen", "Wilhelm Conrad RÖNTGEN won it", True, "case does not matter, accents stay"),
    ("Rontgen", "Wilhelm Conrad Röntgen", False, "an accent is not dropped"),
    ("Röntgen", "Conrad Ro\u0308ntgen", True, "one character or letter and mark are the same"),
    ("cat", "the category", False, "no part of a token"),
    ("New York City", "in New\nYork\u00a0City", True, "any blank, any line end"),
    ("New York City", "New York is a City", False, "no gaps"),
    ("a b a c", "a b a b a c", True, "a false start does not hide the answer"),
    ("\u200b", "anything", False, "an answer without tokens matches nothing"),
]

# CuratedTREC: (pattern, passage, whether it is found, why)
PATTERNS = [
    (r"20,?237\s*f(oo|ee)?t", "at 20,237\nFT high", True, "blank space and capitals"),
    (r"^Mars$", "Venus\nmars\nSaturn", True, "line by line, whatever the case"),
    (r"Mar", "MARCH", True, "parts of words count, unlike with texts"),
    (r"a.b", "a\nb", False, "the point is no line end"),
    (r"(unclosed", "(unclosed", False, "what is no pattern matches nothing"),
]


def test_texts_and_patterns():
    for answer, passage, holds, why in HARD:
        assert answers.matcher([answer])(passage) is holds, why
        assert answers.matcher(["nowhere to be found", answer])(passage) is holds, why
    for pattern, passage, holds, why in PATTERNS:
        assert answers.matcher([pattern], "regex")(passage) is holds, why


def test_tokens_are_those_of_dprs_expression():
    """On every character that this Python knows, between letters, blanks and marks."""
    regex = importlib.import_module("regex")  # NLTK brings it
    expression = regex.compile(r"([\p{L}\p{N}\p{M}]+)|([^\p{Z}\p{C}])")
    known = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    for start in range(0, len(known), 4096):
        text = "a".join(known[start : start + 4096])
        nfd = unicodedata.normalize("NFD", text)
        assert answers.tokens(text) == [m.group().lower() for m in expression.finditer(nfd)]


PASSAGES = {f"p{i}": f"nothing at all {i}" for i in range(8)} | {"hit": "It was Mars."}


def texts(ids):
    return [PASSAGES[i] for i in ids]


def place(rank: int, depth: int = 6):
    """A ranking with the answer at `rank` (0: nowhere)."""
    ids = [f"p{i}" for i in range(depth)]
    if rank:
        ids.insert(rank - 1, "hit")
    return ranked(ids, -np.arange(len(ids)))


def test_hit_rates_count_every_question():
    questions = [Query(str(i), "which planet?", ("Mars",)) for i in range(4)]
    run = {"0": place(1), "1": place(5), "2": place(6), "unasked": place(1)}
    scores = answers.evaluate(run, questions, texts, measures=("hit@1", "hit@5", "hit@6"))
    assert scores.means() == {"hit@1": 0.25, "hit@5": 0.5, "hit@6": 0.75}
    assert scores.missing == ["3"] and scores.unjudged == 1


def test_entityquestions_average_over_relations(tmp_path):
    for relation, count in (("P17", 3), ("P36", 1)):
        rows = [{"question": f"{relation} {i}", "answers": ["Mars"]} for i in range(count)]
        (tmp_path / f"{relation}.test.json").write_text(json.dumps(rows))
    passages = [{"_id": name, "text": text} for name, text in PASSAGES.items()]
    toy_examples.written(tmp_path / "passages", "passages", passages)
    judge = answers.by_answers(tmp_path, artifacts.load(tmp_path / "passages"), "text", ("hit@5",))
    first = [query.id for query in read_queries(tmp_path) if query.text.endswith("0")]
    means = {"hit@5": 2 / 4, "macro_hit@5": pytest.approx((1 / 3 + 1) / 2)}
    assert judge("run", {name: place(1) for name in first}).mean == means


def test_questions_without_answers_are_told():
    with pytest.raises(UserError, match="'1' has no answers"):
        answers.evaluate({"1": place(1)}, [Query("1", "?")], texts)


def brute_force(differences: list[float]) -> float:
    signs = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    return float(np.mean(abs(signs @ differences) >= abs(sum(differences)) - 1e-9))


def test_few_queries_are_counted_exactly():
    rng = np.random.default_rng(1)
    for n in (1, 4, 8):
        differences = rng.normal(0.3, 1, n).round(1)
        assert randomization_test(differences, 10) == pytest.approx(brute_force(list(differences)))
    # 0.1 + 0.2 - 0.3 is not quite 0: sums that differ by rounding alone are the same.
    assert randomization_test([0.1, 0.2, -0.3]) == randomization_test([0.0, 0.0]) == 1.0


def test_no_difference_is_found_significant_as_often_as_it_should():
    rng = np.random.default_rng(5)
    low = sum(randomization_test(rng.normal(0, 1, 30), 400, i) < 0.05 for i in range(400))
    assert 5 <= low <= 36, "400 draws at 5 %: 20, within 3.7 standard deviations"


def test_runs_are_compared_pair_by_pair():
    queries = [f"q{i}" for i in range(6)]
    runs = {
        "a": dict(zip(queries, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], strict=True)),
        "b": dict(zip(queries, [0.2, 0.3, 0.4, 0.3, 0.5, 0.9], strict=True)),
        "c": dict(zip(reversed(queries), [1.0] * 6, strict=True)),
    }
    found = compare(runs, "ndcg@10", permutations=10)
    assert [(c.first, c.second) for c in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    one = found[0]
    assert (one.wins, one.losses, one.ties, one.queries) == (4, 1, 1, 6)
    assert one.difference == pytest.approx(0.5 / 6)
    assert one.randomization == pytest.approx(brute_force([0.1, 0.1, 0.1, -0.1, 0.3]))
    assert [c.t_test_holm for c in found] == holm([c.t_test for c in found])
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [paired_t_test(d) for d in ([0.0] * 3, [0.1] * 3, [0.3])] == [1.0, 0.0, 1.0]
    with pytest.raises(UserError, match="scored on different queries"):
        compare({"a": {"q": 1.0}, "b": {"p": 1.0}}, "map")


def test_means_shares_and_ranks() -> None:
    queries = np.array([[2.0, 0.0], [0.0, 1.0]])
    positives = np.array([[1.0, 0.0], [0.0, 3.0]])
    negatives = [np.array([[3.0, 4.0], [0.5, 0.0]]), np.array([[0.0, -1.0]])]
    found = similarity.compare(queries, positives, negatives, [[1, 3], [1]], depth=4)
    assert found.queries == 2
    assert found.to_query == pytest.approx((2 + 3) / 2)
    assert found.to_negatives == pytest.approx(((3 + 0.5) / 2 + -3) / 2)
    assert found.nearer == pytest.approx((0.5 + 1) / 2)
    assert found.by_rank == pytest.approx((0.0, None, 0.5, None))


def test_answers_stand_for_judgements() -> None:
    class Passages(list):
        def positions(self, names):
            return map(int, names)

    texts = ("The river Seine.", "A bridge.", "Along the seine", "a hill")
    passages: Any = Passages({"text": text} for text in texts)
    run = dict.fromkeys(("q1", "q2"), Ranking(("1", "2", "0", "3"), np.zeros(4)))
    # No passage has an answer to q2; q3 was not asked.
    given = (("q1", "Seine"), ("q2", "none"), ("q3", "Seine"))
    questions = [Query(name, "which river", (answer,)) for name, answer in given]
    found = similarity.by_answers(run, questions, passages, depth=3)
    assert found == {"q1": {"2": 1, "0": 1}} and next(iter(found["q1"])) == "2"
    assert not similarity.by_answers(run, questions, passages, depth=1)
