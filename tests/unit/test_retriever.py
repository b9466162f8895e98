"""The Python face: its documented example, what it takes, what it keeps, what it says."""

import doctest
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from toy_process import Qac
from toy_retrieval import indexed, save_encoder, write_collection

from qac_jax import Retriever, artifacts, retriever
from qac_jax.errors import UserError
from qac_jax.live.index import LiveIndex
from qac_jax.retrieval.corpus import Hit
from qac_jax.serving import app
from qac_jax.serving.options import Serving


TEXTS = ["Bees make honey.", "Granite is a hard stone.", "A violin has four strings."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("model") / "encoder")


@pytest.fixture(scope="module")
def searching(folder: Path) -> Retriever:
    return Retriever.load(folder).index(TEXTS)


def test_the_documented_example(folder: Path, tmp_path: Path) -> None:
    finder = doctest.DocTestFinder(recurse=False)
    names = {"folder": folder, "out": tmp_path / "out"}
    (example,) = finder.find(Retriever, "Retriever", module=retriever, extraglobs=names)
    assert len(example.examples) > 6
    assert doctest.DocTestRunner(verbose=False).run(example).failed == 0


def test_vectors_and_hits(searching: Retriever) -> None:
    many, one = searching.encode(TEXTS), searching.encode(TEXTS[0])
    assert many.shape == (3, 32) and one.shape == (32,)
    titled = searching.encode([{"title": "Bees", "text": "They make honey."}])
    np.testing.assert_array_equal(titled, searching.encode(["Bees They make honey."]))
    hits = searching.search(TEXTS[2], k=2)
    assert [type(hit) for hit in hits] == [Hit, Hit] and hits[0].text == TEXTS[2]
    several = searching.search(TEXTS[:2], k=1)
    assert [[hit.id for hit in found] for found in several] == [["0"], ["1"]]
    assert len(searching) == 3 and "3 passages" in repr(searching)
    scores = searching.encode([TEXTS[2]], side="query") @ many.T
    assert [h.score for h in hits] == pytest.approx(np.sort(scores[0])[:-3:-1], abs=1e-6)


def test_passages_with_ids_from_a_list_or_a_file(folder: Path, tmp_path: Path) -> None:
    found = Retriever.load(folder).index(
        [{"_id": "a", "title": "Bees", "text": "They make honey."}, {"id": 7, "text": "Granite."}]
    )
    assert ids(found.search("Granite.")) == ["7", "a"]
    found.index(write_collection(tmp_path / "data", passages=5) / "corpus.jsonl")
    assert sorted(ids(found.search("stone"))) == [f"p{n}" for n in range(5)]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "lamps.md").write_text("# Lamps\n\n## Oil\n\nA lamp burns oil.\n")
    (hit,) = found.index(tmp_path / "notes").search("oil")
    assert (hit.id, hit.title, set(hit.scores)) == ("lamps.md#0", "Lamps > Oil", {"dense", "bm25"})
    assert (hit.metadata["path"], hit.metadata["heading"]) == ("lamps.md", "Lamps > Oil")


