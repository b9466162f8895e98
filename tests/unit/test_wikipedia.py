"""Dumps of Wikipedia."""

import bz2
import gc
import time
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from qac_jax.errors import DataError
from qac_jax.formats import documents
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.readers import wikipedia


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
    pages = _page(1, "A", "Text.") + _page(1, "B", "Same id.")
    path.write_text(f"<mediawiki>\n{pages}</mediawiki>")
    bad = BadLines(1)
    assert [d.title for d in documents.read("wikipedia", path, bad=bad)] == ["A"]
    said = [(item.line, item.message) for item in bad.items]
    assert said == [(4, "the id of document '1' was there before")]


def test_markup_that_is_broken_or_rare():
    for source, shown in (
        ("a {{open", "a open"),
        ("a [[open", "a open"),
        ("'''a''b'''", "ab"),
        ("{{a|{{b|{{c}}}}}}x", "x"),
        ("{{{1|default}}}x", "x"),
        ("&lt;not a tag&gt; 3 < 4 > 2", "<not a tag> 3 < 4 > 2"),
        ("a<br/>b <b>c</b>", "ab c"),
        ("[[:Category:A|the category]]", "the category"),
        ("[[a#part|label]] [[#part|here]]", "label here"),
    ):
        assert [text for _, text in wikipedia.parse(source).sections] == [shown]


def test_time_grows_with_the_length_alone():
    """Tags, links and templates that never end, one and four times as many."""

    def seconds(text: str) -> float:
        begin = time.thread_time()
        wikipedia.parse(text)
        return time.thread_time() - begin

    gc.disable()  # or the collector reads what other tests left, at a moment of its own
    try:
        for hostile in ("<ref>", "<math>", "<nowiki>", "{{", "[[", "[//a", "''a "):
            short, long = (hostile * (count // len(hostile)) for count in (20_000, 80_000))
            times = [min(seconds(text) for _ in range(3)) for text in (short, long)]
            assert times[1] < 0.2 or times[1] < 10 * times[0], (hostile, times)
    finally:
        gc.enable()
