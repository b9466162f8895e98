"""Text records: what was written is read, in order and at random, in any number of shards."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qac_jax import artifacts
from qac_jax.errors import DataError, UserError
from qac_jax.formats import records
from qac_jax.formats.records import Records, encode, write_lines, write_offsets, write_records


TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
RECORD = st.fixed_dictionaries({"_id": TEXT, "text": TEXT, "position": st.integers()})


def _written(path: Path, content: list[dict[str, Any]], shards: int = 1) -> Records:
    with artifacts.create(path, kind="passages") as writer:
        assert write_records(writer, content, shards=shards) == len(content)
    artifact = artifacts.load(path, kind="passages")
    assert artifact.count == len(content)
    artifact.verify()
    return Records(artifact)


def _some(count: int) -> list[dict[str, Any]]:
    return [{"_id": f'id "{i}"\\', "text": "é\u2028\n" * (i % 5)} for i in range(count)]


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


def test_shards_are_even_and_contiguous(tmp_path):
    content = _some(10)
    found = _written(tmp_path / "a", content, shards=3)
    names = sorted(p.name for p in (tmp_path / "a").glob("*.jsonl"))
    assert names == [f"passages-0000{i}-of-00003.jsonl" for i in range(3)]
    sizes = [len((tmp_path / "a" / n).read_text().split("\n")) - 1 for n in names]
    assert sum(sizes) == 10 and max(sizes) - min(sizes) <= 1
    assert [found[i] for i in (9, 0, 4)] == [content[i] for i in (9, 0, 4)]


def test_a_stream_without_length_needs_a_total(tmp_path):
    with pytest.raises(ValueError, match="total="), artifacts.create(tmp_path, kind="k") as writer:
        write_records(writer, iter(_some(3)), shards=2)
    with artifacts.create(tmp_path / "b", kind="k") as writer:
        write_records(writer, iter(_some(3)), shards=2, total=3)
    assert list(Records(artifacts.load(tmp_path / "b"))) == _some(3)


def test_workers_write_the_same_bytes(tmp_path):
    """Files written by other processes and published by the parent make the same artefact."""
    whole = _written(tmp_path / "a", _some(7), shards=2)
    with artifacts.create(tmp_path / "b", kind="passages") as writer:
        for index, part in enumerate((_some(7)[:3], _some(7)[3:])):
            name = records.shard_name("passages", index, 2)
            facts = write_lines(str(writer.part(name)), part)
            assert facts["records"] == len(part)
            writer.keep(name, sha256=facts["sha256"], facts={"records": facts["records"]})
        write_offsets(writer, "passages", 2)
    one, two = (artifacts.load(tmp_path / name) for name in "ab")
    assert one.identity == two.identity
    assert list(Records(two)) == list(whole)


def test_can_be_sent_to_other_processes(tmp_path):
    found = _written(tmp_path / "a", _some(20), shards=2)
    found[3]
    again = pickle.loads(pickle.dumps(found))
    assert list(again) == list(found) and again[3] == found[3]


def test_positions_by_id(tmp_path):
    found = _written(tmp_path / "a", [{"_id": str(i)} for i in range(50)], shards=3)
    assert found.positions(["7", "no", "49", "0"]) == [7, None, 49, 0]


def test_ids_where_they_do_not_come_first(tmp_path):
    found = _written(tmp_path / "a", [{"text": "x", "_id": "a"}, {"text": "y", "_id": "b"}])
    assert list(found.ids()) == ["a", "b"]


def test_numbers_json_does_not_know_are_refused():
    with pytest.raises(ValueError):
        encode({"_id": "a", "score": float("nan")})


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


def test_offsets_of_other_shards_are_refused(tmp_path):
    _written(tmp_path / "a", _some(9))
    artifact = artifacts.load(tmp_path / "a")
    np.save(tmp_path / "a" / "offsets.npy", np.arange(10, dtype=np.uint64))
    with pytest.raises(UserError, match="does not fit"):
        Records(artifact)


def test_an_artefact_of_other_files_is_refused(tmp_path):
    with artifacts.create(tmp_path / "a", kind="vectors") as writer, writer.open("x.npy") as file:
        file.write("x")
    with pytest.raises(UserError, match="text records"):
        Records(artifacts.load(tmp_path / "a"))