def test_what_is_saved_can_be_moved(searching: Retriever, tmp_path: Path) -> None:
    searching.save(tmp_path / "made", name="bees", license="mit")
    shutil.move(tmp_path / "made", tmp_path / "moved")
    again = Retriever.load(tmp_path / "moved")
    assert again.search("honey", k=3) == searching.search("honey", k=3)
    np.testing.assert_array_equal(again.encode(TEXTS), searching.encode(TEXTS))
    card = (tmp_path / "moved" / "model" / "README.md").read_text()
    assert "# bees" in card and "license: mit" in card
    with pytest.raises(UserError, match="exists and is not empty"):
        searching.save(tmp_path / "moved")
    again.save(tmp_path / "moved", overwrite=True)  # itself
    assert Retriever.load(tmp_path / "moved").search("honey", k=3) == searching.search("honey", k=3)
    assert {p.name for p in tmp_path.iterdir()} == {"moved"}
    (tmp_path / "moved" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is not empty"):
        again.save(tmp_path / "moved", overwrite=True)
    shown = searching.search("honey", k=3)._repr_html_()
    assert shown.startswith("<table><tr><td>") and "make honey." in shown


def test_mistakes_are_one_sentence(folder: Path, searching: Retriever, tmp_path: Path) -> None:
    bare: Any = Retriever.load(folder)
    found: Any = searching
    for call, said in (
        (lambda: bare.search("honey"), "no passages to search; give it some with .index"),
        (lambda: bare.index("Bees make honey."), "there is no file or folder Bees make honey"),
        (lambda: Retriever.load(tmp_path / "nothing"), "there is no folder"),
        (lambda: Retriever(cast(Any, "x")), "^encoder='x'; write Retriever.load.'x'."),
        # A single passage is not read by its characters or keys.
        (lambda: bare.add("Bees."), "not a list of passages; write it in brackets"),
        (lambda: bare.index(SimpleNamespace(columns=["text"])), "^a table is not a list"),
        (lambda: bare.delete("d7"), "'d7' is not a list of ids; write it in brackets: .id."),
        (lambda: bare.encode(SimpleNamespace(columns=["text"])), "^a table is not a list of texts"),
        (lambda: bare.encode(["Bees.", None]), "None. are not all texts or records with a 'text'"),
        (lambda: bare.encode([{"title": "Bees"}]), "are not all texts or records"),
        (lambda: found.search(None), "^question=None; expected a text, or a list of texts"),
        (lambda: found.search(["a", 3]), "^question=.'a', 3.; expected a text"),
        (lambda: found.search("a", k="3"), "^k='3'; expected a whole number"),
        (lambda: found.search("a", k=True), "^k=True; expected a whole number"),
        (lambda: found.search("a", hybrid=True), "^hybrid=True; expected a weight"),
    ):
        with pytest.raises(UserError, match=said):
            call()
    assert searching.search([]) == []


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, qac_jax; heavy = {'jax', 'numpy', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy; assert 'Retriever' in dir(qac_jax)\n"
        "try: qac_jax.Retreiver\n"
        "except AttributeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "module 'qac_jax' has no attribute 'Retreiver'\n"


def ids(hits: list[Any]) -> list[str]:
    return [hit.id for hit in hits]


@pytest.mark.slow
def test_an_index_that_lives(folder: Path, tmp_path: Path) -> None:
    found = Retriever.load(folder, pooling="cls", max_length=8).index(TEXTS)
    added = {"_id": "v", "text": "A violin has a bow.", "lang": "en"}
    assert found.add([added, "Bees fly."]) == ["v", "4"] and len(found) == 5
    (hit,) = found.search("violin", where={"lang": "en"}, hybrid=0.5)
    assert hit.id == "v" and set(hit.scores) == {"dense", "bm25"} and hit.metadata["lang"] == "en"
    found.update([{"_id": "0", "text": "Wasps do not."}])
    assert found.delete(["1"]) == ["1"]
    assert sorted(ids(found.search("x", k=9))) == ["0", "2", "4", "v"]
    found.save(tmp_path / "made", name="bees")
    shutil.move(tmp_path / "made", tmp_path / "moved")
    loaded = Retriever.load(tmp_path / "moved")
    expected = found.search(TEXTS, k=4)
    assert [ids(hits) for hits in loaded.search(TEXTS, k=4)] == [ids(hits) for hits in expected]
    long = " ".join(TEXTS * 5)  # the settings at loading are kept
    np.testing.assert_array_equal(loaded.encode(long), found.encode(long))
    assert np.abs(loaded.encode(long) - Retriever.load(folder).encode(long)).max() > 1e-3
    loaded.delete(["v"])
    assert len(Retriever.load(tmp_path / "moved")) == 3 and len(found) == 4


@pytest.mark.slow
def test_the_command_line(folder: Path, tmp_path: Path, qac: Qac) -> None:
    corpus = write_collection(tmp_path / "data") / "corpus.jsonl"
    lines = corpus.read_text().splitlines()
    first, more = tmp_path / "first.jsonl", tmp_path / "more.jsonl"
    first.write_text("\n".join(lines[:30]) + "\n")
    more.write_text("\n".join(lines[28:]) + "\n")
    live = tmp_path / "live"
    assert "no does not exist" in qac.refused("index", live, "--add", tmp_path / "no")
    assert not live.exists()
    made = qac("index", live, "--add", first, "--encoder", folder, "--weight", 0.4)
    assert "added 30, deleted 0, passages 30, rows 30" in made.out
    done = qac.json("index", live, "--replace", more, "--delete", "p0", "p1")
    assert (done["passages"], done["added"], done["deleted"]) == (38, 10, 2)
    assert done["documents"] == {"new": 10, "unchanged": 2}
    (tmp_path / "ids.txt").write_text("p2\np3\n")
    qac("index", live, "--delete", f"@{tmp_path / 'ids.txt'}")
    compacted = qac("index", live, "--compact").out
    assert "rows before 40, passages 36, rows 36" in compacted
    assert LiveIndex(live).settings.fusion.weight == 0.4
    artifacts.load(live).verify()


@pytest.mark.slow
def test_a_living_index_of_another_artefact(
    tmp_path: Path, qac: Qac, monkeypatch: pytest.MonkeyPatch
) -> None:
    road = indexed(tmp_path / "road")
    words = ["--passages", road / "passages", "--preset", "questions"]  # as living indexes do
    qac("bm25", *words, "--out", road / "words")
    hybrid = ["--index", road / "index", "--bm25", road / "words", "--weight", 0.2]
    qac("step", "hybrid", *hybrid, "--out", road / "hybrid")
    known = Retriever.load(road / "hybrid").search("copper lamp river", k=5)
    for kind in ("vectors", "index", "hybrid", "passages"):
        encoder = ["--encoder", road / "encoder"] if kind == "passages" else []
        qac("index", tmp_path / kind, "--add", road / kind, *encoder, "--weight", 0.2)
        (hits,) = LiveIndex(tmp_path / kind).search(["copper lamp river"], 5)
        assert ids(hits) == ids(known)
        np.testing.assert_allclose([h.score for h in hits], [h.score for h in known], atol=1e-5)
    said = qac.refused("index", road / "hybrid", "--delete", "p1")
    assert "is of kind 'hybrid', which does not change" in said
    served = app._opened(Serving(index=str(road / "hybrid")))  # a copy
    assert served.folder != road / "hybrid"
    monkeypatch.setenv("QAC_SERVE_TOKEN", "x" * 40)
    with pytest.raises(UserError, match="cannot change; serve it without a token"):
        app._opened(Serving(index=str(road / "hybrid")))
