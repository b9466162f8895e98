"""Hostile input takes time and memory that grow with its length alone, and ends in a result or in
one sentence.

QAC_FUZZ=N draws N structured inputs, of which each must end within 10 s of CPU and 1 GB.
"""

import bz2
import contextlib
import gzip
import json
import os
import resource
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from toy_process import bounded

from qac_jax import config
from qac_jax.errors import UserError
from qac_jax.evaluation.answers import matcher
from qac_jax.formats import docstrings, documents, files, judgements, queries, runs, training
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import Document, Section
from qac_jax.serving import requests
from qac_jax.text import tokenizers
from qac_jax.text.passages import Cutter, Cutting


Reader = Callable[[Path, BadLines], Any]


def _of(format: str) -> Reader:
    return lambda path, bad: list(documents.read(format, path, bad=bad))


def _listed(read: Callable[..., Any], *more: Any) -> Reader:
    return lambda path, bad: list(read(path, *more, bad=bad))


def _page(path: Path, bad: BadLines) -> Any:
    cutter = Cutter(Cutting(), tokenizers.load(), "shipped")
    return [list(cutter.records(found)) for found in documents.read("folder", path, bad=bad)]


def _as(suffix: str, read: Reader) -> Reader:
    """What reads a file that is called otherwise."""
    return lambda path, bad: read(path.rename(path.with_suffix(suffix)), bad)


def _docstring(path: Path, bad: BadLines) -> Any:
    return docstrings.parse(path.read_text("utf-8", "replace"))


def _run(path: Path, bad: BadLines) -> Any:
    return runs.read_run(path), list(runs.stream_run([path], bad))


def _gin(path: Path, bad: BadLines) -> Any:
    return config.Config(str(path))


def _asked(path: Path, bad: BadLines) -> Any:
    """The bodies of requests, as the server checks them."""
    for model in (requests.SearchRequest, requests.EmbeddingsRequest, requests.AddRequest):
        with contextlib.suppress(ValidationError):
            model.model_validate_json(path.read_bytes())


def _wikipedia(path: Path, bad: BadLines) -> Any:
    """A dump, or wikitext, which is put into one."""
    text = path.read_text("utf-8", "replace")
    if not text.startswith("<?xml"):
        text = "".join(c for c in text if c.isprintable() or c in "\n\t")
        text = text.replace("&", "&amp;").replace("<", "&lt;")
        page = f"<page><title>T</title><ns>0</ns><id>1</id><revision><text>{text}"
        path.write_text(f"<mediawiki>{page}</text></revision></page></mediawiki>", "utf-8")
    return list(documents.read("wikipedia", path, bad=bad))


