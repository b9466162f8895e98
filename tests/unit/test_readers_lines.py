"""Formats of lines: any number of shards is the whole, packed or not; bad input names its line."""

from __future__ import annotations

import bz2
import gzip
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from qac_jax.errors import DataError, UserError
from qac_jax.formats import documents, files
from qac_jax.formats.bad_lines import BadLines, Place
from qac_jax.formats.documents import Document, ShardIds, repeated_documents


PACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda raw: raw,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda raw: (
        zstandard.compress(raw[: len(raw) // 2]) + zstandard.compress(raw[len(raw) // 2 :])
    ),
}


def _tables(count: int) -> dict[str, tuple[str, list[str]]]:
    """format -> (file name, lines): the same small corpus in every line format."""
    texts = [f"Text {i} of tést " + "long " * (i * 7 % 23) for i in range(count)]
    rows = range(count)
    return {
        "msmarco_docs": ("docs.tsv", [f"D{i}\thttp://x/{i}\tTitle {i}\t{texts[i]}" for i in rows]),
        "msmarco_passages": ("collection.tsv", [f"{i}\t{texts[i]}" for i in rows]),
        "tsv": ("pairs.tsv", [f"{i}\t{texts[i]}" for i in rows]),
        "jsonl": ("pile.jsonl", [json.dumps({"text": texts[i]}) for i in rows]),
        "tevatron": (
            "corpus.jsonl",
            [json.dumps({"docid": str(i), "title": "", "text": texts[i]}) for i in rows],
        ),
        "beir": ("corpus.jsonl", [json.dumps({"_id": str(i), "text": texts[i]}) for i in rows]),
        "mrqa": ("mrqa.jsonl", [json.dumps({"context": texts[i], "qas": []}) for i in rows]),
        "dpr": (
            "psgs.tsv",
            ["id\ttext\ttitle", *(f"{i}\t{texts[i]}\tArticle {i // 3}" for i in rows)],
        ),
    }


def _write(folder: Path, format: str, count: int, packing: str = "", end: str = "\n") -> Path:
    name, lines = _tables(count)[format]
    path = folder / (name + packing)
    path.write_bytes(PACK[packing]((end.join(lines) + end).encode()))
    return path


def _from_shards(format: str, path: Path, count: int) -> list[Document]:
    parts = documents.shards(format, path, count)
    assert len(parts) <= count
    return [d for part in parts for d in documents.read_shard(pickle.loads(pickle.dumps(part)))]


@pytest.mark.parametrize("format", sorted(_tables(0)))
def test_any_number_of_shards_is_the_whole(tmp_path, format):
    path = _write(tmp_path, format, 40)
    whole = list(documents.read(format, path))
    assert len(whole) == (14 if format == "dpr" else 40)
    for count in (1, 2, 3, 7, 40, 100):
        assert _from_shards(format, path, count) == whole


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


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(1, 9), st.booleans())
def test_pieces_tile_all_files(tmp_path_factory, sizes, count, cut):
    folder = tmp_path_factory.mktemp("files")
    paths = []
    for number, size in enumerate(sizes):
        path = folder / f"{number}"
        path.write_bytes(b"x" * size)
        paths.append(str(path))
    shards = files.share_out(paths, count, cut=cut)
    assert len(shards) <= count and all(shards)
    covered: dict[str, int] = {path: 0 for path in paths}
    for piece in (piece for shard in shards for piece in shard):
        assert piece.start == covered[piece.file]
        covered[piece.file] = (
            sizes[int(Path(piece.file).name)] if piece.stop is None else piece.stop
        )
    assert list(covered.values()) == sizes


@pytest.mark.parametrize("packing", sorted(PACK))
def test_packed_files_read_the_same(tmp_path, packing):
    plain = _write(tmp_path, "msmarco_passages", 300)
    (tmp_path / "packed").mkdir()
    packed = _write(tmp_path / "packed", "msmarco_passages", 300, packing)
    assert list(documents.read("msmarco_passages", packed)) == list(
        documents.read("msmarco_passages", plain)
    )
    assert len(documents.shards("msmarco_passages", packed, 5)) == (1 if packing else 5)


