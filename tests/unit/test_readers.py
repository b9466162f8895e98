"""Readers of documents and of data sets by name: shards make the whole, faults name a line."""

import bz2
import csv
import gzip
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import toy_hub
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from qac_jax import artifacts, cli
from qac_jax.errors import DataError, UserError
from qac_jax.formats import documents, files
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import Document, Passage, Section
from qac_jax.formats.queries import read_queries
from qac_jax.formats.readers import named
from qac_jax.formats.records import Records
from qac_jax.formats.registry import DOCUMENTS, QUERIES, sample
from qac_jax.hub import names
from qac_jax.pipeline import inputs, stage
from qac_jax.retrieval import corpus
from qac_jax.retrieval.corpus import read_passages
from qac_jax.stages.prepare import Prepare


# Formats of lines: any number of shards is the whole, packed or not; bad input names its line.


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda raw: zstandard.compress(raw[:999]) + zstandard.compress(raw[999:]),
}


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\t\r\n"), max_size=12)),
    cuts=st.integers(1, 12),
    end=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
)
def test_line_ranges_lose_and_repeat_nothing(tmp_path_factory, lines, cuts, end, last):
    """Lines of any content, cut at any byte: each comes once, in order, with its true number.

    NUL characters are read as blanks.
    """
    path = str(tmp_path_factory.mktemp("lines") / "a.txt")
    raw = (end.join(lines) + (end if last and lines else "")).encode()
    Path(path).write_bytes(raw)
    bad = BadLines()
    found = [
        line
        for pieces in files.share_out([path], cuts)
        for piece in pieces
        for line in files.text_lines(piece, bad)
    ]
    texts = raw.decode().replace("\0", " ").split("\n")
    wanted = [(i + 1, t) for i, t in enumerate(texts) if t.strip("\r ")]
    numbers = [line.place.resolve()[1] for line in found]
    assert [(n, f.text) for n, f in zip(numbers, found, strict=True)] == [
        (n, t.removesuffix("\r")) for n, t in wanted
    ]


def test_packed_files_read_the_same_and_damage_is_told(tmp_path):
    plain = tmp_path / "collection.tsv"
    plain.write_text("".join(f"{i}\tText {i} of tést {'long ' * (i % 23)}\n" for i in range(3000)))
    whole = list(documents.read("msmarco_passages", plain))
    assert len(whole) == 3000
    for packing, pack in PACK.items():
        path = Path(f"{plain}{packing}")
        packed = pack(plain.read_bytes())
        path.write_bytes(packed)
        assert list(documents.read("msmarco_passages", path)) == whole
        assert len(documents.shards("msmarco_passages", path, 5)) == 1
        cut = len(packed) // 3
        path.write_bytes(packed[:cut] + (bytes(40) + packed[cut + 40 :]) * (packing != ".gz"))
        with pytest.raises(DataError, match="damaged") as error:
            list(documents.read("msmarco_passages", path, bad=BadLines(10**6)))
        assert error.value.file == str(path)


def test_folders_patterns_and_lists_of_files(tmp_path):
    for number in range(3):
        (tmp_path / f"part{number}.tsv").write_text(f"{number}\ttext {number}\n")
    (tmp_path / "readme.md").write_text("not this")
    for path in (tmp_path, f"{tmp_path}/part*.tsv", ",".join(map(str, tmp_path.glob("*.tsv")))):
        assert {d.id for d in documents.read("msmarco_passages", path)} == {"0", "1", "2"}
    with pytest.raises(UserError, match="does not exist"):
        list(documents.read("msmarco_passages", f"{tmp_path}/none*.tsv"))


