"""The table of launch/own_documents.sh: means over seeds, tests over questions."""

import importlib
import json
from pathlib import Path

import pytest
import toy_retrieval as toy


FOLDER = Path(__file__).parents[2] / "launch"


def test_seeds_are_averaged_before_questions_are_compared(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    script = importlib.import_module("own_documents")
    collection = toy.write_collection(tmp_path / "mine", 40, 12)
    for seed in (0, 1):
        folder = tmp_path / "out" / "mine" / f"seed_{seed}"
        folder.mkdir(parents=True)
        # Retriever 1 has the answer first, and with seed 1 second; the others second, third.
        places = dict.fromkeys(script.SYSTEMS, f"{seed + 2}" * 12) | {"index_1": f"{seed + 1}" * 12}
        (folder / "places.json").write_text(json.dumps(places))
    seeds, means = script.values(tmp_path / "out", collection)
    assert seeds == 2
    assert set(means["index_1"].values()) == {0.75}
    assert list(means["bm25"].values()) == pytest.approx([(1 / 2 + 1 / 3) / 2] * 12)
    shown = list(script.table(tmp_path / "out", [collection]))
    assert "| mine | 2 | 12 | 0.417 | 0.417 | 0.750 | 0.417 | 0.417 | 0.417 |" in shown
    assert any("retriever 1 − start | +0.3333 | 12 / 0 / 0 |" in line for line in shown)
