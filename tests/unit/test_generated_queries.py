"""Queries made elsewhere, which queries are kept, and what generators learn from."""

import collections
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import toy_retrieval
from toy_process import Qac

from qac_jax.artifacts import load
from qac_jax.data.examples import Examples
from qac_jax.errors import DataError
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.records import Records
from qac_jax.queries import filtering, generation
from qac_jax.queries.filtering import Filter
from qac_jax.queries.generation import read_contexts
from qac_jax.text import tokenizers


def contexts(*texts: str) -> list[dict[str, Any]]:
    return [{"text": text, "origin": "o", "score": -1.0} for text in texts]


def kept(rules: Filter, *texts: str) -> tuple[list[str], dict[str, int]]:
    dropped: collections.Counter[str] = collections.Counter()
    found = rules(contexts(*texts), dropped)
    return [context["text"] for context in found], dict(dropped)


def test_each_rule() -> None:
    said = ["", " ?", "What is it?", "what is  IT", "heat"]
    assert kept(Filter(drop_empty=False, drop_repeats=False), *said) == (said, {})
    found = (["What is it?", "heat"], {"empty": 2, "repeated": 1})
    assert kept(Filter(drop_empty=True, drop_repeats=True), *said) == found
    texts = ["copper metal", "what of of copper", "metal is what copper", "does it conduct"]
    assert kept(Filter(well_formed=True), *texts) == (texts[2:], {"not well-formed": 2})


def test_what_can_be_asked_of_every_passage_is_not_specific() -> None:
    words = [{"a", "copper"}, {"a", "silk"}, {"a", "salt"}, {"a", "rain"}]
    asked = [["a", "a copper"], ["silk"], [], ["salt", "copper rain rain"]]

    def of(read: Any, texts: Any) -> list[np.ndarray]:
        """A likelihood: how many words of the text the input has; input n is [n]."""
        return [
            np.array([len(words[number] & set(text.split())) for text in of], float)
            for (number,), of in zip(read, texts, strict=True)
        ]

    model: Any = SimpleNamespace(of=of)
    values = generation._specificity(model, [[0], [1], [2], [3]], asked)
    assert values == [[0.0, 1.0], [1.0], [], [pytest.approx(-1 / 3), pytest.approx(2 / 3)]]
    assert generation._specificity(model, [[0]], [["a"]]) == [[math.inf]]

    dropped: collections.Counter[str] = collections.Counter()
    records = [{"_id": str(n), "contexts": contexts(*texts)} for n, texts in enumerate(asked)]
    found = filtering.specific(records, [[0.5, 1.0], [0.4], [], [0.1, 0.2]], 0.5, dropped)
    assert [[c["text"] for c in r["contexts"]] for r in found] == [["a copper", "a"], [], [], []]
    assert dropped == {"not specific": 3}
    few = filtering.specific(records[:1], [[0.1, 0.2]], 0.5, dropped)
    assert [c["text"] for c in few[0]["contexts"]] == ["a copper"]


def written(folder: Path, *lines: Any, name: str = "queries.jsonl") -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / name).write_text("".join(f"{text}\n" for text in texts))
    return folder / name


def test_all_forms(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"_id": "a", "queries": ["one", " two "]},
        {"docid": 7, "query": "three"},
        {"id": "b", "contexts": [{"text": "four", "origin": "llm", "score": -0.5}, "five"]},
        {"id": "c", "outputs": {"T03B-topic": "six", "D2Q-t2q": ["seven"], "none": None}},
        {"question": "eight", "answers": [{"passage_id": "a"}, {"passage_id": "a"}]},
        "d\tnine",
    )
    found = [
        (line.id, [(c["text"], c["origin"], c["score"]) for c in line.contexts])
        for line in read_contexts(path, BadLines())
    ]
    assert found == [
        ("a", [("one", "imported", None), ("two", "imported", None)]),
        ("7", [("three", "imported", None)]),
        ("b", [("four", "llm", -0.5), ("five", "imported", None)]),
        ("c", [("six", "tqgen_topic", None), ("seven", "qgen_d2q", None)]),
        ("a", [("eight", "imported", None)]),
        ("d", [("nine", "imported", None)]),
    ]


def test_a_passage_may_be_called_by_its_document_if_that_has_no_other(tmp_path: Path) -> None:
    places = {"a#0": 0, "b#0": 1, "b#1": 2, "c": 3}
    passages: Any = SimpleNamespace(positions=lambda names: [places.get(name) for name in names])
    made = generation.Import(passages, tmp_path, 8)
    assert [made._passage(name) for name in "abc"] == [("a#0", 0), ("b", None), ("c", 3)]


def test_bad_lines_have_file_and_line(tmp_path: Path) -> None:
    for line, complaint in [
        ({"queries": ["x"]}, "no id of a passage"),
        ({"_id": "a", "contexts": [{"origin": "x"}]}, "queries are texts"),
        ("a\tb\tc", "3 columns"),
    ]:
        path = written(tmp_path, {"_id": "a", "queries": []}, line)
        with pytest.raises(DataError, match=complaint) as error:
            list(read_contexts(path, BadLines()))
        assert f"{path}:2" in str(error.value)


def test_questions_of_test_documents_are_not_learned_and_prompts_are_whole(
    tmp_path: Path, qac: Qac
) -> None:
    data = toy_retrieval.write_collection(tmp_path / "data", 8, 12, train=6)
    train, test = (
        set((data / "qrels" / f"{split}.tsv").read_text().split()[4::3])
        for split in ("train", "test")
    )
    assert train & test and train - test
    for part, expected in (("held_out", test), ("train", train - test)):
        qac("step", "pairs", "--collections", data, "--part", part, "--out", tmp_path / part)
        records = Records(load(tmp_path / part, kind="pairs"))
        assert {r["_id"] for r in records} == {f"data/{passage}" for passage in expected}
    # Where a pair is too long, only its text is truncated.
    words = ["tokenize", "--task", "seq2seq", "--pairs", tmp_path / "train"]
    qac(*words, "--input_tokens", 12, "--out", tmp_path / "examples")
    stored = Examples(load(tmp_path / "examples", kind="examples"))
    inputs = [record["inputs"].tolist() for record in stored.read(np.arange(stored.count))]
    prefix = tokenizers.load().encode("text2query: ")
    assert max(map(len, inputs)) == 12
    assert all(ids[: len(prefix)] == prefix for ids in inputs)