def test_bad_input_names_file_and_line(tmp_path):
    for format, good, wrong, said in (
        ("msmarco_docs", b"D1\tu\tTitle\tBody", b"D2\tu\tTitle", "3 columns; expected 4"),
        ("msmarco_passages", b"1\ttext", b"1\tagain", "was there before"),
        ("dpr", b"1\ttext\ttitle", b'2\t"open\ttitle', "wrongly quoted"),
        ("jsonl", b'{"text": "a"}', b'{"text": "a"', "invalid JSON"),
        ("jsonl", b'{"text": "a"}', b'{"text": "\\ud83d"}', "half a surrogate pair"),
        ("jsonl", b'{"text": "a"}', b'{"text": "a\xff"}', "not UTF-8: byte 0xff at column 12"),
        ("beir", b'{"_id": "1", "text": "a"}', b'{"text": "b"}', "no id: expected the key '_id'"),
    ):
        path = tmp_path / ("file.jsonl" if good.startswith(b"{") else "file.tsv")
        path.write_bytes(b"\n".join([good, b"", wrong]) + b"\n")
        with pytest.raises(DataError) as error:
            list(documents.read(format, path, bad=BadLines(0)))
        assert said in error.value.message
        assert (error.value.file, error.value.line) == (str(path), 3)
        assert "--skip_bad" in str(error.value) and "\n" not in str(error.value)
        bad = BadLines(1)
        assert len(list(documents.read(format, path, bad=bad))) == 1
        assert [(item.file, item.line) for item in bad.items] == [(str(path), 3)]
        assert said in bad.items[0].message and "skipped 1 bad record" in bad.summary()


