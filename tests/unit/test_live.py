"""A living index: what is added, replaced and deleted is what a fresh index has; filters; runs."""

import io
import json
import math
import os
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_live as toy
from toy_process import Qac

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.formats.records import write_records
from qac_jax.formats.runs import read_run
from qac_jax.live import convert, snapshot, store
from qac_jax.live.index import LiveIndex
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval import bm25, corpus
from qac_jax.retrieval.bm25 import Analyzer, Bm25, Scoring
from qac_jax.stages.prepare import Prepare


QUESTIONS = ["copper lamp river", "winter whisper", "anchor anchor stone n7", "zebra"]


class Score(float):
    """Equal to one that differs by rounding: CPUs add products in an order of their shapes."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and math.isclose(self, other, rel_tol=0.0, abs_tol=5e-6)

    __hash__ = float.__hash__


def answers(index: LiveIndex, **settings: Any) -> list[list[tuple[str, float]]]:
    found = index.search(QUESTIONS, 8, **settings)
    return [[(hit.id, Score(hit.score)) for hit in hits] for hits in found]


def test_a_grown_index_is_a_fresh_one(tmp_path: Path) -> None:
    """Passages 20 to 59 and, added again in another form, 10 to 19, after several changes."""
    grown = toy.live(tmp_path / "grown", toy.records(40))
    grown.add(toy.records(20, 40))
    grown.delete([f"d{n}" for n in range(10)])
    grown.add(toy.records(10, 10), replace=True)
    fresh = toy.live(tmp_path / "fresh", [*toy.records(40, 20), *toy.records(10, 10)])
    assert len(grown) == len(fresh) == 50 and grown.snapshot.rows == 70
    some = {"lang": "de", "year": (">", 2004)}
    for weight in [0, 0.3, 1]:
        assert answers(grown, hybrid=weight) == answers(fresh, hybrid=weight)
        filtered = answers(grown, hybrid=weight, where=some)
        assert filtered == answers(fresh, hybrid=weight, where=some)
        assert 0 < len(filtered[0]) <= 8


@pytest.mark.parametrize("variant", bm25.VARIANTS)
def test_scores_of_words_equal_those_of_a_fresh_bm25_index(tmp_path: Path, variant: str) -> None:
    """Bit for bit, with passages deleted of every change, and again when it is compacted."""
    analyzer, scoring = Analyzer("english"), Scoring(0.9, 0.4, variant)
    texts = [{"_id": str(n), "text": record["text"]} for n, record in enumerate(toy.records(90))]
    index = toy.live(tmp_path / "index", texts[:40], scoring=scoring)
    index.add(texts[40:41])
    index.add(texts[41:])
    gone = [str(n) for n in np.flatnonzero(np.random.default_rng(0).random(90) > 0.7)]
    index.delete(gone)
    kept = [record["text"] for record in texts if record["_id"] not in gone]
    with artifacts.create(tmp_path / "bm25", kind=bm25.KIND) as out:
        corpus.write_ids(out, map(str, range(len(kept))))
        out.count, out.info["texts"] = bm25.write(out, kept, analyzer, scoring), []
    known = Bm25(artifacts.load(tmp_path / "bm25"))
    for rows in (90, len(kept)):
        now = index.snapshot
        assert now.rows == rows
        for question in QUESTIONS:
            (expected,) = known.scores_of([question], [np.arange(len(kept))])
            np.testing.assert_array_equal(now.bm25(question)[now.alive], expected)
            assert not now.bm25(question)[~now.alive].any()
        index.compact()


def test_readers_keep_the_version_that_they_opened(tmp_path: Path) -> None:
    writer = toy.live(tmp_path / "index", toy.records(30))
    reader = LiveIndex(tmp_path / "index", encoder=toy.stub())
    before = answers(reader)
    writer.delete([f"d{n}" for n in range(20)])
    writer.add(toy.records(3, 50))
    writer.compact()
    assert answers(reader) == before and len(reader) == 30
    reader.refresh()
    assert answers(reader) == answers(writer) != before and len(reader) == 13


def test_a_compacted_index_answers_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several blocks."""
    monkeypatch.setattr(snapshot, "TOGETHER", 8)
    monkeypatch.setattr(snapshot, "_BLOCK", 16)
    live = toy.live(tmp_path / "index", toy.records(30))
    live.add(toy.records(11, 30))
    live.delete(["d0", "d7", "d40"])
    kinds: tuple[dict[str, Any], ...] = ({}, {"hybrid": 1}, {"where": {"lang": "fr"}})
    before = [answers(live, **kind) for kind in kinds]
    monkeypatch.setattr(snapshot, "_BLOCK", 1 << 16)
    monkeypatch.setattr(store, "_BUCKET", 16)
    live.compact()
    assert live.snapshot.rows == 38 and live.snapshot.alive.all()
    assert before == [answers(live, **kind) for kind in kinds]
    artifacts.load(live.folder).verify()
    left = {path.name for path in live.folder.iterdir()}
    assert left == {"artifact.json", ".lock", "index-000002"}


