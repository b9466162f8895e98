"""Records of artefacts, runs, and ids in eight bytes."""

import gzip
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qac_jax import artifacts
from qac_jax.errors import DataError
from qac_jax.formats import identities, records, runs
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.identities import IdIndex, IdSet, id_hashes
from qac_jax.formats.records import Records, write_lines, write_offsets
from qac_jax.formats.runs import ranked, read_run, write_run


# Text records: what was written is read, in order and at random, in any number of shards.


TEXT = st.text(st.characters(codec="utf-8"), max_size=30)


RECORD = st.fixed_dictionaries({"_id": TEXT, "text": TEXT, "position": st.integers()})


def _written(path: Path, content: list[dict[str, Any]], shards: int = 1) -> Records:
    """Files written one by one, as other processes do, and published by the parent."""
    bounds = [len(content) * number // shards for number in range(shards + 1)]
    with artifacts.create(path, kind="passages") as writer:
        for index, (low, high) in enumerate(pairwise(bounds)):
            name = records.shard_name("passages", index, shards)
            facts = write_lines(writer.part(name), content[low:high])
            assert facts["records"] == high - low
            writer.keep(name, facts)
        assert write_offsets(writer, "passages", shards) == len(content)
    artifact = artifacts.load(path, kind="passages")
    assert artifact.count == len(content)
    artifact.verify()
    return Records(artifact)


@settings(max_examples=40, deadline=None)
@given(st.lists(RECORD, max_size=12), st.integers(1, 5), st.data())
def test_random_access_equals_what_was_written(tmp_path_factory, content, shards, data):
    found = _written(tmp_path_factory.mktemp("records") / "a", content, shards)
    assert list(found) == content
    assert len(found) == len(content)
    assert list(found.ids()) == [record["_id"] for record in content]
    start = data.draw(st.integers(-15, 15))
    stop = data.draw(st.integers(-15, 15))
    step = data.draw(st.sampled_from([1, 2, -1]))
    assert found[start:stop:step] == content[start:stop:step]
    for index in range(-len(content), len(content)):
        assert found[index] == content[index]
    for index in (len(content), -len(content) - 1):
        with pytest.raises(IndexError):
            found[index]


def test_damage_names_file_and_line(tmp_path):
    found = _written(tmp_path / "a", [{"_id": str(i), "text": "text"} for i in range(9)], shards=2)
    file = tmp_path / "a" / "passages-00001-of-00002.jsonl"
    raw = bytearray(file.read_bytes())
    second = raw.index(b"\n") + 1
    raw[second] = ord("[")
    file.write_bytes(raw)
    with pytest.raises(DataError) as error:
        list(found)
    assert (error.value.file, error.value.line) == (str(file), 2)
    with pytest.raises(DataError) as error:
        found[5]
    assert (error.value.file, error.value.line) == (str(file), 2)


# Run files, the one order, fusion.


def _write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_ties_go_by_id_downwards_as_text():
    assert ranked(["10", "9", "a", "é", "B"], [1, 1, 1, 1, 2]).ids == ("B", "é", "a", "9", "10")
    close = ranked(["a", "b"], [1.0 + 1e-12, 1.0])
    assert close.ids == ("b", "a"), "a tie in single precision goes by id"


def test_a_run_reads_back_the_same(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"d{i}" for i in range(50)]
    run = {f"q{i}": ranked(names, rng.normal(size=50).round(1) / 3) for i in range(5)}
    write_run(tmp_path / "run.trec", run, tag="mine")
    again = read_run(tmp_path / "run.trec")
    assert list(again) == list(run)
    for query in run:
        assert again[query].ids == run[query].ids
        assert (again[query].scores == run[query].scores).all()
    first = (tmp_path / "run.trec").read_text().split("\n")[0].split(" ")
    assert first[:2] == ["q0", "Q0"] and first[3] == "1" and first[5] == "mine"
    assert read_run(tmp_path / "run.trec", depth=3)["q0"].ids == run["q0"].ids[:3]


def test_three_and_four_columns_and_packed_files(tmp_path):
    marco = _write(tmp_path / "marco.tsv", "7\t30\t2", "7\t20\t1", "", "8\t1\t1")
    assert read_run(marco)["7"].ids == ("20", "30")
    pair = _write(tmp_path / "pair.tsv", "7\t30\t1\t0.5", "7\t20\t2\t0.7")
    assert read_run(pair)["7"].ids == ("20", "30"), "the score decides, not the rank"
    with gzip.open(tmp_path / "run.trec.gz", "wt") as file:
        file.write("\ufeffq Q0 a 1 2.5 tag\r\nq Q0 b 2 1e1 tag\r\n")
    packed = read_run(tmp_path / "run.trec.gz")
    assert packed["q"].ids == ("b", "a")


def test_a_stream_is_the_whole_run_without_its_bad_lines(tmp_path):
    """Scores decide, ties go by id downwards; ranks that say otherwise are not followed."""
    lines = ["q Q0 a 1 1 t", "q Q0 b 2 1 t", "q Q0 c 3 2 t", "r Q0 x 2 5 t", "r Q0 y 1 4 t"]
    path = _write(tmp_path / "run.trec", *lines)
    streamed, whole = dict(runs.stream_run([path], BadLines())), read_run(path)
    assert streamed["q"].ids == whole["q"].ids == ("c", "b", "a")
    assert (streamed["q"].scores == whole["q"].scores).all()
    assert streamed["r"].ids == ("x", "y")
    lines = ["q Q0 a 1 3 t", "q Q0 b first 2 t", "q Q0 a 3 1 t", "q Q0 c 4", "q Q0 d 4 nan t"]
    _write(path, *lines, "r Q0 x 1 1 t", "q Q0 e 9 0 t", "s Q0 y 1 1 t")
    bad = BadLines(5)
    found = [(q, r.ids) for q, r in runs.stream_run([path], bad)]
    assert found == [("q", ("a",)), ("r", ("x",)), ("s", ("y",))]
    assert [item.line for item in bad.items] == [2, 3, 4, 5, 7]
    assert "query 'q' was there before" in bad.items[4].message


# Ids in eight bytes behave as a set and as an index of the ids themselves.


IDS = st.lists(st.text(max_size=3))


class _SmallSet(IdSet):
    """Merges its newest ids every few, so that tests see it happen."""

    _NEW = 3


@given(IDS, IDS)
def test_a_set_of_ids_is_a_set(first, more):
    known, wanted = _SmallSet(first), set(first)
    for name in more:
        assert known.add(name) == (name not in wanted)
        wanted.add(name)
        assert name in known and len(known) == len(wanted)
    for name in ("absent", "absent too"):
        assert (name in known) == (name in wanted)


@given(IDS)
def test_an_index_gives_every_place(ids):
    index = IdIndex(ids)
    for name in {*ids, "absent"}:
        assert index.candidates(name) == [i for i, other in enumerate(ids) if other == name]


def test_hashes_are_the_same_everywhere():
    """They are stored by one process and compared by another."""
    assert identities.id_hash("passage 1") == 0x3AF6747B398B4190
    assert id_hashes([]).dtype == np.uint64