def _lines(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def _read(format: str, path: Path, **options: Any) -> list[Document]:
    return list(documents.read(format, path, **options))


def _from_shards(format: str, path: Path, count: int) -> list[Document]:
    parts = documents.shards(format, path, count)
    assert len(parts) <= count
    return [d for part in parts for d in documents.read_shard(pickle.loads(pickle.dumps(part)))]


def test_msmarco_documents(tmp_path):
    """As the released awk reads them, fields from the third on are joined by one blank."""
    path = tmp_path / "msmarco-docs.tsv"
    path.write_text("D1\thttp://a b\tA title\tThe body.  Two  spaces.\n")
    (found,) = _read("msmarco_docs", path)
    assert (found.id, found.title, found.source) == ("D1", "A title", "msmarco")
    assert found.sections == (Section("", "The body.  Two  spaces."),)
    assert found.meta == {"url": "http://a b"}
    path.write_text("D1\thttp://a\tA  title\t The\u00a0body.\n")
    (found,) = _read("msmarco_docs", path, released=True)
    assert (found.id, found.title, found.text) == ("D1", "", "A title The\u00a0body.")


def test_rocketqa_titles_are_joined_by_id(tmp_path):
    texts = {str(i): f"text {i}" for i in range(20)}
    titles = {str(i): f"title {i}" for i in range(19, -1, -2)}
    (tmp_path / "para.txt").write_text("".join(f"{i}\t{t}\n" for i, t in texts.items()))
    (tmp_path / "para.title.txt").write_text("".join(f"{i}\t{t}\n" for i, t in titles.items()))
    expected = [Passage(i, titles.get(i, ""), t) for i, t in texts.items()]
    for count in (1, 3):
        found = _from_shards("msmarco_passages", tmp_path, count)
        assert [d.passages[0] for d in found] == expected


def test_beir_documents_and_the_passages_they_do_not_name(tmp_path):
    named = {"_id": "a", "title": "T", "text": "one", "metadata": {"url": "u"}}
    others = [{"_id": "b", "text": "two"}, {"_id": "c", "title": "Only a title", "text": ""}]
    _lines(tmp_path / "corpus.jsonl", *map(json.dumps, [named, *others]))
    first, *_ = _read("beir", tmp_path)
    assert first.passages == (Passage("a", "T", "one"),) and first.meta == {"url": "u"}
    passages = [{"_id": "b", "text": "two"}, {"_id": "a", "text": "one", "title": "T"}]
    row = {"_id": "d0", "title": "Doc", "source": "s", "passages": passages}
    _lines(tmp_path / "documents.jsonl", json.dumps(row))
    for count in (1, 2, 4):
        found = _from_shards("beir", tmp_path, count)
        assert [(d.id, d.passages) for d in found] == [
            ("d0", (Passage("b", "Doc", "two"), Passage("a", "T", "one"))),
            ("c", (Passage("c", "Only a title", ""),)),
        ]
        assert found[0].source == "s"


def test_dpr_articles_stay_whole_in_every_shard(tmp_path):
    """Quoting as Python's csv writes it; articles are runs of one title."""
    path = tmp_path / "psgs_w100.tsv"
    rows = [("1", 'He said "no".', 'A "B"'), ("2", "Tab\there", 'A "B"')]
    rows += [(str(i), f"text {i} " * (i % 7 + 1), f"Article {i // 4}") for i in range(3, 40)]
    rows += [("40", "untitled", ""), ("41", "untitled too", "")]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerows([("id", "text", "title"), *rows])
    for count in (1, 2, 3, 11, 50):
        found = _from_shards("dpr", path, count)
        passages = [p for d in found for p in d.passages]
        assert [(p.id, p.text, p.title) for p in passages] == [
            (i, t.replace("\t", " "), title) for i, t, title in rows
        ]
        titles = [d.title for d in found]
        assert titles == ['A "B"', *(f"Article {i}" for i in range(10)), "", ""]
        assert [d.id for d in found][:3] == ["1", "3", "4"]


def test_plain_json_lines(tmp_path):
    rows: list[dict[str, Any]] = [
        {"text": "pile text", "meta": {"pile_set_name": "Pile-CC"}},
        {"text": " \n", "meta": {}},
        {"text": None},
        {"id": 5, "contents": "anserini", "title": " T ", "extra": [1]},
    ]
    path = Path(_lines(tmp_path / "a.jsonl", *map(json.dumps, rows)))
    bad = BadLines()
    first, second = _read("jsonl", path, bad=bad)
    assert bad.left_out == {"documents without text": 2}
    assert (first.id, first.source, first.text) == ("a.jsonl@0", "Pile-CC", "pile text")
    assert (second.id, second.title, second.text) == ("5", "T", "anserini")
    assert (first.meta, second.meta) == ({}, {"extra": [1]})


# What is done with dirt (docs/bad-data.md).


def line(**record: Any) -> bytes:
    return json.dumps(record).encode()


def test_dirty_documents(tmp_path: Path) -> None:
    """`prepare` does the same in several shards, whose repeats are found at the end."""
    lines = [
        line(_id="a", title="T", text="A text.", metadata={}),
        line(_id="b", title="Only a title", text=""),
        line(_id="d", title=None, text=None),
        line(_id="e", text="No title, and a\0NUL."),
        b'{"_id": "f", "text": "caf\xe9"}',
        line(_id="a", title="T", text="A text.", metadata={}),
        line(_id="a", title="T", text="Another text."),
    ]
    texts, left_out = ["A text.", "", "", "No title, and a NUL."], {"repeated documents": 1}
    kept = {"passages without text": 1, "lines with NUL characters, read as blanks": 1}
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    bad = BadLines(2)
    found = list(documents.read("beir", path, bad=bad))
    assert [p.text for d in found for p in d.passages] == texts
    assert (bad.left_out, bad.kept, len(bad)) == (left_out, kept, 2)
    given: dict[str, Any] = {"documents": str(path), "format": "beir", "shards": 3}
    made = stage.execute(Prepare.make(**given, skip_bad=2, cut="none", workers=1), tmp_path / "out")
    assert [p["text"] for p in Records(made)] == texts
    assert (made.info["left_out"], made.info["kept"], made.info["skipped"]) == (left_out, kept, 2)
    assert len((tmp_path / "out" / "skipped.tsv").read_text().splitlines()) == 2


def test_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file, lines, kept in (
        ("queries.tsv", [b"1\tone", b"2\t ", b"1\tone", b"3\ta\0b"], {"1": "one", "3": "a b"}),
        (
            "queries.jsonl",
            [line(_id="1", text="one"), line(_id="2", text=""), line(_id="1", text="one")],
            {"1": "one"},
        ),
        ("orcas.tsv", [b"1\tone\tD1\tu", b"1\tone\tD2\tu", b"2\t\tD3\tu"], {"1": "one"}),
        ("nq.qa.csv", [b"one\t['a']", b" \t['b']"], {"0": "one"}),
    ):
        path = tmp_path / file
        path.write_bytes(b"\n".join(lines) + b"\n")
        assert {query.id: query.text for query in read_queries(path)} == kept
        assert "left out 1 queries without text" in capsys.readouterr().err
        path.write_bytes(b"\n".join([*lines, b"\xe9"]) + b"\n")
        with pytest.raises(DataError, match="not UTF-8"):
            list(read_queries(path))


# Recognised by a file's head.


def test_documents_are_recognised(tmp_path):
    for name, line, expected in (
        ("c.jsonl", '{"_id": "1", "text": "x"}', "beir"),
        ("c.jsonl", '{"docid": "1", "text": "x"}', "tevatron"),
        ("c.jsonl", '{"_id": "1", "tokens": [1, 2]}', "tokens"),
        ("c.tsv", "id\ttext\ttitle", "dpr"),
        ("c.tsv", "1\tsome text", "msmarco_passages"),
        ("c.jsonl", '{"id": "1", "contents": "x"}', "jsonl"),
        ("c.jsonl", '{"question": "x", "answer": "y"}', "folder"),
        ("c.json", '[{"text": "x"}]', "folder"),
        ("c.json", '{\n"text": "x"}', "folder"),
        ("c.tsv", "question\tanswer\nwho is it?\tme", "folder"),
        ("beir/corpus.jsonl", '{"docid": "1", "text": "x"}', "tevatron"),
        ("beir", "", "beir"),
        ("shards/a.jsonl", '{"text": "x"}', "jsonl"),
        ("shards", "", "jsonl"),
        ("mixed/a.jsonl", '{"text": "x"}', "jsonl"),
        ("mixed/b.md", "x", "folder"),
        ("mixed", "", "folder"),
        ("papers/a.json", '{"text": "x"}', "jsonl"),
        ("papers", "", "folder"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        path = _lines(tmp_path / name, line) if line else str(tmp_path / name)
        assert corpus.format_of(path) == expected, name


def test_queries_are_recognised(tmp_path):
    for line, expected in (
        ('[{"question": "x"}]', "entityquestions"),
        ('{"question": "x", "answer": []}', "jsonl"),
        ("who\t['x']", "dpr"),
        ("1\twho", "tsv"),
        ("1\twho\tD1\thttp://x", "orcas"),
        ("who", "lines"),
        ("a\tb\tc", None),
    ):
        assert QUERIES.detect(sample(_lines(tmp_path / "queries", line))) == expected, line


@pytest.fixture(autouse=True)
def fresh():
    """Every test opens its data sets anew."""
    yield
    named._data.cache_clear()


class Table(list[dict[str, Any]]):
    def select(self, numbers: range) -> list[dict[str, Any]]:
        return [self[number] for number in numbers]


@pytest.fixture
def calls(monkeypatch) -> list[Any]:
    """How `datasets` was called, which has one data set."""
    rows = [{"id": f"d{i}", "title": f"T{i}", "text": f"text {i}", "tags": ["x"]} for i in range(9)]
    seen: list[Any] = []

    def load_dataset(*names: Any, **options: Any) -> Table:
        seen.append((*names, options))
        return Table(rows)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return seen


def test_hugging_face(monkeypatch, calls):
    whole = list(documents.read("hf", "org/name:config", split="test"))
    assert calls == [("org/name", "config", {"split": "test"})]
    assert [d.id for d in whole] == [f"d{i}" for i in range(9)]
    assert whole[3].title == "T3" and whole[3].sections == (Section("", "text 3"),)
    parts = documents.shards("hf", "org/name:config", 4, {"split": "test"})
    assert [d for part in parts for d in documents.read_shard(part)] == whole and len(parts) == 4
    monkeypatch.setitem(sys.modules, "datasets", None)
    named._data.cache_clear()
    with pytest.raises(UserError, match="needs datasets.*`pip install datasets`"):
        list(documents.read("hf", "some/name"))


def test_a_name_says_its_format(calls, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    name = "hf:org/mills"
    assert DOCUMENTS.named(name) == ("hf", "org/mills")
    for other in ("jsonl:x", "hf", "hf:", "gs://bucket/x", "/tmp/x"):
        assert DOCUMENTS.named(other) is None
    (tmp_path / "hf:x").write_text("a file comes first")
    assert DOCUMENTS.named("hf:x") is None
    assert cli.main(["prepare", "--documents", name, "--cut", "none", "--out", "p"]) == 0
    made = artifacts.load("p")
    assert (made.count, made.inputs["documents"]) == (9, name)
    assert [r["_id"] for r in read_passages(name)] == [f"d{i}" for i in range(9)]


def test_the_commit_of_a_data_set_is_part_of_what_is_made(calls, monkeypatch, tmp_path):
    toy_hub.pin(monkeypatch, tmp_path)
    refs = tmp_path / "datasets--org--name" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("a" * 40)
    assert inputs.identity("hf:org/name:part") == f"hf:org/name:part@{'a' * 40}"
    assert inputs.identity("hf:org/other") == "hf:org/other"
    assert inputs.identity(f"hf:org/name@{'b' * 40}") == f"hf:org/name@{'b' * 40}"
    list(documents.read(*documents.source("auto", "hf:org/name:part@v2")))
    assert calls[0][-1]["revision"] == "v2"
    names.forget()