def test_ids_and_an_empty_index(tmp_path: Path) -> None:
    index = toy.live(tmp_path / "index")
    assert index.search(["x"], hybrid=0.5) == [[]]
    assert index.add(["Bees.", {"text": "Granite.", "id": 7}, "A violin."]) == ["0", "7", "2"]
    assert index.add(["Copper.", {"_id": "4", "text": "Lamp."}, "Bees."]) == ["3", "4", "5"]
    assert index.add(["Stone.", "Harbour."]) == ["6", "8"]
    assert index.delete(["7", "7"]) == ["7"]
    index.add([{"_id": "7", "text": "Granite again."}])
    assert index.search(["granite"], 1, hybrid=1)[0][0].text == "Granite again."
    index.delete(list("02345678"))
    index.compact()
    assert index.search(["x"]) == [[]] and len(index) == 0


def test_what_is_refused(tmp_path: Path) -> None:
    index = toy.live(tmp_path / "index", toy.records(3))
    version = index.snapshot.version
    for message, call in (
        ("'d1' is in .*index already", lambda: index.add([{"_id": "d1", "text": "x"}])),
        ("'n' is given twice", lambda: index.add([{"_id": "n", "text": "x"}] * 2)),
        ("passage 0 .* is neither", lambda: index.add([{"title": "x"}])),
        ("passage 0: the field 'n' is nan", lambda: index.add([{"text": "x", "n": float("nan")}])),
        ("'zz' is not in", lambda: index.delete(["d1", "zz"])),
        ("vectors of the shape", lambda: index.add(["x"], np.zeros((2, 16), np.float32))),
        ("exists and is not empty", lambda: toy.live(tmp_path / "index")),
    ):
        with pytest.raises(UserError, match=message):
            call()
    assert index.snapshot.version == version and len(index) == 3
    assert index.delete(["d1", "zz"], missing_ok=True) == ["d1"]


class Stopping(sqlite3.Connection):
    """A database whose calls are counted as operations."""

    operation: Any = staticmethod(lambda: None)

    def execute(self, *words: Any) -> sqlite3.Cursor:
        self.operation()
        return super().execute(*words)

    def executemany(self, *words: Any) -> sqlite3.Cursor:
        self.operation()
        return super().executemany(*words)


