"""What a machine with little but JAX reads and measures is what the usual packages do."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_retrieval

from qac_jax import artifacts
from qac_jax.data import plain, store, wire
from qac_jax.errors import DataError, UserError
from qac_jax.evaluation import metrics, plain_measures
from qac_jax.formats.runs import ranked
from qac_jax.retrieval import bm25, rankings, search


def test_records_are_those_that_protobuf_writes() -> None:
    from tensorflow_datasets.proto import tf_example_pb2

    arrays: dict[str, np.ndarray] = {
        "passage": np.arange(300, dtype=np.uint16),  # a length of two bytes
        "context_lengths": np.array([], np.int32),
        "a": np.array([7], np.uint16),
    }
    proto = tf_example_pb2.Example()
    for name, array in arrays.items():
        proto.features.feature[name].bytes_list.value.append(array.tobytes())
    assert wire.serialised(arrays) == proto.SerializeToString(deterministic=True)


def test_plain_files_give_back_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(store.PLAIN, "1")
    assert store.shard_name(0, 1).startswith(plain.PREFIX)
    assert store.describe(tmp_path, {}, [1]) == ()
    records: list[dict[str, Any]] = [{"words": [1, 2, 3]}, {"words": []}, {"words": [65535]}]
    assert store.write_shard(tmp_path / "one", {"words": "uint16"}, records) == 3
    read = plain.Reader(tmp_path / "one").read([2, 0, 1])
    block = wire.Block(read, wire.Schema.of({"words": "uint16"}))
    assert [list(record["words"]) for record in block.records()] == [[65535], [1, 2, 3], []]

    (tmp_path / "cut").write_bytes((tmp_path / "one").read_bytes()[:-1])
    with pytest.raises(DataError, match="cut off"):
        plain.Reader(tmp_path / "cut")


def test_measures_are_those_of_trec_eval() -> None:
    draw = random.Random(0)
    names = [f"p{number}" for number in range(30)]
    judged = {f"q{n}": {p: draw.choice((-1, 0, 1, 2)) for p in names[:12]} for n in range(20)}
    run = {
        query: ranked(draw.sample(names, 15), [draw.choice((0.1, 0.2, 0.3)) for _ in range(15)])
        for query in judged
    }
    asked = ("ndcg@10", "recall@10", "precision@5", "success_3", "mrr@10")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pytrec_eval", None)
        ours = metrics.evaluate(run, judged, asked, level=1).per_query
        with pytest.raises(UserError, match="map needs pytrec_eval"):
            metrics.evaluate(run, judged, ("map",))
    assert ours == metrics.evaluate(run, judged, asked, level=1).per_query
    assert plain_measures.at("ndcg_cut_10", ["p1"], {"p2": 0}, 1) == 0.0


def test_rankings_answer_as_their_index_does(tmp_path: Path) -> None:
    texts = [toy_retrieval.sentence(np.random.default_rng(n), 12) for n in range(20)]
    with artifacts.create(tmp_path / "bm25", kind="bm25") as out:
        from qac_jax.retrieval import ids

        ids.write(out, (f"p{n}" for n in range(20)))
        bm25.write(out, texts, bm25.Analyzer(), bm25.Scoring())
    index = search.open_index(tmp_path / "bm25")
    asked = ["river stone", "no such word at all", "lamp garden lamp"]
    with artifacts.create(tmp_path / "kept", kind=rankings.KIND) as out:
        rankings.write(out, index, asked, 8)
    stored = search.open_index(tmp_path / "kept")
    for theirs, ours in zip(index.find(asked[::-1], 5), stored.find(asked[::-1], 5), strict=True):
        np.testing.assert_array_equal(theirs, ours)
    assert list(stored.ids) == list(index.ids)
    with pytest.raises(UserError, match="top 8 of each question, and 9"):
        stored.find(asked, 9)
    with pytest.raises(UserError, match="no ranking of 'else'"):
        stored.find(["else"], 3)


def test_the_slice_that_runs_imports_nothing_heavy() -> None:
    """Not even JAX: the process that watches the time starts at once."""
    program = (
        "import sys; from qac_jax.evidence import running; "
        "print([m for m in ('jax', 'tensorflow', 'gin', 'nltk', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