_table, _cut_table = _as(".tsv", _of("folder")), _as(".tsv", _page)
_QUERIES, _HARD = _listed(queries.read_queries), _listed(training.read_hard_negatives)
# Readers of a kind of file, its suffix and marks (divided by a character that is none of them).
READERS: dict[str, tuple[tuple[Reader, ...], str, str]] = {
    "html": (
        (_page,),
        ".html",
        "<x/¦<a ¦<a href=b>¦</a>¦<!--¦-->¦</¦<p¦<p>¦</p>¦<div>¦<i>¦</i>¦<h1>¦</h1>¦<nav>¦<title>¦"
        '<script>¦<table>¦<td>¦<main>¦<![CDATA[¦<?¦&#¦a=b ¦"¦<svg>¦<select>¦<meta charset=x>',
    ),
    "md": (
        (_page,),
        ".md",
        "[¦]¦(¦)¦![¦[a](b)¦`¦```\n¦*¦*a ¦_¦<a¦<!--¦> ¦- ¦1. ¦    ¦# ¦|¦|-|\n¦---\n¦~~¦\\¦&#¦"
        "[a]: b\n¦[^a]¦<div>\n¦title: x\n¦\n\n",
    ),
    "rst": (
        (_page, _docstring),
        ".rst",
        "`¦``¦`a <¦>`_¦:a:`¦:func:`¦*¦**a¦====\n¦----\n¦~~~~\n¦.. a::\n¦.. ¦::\n¦>>> ¦Args:\n¦- ¦"
        "See Also\n--------\n¦(¦a)¦->¦+---¦\t¦.¦\n\n¦    ",
    ),
    "wiki": (
        (_wikipedia,),
        ".xml",
        "<ref>¦</ref>¦<ref name=a/>¦<math>¦<nowiki>¦</nowiki>¦<!--¦{{¦}}¦{{{¦[[¦]]¦[[a|b]]¦|¦\n{|¦"
        "\n|}¦[//a ¦\n=¦= ¦''¦'''a¦\"\"¦&#¦9¦__A¦( ,¦)¦;¦{{lang|en|¦[[File:¦<?xml version='1.0'?>¦"
        "&lt;¦<page>¦</page>",
    ),
    "json": (
        (
            *(_page, *map(_of, ("jsonl", "beir", "tevatron")), _QUERIES, _HARD, _asked),
            *(_listed(training.read_training_lines, form) for form in ("tevatron", "dpr")),
            lambda path, bad: judgements.read_named(path),
        ),
        ".jsonl",
        '{"¦"_id":¦"text":¦"title":¦"a"¦[¦]¦{¦}¦,¦:¦1¦-¦e9¦\n¦\n{"_id":"1","text":"b"}\n¦null¦'
        '{"_id":"1","text":"b","metadata":¦\\ud800¦"passages":¦"input":¦{"query":"a","where":¦'
        '{"query_id":"1","query":"a","positive_passages":¦"neg":¦"pos":¦"answers":',
    ),
    "table": (
        (
            *(_page, *map(_of, ("dpr", "msmarco_docs", "msmarco_passages")), _run, _QUERIES),
            _listed(judgements.read_judgements),
            _listed(training.read_triples),
            _listed(training.read_training_lines, "rocketqa"),
        ),
        ".tsv",
        "\t¦\"¦,¦a¦1¦\n¦Q0¦ ¦0.5¦['a']¦['¦{[]:1}¦-¦(¦\r¦q\tQ0\ta\t1\t1\tx\n",
    ),
    "pdf": (
        (_page,),
        ".pdf",
        "%PDF-1.4\n¦1 0 obj\n¦<<¦>>¦/Type /Page¦/Kids [1 0 R]¦/Count 9¦stream\n¦endstream\n¦(¦)¦[¦"
        "]¦endobj\n¦xref\n¦trailer ¦startxref\n9\n¦%%EOF¦/Root 1 0 R¦/Filter /FlateDecode",
    ),
    "warc": (
        (_of("warc"),),
        ".warc",
        "WARC/1.0\r\n¦WARC-Type: response\r\n¦WARC-Type: conversion\r\n¦Content-Length: 40\r\n¦"
        "\r\n¦WARC-Record-ID: <urn:uuid:1>\r\n¦HTTP/1.1 200 OK\r\n¦Content-Type: text/html\r\n¦"
        "<p>a¦9\r\n¦Transfer-Encoding: chunked\r\n¦Content-Encoding: gzip\r\n¦\x1f",
    ),
    "gin": (
        (_gin,),
        ".gin",
        "recipe = @qac.own_corpus()\n¦A = ¦[¦]¦{¦(¦)¦%A¦@¦'¦\"¦\n¦1¦import os\n¦include 'x.gin'\n¦"
        "-¦from a import b\n¦train.Schedule.steps = ¦.¦\\¦#¦lambda¦a/b/¦\t",
    ),
}


def read(reader: Reader, path: Path, content: bytes, seconds: int = 10) -> None:
    """A result or a sentence, in bounded time."""
    path.write_bytes(content)
    with bounded(seconds), contextlib.suppress(UserError):
        reader(path, BadLines(1 << 40))


def _systems(count: int) -> str:
    """Hard negatives of `count` systems, a passage each."""
    negatives = {str(i): [{"pid": str(i), "ce-score": 0}] for i in range(count)}
    return json.dumps({"qid": "1", "pos": [{"pid": "p", "ce-score": 9}], "neg": negatives})


def _ranked(ids: Iterable[int], queries: int) -> str:
    return "".join(f"{i % queries} Q0 {i} 1 1 x\n" for i in ids)