@pytest.mark.parametrize("packing", [".gz", ".bz2", ".zst"])
def test_damaged_packing_is_told(tmp_path, packing):
    path = _write(tmp_path, "msmarco_passages", 3000, packing)
    raw = bytearray(path.read_bytes())
    if packing == ".gz":
        path.write_bytes(raw[: len(raw) // 2])
    else:
        raw[len(raw) // 3 : len(raw) // 3 + 40] = bytes(40)
        path.write_bytes(raw)
    with pytest.raises(DataError, match="damaged") as error:
        list(documents.read("msmarco_passages", path, skip_bad=10**6))
    assert error.value.file == str(path)


def test_archives_are_told_apart_from_packed_files(tmp_path):
    text = tmp_path / "collection.tsv"
    text.write_text("1\tone\n")
    packed = tmp_path / "collection.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(text, "collection.tsv")
    with pytest.raises(DataError, match="a tar archive; unpack it"):
        list(documents.read("msmarco_passages", packed))
    for head, said in ((b"PK\x03\x04", "a zip archive"), (b"PAR1", "a parquet file")):
        text.write_bytes(head + b"\t\x00\n")
        with pytest.raises(DataError, match=said):
            list(documents.read("msmarco_passages", text))


def test_windows_line_ends_and_byte_order_mark(tmp_path):
    path = tmp_path / "collection.tsv"
    path.write_bytes("\ufeff0\tone\r\n\r\n1\ttwo\r\n".encode())
    found = list(documents.read("msmarco_passages", path))
    assert [(d.id, d.text) for d in found] == [("0", "one"), ("1", "two")]


def test_folders_patterns_and_lists_of_files(tmp_path):
    for number in range(3):
        (tmp_path / f"part{number}.tsv").write_text(f"{number}\ttext {number}\n")
    (tmp_path / "readme.md").write_text("not this")
    for path in (tmp_path, f"{tmp_path}/part*.tsv", ",".join(map(str, tmp_path.glob("*.tsv")))):
        assert {d.id for d in documents.read("msmarco_passages", path)} == {"0", "1", "2"}
    for path in (tmp_path / "nowhere", f"{tmp_path}/none*.tsv"):
        with pytest.raises(UserError, match="does not exist"):
            list(documents.read("msmarco_passages", path))
    with pytest.raises(UserError, match=r"holds no \*\.jsonl"):
        list(documents.read("jsonl", tmp_path))


# format, file name, good line, bad line, what is said
BAD: list[tuple[str, bytes, bytes, str]] = [
    ("msmarco_docs", b"D1\tu\tTitle\tBody", b"D2\tu\tTitle", "3 columns; expected 4"),
    ("msmarco_docs", b"D1\tu\tTitle\tBody", b"\tu\tTitle\tBody", "id is missing"),
    ("msmarco_docs", b"D1\tu\tTitle\tBody", b"D2\tu\tcaf\xe9\tBody", "not UTF-8: byte 0xe9"),
    ("msmarco_passages", b"1\ttext", b"no tab", "1 columns; expected 2"),
    ("msmarco_passages", b"1\ttext", b"1\tagain", "was there before"),
    ("msmarco_passages", b"1\ttext", b"\t\t\t", "4 columns"),
    ("dpr", b"1\ttext\ttitle", b"2\ttext", "2 columns; expected 3"),
    ("dpr", b"1\ttext\ttitle", b'2\t"open\ttitle', "wrongly quoted"),
    ("dpr", b"1\ttext\ttitle", b"1\ttext\tother", "was there before"),
    ("jsonl", b'{"text": "a"}', b'{"text": "a"', "invalid JSON"),
    ("jsonl", b'{"text": "a"}', b'["text"]', "a JSON list; expected an object"),
    ("jsonl", b'{"text": "a"}', b'{"texts": "a"}', "no text: expected the key"),
    ("jsonl", b'{"text": "a"}', b'{"text": ["a"]}', "'text' is a list; expected text"),
    ("jsonl", b'{"text": "a"}', b'{"text": "\\ud83d"}', "half a surrogate pair"),
    ("jsonl", b'{"id": 1, "text": "a"}', b'{"id": "1", "text": "b"}', "was there before"),
    ("jsonl", b'{"text": "a"}', b'{"text": "a\xff"}', "not UTF-8: byte 0xff at column 12"),
    ("beir", b'{"_id": "1", "text": "a"}', b'{"text": "b"}', "no id: expected the key '_id'"),
    ("beir", b'{"_id": "1", "text": "a"}', b'{"_id": "2"}', "no text"),
    (
        "beir",
        b'{"_id": "1", "text": "a"}',
        b'{"_id": "2", "passages": []}',
        "not a list of objects",
    ),
    (
        "beir",
        b'{"_id": "d", "passages": [{"_id": "1", "text": "a"}]}',
        b'{"_id": "e", "passages": [{"_id": "1", "text": "b"}]}',
        "was there before",
    ),
    ("tevatron", b'{"docid": "1", "text": "a"}', b'{"docid": "2", "text": [5]}', "token ids"),
    ("mrqa", b'{"context": "a"}', b'{"contexts": "a"}', "no context"),
]


@pytest.mark.parametrize("format, good, wrong, said", BAD, ids=lambda v: str(v)[:30])
def test_bad_input_names_file_and_line(tmp_path, format, good, wrong, said):
    path = tmp_path / ("file.jsonl" if good.startswith(b"{") else "file.tsv")
    path.write_bytes(b"\n".join([good, b"", wrong]) + b"\n")
    with pytest.raises(DataError) as error:
        list(documents.read(format, path))
    assert said in error.value.message
    assert (error.value.file, error.value.line) == (str(path), 3)
    assert "--skip_bad" in str(error.value) and "\n" not in str(error.value)

    bad = BadLines(1)
    assert len(list(documents.read(format, path, bad=bad))) == 1
    assert [(item.file, item.line) for item in bad.items] == [(str(path), 3)]
    assert said in bad.items[0].message and "skipped 1 bad record" in bad.summary()
    assert bad.listing().startswith(f"{path}\t3\t")


def test_lines_are_numbered_from_the_beginning_of_the_file_in_every_shard(tmp_path):
    path = tmp_path / "collection.tsv"
    path.write_text("".join(f"{i}\ttext {i}\n" if i != 77 else "bad\n" for i in range(100)))
    for count in (1, 2, 5, 33):
        bad = BadLines(1)
        for shard in documents.shards("msmarco_passages", path, count):
            list(documents.read_shard(shard, bad))
        assert [item.line for item in bad.items] == [78]


def test_one_bad_record_too_many(tmp_path):
    path = tmp_path / "collection.tsv"
    path.write_text("1\ta\nbad\n2\tb\nbad\nbad\n")
    with pytest.raises(DataError, match="bad record 3, and --skip_bad allows 2") as error:
        list(documents.read("msmarco_passages", path, skip_bad=2))
    assert error.value.line == 5
    bad = BadLines(3)
    assert [d.id for d in documents.read("msmarco_passages", path, bad=bad)] == ["1", "2"]
    assert [item.line for item in bad.items] == [2, 4, 5]


def test_bad_lines_of_several_processes_are_counted_together():
    parts = [BadLines(2), BadLines(2)]
    for part in parts:
        part.add("wrong", Place("a.tsv", 7))
        part.leave_out("redirects", 3)
    total = BadLines(2)
    for part in parts:
        total.merge(pickle.loads(pickle.dumps(part)))
    assert len(total) == 2 and total.summary().startswith("left out 6 redirects; skipped 2 bad")
    with pytest.raises(DataError, match="bad record 3"):
        total.merge(parts[0])


def test_ids_that_repeat_between_shards_are_found_and_told(tmp_path):
    """What `read` finds in one process, the global step finds over many."""
    path = tmp_path / "corpus.jsonl"
    ids = ["a", "b", "c", "a", "d", "e", "b", "a", "f"]
    rows: list[dict[str, Any]] = [{"_id": i, "text": f"text {n}"} for n, i in enumerate(ids)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    alone = BadLines(3)
    kept = list(documents.read("beir", path, bad=alone))

    parts = documents.shards("beir", path, 4)
    collected = []
    for part in parts:
        known = ShardIds()
        for document in documents.read_shard(part):
            known.add(document)
        collected.append(known.arrays())
    drop = repeated_documents(collected)
    together = BadLines(3)
    again = [
        document
        for number, part in enumerate(parts)
        for document in documents.read_shard(part, together, drop.get(number))
    ]
    assert again == kept and len(kept) == 6
    assert together.items == alone.items and [i.line for i in alone.items] == [4, 7, 8]


def test_unknown_formats_and_options_name_the_nearest():
    with pytest.raises(UserError, match="did you mean 'msmarco_docs'"):
        list(documents.read("msmarco_doc", "x"))
    with pytest.raises(UserError, match="no option 'release'; did you mean 'released'"):
        list(documents.read("msmarco_docs", "x", release=True))
    with pytest.raises(UserError, match="expected true or false"):
        list(documents.read("msmarco_docs", "x", released="maybe"))


def test_empty_passages_of_a_judged_collection_stay(tmp_path):
    lines = ['{"_id": "1", "text": "a"}', '{"_id": "2", "text": ""}', '{"_id": "3", "text": " "}']
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    bad = BadLines()
    found = list(documents.read("beir", tmp_path, bad=bad))
    assert [d.id for d in found] == ["1", "2", "3"] and not bad.items
    assert bad.summary() == "kept 2 passages without text"
