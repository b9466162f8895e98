"""`qac search --queries` on a living index: its run, filtered and weighted as on the screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import toy_live as toy

from qac_jax import artifacts, cli
from qac_jax.errors import UserError
from qac_jax.formats.runs import read_run
from qac_jax.live import runs
from qac_jax.live.index import LiveIndex


TEXTS = ("a copper lamp", "the lamp burns", "stones of the river", "a violin", "copper and lamp")
QUERIES = {"q1": "copper lamp", "q2": "river violin"}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> LiveIndex:
    place = tmp_path_factory.mktemp("live")
    made = LiveIndex.create(place / "index", toy.SETTINGS, encoder=toy.stub())
    made.add({"_id": f"p{n}", "text": text, "year": 2000 + n} for n, text in enumerate(TEXTS[:3]))
    made.add({"_id": f"p{n + 3}", "text": text, "year": 2010} for n, text in enumerate(TEXTS[3:]))
    made.delete(["p1"])
    lines = [json.dumps({"_id": name, "text": text}) + "\n" for name, text in QUERIES.items()]
    (place / "queries.jsonl").write_text("".join(lines))
    return made


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_a_run_has_what_a_search_shows(live: LiveIndex, weight: float) -> None:
    for where in (None, {"year": (">=", 2002)}):
        found = runs.LiveSearch(live, where, weight).run(QUERIES, 3)
        for name, text in QUERIES.items():
            (hits,) = live.search([text], 3, where=where, hybrid=weight)
            expected = sorted(((h.score, h.id) for h in hits), reverse=True)
            assert found[name].ids == tuple(name for _, name in expected)
            assert found[name].scores.tolist() == pytest.approx([s for s, _ in expected])


def test_files_of_queries(live: LiveIndex, tmp_path: Path, capsys: Any) -> None:
    queries = str(live.folder.parent / "queries.jsonl")
    words = ["search", "--index", str(live.folder), "--queries", queries, "--hybrid", "1"]
    assert cli.main([*words, "--run", str(tmp_path / "own.trec")]) == 0
    run = read_run(tmp_path / "own.trec")
    assert run["q1"].ids == ("p4", "p0") or run["q1"].ids == ("p0", "p4")
    where = ["--where", json.dumps({"year": 2010}), "--k", "2"]
    assert cli.main([*words, *where, "--out", str(tmp_path / "out")]) == 0
    made = artifacts.load(tmp_path / "out", "run")
    assert read_run(made.path / "run.trec")["q1"].ids == ("p4",)
    assert "approximate" not in made.info
    # What is added later makes another run.
    capsys.readouterr()
    live.add([{"_id": "p9", "text": "copper", "year": 2010}])
    assert cli.main([*words, *where, "--out", str(tmp_path / "out2")]) == 0
    assert "p9" in read_run(tmp_path / "out2" / "run.trec")["q1"].ids
    assert cli.main([*words, "--where", "{", "--out", str(tmp_path / "out3")]) == 2
    assert "is not JSON" in capsys.readouterr().err
    live.delete(["p9"])


def test_texts_for_a_reranker(live: LiveIndex) -> None:
    texts = runs.texts_of(artifacts.load(live.folder))
    assert list(texts(["p4", "p0"])) == ["copper and lamp", "a copper lamp"]
    with pytest.raises(UserError, match="passage 'p1' is not in"):
        texts(["p1"])
