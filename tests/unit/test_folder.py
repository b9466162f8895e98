"""`--format folder`: every kind of file, what is skipped and why, encodings, columns."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from qac_jax.errors import UserError
from qac_jax.formats import documents
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import Document
from qac_jax.formats.readers.folder import asked_columns, decoded
from qac_jax.pipeline import inputs


def read(folder: Path, files: dict[str, str | bytes], **options: Any):
    """({id: document}, {path: reason}, {path: note}) of a folder of these files."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    bad = BadLines()
    found = {d.id: d for d in documents.read("folder", folder, bad=bad, **options)}
    assert not bad.items
    return found, {s.path: s.reason for s in bad.skipped}, {n.path: n.text for n in bad.notes}


def sections(document: Document) -> list[tuple[str, str]]:
    titles = [part["title"] for part in document.meta["parts"]]
    return [(title, part.text) for title, part in zip(titles, document.sections, strict=True)]


MARKDOWN = """---
title: "The mill"
url: https://example.org/mill
tags: [water, stone]
---
Before, with a [link to stones](stones.html "t"), `code_x*` and snake_case_names.
It goes on &amp; on, **bold** and _thin_.

Setup of it
===========
- first item
- second [ref][r] item
  continued

## Linux `apt` {#linux}
```bash
# no heading
apt install mill
```

| name  | price |
|-------|------:|
| wheel | 12    |

[r]: http://x.y/z

### Deep
Text <b>in</b> tags <!-- hidden --> ends.

## Other
1. Turn it on:

   ```bash
   mill on  # no heading
   ```

   Then see[^1].

::: note
Boxes stay.
:::

[^1]: It is *round*.
"""


def test_markdown(tmp_path):
    (page,) = read(tmp_path, {"docs/mill.md": MARKDOWN})[0].values()
    assert (page.id, page.title) == ("docs/mill.md", "The mill")
    assert page.meta["path"] == "docs/mill.md" and page.meta["url"] == "https://example.org/mill"
    assert page.meta["front_matter"] == {"tags": ["water", "stone"]}
    assert page.meta["anchors"] == [["stones.html", "link to stones"], ["http://x.y/z", "ref"]]
    assert sections(page) == [
        (
            "The mill",
            "Before, with a link to stones, code_x* and snake_case_names. "
            "It goes on & on, bold and thin.",
        ),
        ("The mill > Setup of it", "first item\nsecond ref item continued"),
        (
            "The mill > Setup of it > Linux apt",
            "# no heading\napt install mill\nname | price\nwheel | 12",
        ),
        ("The mill > Setup of it > Linux apt > Deep", "Text in tags ends."),
        (
            "The mill > Setup of it > Other",
            "Turn it on:\nmill on  # no heading\nThen see.\nBoxes stay.\nIt is round.",
        ),
    ]


HTML = """<html><head><title>Lamps | Shop</title><link rel=canonical href="https://shop/lamps">
<script>evil("<h1>no</h1>")</script><style>p {}</style></head><body><nav><h2>menu</h2>Home</nav>
<h1>Lamps</h1><p>Oil lamps burn &eacute;ven oil.<h2>Care<p>Trim the wick.</p><h3>Wick</h3>Cotton.
</body>"""


RST = """=====
Mills
=====

:Author: me

Uses :func:`~a.b.grind`, ``code_`` and a `link <http://x>`_.

.. note:: Take care
   of this.

.. toctree::
   hidden

.. include:: /etc/passwd

.. a comment

Wheels
------
Turn it::

    wheel.turn()

.. _target:

Spokes
~~~~~~
=====  =====
wood   iron
=====  =====
"""


def test_restructuredtext(tmp_path):
    (page,) = read(tmp_path, {"mills.rst": RST})[0].values()
    assert page.title == "Mills" and page.meta["anchors"] == [["http://x", "link"]]
    assert sections(page) == [
        ("Mills", "Author: me\nUses a.b.grind, code_ and a link.\nNote: Take care of this."),
        ("Mills > Wheels", "Turn it:\nwheel.turn()"),
        ("Mills > Wheels > Spokes", "=====  =====\nwood   iron\n=====  ====="),
    ]