_SEE = "T\n\nSee Also\n--------\n"
# Who reads it, and text of some times n characters, of which a megabyte took minutes or hours.
QUADRATIC: dict[str, tuple[Reader, Callable[[int], str]]] = {
    "blanks in a heading": (_wikipedia, lambda n: f"=a{' ' * n}b\n"),
    "links in links": (_wikipedia, lambda n: "[[" * n + "a" * 2 * n + "]]" * n),
    "templates": (_wikipedia, lambda n: "{{lang|en|" * (n // 2) + "a" * 2 * n + "}}" * (n // 2)),
    "digits of a character": (_wikipedia, lambda n: f"&#{'9' * n};"),
    "blanks in a role": (_docstring, lambda n: f"Text. :a:`b{' ' * n}c"),
    "blanks in a literal": (_docstring, lambda n: f"Text. `b{' ' * n}c"),
    "dots in a reference": (_docstring, lambda n: f"{_SEE}:func:`{'.' * n}"),
    "tabs among names": (_docstring, lambda n: f"{_SEE}a{chr(9) * n}b"),
    "a blank heading": (_page, lambda n: "<h1>" + " <p>" * n),
    "two queries": (_run, lambda n: _ranked(range(n // 8), 2)),
    "a passage twice": (_run, lambda n: _ranked([*range(n // 4), n // 4 - 1], 1)),
    "systems": (_HARD, lambda n: _systems(n // 4)),
    "a long column's name": (
        _cut_table,
        lambda n: "x1 " * (n // 4) + "\tb\n" + "a\tb\n" * (n // 320),
    ),
    "columns": (_table, lambda n: "\t".join(map(str, range(n // 9))) + "\na" * (n // 50)),
    "keys": (
        _as(".jsonl", _of("folder")),
        lambda n: json.dumps(dict.fromkeys(range(n // 12), "a")) + '\n{"1":"b"}' * (n // 25),
    ),
    "columns of one name": (_table, lambda n: "a\t" * (n // 2) + "\nb"),
}


def _repeated(mark: str, length: int) -> str:
    return mark * (length // len(mark))


# Marks that never end.
_MARKS = (
    ("html", _page, ("<x/", "<a ", "<!--", "</", "<p", "<div>", "<nav>", "<i><p>")),
    ("md", _as(".md", _of("folder")), ("[", "`", "*a", "<a", "> ", "[a](")),
    ("csv", _as(".csv", _of("folder")), ('a,"b\n', '"')),
    ("json", _as(".json", _of("folder")), ("[",)),
    ("wiki", _wikipedia, ("<ref>", "<math>", "<nowiki>", "{{", "[[", "[//a", "''a ")),
)
QUADRATIC |= {
    f"{kind} {mark}": (reader, partial(_repeated, mark))
    for kind, reader, marks in _MARKS
    for mark in marks
}


@pytest.mark.parametrize("attack", QUADRATIC)
def test_time_grows_with_the_length_alone(attack, tmp_path):
    reader, made = QUADRATIC[attack]
    # A quote that never ends is followed for 20,000 lines in all, which takes two seconds.
    seconds = 6 if attack.startswith("csv") else 3
    read(reader, tmp_path / "a.html", made(120_000).encode(), seconds=seconds)


def test_passages_do_not_look_for_millions_of_links():
    meta = {"anchors": [["b", str(i)] for i in range(10**6)]}
    document = Document("d", "t", (Section("", "Some 12 words. " * 8000),), meta=meta)
    with bounded(5):
        found = list(Cutter(Cutting(), tokenizers.load(), "shipped").records(document))
    assert len(found) > 100 and found[0]["anchors"] == [["b", "1"], ["b", "2"], ["b", "12"]]


def test_what_passages_repeat_of_a_document_is_bounded(tmp_path):
    path, long = tmp_path / "a.jsonl", "x" * (documents.MOST_SHARED + 1)
    for told in ({"title": long}, {"metadata": {"a": [long]}}, {"_id": long}):
        for text, fits in (("a b", True), ("a " * len(long), False)):
            path.write_text(json.dumps({"_id": "1", "text": text, **told}) + "\n")
            if fits:
                assert len(list(documents.read("jsonl", path))) == 1
            else:
                with pytest.raises(UserError, match="each passage would repeat 65,5.. characters"):
                    list(documents.read("jsonl", path))


def _bombs() -> dict[str, bytes]:
    """Names of files that unpack to a gigabyte."""
    megabyte = b"a" * (1 << 20)
    packed = {
        ".gz": gzip.compress(megabyte) * 1000,
        ".bz2": bz2.compress(megabyte) * 1000,
        ".zst": zstandard.compress(megabyte) * 1000,
    }
    bombs = {f"a.jsonl{suffix}": content for suffix, content in packed.items()}
    return bombs | {"a.xml.gz": gzip.compress(b'<mediawiki a="') + packed[".gz"]}


def test_bombs_end_in_a_sentence(tmp_path, monkeypatch):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, content in _bombs().items():
        (tmp_path / name).write_bytes(content)
        format = "wikipedia" if ".xml" in name else "jsonl"
        with bounded(10), pytest.raises(UserError, match="more than (16,777,216 bytes|100 times)"):
            list(documents.read(format, tmp_path / name))
    for count, fits in ((10**6, True), (2 * 10**6, False)):  # lines in some kilobytes
        (tmp_path / "b.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * count))
        lines = files.raw_lines(files.Piece(str(tmp_path / "b.gz")))
        if fits:
            assert sum(1 for _ in lines) == count
        else:
            with pytest.raises(UserError, match="100 times its size; if you trust it, give it unp"):
                list(lines)
    monkeypatch.setattr(files, "LONGEST_FILE", 4000)
    with pytest.raises(UserError, match="a file of more than 4,000 bytes"):
        files.whole_text(str(tmp_path / "b.gz"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10  # KiB


def test_long_runs_of_one_character_are_cut_in_linear_time():
    cutter = Cutter(Cutting(cut="sentences"), tokenizers.load(), "shipped")
    for text in ("." * 100_000, "a. " * 30_000, "!" * 50_000, ". " * 30_000, "x" * 100_000):
        with bounded(8):
            (found,) = cutter.cut([text], "d")
        assert "".join("".join(found).split()) == "".join(text.split())


def test_a_crawled_record_without_an_id_is_refused(tmp_path):
    (tmp_path / "a.warc").write_bytes(b"WARC/1.0\r\nWARC-Type: response\r\n")
    with pytest.raises(UserError, match="a record has no WARC-Record-ID"):
        list(documents.read("warc", tmp_path / "a.warc"))


def test_an_answer_that_backtracks_is_refused(monkeypatch):
    monkeypatch.setattr("qac_jax.evaluation.answers._PATIENCE", 0.1)
    assert matcher(["(a+)+$", "["], "regex")("aaa")
    with bounded(10), pytest.raises(UserError, match="write a simpler expression"):
        matcher(["(a|aa)+$"], "regex")("a" * 50 + "b")


# Structured inputs: marks of a format, repeated, nested and mixed with any text.

_FUZZ = int(os.environ.get("QAC_FUZZ", "0"))


def _texts(marks: str) -> st.SearchStrategy[str]:
    mark, words = st.sampled_from(marks.split("¦")), st.text(max_size=9)
    times = st.sampled_from((1, 2, 9, 300, 20_000) if _FUZZ else (1, 2, 9, 300))
    run = st.builds(lambda text, n: text * n, mark, times)
    nested = st.builds(lambda a, b, c, n: a * n + b + c * n, mark, words, mark, times)
    return st.lists(st.one_of(mark, mark, words, run, nested), max_size=12).map("".join)


@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@pytest.mark.parametrize("kind", READERS)
def test_structured_inputs_end_in_a_result_or_a_sentence(kind, tmp_path):
    readers, suffix, marks = READERS[kind]
    rules: dict[str, Any] = {"suppress_health_check": [*HealthCheck], "derandomize": not _FUZZ}
    if _FUZZ:  # what is found is not made smaller, which takes many minutes
        rules["phases"] = [Phase.generate]

    @settings(max_examples=-(-_FUZZ // len(READERS)) or 10, deadline=None, database=None, **rules)
    @given(_texts(marks))
    def each(text: str) -> None:
        content = text.encode("utf-8", "surrogatepass")[: 1 << 16]
        for reader in readers:
            read(reader, tmp_path / f"a{suffix}", content)

    before = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + (1 << 30), before[1]))
    try:
        each()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
