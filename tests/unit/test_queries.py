"""Queries, judgements, negatives and training lines of all formats."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from qac_jax.errors import DataError, UserError
from qac_jax.formats import files, judgements, training
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import Passage
from qac_jax.formats.identities import IdSet
from qac_jax.formats.judgements import read_judgements
from qac_jax.formats.queries import read_queries, shares
from qac_jax.formats.training import (
    Negatives,
    read_hard_negatives,
    read_training_lines,
    read_triples,
)


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _lines(path: Path, *rows: Any) -> Path:
    return _write(path, "".join(json.dumps(row) + "\n" for row in rows))


def _told(path: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(q.id, q.text, q.answers) for q in read_queries(path)]


def test_beir_queries(tmp_path):
    rows = [
        {"_id": "1", "text": "one", "metadata": {"split": "dev", "answers": ["a", "b", "a"]}},
        {"_id": 2, "text": "two"},
    ]
    _lines(tmp_path / "queries.jsonl", *rows)
    (tmp_path / "corpus.jsonl").write_text("not queries")
    assert _told(tmp_path) == [("1", "one", ("a", "b")), ("2", "two", ())]
    assert next(read_queries(tmp_path)).meta == {"split": "dev"}


def test_dpr_questions(tmp_path):
    """Quoted as Python's csv does, with answers as Python writes lists."""
    rows = [
        ('who said "no"', ["x"]),
        ("who", ["Destiny 's Child", 'a "b"', "ü"]),
        ("tab", ["a", "a", 5]),
    ]
    path = tmp_path / "nq-test.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerows([(question, repr(answers)) for question, answers in rows])
    assert _told(path) == [
        ("0", 'who said "no"', ("x",)),
        ("1", "who", ("Destiny 's Child", 'a "b"', "ü")),
        ("2", "tab", ("a", "5")),
    ]
    path = _lines(tmp_path / "wq.txt", {"question": "q", "answer": ["a|b"]})
    assert _told(path) == [("0", "q", ("a|b",))]


def test_answers_are_never_run_as_code(tmp_path):
    path = _write(tmp_path / "q.tsv", "a\t['x']\nwho\t[__import__('os').getpid()]\n")
    with pytest.raises(DataError, match="not a Python list of texts") as error:
        list(read_queries(path))
    assert error.value.line == 2


def test_entity_questions(tmp_path):
    for relation in ("P17", "P36"):
        rows = [{"question": f"{relation} {i}", "answers": ["a"]} for i in range(2)]
        _write(tmp_path / f"{relation}.test.json", json.dumps(rows, indent=2))
    found = list(read_queries(tmp_path))
    assert [q.id for q in found] == ["P17-0", "P17-1", "P36-0", "P36-1"]
    assert found[2].meta == {"relation": "P36"}
    path = _write(tmp_path / "P1.test.json", '[{"question": "x"}, {"answers": []}]')
    with pytest.raises(DataError, match="entry 1: no question"):
        list(read_queries(path))


def test_bad_queries_name_file_and_line(tmp_path):
    for name, text, line, said in (
        ("q.tsv", "1\tone\n1\ttwo\n", 2, "query '1' was there before"),
        ("q.tsv", "1\tone\n2\tb\tc\n", 2, "3 columns; expected 2"),
        ("q.jsonl", '{"_id": "1", "text": "a"}\n{]\n', 2, "invalid JSON"),
    ):
        path = _write(tmp_path / name, text)
        with pytest.raises(DataError, match=said) as error:
            list(read_queries(path))
        assert (error.value.file, error.value.line) == (str(path), line)
        bad = BadLines(1)
        assert len(list(read_queries(path, bad=bad))) == 1
        assert [item.line for item in bad.items] == [line]


def test_a_share_needs_scores_above_0() -> None:
    assert shares([3.0]).tolist() == [1.0]
    with pytest.raises(UserError, match="expected .* above 0"):
        shares([9.0, -2.0])


def test_judgements_of_three_and_four_columns(tmp_path):
    for text in (
        "1 0 a 1\n1 0 b 2\n2 Q0 a 0\n",
        "1\t0\ta\t1\n1\t0\tb\t2\n2\t0\ta\t0\n",
        "query-id\tcorpus-id\tscore\n1\ta\t1\n1\tb\t2\n2\ta\t0\n",
    ):
        found = judgements.by_query(read_judgements(_write(tmp_path / "qrels.tsv", text)))
        assert found == {"1": {"a": 1, "b": 2}, "2": {"a": 0}}


def test_bad_judgements_name_file_and_line(tmp_path):
    known: dict[str, Any] = {"queries": IdSet(["1"]), "passages": IdSet(["a", "b"])}
    for line, said in (
        ("9 0 a 1", "query '9' has no text"),
        ("1 0 z 1", "passage 'z' is not in the corpus"),
        ("1 0 a 2", "judged for query '1' before"),
        ("1 0 b high", "the grade 'high' is not a whole number"),
    ):
        path = _write(tmp_path / "qrels.txt", f"1 0 a 1\n{line}\n")
        with pytest.raises(DataError, match=said) as error:
            list(read_judgements(path, **known))
        assert (error.value.file, error.value.line) == (str(path), 2)