def test_html(tmp_path):
    (page,) = read(tmp_path, {"lamps.html": HTML})[0].values()
    assert page.title == "Lamps | Shop" and page.meta["url"] == "https://shop/lamps"
    assert sections(page) == [
        ("Lamps | Shop", "Oil lamps burn éven oil."),
        ("Lamps | Shop > Care", "Trim the wick."),  # its heading has no end
        ("Lamps | Shop > Care > Wick", "Cotton."),
    ]


def test_a_menu_without_an_end_hides_no_page(tmp_path):
    found, _, _ = read(tmp_path, {"nav.html": "<nav>Menu<p>Lamps give light.<![bad[ <h1"})
    assert "Lamps give light." in found["nav.html"].text


def test_tables_by_the_names_of_their_columns(tmp_path):
    found, _, notes = read(
        tmp_path,
        {
            "faq.csv": 'question;answer;kind\nWhat?;"It ""grinds"";\nand more.";tech\nWho?;Me.;\n',
            "parts.tsv": "part\tprice\nwheel\t12\n",
            "rows.jsonl": '{"id": "k", "body": "Text.", "n": NaN, "u": "\\ud83d", "big": 1e999}\n',
            "list.json": '[{"name": "A", "text": ["One.", "Two."]}]',
        },
    )
    faq = found["faq.csv#1"]
    assert (faq.title, faq.text) == ("What?", 'It "grinds";\nand more.')
    assert faq.meta == {"path": "faq.csv", "row": 1, "columns": {"kind": "tech"}}
    assert found["parts.tsv#1"].text == "part: wheel\nprice: 12"
    assert found["rows.jsonl#k"].text == "Text."
    json.dumps(dict(found["rows.jsonl#k"].meta), allow_nan=False).encode()
    assert (found["list.json#1"].title, found["list.json#1"].text) == ("A", "One.\nTwo.")
    assert notes["faq.csv"] == "columns title=question, text=answer"


def test_columns_that_are_named(tmp_path):
    files: dict[str, str | bytes] = {"t.csv": "nr,name,a,b,link\n7,N,x y,z,http://l\n7,M,u,,\n"}
    found, _, notes = read(tmp_path, files, columns="id=nr,title=Name,text=a+b,url=5")
    assert list(found) == ["t.csv#7", "t.csv#7~2"]
    assert found["t.csv#7"].text == "a: x y\nb: z" and found["t.csv#7"].title == "N"
    assert found["t.csv#7"].meta["url"] == "http://l"
    _, _, notes = read(tmp_path, files, columns="text=nowhere")
    assert "no column 'nowhere', which was asked for as text" in notes["t.csv"]
    with pytest.raises(UserError, match="columns="):
        asked_columns("texts=a")


def test_ids_of_rows_that_would_meet_are_made_different(tmp_path):
    rows = "id,text\nNew York,a\nNew_York,b\nk~5,c\nk,d\nk,e\n"
    found, _, _ = read(tmp_path, {"t.csv": rows})
    assert [(name, one.text) for name, one in found.items()] == [
        ("t.csv#New_York", "a"),
        ("t.csv#New_York~2", "b"),
        ("t.csv#k~5", "c"),
        ("t.csv#k", "d"),
        ("t.csv#k~5~5", "e"),
    ]


def test_long_ids_are_cut_and_differ(tmp_path):
    rows = "id,text\n" + "".join(f"{'x' * 600}{end},{end}\n" for end in "ab")
    deep = "/".join(["d" * 60] * 12) + "/a.md"
    found, _, _ = read(tmp_path, {"t.csv": rows, deep: "Deep."})
    assert sorted(one.text for one in found.values()) == ["Deep.", "a", "b"]
    assert max(map(len, found)) < 420  # of the 512 that a living index takes


