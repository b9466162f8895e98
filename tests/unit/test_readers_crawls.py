"""Crawls and dumps that come in streams: WARC, WET and multistream files, damaged ones as well."""

from __future__ import annotations

import bz2
import gzip
import zlib
from pathlib import Path

import pytest

from qac_jax.errors import DataError
from qac_jax.formats import documents, multistream
from qac_jax.formats.bad_lines import BadLines


def _record(kind: str, content: bytes, number: int = 1, **headers: str) -> bytes:
    """A record with the headers of Common Crawl's files."""
    lines = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        "WARC-Date: 2024-03-01T00:00:00Z",
        f"WARC-Record-ID: <urn:uuid:0000-{number}>",
        f"WARC-Target-URI: http://example.org/{number}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        f"Content-Length: {len(content)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content + b"\r\n\r\n"


def _http(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{n.replace('_', '-')}: {v}" for n, v in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


HTML = b"<html><head><title>Tide mills</title></head><body><h1>Sea</h1><p>The tide.</p></body>"
INFO = _record("warcinfo", b"software: x\r\n", 0)


def test_wet_files(tmp_path):
    texts = [
        _record("conversion", "Füße one.\nTwo.".encode(), 1,
                WARC_Identified_Content_Language="deu,eng", Content_Type="text/plain"),
        _record("conversion", b"\xff broken", 2),
        _record("conversion", b"  ", 3),
    ]  # fmt: skip
    path = tmp_path / "x.warc.wet.gz"
    path.write_bytes(b"".join(map(gzip.compress, (INFO, *texts))))
    bad = BadLines(1)
    (document,) = documents.read("warc", path, bad=bad)
    assert (document.id, document.text, document.source) == ("0000-1", "Füße one.\nTwo.", "crawl")
    assert document.meta == {"url": "http://example.org/1", "languages": ["deu", "eng"]}
    assert [item.message for item in bad.items] == ["record 3: not UTF-8 at byte 0"]
    assert bad.left_out == {"records of other kinds": 1, "documents without text": 1}


def test_pages_of_warc_files(tmp_path):
    page = _http(HTML, Content_Type="text/html; charset=utf-8")
    latin = _http("<p>Füße</p>".encode("latin-1"), Content_Type="text/html; charset=ISO-8859-1")
    packed = _http(gzip.compress(HTML), Content_Type="text/html", Content_Encoding="gzip")
    parts = b"%x\r\n%s\r\n0\r\n\r\n" % (len(HTML), HTML)
    chunked = _http(parts, Content_Type="text/html", Transfer_Encoding="chunked")
    contents = [
        _record("request", b"GET / HTTP/1.1\r\n\r\n", 1),
        _record("response", page, 2),
        _record("response", latin, 3),
        _record("response", packed, 4),
        _record("response", chunked, 5, WARC_Truncated="length"),
        _record("response", _http(b"gone", "404 Not Found"), 6),
        _record("response", _http(b"\x89PNG", Content_Type="image/png"), 7),
        _record("response", b"no HTTP at all", 8),
        _record("resource", b"Plain words.", 9, Content_Type="text/plain"),
        _record("response", _http(b"\xce\xb2\xff\xfe\x80", Content_Type="text/html",
                                  Content_Encoding="br"), 10),
    ]  # fmt: skip
    (tmp_path / "a.warc").write_bytes(b"".join([INFO, *contents]))
    bad = BadLines(1)
    read = {d.id: d for d in documents.read("warc", tmp_path, bad=bad)}
    assert list(read) == [f"0000-{n}" for n in (2, 3, 4, 5, 9)]
    assert read["0000-2"].title == "Tide mills"
    assert [tuple(s) for s in read["0000-4"].sections] == [("Sea", "The tide.")]
    assert read["0000-5"].sections == read["0000-2"].sections
    assert (read["0000-3"].text, read["0000-9"].text) == ("Füße", "Plain words.")
    assert "begins with b'no HTTP at all', not with HTTP/" in bad.items[0].message
    assert bad.left_out == {
        "records of other kinds": 2,
        "answers other than 200": 1,
        "contents that are not text": 1,
        "pages packed in a way that is not read": 1,
    }
    assert bad.kept == {"pages that the crawl cut off": 1}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (INFO[:-8], "record 1 ends early"),
        (INFO + INFO.replace(b"Content-Length: 13", b"Content-Length: 1x"), "record 2 has the Con"),
        (INFO.replace(b"Content-Length: 13", b"Content-Length: 5"), "record 2 begins with b'are"),
        (INFO[:40], "record 1 ends inside its headers"),
        (INFO.replace(b"WARC-Type:", b"WARC-Type"), "record 1 has the header 'WARC-Type warcinfo'"),
        (gzip.compress(INFO)[:-12], "compressed data is damaged"),
    ],
)
def test_damaged_crawls(tmp_path, raw, said):
    (tmp_path / "a.warc.gz").write_bytes(raw)
    with pytest.raises(DataError, match=said):
        list(documents.read("warc", tmp_path / "a.warc.gz", skip_bad=9))


