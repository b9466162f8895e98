"""What each format says, on tiny files written here."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from qac_jax.errors import DataError, UserError
from qac_jax.formats import documents
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import Document, Passage, Section


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _read(format: str, path: Path, **options: Any) -> list[Document]:
    return list(documents.read(format, path, **options))


# MS MARCO and tables


def test_msmarco_documents(tmp_path):
    path = tmp_path / "msmarco-docs.tsv"
    path.write_text("D1\thttp://a b\tA title\tThe body.  Two  spaces.\n")
    (document,) = _read("msmarco_docs", path)
    assert document == Document(
        "D1",
        "A title",
        (Section("", "The body.  Two  spaces."),),
        source="msmarco",
        meta={"url": "http://a b"},
    )


def test_msmarco_documents_as_the_released_awk_reads_them(tmp_path):
    """Fields from the third on, divided by blanks and tabs only, joined by one space."""
    path = tmp_path / "msmarco-docs.tsv"
    path.write_text("D1\thttp://a\tA  title\t The\u00a0body.\n")
    (document,) = _read("msmarco_docs", path, released=True)
    assert (document.id, document.title) == ("D1", "")
    assert document.text == "A title The\u00a0body."


def test_passages_with_titles_in_the_same_file(tmp_path):
    path = tmp_path / "corpus.tsv"
    path.write_text("7\tA title\tSome text\n8\t-\tMore\n9\t\tLast\n")
    found = _read("msmarco_passages", path)
    assert [d.passages[0] for d in found] == [
        Passage("7", "A title", "Some text"),
        Passage("8", "", "More"),
        Passage("9", "", "Last"),
    ]


@pytest.mark.parametrize("count", [1, 3])
def test_rocketqa_titles_are_joined_by_id(tmp_path, count):
    texts = {str(i): f"text {i}" for i in range(20)}
    titles = {str(i): f"title {i}" for i in range(19, -1, -2)}
    (tmp_path / "para.txt").write_text("".join(f"{i}\t{t}\n" for i, t in texts.items()))
    (tmp_path / "para.title.txt").write_text("".join(f"{i}\t{t}\n" for i, t in titles.items()))
    found = [
        document
        for shard in documents.shards("msmarco_passages", tmp_path, count)
        for document in documents.read_shard(shard)
    ]
    assert [d.passages[0] for d in found] == [
        Passage(i, titles.get(i, ""), t) for i, t in texts.items()
    ]


def test_bad_titles_are_told_once_however_many_shards(tmp_path):
    (tmp_path / "para.txt").write_text("".join(f"{i}\ttext {i}\n" for i in range(20)))
    (tmp_path / "para.title.txt").write_text("1\tone\n2\n3\tthree\n")
    bad = BadLines(5)
    for shard in documents.shards("msmarco_passages", tmp_path, 4):
        list(documents.read_shard(shard, bad))
    assert [(i.file, i.line) for i in bad.items] == [(str(tmp_path / "para.title.txt"), 2)]


def test_tables_with_named_columns(tmp_path):
    path = tmp_path / "marco.tp.1k"
    path.write_text("A title\tfirst\n-\tsecond\n")
    found = _read("tsv", path, columns="title,text")
    assert [(d.id, d.title, d.text) for d in found] == [
        ("marco.tp.1k@0", "A title", "first"),
        ("marco.tp.1k@14", "", "second"),
    ]
    (tmp_path / "more.tsv").write_text("x\thttp://u\ttext\t5\n")
    (document,) = _read("tsv", tmp_path / "more.tsv", columns="_,url,text,id")
    assert (document.id, document.meta) == ("5", {"url": "http://u"})
    with pytest.raises(UserError, match="did you mean 'title'"):
        _read("tsv", path, columns="titel,text")
    with pytest.raises(UserError, match="one of them must be called text"):
        _read("tsv", path, columns="id,title")


# BEIR


CORPUS: list[dict[str, Any]] = [
    {"_id": "a", "title": "T", "text": "one", "metadata": {"url": "u"}},
    {"_id": "b", "title": "", "text": "two"},
    {"_id": "c", "title": "Only a title", "text": ""},
]


def test_beir_corpus(tmp_path):
    _jsonl(tmp_path / "corpus.jsonl", CORPUS)
    found = _read("beir", tmp_path)
    assert [d.passages for d in found] == [
        (Passage("a", "T", "one"),),
        (Passage("b", "", "two"),),
        (Passage("c", "Only a title", ""),),
    ]
    assert found[0].meta == {"url": "u"}


@pytest.mark.parametrize("count", [1, 2, 4])
def test_beir_documents_and_the_passages_they_do_not_name(tmp_path, count):
    _jsonl(tmp_path / "corpus.jsonl", CORPUS)
    rows: list[dict[str, Any]] = [
        {
            "_id": "d0",
            "title": "Doc",
            "source": "s",
            "passages": [{"_id": "b", "text": "two"}, {"_id": "a", "text": "one", "title": "T"}],
        }
    ]
    _jsonl(tmp_path / "documents.jsonl", rows)
    found = [
        document
        for shard in documents.shards("beir", tmp_path, count)
        for document in documents.read_shard(shard)
    ]
    assert [(d.id, d.passages) for d in found] == [
        ("d0", (Passage("b", "Doc", "two"), Passage("a", "T", "one"))),
        ("c", (Passage("c", "Only a title", ""),)),
    ]
    assert found[0].source == "s"


def test_a_folder_that_is_not_beir(tmp_path):
    (tmp_path / "queries.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="neither corpus.jsonl nor documents.jsonl"):
        _read("beir", tmp_path)


# DPR


@pytest.mark.parametrize("count", [1, 2, 3, 5, 11, 50])
def test_dpr_articles_stay_whole_in_every_shard(tmp_path, count):
    """Quoting as Python's csv writes it; articles are runs of one title."""
    path = tmp_path / "psgs_w100.tsv"
    rows = [("1", 'He said "no".', 'A "B"'), ("2", "Tab\there", 'A "B"')]
    rows += [(str(i), f"text {i} " * (i % 7 + 1), f"Article {i // 4}") for i in range(3, 40)]
    rows += [("40", "untitled", ""), ("41", "untitled too", "")]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerows([("id", "text", "title"), *rows])
    found = [
        document
        for shard in documents.shards("dpr", path, count)
        for document in documents.read_shard(shard)
    ]
    passages = [p for d in found for p in d.passages]
    assert [(p.id, p.text, p.title) for p in passages] == [
        (i, t.replace("\t", " "), title) for i, t, title in rows
    ]
    titles = [d.title for d in found]
    assert titles == ['A "B"', *(f"Article {i}" for i in range(10)), "", ""]
    assert [d.id for d in found][:3] == ["1", "3", "4"]


