"""DPR's training files: a JSON array of gigabytes, read object by object."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from qac_jax.errors import DataError
from qac_jax.formats import lines as formats_lines
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.queries import read_queries
from qac_jax.formats.training import read_training_lines


def passage(number: int, **more: Any) -> dict[str, Any]:
    return {
        "title": f"Title {number}",
        "text": f" text of {number} ",
        "score": 1000,
        "title_score": 1,
        "passage_id": str(number),
        **more,
    }


# As biencoder-nq-train.json has them; the second question has no positive passage.
RECORDS: list[dict[str, Any]] = [
    {
        "dataset": "nq_train_psgs_w100",
        "question": "who is [it]?",
        "answers": ["A, B"],
        "positive_ctxs": [passage(1), passage(2)],
        "negative_ctxs": [passage(3)],
        "hard_negative_ctxs": [passage(4)],
    },
    {
        "dataset": "nq_train_psgs_w100",
        "question": "where?",
        "answers": ["x"],
        "positive_ctxs": [],
        "negative_ctxs": [],
        "hard_negative_ctxs": [passage(5)],
    },
    {
        "dataset": "nq_train_psgs_w100",
        "question": "when \u00e9?",
        "answers": ["1"],
        "positive_ctxs": [passage(6)],
        "negative_ctxs": [],
        "hard_negative_ctxs": [],
    },
]


@pytest.mark.parametrize("chunk", [7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [4, None])
def test_the_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None
) -> None:
    monkeypatch.setattr(formats_lines, "_CHUNK", chunk)
    path = tmp_path / "biencoder-nq-train.json"
    path.write_text(json.dumps(RECORDS, indent=indent, ensure_ascii=False))
    first, second, third = read_training_lines(path, "dpr")
    assert (first.query_id, first.query) == ("0", "who is [it]?")
    assert [p.id for p in first.positives] == ["1", "2"]
    assert [(p.id, p.title, p.text) for p in first.negatives] == [("4", "Title 4", "text of 4")]
    assert not second.positives and third.query == "when \u00e9?"
    bad = BadLines()
    questions = list(read_queries(path, bad=bad))
    assert [(q.id, q.text, q.answers) for q in questions] == [
        ("0", "who is [it]?", ("A, B",)),
        ("2", "when \u00e9?", ("1",)),
    ]
    assert bad.left_out == {"questions without a positive passage": 1}


def test_compressed_and_with_places(tmp_path: Path) -> None:
    path = tmp_path / "train.json.gz"
    path.write_bytes(gzip.compress(json.dumps(RECORDS, indent=4).encode()))
    places = [place.line for _, place in formats_lines.objects(str(path), BadLines())]
    lines = json.dumps(RECORDS, indent=4).splitlines()
    assert [lines[(line or 0) - 1].strip() for line in places] == ["{"] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "a"}', "not a JSON array"),
        ('[{"question": "a"}', "has no end"),
        ('[{"question": a}]', "invalid JSON"),
        ("[1]", "a JSON int, not an object"),
        ('[{"question": 1.5, "positive_ctxs": []}]', "'question' is a float"),
        ('[{"question": "a", "positive_ctxs": 3}]', "not a list of passages"),
    ],
)
def test_damage(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        list(read_training_lines(path, "dpr"))
