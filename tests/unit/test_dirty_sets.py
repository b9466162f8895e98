"""Tiny dirty copies of the real sets: what each reader does with dirt (docs/bad-data.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from qac_jax.errors import DataError
from qac_jax.formats import documents
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.judgements import read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.pipeline import stage
from qac_jax.pipeline.sharding import Workers
from qac_jax.retrieval.corpus import read_passages
from qac_jax.stages.prepare import Prepare
from qac_jax.text.passages import Cutting


class Dirty(NamedTuple):
    """The lines of a file, the passages it gives, and what is counted; two lines are damaged:
    one is not UTF-8, one has an id that was there before with another text."""

    format: str
    file: str
    lines: list[bytes]
    passages: dict[str, tuple[str, str]]
    left_out: Mapping[str, int]
    kept: Mapping[str, int]
    damaged: int = 2


def line(**record: Any) -> bytes:
    return json.dumps(record).encode()


SETS = {
    "MS MARCO documents": Dirty(
        "msmarco_docs",
        "msmarco-docs.tsv",
        [
            b"D1\thttp://a\tTitle\tA body.",
            b"D2\thttp://b\tOnly a title\t",
            b"D3\thttp://c\t\tNo title.",
            b"D4\thttp://d\tT\tA\0NUL.",
            b"D5\thttp://e\tT\tcaf\xe9",
            b"D1\thttp://a\tTitle\tA body.",
            b"D1\thttp://a\tTitle\tAnother body.",
        ],
        {"D1": ("Title", "A body."), "D3": ("", "No title."), "D4": ("T", "A NUL.")},
        {"documents without text": 1, "repeated documents": 1},
        {"lines with NUL characters, read as blanks": 1},
    ),
    "MS MARCO passages": Dirty(
        "msmarco_passages",
        "collection.tsv",
        [
            b"0\tA passage.",
            b"1\t",
            b"2\tA\0NUL.",
            b"3\tcaf\xe9",
            b"0\tA passage.",
            b"0\tAnother passage.",
        ],
        {"0": ("", "A passage."), "1": ("", ""), "2": ("", "A NUL.")},
        {"repeated documents": 1},
        {"passages without text": 1, "lines with NUL characters, read as blanks": 1},
    ),
    "Natural Questions": Dirty(
        "dpr",
        "psgs_w100.tsv",
        [
            b"id\ttext\ttitle",
            b'1\t"A ""quoted"" text."\tOne',
            b"2\t\tTwo",
            b"3\tNo title.\t",
            b"4\t\t",
            b"5\tcaf\xe9\tFive",
            b'1\t"A ""quoted"" text."\tOne',
            b"6\tSix.\tSix",
            b"1\tAnother text.\tOne",
        ],
        {
            "1": ("One", 'A "quoted" text.'),
            "2": ("Two", ""),
            "3": ("", "No title."),
            "4": ("", ""),
            "6": ("Six", "Six."),
        },
        {"repeated documents": 1},
        {"passages without text": 1},
    ),
    "BEIR": Dirty(
        "beir",
        "corpus.jsonl",
        [
            line(_id="a", title="T", text="A text.", metadata={}),
            line(_id="b", title="Only a title", text=""),
            line(_id="c", title="", text=""),
            line(_id="d", title=None, text=None),
            line(_id="e", text="No title, and a\0NUL."),
            b'{"_id": "f", "text": "caf\xe9"}',
            line(_id="a", title="T", text="A text.", metadata={}),
            line(_id="a", title="T", text="Another text."),
        ],
        {
            "a": ("T", "A text."),
            "b": ("Only a title", ""),
            "c": ("", ""),
            "d": ("", ""),
            "e": ("", "No title, and a NUL."),
        },
        {"repeated documents": 1},
        {"passages without text": 2, "lines with NUL characters, read as blanks": 1},
    ),
    "The Pile": Dirty(
        "jsonl",
        "00.jsonl",
        [
            line(text="A text.", meta={"pile_set_name": "Pile-CC"}),
            line(text=" \n", meta={"pile_set_name": "Pile-CC"}),
            line(text=None, meta={}),
            line(text="A\0NUL, and \\u0000 spelled out.", meta={}),
            b'{"text": "caf\xe9"}',
            b'{"text": "half a pair \\ud83d"}',
        ],
        {"": ("", "A text."), "+": ("", "A NUL, and \\u0000 spelled out.")},
        {"documents without text": 2},
        {"lines with NUL characters, read as blanks": 1},
    ),
}


@pytest.fixture(params=SETS)
def dirty(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Dirty, Path]:
    found = SETS[request.param]
    (tmp_path / found.file).write_bytes(b"\n".join(found.lines) + b"\n")
    return found, tmp_path / found.file


def test_documents(dirty: tuple[Dirty, Path]) -> None:
    expected, path = dirty
    bad = BadLines(expected.damaged)
    found = list(documents.read(expected.format, path, bad=bad))
    texts = {
        name: (title, text)
        for document in found
        for name, title, text in (
            [(p.id, p.title, p.text) for p in document.passages]
            or [(document.id, document.title, document.text)]
        )
    }
    if expected.format == "jsonl":  # without ids
        assert list(texts.values()) == list(expected.passages.values())
    else:
        assert texts == expected.passages
    assert bad.left_out == expected.left_out and bad.kept == expected.kept
    assert len(bad) == expected.damaged


def test_damage_is_refused_unless_some_is_allowed(dirty: tuple[Dirty, Path]) -> None:
    expected, path = dirty
    with pytest.raises(DataError, match="not UTF-8.*--skip_bad"):
        list(documents.read(expected.format, path))
    with pytest.raises(DataError, match=f"--skip_bad allows {expected.damaged - 1}"):
        list(documents.read(expected.format, path, skip_bad=expected.damaged - 1))


def test_prepare_does_the_same(dirty: tuple[Dirty, Path], tmp_path: Path) -> None:
    """In several shards, whose repeats are found at the end."""
    expected, path = dirty
    made = stage.execute(
        Prepare(
            documents=str(path),
            format=expected.format,
            shards=3,
            skip_bad=expected.damaged,
            cutting=Cutting(cut="none"),
            pool=Workers(workers=1),
        ),
        tmp_path / "out",
    )
    assert [p["text"] for p in Records(made)] == [text for _, text in expected.passages.values()]
    assert made.info.get("left_out", {}) == expected.left_out
    assert made.info.get("kept", {}) == expected.kept
    assert made.info["skipped"] == expected.damaged
    listed = (tmp_path / "out" / "skipped.tsv").read_text().splitlines()
    assert len(listed) == expected.damaged


def test_what_reads_a_corpus_without_prepare_does_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """bm25 and embed: counted on the screen."""
    beir = SETS["BEIR"]
    clean = [row for row in beir.lines if b"\xe9" not in row and b"Another" not in row]
    (tmp_path / "corpus.jsonl").write_bytes(b"\n".join(clean) + b"\n")
    found = {r["_id"]: (r["title"], r["text"]) for r in read_passages(str(tmp_path), "beir")}
    assert found == beir.passages
    said = capsys.readouterr().err
    assert "left out 1 repeated documents" in said and "kept 2 passages without text" in said


@pytest.mark.parametrize(
    ("file", "lines", "kept"),
    [
        ("queries.tsv", [b"1\tone", b"2\t ", b"1\tone", b"3\ta\0b"], {"1": "one", "3": "a b"}),
        (
            "queries.jsonl",
            [line(_id="1", text="one"), line(_id="2", text=""), line(_id="1", text="one")],
            {"1": "one"},
        ),
        ("orcas.tsv", [b"1\tone\tD1\tu", b"1\tone\tD2\tu", b"2\t\tD3\tu"], {"1": "one"}),
        ("nq.qa.csv", [b"one\t['a']", b" \t['b']"], {"0": "one"}),
    ],
)
def test_queries(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    lines: list[bytes],
    kept: dict[str, str],
) -> None:
    path = tmp_path / file
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert {query.id: query.text for query in read_queries(path)} == kept
    assert "left out 1 queries without text" in capsys.readouterr().err
    path.write_bytes(b"\n".join([*lines, b"\xe9"]) + b"\n")
    with pytest.raises(DataError, match="not UTF-8"):
        list(read_queries(path))


def test_judgements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "qrels.tsv"
    path.write_text("1 0 a 1\n1 0 a 1\n1 0 b 0\n")
    assert len(list(read_judgements(path))) == 2
    assert "left out 1 repeated judgements" in capsys.readouterr().err
    path.write_text("1 0 a 1\n1 0 a 2\n")
    with pytest.raises(DataError, match="was judged for query '1' before"):
        list(read_judgements(path))