# JSON lines


def test_tevatron_training_lines_give_each_passage_once(tmp_path):
    def passage(i: int) -> dict[str, str]:
        return {"docid": str(i), "title": f"T{i}", "text": f"text {i}"}

    rows: list[dict[str, Any]] = [
        {
            "query_id": str(q),
            "query": "what",
            "positive_passages": [passage(q)],
            "negative_passages": [passage(q + 1), passage(q + 2)],
        }
        for q in range(30)
    ]
    path = _jsonl(tmp_path / "train.jsonl", rows)
    assert [d.id for d in _read("tevatron", path)] == [str(i) for i in range(32)]
    assert len(documents.shards("tevatron", path, 8)) == 1


def test_plain_json_lines(tmp_path):
    rows: list[dict[str, Any]] = [
        {"text": "pile text", "meta": {"pile_set_name": "Pile-CC"}},
        {"id": 5, "contents": "anserini", "title": " T ", "extra": [1]},
        {"docid": "x", "sections": [{"heading": "H", "text": "a"}, {"text": "b"}]},
    ]
    path = _jsonl(tmp_path / "a.jsonl", rows)
    first, second, third = _read("jsonl", path)
    assert (first.id, first.source, first.text, first.meta) == (
        "a.jsonl@0",
        "Pile-CC",
        "pile text",
        {},
    )
    assert (second.id, second.title, second.text, second.meta) == (
        "5",
        "T",
        "anserini",
        {"extra": [1]},
    )
    assert (third.id, third.sections) == ("x", (Section("H", "a"), Section("", "b")))


def test_json_lines_with_keys_of_their_own(tmp_path):
    path = _jsonl(tmp_path / "a.jsonl", [{"key": "k", "name": "N", "story": "s", "text": "no"}])
    (document,) = _read("jsonl", path, id="key", title="name", text="story")
    assert (document.id, document.title, document.text) == ("k", "N", "s")
    with pytest.raises(DataError, match="no id: expected the key 'nr', found 'key', 'name'"):
        _read("jsonl", path, id="nr")


def test_mrqa_contexts(tmp_path):
    context = "[DOC] [TLE] A title [PAR] First. [PAR] Second. [DOC] [TLE] B [SEP] Third."
    rows: list[dict[str, Any]] = [
        {"header": {"dataset": "X"}},
        {"context": "Plain."},
        {"context": context},
    ]
    plain, marked = _read("mrqa", _jsonl(tmp_path / "a.jsonl", rows))
    assert plain.sections == (Section("", "Plain."),)
    assert marked.title == "A title"
    assert marked.sections == (
        Section("A title", "First."),
        Section("A title", "Second."),
        Section("B", "Third."),
    )


# Folders


def test_text_folders(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a_story.txt").write_text("One\nline.\n \n\nTwo\tlines.\r\n")
    (tmp_path / "b.md").write_text("Text")
    (tmp_path / "c.bin").write_bytes(b"\xff")
    found = _read("text", tmp_path)
    assert [(d.id, d.title, d.text) for d in found] == [
        ("b.md", "b", "Text"),
        ("below/a_story.txt", "a story", "One line.\nTwo lines."),
    ]
    assert len(documents.shards("text", tmp_path, 2)) == 2


def test_bad_text_files(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\ncaf\xe9\n")
    with pytest.raises(DataError, match="not UTF-8: byte 0xe9") as error:
        _read("text", tmp_path)
    assert (error.value.file, error.value.line) == (str(tmp_path / "a.txt"), 3)
    (tmp_path / "b.txt").write_text("\n")
    bad = BadLines(2)
    assert list(documents.read("text", tmp_path, bad=bad)) == []
    assert len(bad) == 1 and bad.left_out == {"documents without text": 1}
    with pytest.raises(UserError, match="holds no .html or"):
        _read("html", tmp_path)


def test_html(tmp_path):
    page = """<!doctype html><html><head><title>A &amp; B</title><style>p {}</style>
    <body><nav><a href="/">home</a></nav><p>First <b>bold words</b>
    and a <a href="/x">link <i>here</i></a>.<p>Second.<script>var x = "<p>";</script>
    <h2>Head</h2><ul><li>One<li>Two</ul></body></html>"""
    (tmp_path / "a.html").write_text(page)
    (document,) = _read("html", tmp_path)
    assert (document.id, document.title) == ("a.html", "A & B")
    assert document.sections == (
        Section("", "First bold words and a link here.\nSecond."),
        Section("Head", "One\nTwo"),
    )
    assert document.meta == {"anchors": [["/x", "link here"]], "phrases": ["bold words", "here"]}
