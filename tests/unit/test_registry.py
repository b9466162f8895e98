"""One registry of formats: found by their files, loaded when used, recognised by a file's head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qac_jax.errors import UserError
from qac_jax.formats import documents
from qac_jax.formats.registry import DOCUMENTS, JUDGEMENTS, QUERIES, TRAINING, Registry, sample
from qac_jax.retrieval import corpus


@pytest.mark.parametrize("registry", [DOCUMENTS, QUERIES, JUDGEMENTS, TRAINING])
def test_every_file_declares_its_format(registry):
    formats = registry.all()
    assert tuple(formats) == registry.names() == tuple(sorted(formats))
    assert len({type(format) for format in formats.values()}) == 1


def test_a_file_in_the_folder_is_a_format(tmp_path, monkeypatch):
    from qac_jax.formats import readers

    (tmp_path / "toy_pipes.py").write_text(
        "from qac_jax.formats.documents import Document, Section\n"
        "from qac_jax.formats.lines import line_format\n"
        "def parse(line, options):\n"
        "    name, text = line.text.split(options['mark'])\n"
        "    return Document(name, sections=(Section('', text),), place=line.place)\n"
        "FORMAT = line_format(parse, ('.pipes',), options={'mark': '|'})\n"
        "DOCUMENT_FORMATS = {'toy_pipes': FORMAT}\n"
    )
    (tmp_path / "corpus.pipes").write_text("a|one two\nb|three\n")
    with pytest.raises(UserError, match="unknown format 'toy_pipes'"):
        list(documents.read("toy_pipes", tmp_path))
    monkeypatch.setattr(readers, "__path__", [*readers.__path__, str(tmp_path)])
    monkeypatch.delattr(DOCUMENTS, "_formats")
    assert "toy_pipes" in DOCUMENTS.names()
    found = documents.read("toy_pipes", tmp_path)
    assert [(d.id, d.text) for d in found] == [("a", "one two"), ("b", "three")]
    with pytest.raises(UserError, match="no option 'marks'; did you mean 'mark'"):
        list(documents.read("toy_pipes", tmp_path, marks=";"))


def _lines(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("c.jsonl", '{"_id": "1", "text": "x"}', "beir"),
        ("c.jsonl", '{"text": "x", "damaged', "beir"),
        ("c.jsonl", '{"docid": "1", "text": "x"}', "tevatron"),
        ("c.jsonl", '{"_id": "1", "tokens": [1, 2]}', "tokens"),
        ("c.jsonl", '{"text_id": "1", "text": [1, 2]}', "tokens"),
        ("c.tsv", "id\ttext\ttitle", "dpr"),
        ("c.tsv", "1\tsome text", "msmarco_passages"),
        ("c.tsv", "some text", "msmarco_passages"),
        ("c.tsv", '{"_id": "1"}', "beir"),
    ],
)
def test_documents_are_recognised(tmp_path, name, line, expected):
    assert corpus.detect(_lines(tmp_path / name, line)) == expected


def test_a_folder_of_beir_is_recognised(tmp_path):
    _lines(tmp_path / "corpus.jsonl", json.dumps({"docid": "1", "text": "x"}))
    assert corpus.detect(str(tmp_path)) == "beir"


def test_what_is_not_recognised_names_the_formats(tmp_path):
    with pytest.raises(UserError, match=r"--format \(beir, dpr, .*, tokens\)"):
        corpus.detect(_lines(tmp_path / "c.txt", "some text"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('[{"question": "x"}]', "entityquestions"),
        ('{"header": {"dataset": "x"}}', "mrqa"),
        ('{"context": "c", "qas": [{"question": "x"}]}', "mrqa"),
        ('{"question": "x", "answer": []}', "dpr_jsonl"),
        ('{"_id": "1",\t"text": "x"}', "jsonl"),
        ("<top>", "trec"),
        ("who\t['x']", "dpr"),
        ("who\t\"['x']\"", "dpr"),
        ("1\twho", "tsv"),
        ("1\twho\tD1\thttp://x", "orcas"),
        ("who", "lines"),
        ("a\tb\tc", None),
    ],
)
def test_queries_are_recognised(tmp_path, line, expected):
    assert QUERIES.detect(sample(_lines(tmp_path / "queries", line))) == expected


def test_an_unknown_name_gives_the_nearest():
    registry: Registry[object] = Registry("DOCUMENT_FORMATS", "format")
    with pytest.raises(UserError, match="unknown format 'bier'; did you mean 'beir'"):
        registry.get("bier")
