"""BM25: bm25s's own search, order of equals, expansion."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import toy_retrieval as toy
from toy_examples import written

from qac_jax.live.store import LiveSettings
from qac_jax.pipeline import stage
from qac_jax.retrieval.bm25 import Analyzer, Bm25
from qac_jax.stages import index as stages


TEXTS = ["red fox runs", "the red red barn", "a fox and a fox and a barn", "nothing here"]


def made(folder: Path, texts: list[str], name: str = "out", **settings: Any) -> Bm25:
    lines = [json.dumps({"_id": f"p{i}", "text": text}) for i, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    built = stages.Bm25(passages=str(folder / "corpus.jsonl"), **settings)
    return Bm25(stage.execute(built, folder / name))


def test_equals_bm25s_alone(tmp_path):
    import bm25s

    rng = np.random.default_rng(0)
    # Frequent words, and some that few texts have.
    texts = [f"{toy.sentence(rng, int(rng.integers(2, 30)))} rare{i % 25}" for i in range(300)]
    questions = [f"{toy.sentence(rng, 3)} rare{i}" for i in range(20)]
    for preset, k1, b in (("anserini", 0.9, 0.4), ("lucene", 1.2, 0.75), ("questions", 0.6, 0.75)):
        index = made(tmp_path, texts, preset, preset=preset)
        analyzer = index.analyzer
        theirs = bm25s.BM25(k1=k1, b=b)
        theirs.index([analyzer.words(text) for text in texts], show_progress=False)
        words = [analyzer.words(question) for question in questions]
        for k in (2, 20):  # blocks of scores, and none
            expected = theirs.retrieve(words, k=k, show_progress=False)
            scores, rows = index.find(questions, k)
            np.testing.assert_array_equal(scores, expected.scores)
            np.testing.assert_array_equal(rows, expected.documents)  # JAX's top_k keeps this order
        assert any(scores is not None for scores in index._whole.values())
        assert len(index._whole) < len(index.numbers)
        assert (index.find(["zebra", ""], 3)[1] == -1).all()


def test_equals_identity_and_stems(tmp_path):
    index = made(tmp_path, ["fox"] * 9 + ["fox fox"])
    assert index.find(["fox"], 4)[1].tolist() == [[9, 0, 1, 2]]
    again = made(tmp_path, ["fox"] * 9 + ["fox fox"], "again")
    assert index.artifact.identity == again.artifact.identity
    again.artifact.verify()
    words = ["runner", "3rd", "run", "run", "c"]
    assert Analyzer().words("The Runners' 3rd run, RUNNING c!") == words
    assert Analyzer("", "none").words("The Runners") == ["the", "runners"]


def test_words_of_questions_rank_nothing(tmp_path):
    """With the preset of people's questions, of a living index too."""
    texts = ["How do I do what you do?", "Lamps are dimmed by a knob beside the door of the room."]
    assert made(tmp_path, texts).find(["how do I dim lamps"], 2)[1].tolist() == [[0, 1]]
    index = made(tmp_path, texts, "questions", preset="questions")
    assert index.find(["how do I dim lamps", "how do I"], 2)[1].tolist() == [[1, -1], [-1, -1]]
    assert index.description["stop_words"] == LiveSettings({}, 1, True).stop_words == "snowball"
    # Indexes of earlier versions.
    assert Analyzer("", True).settings["stop_words"] == "lucene"
    assert Analyzer("", False).words("to be") == ["to", "be"]


def test_expansion_finds_what_only_a_generated_query_says(tmp_path):
    texts = [{"_id": f"p{i}", "text": text} for i, text in enumerate(TEXTS)]
    passages = written(tmp_path / "passages", "passages", texts)
    queries = [{"text": "zebra crossing"}, {"text": "wombat"}]
    expand = written(tmp_path / "contexts", "contexts", [{"_id": "p3", "contexts": queries}])

    def expanded(name: str, **settings: Any) -> Bm25:
        built = stages.Bm25(passages=passages, expand=expand, **settings)
        return Bm25(stage.execute(built, tmp_path / name))

    assert expanded("all").find(["zebra", "wombat"], 1)[1].tolist() == [[3], [3]]
    assert expanded("one", queries_each=1).find(["zebra", "wombat"], 1)[1].tolist() == [[3], [-1]]