def test_malformed_rows_spoil_nothing_else(tmp_path):
    rows = ['a,"no end,x'] + [f"k{i},text number {i}" for i in range(30)] + ["1,2,3,4"]
    (tmp_path / "t.csv").write_text("id,text\n" + "\n".join(rows) + "\n")
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\nnot json\n[1]\n{"text": "b"}\n')
    bad = BadLines()
    assert len(list(documents.read("folder", tmp_path, bad=bad))) == 32
    assert [s.line for s in bad.skipped] == [2, 33, 2, 3]
    assert {s.reason for s in bad.skipped} == {"malformed row"}


def test_what_is_skipped_has_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("qac_jax.formats.readers.folder.LONGEST_LINE", 4000)
    inside = tmp_path / "in"
    inside.mkdir()
    (tmp_path / "secret.md").write_text("secret")
    for name, target in (("away", tmp_path), ("secret.md", "../secret.md"), ("gone.md", "nowhere")):
        os.symlink(target, inside / name)
    os.mkfifo(inside / "pipe.txt")
    files: dict[str, tuple[str | bytes, str]] = {
        ".git/config.md": ("x", "hidden"),
        "empty.md": ("", "empty file"),
        "zero.txt": (b"\0\1\2", "binary file"),
        "picture.png": ("x", "other kind of file"),
        "large.txt": ("x" * 5000, "too large"),
        "conf.json": ('{"a": 1}', "JSON that is not a list of records"),
        "out/artifact.json": ("{}", "result of this program"),
        "node_modules/x.md": ("x", "folder of a program"),
        "queries.jsonl": ('{"_id": "q", "text": "who"}', "queries and judgements"),
        "qrels/test.tsv": ("q\tgood.md\t1", "queries and judgements"),
    }
    given = {name: content for name, (content, _) in files.items()}
    found, skipped, _ = read(inside, {"good.md": "# Good\nText.", "bad.pdf": "no pdf", **given})
    assert list(found) == ["good.md"]
    pdf = skipped.pop("bad.pdf")
    assert pdf in ("damaged PDF", "PDF without the package pypdf (pip install pypdf)")
    reasons = {name.split("/")[0]: why for name, (_, why) in files.items()}
    reasons |= dict.fromkeys(("away", "secret.md", "gone.md"), "link")
    assert skipped == {**reasons, "pipe.txt": "neither a file nor a folder"}


def test_shards_and_odd_names_change_nothing(tmp_path):
    names = ["b/one two.md", "b/100%.md", "a.md", "c/d/e.txt"]
    whole, _, _ = read(tmp_path, dict.fromkeys(names, "Some text."))
    assert list(whole) == ["a.md", "b/100%25.md", "b/one%20two.md", "c/d/e.txt"]
    assert whole["b/one%20two.md"].meta["path"] == "b/one two.md"
    with open(os.path.join(os.fsencode(tmp_path), b"f\xff.md"), "wb") as file:
        file.write(b"Text.")
    for count in (1, 3, 9):
        shards = documents.shards("folder", str(tmp_path), count)
        ids = [d.id for shard in shards for d in documents.read_shard(shard)]
        assert ids == [*whole, "f\\xff.md"]
        "".join(ids).encode()
    assert inputs.identity(str(tmp_path))


def test_encodings(tmp_path):
    for codec in ("utf-8-sig", "utf-16", "cp1252"):
        assert decoded("Füße".encode(codec)) == ("Füße", codec, codec == "cp1252")
    russian = "Мельница стоит у реки, и её колесо вертит вода. " * 4
    koi = f"<meta charset=koi8-r><p>{russian}".encode("koi8-r")
    found, _, notes = read(tmp_path, {"koi.html": koi, "russian.txt": russian.encode("cp1251")})
    assert found["koi.html"].text == russian.strip() and "koi.html" not in notes
    assert "guess" in notes["russian.txt"]