def test_a_bomb_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("QAC_LONGEST_LINE", "4000")
    bomb = zlib.compress(bytes(100_000))
    answer = _http(bomb, Content_Type="text/html", Content_Encoding="deflate")
    long = _record("conversion", b"x" * 5000, 2)
    (tmp_path / "a.warc").write_bytes(_record("response", answer, 1) + long)
    bad = BadLines()
    assert list(documents.read("warc", tmp_path / "a.warc", bad=bad)) == []
    assert set(bad.left_out) == {
        "pages packed in a way that is not read",
        "records of more than 4,000 bytes",
    }


def test_auto_recognises_crawls(tmp_path):
    from qac_jax.formats.readers.documents import warc
    from qac_jax.formats.registry import SURE, sample

    (tmp_path / "a.warc").write_bytes(INFO)
    assert warc.recognise(sample(str(tmp_path / "a.warc"))) == SURE


HEAD = (
    '<mediawiki xml:lang="de">\n<siteinfo><namespaces>'
    '<namespace key="6">Datei</namespace></namespaces></siteinfo>\n'
)


def _page(number: int) -> str:
    text = f"Text {number}.[[Datei:a.png|Bild]]"
    return (
        f"  <page>\n    <title>T{number}</title>\n    <ns>0</ns>\n    <id>{number}</id>\n"
        f"    <revision><id>7</id><text>{text}</text></revision>\n  </page>\n"
    )


def _multistream(folder: Path, pages: int = 12, each: int = 2, part: str = "") -> Path:
    """A dump and its index as Wikimedia lays them out: head, streams of pages, the end."""
    path = folder / f"dewiki-20240101-pages-articles-multistream{part}.bz2".replace(
        ".bz2", ".xml.bz2" if not part else ".bz2"
    )
    raw, lines = bz2.compress(HEAD.encode()), []
    for first in range(1, pages + 1, each):
        numbers = range(first, min(first + each, pages + 1))
        lines += [f"{len(raw)}:{n}:T{n}: a title\n" for n in numbers]
        raw += bz2.compress("".join(map(_page, numbers)).encode())
    path.write_bytes(raw + bz2.compress(b"</mediawiki>\n"))
    index = path.name.replace("multistream", "multistream-index").replace(".xml", ".txt")
    (folder / index).write_bytes(bz2.compress("".join(lines).encode()))
    return path


@pytest.mark.parametrize("count", [1, 2, 4, 50])
def test_multistream_dumps_are_cut_between_streams(tmp_path, count):
    path = _multistream(tmp_path)
    parts = documents.shards("wikipedia", tmp_path, count)
    assert len(parts) == min(count, 6) and len(parts[0].pieces) == 1
    read = [d for part in parts for d in documents.read_shard(part)]
    assert [d.id for d in read] == [str(n) for n in range(1, 13)]
    # The head's namespaces are known in every part.
    assert {d.text for d in read} == {f"Text {n}." for n in range(1, 13)}
    assert read == list(documents.read("wikipedia", path))
    last = list(documents.read_shard(parts[-1]))
    lines = [d.place.line for d in last if d.place]
    assert lines == [(3 if count == 1 else 1) + 6 * n for n in range(len(last))]


def test_parts_of_a_multistream_dump(tmp_path):
    _multistream(tmp_path, pages=4, part="1.xml-p1p4")
    assert len(documents.shards("wikipedia", tmp_path, 2)) == 2
    assert [d.id for d in documents.read("wikipedia", tmp_path)] == ["1", "2", "3", "4"]


def test_a_dump_without_its_index_stays_whole(tmp_path):
    path = _multistream(tmp_path)
    Path(multistream.index_of(str(path)) or "").unlink()
    assert len(documents.shards("wikipedia", tmp_path, 4)) == 1
    assert len(list(documents.read("wikipedia", tmp_path))) == 12


def test_damaged_multistream_dumps(tmp_path):
    path = _multistream(tmp_path)
    index, whole = Path(multistream.index_of(str(path)) or ""), path.read_bytes()
    parts = documents.shards("wikipedia", path, 3)

    def read() -> None:
        for part in parts:
            list(documents.read_shard(part, BadLines(9)))

    broken = bytearray(whole)
    start = parts[1].pieces[0].start
    broken[start + 12 : start + 40] = bytes(28)
    path.write_bytes(broken)
    with pytest.raises(DataError, match=f"streams from byte {start} on are damaged"):
        read()
    path.write_bytes(whole[: start + 30])
    with pytest.raises(DataError, match="a stream ends early"):
        read()
    with pytest.raises(DataError, match="beyond the end of the dump"):
        documents.shards("wikipedia", path, 3)
    path.write_bytes(whole)
    for line, said in ((b"x:1:T", "expected offset"), (b"900:1:T\n100:2:T", "not in order")):
        index.write_bytes(bz2.compress(line))
        with pytest.raises(DataError, match=said):
            documents.shards("wikipedia", path, 3)
    index.write_bytes(bz2.compress(b"100:1:T\n333:2:U\n"))  # of another dump
    parts = documents.shards("wikipedia", path, 2)
    with pytest.raises(DataError, match="its index is of another dump"):
        read()