@pytest.mark.parametrize("change", ["update", "delete", "compact"])
def test_killed_at_some_moments_it_is_the_old_or_the_new_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Stopped at calls that make something durable or visible, or remove it."""
    base = toy.live(tmp_path / "base", toy.records(10))
    base.add(toy.records(4, 10))
    base.delete(["d3"])
    work = {
        "update": lambda live: live.add(
            [{"_id": f"d{n}", "text": "new"} for n in (0, 12)], replace=True
        ),
        "delete": lambda live: live.delete(["d1", "d12"]),
        "compact": lambda live: live.compact(),
    }[change]
    old, kinds = content(tmp_path / "base"), set()
    for moment in range(0, 1000, 3):
        folder = tmp_path / f"{moment}"
        shutil.copytree(tmp_path / "base", folder)
        with monkeypatch.context() as patched:
            operation = stop_at(moment, patched)
            live = LiveIndex(folder, encoder=toy.stub())
            patched.setattr(Stopping, "operation", staticmethod(operation))
            try:
                work(live)
                stopped = False
            except KeyboardInterrupt:
                stopped = True
        found = content(folder)
        if not stopped:
            break
        kinds.add(found)
        # The object that was stopped and one that is opened later can both go on.
        for again in (LiveIndex(folder, encoder=toy.stub()), live):
            again.refresh()
            assert again.add([f"one more {id(again)}"])
        assert len(content(folder)) == len(found) + 2
    assert kinds <= {old, found} and moment > 4
    assert old in kinds and (old != found or change == "compact")


def stop_at(moment: int, patched: pytest.MonkeyPatch) -> Any:
    """Stops every operation after some; returns what counts one."""
    count = 0

    def operation() -> None:
        nonlocal count
        count += 1
        if count > moment:
            raise KeyboardInterrupt

    patched.setenv("QAC_FSYNC", "1")
    for name in ("fsync", "rename", "replace", "unlink"):
        whole = getattr(os, name)

        def stopping(*words: Any, _whole: Any = whole, **named: Any) -> Any:
            operation()
            return _whole(*words, **named)

        patched.setattr(os, name, stopping)
    real = sqlite3.connect
    patched.setattr(
        sqlite3, "connect", lambda *words, **named: real(*words, factory=Stopping, **named)
    )
    return operation


def content(folder: Path) -> Any:
    index = LiveIndex(folder, encoder=toy.stub())
    artifacts.load(folder).verify()
    hits = index.search(QUESTIONS[:1], 100)[0]
    return tuple(sorted((hit.id, hit.text, round(hit.score, 5)) for hit in hits))


def test_an_index_of_the_earlier_format_is_copied(tmp_path: Path) -> None:
    """Its segments are artefacts, with their deletions beside them."""
    records, old = toy.records(12), tmp_path / "old"
    vectors = toy.StubEncoder().encode([corpus.passage_text(record) for record in records])
    listed = []
    old.mkdir()
    for name, rows in (("segment-000001", slice(8)), ("segment-000003", slice(8, 12))):
        with artifacts.create(old / name, kind="segment") as out:
            write_records(out, records[rows])
            out.write_array("vectors-00000-of-00001.npy", vectors[rows])
        listed.append({"name": name, "rows": out.count, "deleted": 0, "tombstones": ""})
    np.save(old / "segment-000001.deleted-000002.npy", np.array([1, 4], np.int32))
    listed[0]["tombstones"] = "segment-000001.deleted-000002.npy"
    now = toy.live(tmp_path / "new")
    record = json.loads((now.folder / "artifact.json").read_text())
    record |= {"schema": 1, "files": {}}
    record["info"]["manifest"] = {"version": 4, "segments": listed, "added": 12, "changes": 3}
    artifacts.rewrite(old, record)
    with pytest.raises(UserError, match="earlier format of living indexes; copy it: qac index"):
        LiveIndex(old)
    assert convert.add(now, artifacts.load(old)) == 10
    fresh = toy.live(tmp_path / "fresh", [records[n] for n in range(12) if n not in (1, 4)])
    assert answers(now) == answers(fresh)


RECORDS: list[dict[str, Any]] = [
    {"_id": "a", "text": "bee one", "lang": "en", "year": 2019, "tags": ["x", "y"], "open": True},
    {"_id": "b", "text": "bee two", "lang": "de", "year": 2020.5, "columns": {"nr": "k1"}},
    {"_id": "c", "text": "bee three", "lang": "en", "year": "2020", "tags": "y", "open": False},
    {"_id": "d", "text": "bee four", "tags": [], "nothing": None, "year": ["-", "1.2.3", "1-2"]},
    {"_id": "e", "text": "bee five", "lang": "Ü \0 ' \" ; --", "year": -1, "open": 1},
]


FITS: list[tuple[dict[str, Any], str]] = [
    ({}, "abcde"),
    ({"lang": None}, "d"),
    ({"lang": ("!=", "en")}, "bde"),
    ({"lang": {"not in": ["en", "de"]}}, "de"),
    ({"lang": RECORDS[4]["lang"]}, "e"),
    ({"lang": (">=", "e")}, "ace"),
    ({"year": {">": 0, "<": 2020}}, "a"),
    ({"year": (">=", 2020)}, "bc"),
    ({"year": ("<", 2)}, "e"),
    ({"year": "2020"}, "c"),
    ({"year": {"not in": [2020, -1]}}, "abd"),
    ({"tags": {"exists": False}}, "bde"),
    ({"open": True, "tags": ["x", "z"]}, "a"),
    ({"columns.nr": "k1"}, "b"),
    ({"never": None, "lang": "de"}, "b"),
]


def test_what_fits(tmp_path: Path) -> None:
    index = toy.live(tmp_path / "index", RECORDS[:3])
    index.add(RECORDS[3:])
    for weight in [0, 0.4, 1]:
        for where, ids in FITS:
            (hits,) = index.search(["bee"], 10, where=where, hybrid=weight)
            assert "".join(sorted(hit.id for hit in hits)) == ids, where
    wrong: Any
    for wrong, message in (
        ("en", "is not a filter; give fields with values"),
        ({"year": ("=>", 3)}, "did you mean|valid names"),
        ({"lang": (">", 3)}, "the field 'lang' has no number; give such as"),
        ({"yaer": 2019}, "no passage has the field 'yaer'; did you mean 'year'"),
        ({"nr": "k1"}, "no passage has the field 'nr'; valid names: columns.nr$"),
        ({"zzz": ("!=", "x")}, "'zzz'; valid names: columns.nr, lang, open, tags, year"),
        ({"year": 10**400}, "expected a text, a finite number"),
        ({"year": float("nan")}, "expected a text, a finite number"),
        ({"\ud800": None}, "expected a text"),
    ):
        with pytest.raises(UserError, match=message):
            index.search(["bee"], where=wrong)
    with pytest.raises(UserError, match="is not JSON"):
        convert.opened_index(index.folder, where="[" * 100_000)
    empty = toy.live(tmp_path / "empty")
    assert empty.search(["bee"], where={"lang": "en"}) == [[]]


def test_numbers_that_no_float_can_be_are_kept(tmp_path: Path) -> None:
    index = toy.live(tmp_path / "index", [{"_id": "a", "text": "bee", "n": 10**400, "m": 1}])
    ((hit,),) = index.search(["bee"], where={"m": 1})
    assert hit.metadata["n"] == 10**400


def test_files_of_queries(tmp_path: Path, qac: Qac) -> None:
    live = toy.live(tmp_path / "index", RECORDS)
    live.delete(["c"])
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"_id": "q1", "text": "bee"}\n')
    words = ["search", "--index", live.folder, "--queries", queries, "--hybrid", 1]

    def found(out: str) -> set[str]:
        qac(*words, "--where", '{"lang": "en"}', "--out", tmp_path / out)
        return set(read_run(artifacts.load(tmp_path / out, "run").path / "run.trec")["q1"].ids)

    assert found("some") == {"a"}
    # What is added later makes another run.
    live.add([{"_id": "f", "text": "bee", "lang": "en"}])
    assert found("later") == {"a", "f"}
    texts_of = convert.texts_of(artifacts.load(live.folder))  # for a reranker
    assert list(texts_of(["d", "a"])) == ["bee four", "bee one"]
    with pytest.raises(UserError, match="passage 'c' is not in"):
        texts_of(["c"])


# A folder of documents, and questions, on the command line.


NOTES = {
    "lamps.md": "# Lamps\n\n## Oil\n\nA lamp burns oil.\n\n## Wick\n\nIt rises in a wick.\n",
    "faq.csv": "question,answer\nWho makes honey?,Bees do.\nHow deep is the well?,Forty metres.\n",
    "old/mills.md": "# Mills\n\nA tide mill is driven by the sea.\n",
}


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of documents, and beside it a living index without passages."""
    monkeypatch.setattr(LiveIndex, "encoder", toy.stub())
    toy.live(tmp_path / "live")
    for name, text in NOTES.items():
        (tmp_path / "notes" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "notes" / name).write_text(text)
    return tmp_path / "notes"


