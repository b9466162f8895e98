"""Dumps of Wikipedia and web crawls."""

import bz2
import gzip
import zlib
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from qac_jax.errors import DataError
from qac_jax.formats import documents
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.readers import web, wikipedia


# Wikipedia dumps: which pages, what text, which anchors and phrases.


def _page(number: int, title: str, text: str, ns: int = 0, redirect: bool = False) -> str:
    target = '<redirect title="X" />' if redirect else ""
    return (
        f"<page><title>{escape(title)}</title><ns>{ns}</ns><id>{number}</id>{target}\n"
        f"<revision><id>{number + 1000}</id><contributor><username>u</username><id>9</id>"
        f'</contributor><text xml:space="preserve">{escape(text)}</text></revision></page>\n'
    )


def _dump(path: Path, *pages: str, names: str = "") -> Path:
    head = f'<mediawiki xmlns="http://x/">\n<siteinfo><namespaces>{names}</namespaces></siteinfo>\n'
    path.write_bytes(bz2.compress((head + "".join(pages) + "</mediawiki>").encode()))
    return path


ARTICLE = """{{Infobox|name={{lang|fr|x}}|see=[[Box target|box label]]}}
[[File:a.jpg|thumb|A [[caption|nested]] here]]
'''Tést''' is a [[thing (kind)|thing]]s of the [[world]].<ref name="a">No [[b|ref]]</ref><ref
name="b" />
It is ''so called'' by '''''all of them''''', in {{lang|fr|une fois}} &amp; {{convert|5|km|mi}}.<!--
not this -->
{| class="wikitable"
| cell with [[Table target|table label]]
|}
== History ==
* First [http://x.org the site] item
=== Early ===
Text with ''"quoted words"'' (; {{IPA|x}}) and <nowiki>''raw'' [[x]]</nowiki>.
== See also ==
* [[Other]]
* [[Another|shown so]]
== References ==
{{reflist}}
=== Deeper ===
Never shown.
== Legacy ==
It lasted.
[[Category:Things]]
[[fr:Chose]]
"""


def test_an_article(tmp_path):
    path = _dump(tmp_path / "wiki.xml.bz2", _page(7, "Tést", ARTICLE))
    (document,) = documents.read("wikipedia", path)
    assert (document.id, document.title, document.source) == ("7", "Tést", "wikipedia")
    assert [tuple(s) for s in document.sections] == [
        ("", "Tést is a things of the world.\nIt is so called by all of them, in une fois & 5 km."),
        ("History", "First the site item"),
        ("Early", "Text with \"quoted words\" and ''raw'' [[x]]."),
        ("Legacy", "It lasted."),
    ]
    assert document.meta["anchors"] == [
        ["Box target", "box label"],
        ["caption", "nested"],
        ["thing (kind)", "thing"],
        ["Table target", "table label"],
        ["Another", "shown so"],
    ]
    assert document.meta["phrases"] == ["all of them", "Tést", "so called", "quoted words"]


def test_redirects_and_other_pages_are_left_out_and_counted(tmp_path):
    path = _dump(
        tmp_path / "wiki.xml.bz2",
        _page(1, "A", "Text one."),
        _page(2, "B", "#REDIRECT [[A]]", redirect=True),
        _page(3, "Talk:A", "Chat.", ns=1),
        _page(4, "C", "{{only a template}}"),
        _page(5, "D", "Text two."),
    )
    bad = BadLines()
    assert [d.id for d in documents.read("wikipedia", path, bad=bad)] == ["1", "5"]
    assert dict(bad.left_out) == {
        "redirects": 1,
        "pages that are not articles": 1,
        "articles without prose": 1,
    }


def test_names_of_the_wikis_own_language(tmp_path):
    names = '<namespace key="6">Datei</namespace><namespace key="14">Kategorie</namespace>'
    text = "Ein Text.[[Datei:a.png|mini|Bild]]\n[[Kategorie:Dinge]]"
    path = _dump(tmp_path / "dewiki.xml.bz2", _page(1, "A", text), names=names)
    (document,) = documents.read("wikipedia", path)
    assert (document.text, document.meta) == ("Ein Text.", {})


def test_bad_dumps_name_file_and_line(tmp_path):
    path = tmp_path / "wiki.xml"
    path.write_text("<mediawiki>\n" + _page(1, "A", "Text.") + "<page><title>B</title>")
    with pytest.raises(DataError, match="not a whole XML dump") as error:
        list(documents.read("wikipedia", path, bad=BadLines(9)))
    assert (error.value.file, error.value.line) == (str(path), 4)


def test_markup_that_is_broken_or_rare():
    for source, shown in (
        ("a {{open", "a open"),
        ("{{a|{{b|{{c}}}}}}x", "x"),
        ("&lt;not a tag&gt; 3 < 4 > 2", "<not a tag> 3 < 4 > 2"),
        ("[[:Category:A|the category]]", "the category"),
        ("[[a#part|label]] [[#part|here]]", "label here"),
    ):
        assert [text for _, text in wikipedia.parse(source).sections] == [shown]


# Web crawls: WARC and WET files, damaged ones as well.


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
    stated = {"WARC_Identified_Content_Language": "deu,eng"}
    texts = [
        _record("conversion", "Füße one.\nTwo.".encode(), 1, **stated),
        _record("conversion", b"\xff broken", 2),
        _record("conversion", b"  ", 3),
    ]
    path = tmp_path / "x.warc.wet.gz"
    path.write_bytes(b"".join(map(gzip.compress, (INFO, *texts))))
    bad = BadLines(1)
    (document,) = documents.read("warc", path, bad=bad)
    assert (document.id, document.text, document.source) == ("0000-1", "Füße one.\nTwo.", "crawl")
    assert document.meta == {"url": "http://example.org/1", "languages": ["deu", "eng"]}
    assert [item.message for item in bad.items] == ["record 0000-2 is not UTF-8 at byte 0"]
    assert bad.left_out == {"documents without text": 1}


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
        _record("response", _http(b"gone", "404 Not Found", Server="x"), 6),
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
    assert "record 0000-8 begins with b'no HTTP" in bad.items[0].message
    assert bad.left_out == {
        "answers other than 200": 1,
        "contents that are not text": 1,
        "pages packed in a way that is not read": 1,
    }
    assert bad.kept == {"pages that the crawl cut off": 1}


def test_damaged_crawls(tmp_path):
    for raw, said in (
        (INFO + _record("conversion", b"x" * 99)[:-20], "damaged .it ends early"),
        (b"no crawl", "does not begin with WARC/"),
        (gzip.compress(INFO)[:-12], "compressed data is damaged"),
    ):
        (tmp_path / "a.warc.gz").write_bytes(raw)
        with pytest.raises(DataError, match=said):
            list(documents.read("warc", tmp_path / "a.warc.gz", bad=BadLines(9)))


def test_a_bomb_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(web, "LONGEST_LINE", 4000)
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
