"""`Retriever.add`, `.delete`, `.update` and filters; `qac index FOLDER --add`, `qac compact`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_retrieval import save_encoder, write_collection

from qac_jax import Retriever, artifacts, cli
from qac_jax.errors import UserError
from qac_jax.live.index import LiveIndex


TEXTS = ["Bees make honey.", "Granite is a hard stone.", "A violin has four strings."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("model") / "encoder")


@pytest.fixture(scope="module")
def retriever(folder: Path) -> Retriever:
    return Retriever.load(folder)


def qac(*words: object) -> int:
    return cli.main([str(word) for word in words])


def ids(hits: list[Any]) -> list[str]:
    return [hit.id for hit in hits]


@pytest.mark.slow
def test_an_index_that_lives(retriever: Retriever, tmp_path: Path) -> None:
    found = retriever.index(TEXTS)
    before = found.search(TEXTS, k=3)
    added = {"_id": "v", "text": "A violin has a bow.", "lang": "en"}
    assert found.add([added, "Bees fly."]) == ["v", "4"] and len(found) == 5
    again = found.search(TEXTS, k=5)
    for old, new in zip(before, again, strict=True):
        kept = [(hit.id, round(hit.score, 5)) for hit in new if hit.id in ids(old)]
        assert kept == [(hit.id, round(hit.score, 5)) for hit in old]
    (hit,) = found.search("violin", where={"lang": "en"}, hybrid=0.5)
    assert hit.id == "v" and set(hit.scores) == {"dense", "bm25"} and hit.metadata["lang"] == "en"
    assert ids(found.search("violin", k=5, hybrid=1)) in (["v", "2"], ["2", "v"])
    found.update([{"_id": "0", "text": "Wasps do not."}])
    assert found.delete(["1"]) == ["1"]
    assert sorted(ids(found.search("x", k=9))) == ["0", "2", "4", "v"]
    found.save(tmp_path / "made", name="bees")
    shutil.move(tmp_path / "made", tmp_path / "moved")
    loaded = Retriever.load(tmp_path / "moved")
    expected = found.search(TEXTS, k=4)
    assert [ids(hits) for hits in loaded.search(TEXTS, k=4)] == [ids(hits) for hits in expected]
    loaded.delete(["v"])
    assert len(Retriever.load(tmp_path / "moved")) == 3 and len(found) == 4
    with pytest.raises(UserError, match="'0' is in .* already; ids of passages must differ"):
        loaded.add([{"_id": "0", "text": "x"}])
    assert loaded.add([{"_id": "0", "text": "x"}], replace=True) == ["0"]


@pytest.mark.slow
def test_the_command_line(folder: Path, tmp_path: Path, capsys: Any) -> None:
    corpus = write_collection(tmp_path / "data") / "corpus.jsonl"
    lines = corpus.read_text().splitlines()
    first, more = tmp_path / "first.jsonl", tmp_path / "more.jsonl"
    first.write_text("\n".join(lines[:30]) + "\n")
    more.write_text("\n".join(lines[28:]) + "\n")
    live = tmp_path / "live"
    assert qac("index", live, "--add", first) == 2
    assert "live is new; say which encoder it has: --encoder" in capsys.readouterr().err
    assert qac("index", live, "--add", first, "--encoder", folder, "--weight", 0.4) == 0
    assert "added 30, deleted 0, passages 30, segments 1" in capsys.readouterr().out
    assert qac("index", live, "--add", more) == 2
    assert "the id 'p28' is in" in capsys.readouterr().err
    assert qac("index", live, "--replace", more, "--delete", "p0", "p1", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["passages"], done["added"], done["deleted"]) == (38, 12, 2)
    (tmp_path / "ids.txt").write_text("p2\np3\n")
    assert qac("index", live, "--delete", f"@{tmp_path / 'ids.txt'}") == 0
    assert qac("compact", live) == 0
    assert "segments before 2, passages 36, segments 1" in capsys.readouterr().out
    assert LiveIndex(live).settings.fusion.weight == 0.4
    artifacts.load(live).verify()
    # A vector is near itself, and the folders may be moved together.
    record = json.loads(lines[33])
    shutil.move(live, tmp_path / "moved")
    where = json.dumps({"_id": None})
    words = ["search", "--index", tmp_path / "moved", "--json", "--where", where, "--hybrid", 0]
    assert qac(*words, f"{record['title']} {record['text']}") == 0
    hits = json.loads(capsys.readouterr().out)
    assert hits[0]["id"] == "p33" and len(hits) == 10
    assert qac("search", "--index", tmp_path / "moved", "--where", "x", "y") == 2
    assert "is not JSON" in capsys.readouterr().err
    assert qac("inspect", tmp_path / "moved", "--verify") == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vectors", "index", "hybrid", "passages"])
def test_a_living_index_of_another_artefact(
    road: Path, tmp_path: Path, kind: str, capsys: Any
) -> None:
    encoder = ["--encoder", road / "encoder"] if kind == "passages" else []
    assert qac("index", tmp_path / "live", "--add", road / kind, *encoder, "--weight", 0.2) == 0
    live = LiveIndex(tmp_path / "live")
    (hits,) = live.search(["copper lamp river"], 5)
    known = _expected(road)
    assert ids(hits) == ids(known)
    np.testing.assert_allclose([h.score for h in hits], [h.score for h in known], atol=1e-5)
    capsys.readouterr()
    if kind == "hybrid":
        assert qac("search", "--index", road / kind, "--where", "{}", "x") == 2
        assert "make a living index of it" in capsys.readouterr().err
        assert qac("index", road / kind, "--delete", "p1") == 2
        assert "is of kind 'hybrid', which does not change" in capsys.readouterr().err


_KNOWN: list[Any] = []


def _expected(road: Path) -> list[Any]:
    if not _KNOWN:
        _KNOWN.extend(Retriever.load(road / "hybrid").search("copper lamp river", k=5))
    return _KNOWN


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Path:
    place = tmp_path_factory.mktemp("road")
    shutil.copytree(folder, place / "encoder")
    data = write_collection(place / "data")
    words: list[list[object]] = [
        ["prepare", "--documents", data, "--format", "beir", "--out", place / "passages"],
        ["embed", "--encoder", place / "encoder", "--passages", place / "passages"],
        ["index", "--vectors", place / "vectors"],
        ["bm25", "--passages", place / "passages"],
        ["hybrid", "--index", place / "index", "--bm25", place / "bm25", "--weight", 0.2],
    ]
    outs = ["passages", "vectors", "index", "bm25", "hybrid"]
    for command, out in zip(words, outs, strict=True):
        assert qac(*command, *([] if "--out" in command else ["--out", place / out])) == 0
    return place


@pytest.mark.slow
def test_an_index_that_does_not_change_is_served_as_a_copy(road: Path) -> None:
    from qac_jax.serving.engine import Engine
    from qac_jax.serving.options import Serving
    from qac_jax.serving.requests import SearchRequest

    engine = Engine.load(Serving(index=str(road / "hybrid")))
    assert not engine.writable and engine.live.folder != road / "hybrid"
    (answer,) = engine.answer([SearchRequest(query="copper lamp river", k=5)])
    assert [hit["id"] for hit in answer["hits"]] == ids(_expected(road))
    with pytest.raises(UserError, match="expected live or index or hybrid or vectors"):
        Engine.load(Serving(index=str(road / "passages")))