def test_a_folder_is_cut_as_prepare_does(notes: Path) -> None:
    """So that a folder can be added to an index of own_corpus."""
    live = LiveIndex(notes.parent / "live")
    stage = Prepare.make(documents=str(notes), workers=1)
    convert.add(live, execute(stage, notes.parent / "passages"))
    done, known = convert.Changes(), content(live.folder)
    convert.add_documents(live, str(notes), done)
    assert done.documents == dict.fromkeys(sorted(NOTES), "unchanged") and not done.added
    assert content(live.folder) == known and len(known) == 5
    hit = live.search(["rises wick"], 1)[0][0]
    assert (hit.title, hit.metadata["path"]) == ("Lamps > Wick", "lamps.md")


def test_a_folder_that_changes(notes: Path, qac: Qac) -> None:
    live = notes.parent / "live"
    words = ("index", live, "--add", notes)
    assert qac.json(*words)["documents"] == {"new": 3}
    (notes / "lamps.md").write_text("# Lamps\n\n## Oil\n\nA lamp burns whale oil.\n")
    (notes / "bread.md").write_text("# Bread\n\nBread is baked.\n")
    (notes / "old" / "mills.md").unlink()
    done = qac.json(*words)
    assert done["documents"] == {"new": 1, "changed": 1, "unchanged": 1, "gone": 1}
    assert (done["added"], done["deleted"], done["passages"]) == (2, 1, 5)
    texts = {text for _, text, _ in content(live)}
    assert "A lamp burns whale oil." in texts and "It rises in a wick." not in texts
    assert "A tide mill is driven by the sea." in texts
    said = qac(*words).err
    assert "index: 3 unchanged: bread.md, faq.csv, lamps.md" in said
    assert "index: 1 gone (they stay; --prune deletes them): old/mills.md" in said
    done = qac.json(*words, "--prune")
    assert (done["deleted"], done["passages"]) == (1, 4)
    for flag, given in (("--delete", "lamps.md#0"), ("--add", notes / "lamps.md")):
        assert "with its folders" in qac.refused("index", live, flag, given, "--prune")
    assert "give searches --hybrid" in qac.refused("index", live, "--add", notes, "--weight", 0.5)
    assert len(content(live)) == 4