def test_triples_are_grouped_shuffled_and_cut(tmp_path):
    rows = [("5", "p", f"n{i % 60}") for i in range(90)] + [("6", "q", "x"), ("6", "r", "x")]
    path = _write(tmp_path / "t.tsv", "".join("\t".join(row) + "\n" for row in rows))
    first, second = read_triples(path)
    assert (first.query_id, first.positives) == ("5", ("p",))
    assert sorted(first.negatives) == sorted(f"n{i}" for i in range(60))
    assert list(first.negatives) != [f"n{i}" for i in range(60)]
    assert second == Negatives("6", ("q", "r"), ("x",))
    assert next(read_triples(path, keep=7)).negatives == first.negatives[:7]
    # The order of one query does not depend on what stands before it.
    _write(path, "4\tp\tn\n" + path.read_text())
    assert list(read_triples(path))[1] == first


def scored(**scores: float) -> list[dict[str, Any]]:
    return [{"pid": int(name[1:]), "ce-score": score} for name, score in scores.items()]


HARD = {
    "qid": 1,
    "pos": scored(p10=9.0, p11=6.0),
    "neg": {
        "bm25": scored(p20=3.5, p21=3.0, p22=-1.0, p23=-2.0),
        "dense": scored(p22=-1.0, p24=0.0),
    },
}


def test_hard_negatives(tmp_path):
    """The worst positive has 6.0: with margin 3 a negative may have 3.0 at most."""
    path = tmp_path / "hard.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(HARD) + '\n{"qid": 2, "pos": []}\n').encode()))
    bad = BadLines()
    (found,) = read_hard_negatives(path, bad=bad)
    assert found == Negatives("1", ("10", "11"), ("21", "22", "23", "24"))
    assert bad.left_out["queries without positives or negatives"] == 1
    many = {"qid": 1, "pos": scored(p1=9.0), "neg": {"s": scored(**{f"p{i}": 0 for i in range(9)})}}
    (found,) = read_hard_negatives(_lines(tmp_path / "hard.jsonl", many))
    assert found.negatives == ("0", "1", "2", "3", "4")
    unscored = {"qid": "1", "pos": ["a"], "neg": {"s": ["b", "c"]}}
    with pytest.raises(DataError, match="not passages of a pid and a ce-score") as error:
        list(read_hard_negatives(_lines(tmp_path / "hard.jsonl", unscored)))
    assert error.value.line == 1


def test_tevatron_training_lines(tmp_path):
    row = {
        "query_id": 3,
        "query": "q",
        "positive_passages": [{"docid": 1, "title": "T", "text": "p"}],
        "negative_passages": [{"docid": "2", "text": "n"}],
    }
    path = _lines(tmp_path / "train.jsonl", row, {**row, "positive_passages": []})
    bad = BadLines(1)
    (found,) = read_training_lines(path, bad=bad)
    assert found == training.TrainingLine(
        "3", "q", (Passage("1", "T", "p"),), (Passage("2", "", "n"),)
    )
    assert [(i.line, i.message) for i in bad.items] == [(2, "query '3' has no positive passage")]


def test_rocketqa_training_lines(tmp_path):
    dual = "q\t-\tpos\tT\tneg\t0\nq\t\tpos\t\tneg2\t0\nq2\t\tp\t\tn\t0\n"
    first, second = read_training_lines(_write(tmp_path / "dual.tsv", dual), "rocketqa")
    assert first.positives == (Passage("", "", "pos"),) and second.query == "q2"
    assert first.negatives == (Passage("", "T", "neg"), Passage("", "", "neg2"))
    cross = "q\tT\tgood\t1\nq\t\tbad\t0\nq\t\tbad\t7\nq\tx\n"
    bad = BadLines(2)
    (found,) = read_training_lines(_write(tmp_path / "cross.tsv", cross), "rocketqa", bad=bad)
    assert (found.positives, found.negatives) == (
        (Passage("", "T", "good"),),
        (Passage("", "", "bad"),),
    )
    assert [i.line for i in bad.items] == [3, 4]


# DPR's training files: a JSON array of gigabytes, read object by object.


def record(question: str, *numbers: list[int]) -> dict[str, Any]:
    """As biencoder-nq-train.json has them."""
    names = ("positive_ctxs", "negative_ctxs", "hard_negative_ctxs")
    return {"question": question, "answers": ["A, B"]} | {
        name: [{"title": f"Title {n}", "text": f" text of {n} ", "passage_id": str(n)} for n in of]
        for name, of in zip(names, numbers, strict=True)
    }


def test_the_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_CHUNK", 7)
    path = tmp_path / "biencoder-nq-train.json"
    content = [record("who is [it]?", [1, 2], [3], [4]), record("where?", [], [], [5])]
    content.append(record("when \u00e9?", [6], [], []))
    path.write_text(json.dumps(content, indent=4, ensure_ascii=False))
    first, second, third = read_training_lines(path, "dpr")
    assert (first.query_id, first.query) == ("0", "who is [it]?")
    assert [p.id for p in first.positives] == ["1", "2"]
    assert [(p.id, p.title, p.text) for p in first.negatives] == [("4", "Title 4", "text of 4")]
    assert not second.positives and third.query == "when \u00e9?"
    bad = BadLines()
    questions = list(read_queries(path, bad=bad))
    assert [(q.id, q.text) for q in questions] == [("0", "who is [it]?"), ("2", "when \u00e9?")]
    assert questions[0].answers == ("A, B",)
    assert bad.left_out == {"questions without a positive passage": 1}
    assert list(read_judgements(path)) == [("0", "1", 1), ("2", "6", 1)]  # the first of each


def test_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, message in (
        ('[{"question": "a"}', "has no end"),
        ('[{"question": a}]', "invalid JSON"),
        ('[{"question": "a", "positive_ctxs": 3}]', "not a list of passages"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            list(read_training_lines(path, "dpr"))