def test_what_a_folder_does_not_replace(notes: Path, qac: Qac) -> None:
    """Files of the same name in two folders; other passages of the same id."""
    live, other, lines = notes.parent / "live", notes.parent / "other", notes.parent / "c.jsonl"
    shutil.copytree(notes, other)
    said = qac.refused("index", live, "--add", notes, other)
    assert "faq.csv is in two of the folders" in said
    for words, add in (("one", qac), ("one", qac), ("two", qac.refused)):
        lines.write_text(json.dumps({"_id": "a", "text": words}))
        said = add("index", live, "--add", lines)
    assert "the id 'a' is in" in said
    assert "added 1" in qac("index", live, "--replace", lines).out


def test_questions_of_a_prompt_or_a_pipe(
    notes: Path, qac: Qac, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, asked = notes.parent / "live", ["who makes honey?", "lamp oil", ""]
    convert.add_documents(LiveIndex(live), str(notes), convert.Changes())
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(asked)))
    piped = qac("search", "--index", live, "--k", 1).out
    assert "faq.csv" in piped and "Lamps > Oil" in piped
    assert "  cosine 0." in piped and "  BM25 " in piped
    # At the end of the pipe.
    assert "search needs a question" in qac.refused("search", "--index", live)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    lines = iter(asked)
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    assert qac("search", "--index", live, "--k", 1).out == piped


def test_hits_below_a_score(notes: Path, qac: Qac) -> None:
    live = notes.parent / "live"
    convert.add_documents(LiveIndex(live), str(notes), convert.Changes())
    words = ["search", "--index", live, "who makes honey?"]
    hits = qac.json(*words)
    cosines = sorted((hit["scores"]["dense"] for hit in hits), reverse=True)
    assert len(qac.json(*words, "--min_score", cosines[1])) == 2
    said = qac(*words, "--json", "--min_score", 1.01)
    assert json.loads(said.out) == [] and f"the best score is {cosines[0]:.4g}" in said.err


def test_a_question_that_nothing_answers(tmp_path: Path, qac: Qac) -> None:
    live = LiveIndex(convert.create(tmp_path / "live", place="shipped:minilm").folder)
    live.add(["A lamp burns oil, which rises in its wick.", "Bees make honey of nectar."])
    known, foreign = live.search(["how does a lamp work?", "who won the cup final of 1998?"])
    assert known.likely is not None and foreign.likely is not None
    assert known.likely > 0.5 > snapshot.UNLIKELY > foreign.likely
    assert live.search(["who won?"], hybrid=0)[0].likely is None
    for question, said in {"how does a lamp work?": False, "who won the cup final?": True}.items():
        doubt = qac("search", "--index", live.folder, question).err
        assert ("nothing in this index seems to answer" in doubt) == said


def test_a_refused_index_leaves_no_folder(tmp_path: Path, qac: Qac) -> None:
    (tmp_path / "bad.jsonl").write_text('{"_id": "a"}')
    new = tmp_path / "out" / "live"
    for source in ("nowhere", "bad.jsonl"):
        qac.refused("index", new, "--add", tmp_path / source, "--encoder", "shipped:minilm")
        assert not new.parent.exists()
    qac.refused("prepare", "--documents", tmp_path / "bad.jsonl", "--out", new)
    assert not new.parent.exists()
    new.parent.mkdir()
    qac.refused("prepare", "--documents", tmp_path / "bad.jsonl", "--out", new)
    assert new.parent.exists() and not new.exists()


def test_weights_are_the_scores_of_single_words(tmp_path: Path) -> None:
    of = [{"_id": "a", "text": "red lamps, red oil"}, {"_id": "b", "text": "blue lamps"}]
    known = toy.live(tmp_path / "words", of).snapshot
    expected = [known.bm25(word) for word in ("red", "lamps", "oil", "blue")]
    for row, weights in enumerate(known.weights()):
        assert sorted(weights.values()) == sorted(float(s[row]) for s in expected if s[row])
    assert [*toy.live(tmp_path / "none", [{"_id": "a", "text": "…"}]).snapshot.weights()] == [{}]
