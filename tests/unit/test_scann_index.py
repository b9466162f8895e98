"""ScaNN's indexes: recall as promised, parts, moved and damaged folders, no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import toy_retrieval as toy

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.pipeline import stage
from qac_jax.retrieval import approximate, tuning
from qac_jax.retrieval.approximate import Effort, Preset, Scann
from qac_jax.retrieval.index import Index
from qac_jax.stages import index as stages


ROWS, WIDTH, TARGET, K = 4000, 32, 0.95, 10


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray]:
    """(folder with vectors, queries' vectors and an index tuned on them, vectors, centres)."""
    folder = tmp_path_factory.mktemp("scann")
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(80, WIDTH))
    array = toy.clustered(rng, ROWS, WIDTH, centres)
    toy.write_vectors(folder / "vectors", array)
    toy.write_vectors(folder / "queries", toy.clustered(rng, 1000, WIDTH, centres))
    build(folder / "vectors", folder / "index", target_recall=TARGET, queries=folder / "queries")
    return folder, array, centres


def build(vectors: Path, out: Path, **settings: object) -> artifacts.Artifact:
    """A tree with hashes, which so few vectors would not get by themselves."""
    given = {"method": "scann", "leaves": 60, "recall_at": K, **settings}
    given = {n: str(x) if isinstance(x, Path) else x for n, x in given.items()}
    return stage.execute(stages.Index(vectors=str(vectors), **given), out)  # type: ignore[arg-type]


def recall(index: Index, queries: np.ndarray, array: np.ndarray) -> float:
    _, rows = index.search(queries, K)
    return float(tuning.recall(rows, toy.brute_force(queries, array, K)[1]).mean())


def test_promised_recall_is_kept_on_other_queries(made):
    folder, array, centres = made
    index = Index.load(folder / "index")
    told = index.artifact.info["tuning"]
    assert told["chosen"]["recall"] >= TARGET and told["target"] == TARGET
    others = toy.clustered(np.random.default_rng(9), 500, WIDTH, centres)
    assert recall(index, others, array) >= TARGET - 0.005
    effort = index.artifact.info["effort"]
    assert effort["leaves"] < 60  # it does not simply look everywhere
    assert len({(p["leaves"], p["reorder"]) for p in told["curve"]}) == len(told["curve"]) > 5


def test_scores_are_those_of_exact_search(made):
    folder, array, centres = made
    queries = toy.clustered(np.random.default_rng(8), 70, WIDTH, centres)
    scores, rows = Index.load(folder / "index").search(queries, K)
    expected = np.einsum("qd,qkd->qk", queries, array[rows])
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-6)
    assert (np.diff(scores, axis=1) <= 0).all()


def test_looking_everywhere_is_exact(made):
    folder, array, centres = made
    queries = toy.clustered(np.random.default_rng(7), 20, WIDTH, centres)
    searcher = Index.load(folder / "index").searcher
    assert isinstance(searcher, Scann)
    _, rows = searcher.search(queries, K, Effort(60, ROWS))
    assert (rows == toy.brute_force(queries, array, K)[1]).mean() > 0.999


def test_leaves_with_too_few_rows(made):
    folder, array, centres = made
    searcher = Index.load(folder / "index").searcher
    assert isinstance(searcher, Scann)
    scores, rows = searcher.search(array[:5], 1000, Effort(1, 1000))
    missing = rows < 0
    assert missing.any(axis=1).all() and np.isneginf(scores[missing]).all()
    assert not np.isnan(scores).any() and (rows[~missing] < ROWS).all()


def test_a_moved_index_searches_the_same(made, tmp_path):
    folder, array, _ = made
    before = Index.load(folder / "index").search(array[:40], K)
    shutil.copytree(folder / "index", tmp_path / "elsewhere")
    after = Index.load(tmp_path / "elsewhere")
    np.testing.assert_array_equal(after.search(array[:40], K)[1], before[1])
    assert after.ids[17] == "r17"
    for file in (tmp_path / "elsewhere").rglob("*.pbtxt"):
        assert str(folder) not in file.read_text()


def test_damaged_indexes_are_refused(made, tmp_path, monkeypatch):
    folder, _, _ = made
    index = tmp_path / "index"
    shutil.copytree(folder / "index", index)
    part = index / "part-00000"
    whole = (part / "hashed_dataset.npy").read_bytes()
    (part / "hashed_dataset.npy").write_bytes(whole[:-1])
    with pytest.raises(UserError, match="is damaged: part-00000/hashed_dataset.npy"):
        Index.load(index)
    (part / "hashed_dataset.npy").write_bytes(bytes(len(whole)))
    with pytest.raises(UserError, match="bytes are not those that were written"):
        artifacts.load(index).verify()
    with pytest.raises(UserError, match="bytes are not those that were written"):
        _ = Index.load(index).searcher
    monkeypatch.setenv("QAC_VERIFY", "0")
    with pytest.raises(UserError, match="cannot be loaded by ScaNN"):
        _ = Index.load(index).searcher
    (part / "hashed_dataset.npy").unlink()
    with pytest.raises(UserError, match="missing"):
        Index.load(index)


def test_the_same_input_is_the_same_index(made, tmp_path):
    """Though ScaNN's threads do not make the same bytes twice."""
    folder, _, _ = made
    identities = [build(folder / "vectors", tmp_path / name).identity for name in ("a", "b")]
    assert len(set(identities)) == 1
    assert build(folder / "vectors", tmp_path / "c", leaves=50).identity not in identities


@pytest.mark.parametrize("method", ["scann", "exact"])
def test_adding_vectors(made, tmp_path, method):
    _, array, centres = made
    more = toy.clustered(np.random.default_rng(6), 500, WIDTH, centres)
    toy.write_vectors(tmp_path / "first", array)
    toy.write_vectors(tmp_path / "more", more, first=ROWS)
    settings = {"method": method, "leaves": 20 if method == "scann" else -1}
    build(tmp_path / "first", tmp_path / "small", **settings)
    build(tmp_path / "more", tmp_path / "large", base=tmp_path / "small", **settings)
    shutil.rmtree(tmp_path / "small")
    index = Index.load(tmp_path / "large")
    index.artifact.verify()
    both = np.concatenate([array, more])
    assert (len(index), index.ids[ROWS + 3]) == (ROWS + 500, f"r{ROWS + 3}")
    queries = toy.clustered(np.random.default_rng(5), 60, WIDTH, centres)
    found = recall(index, queries, both)
    assert found > 0.9 if method == "scann" else found == 1.0
    assert index.search(both[-3:], 1)[1][:, 0].tolist() == list(range(len(both) - 3, len(both)))
    with pytest.raises(UserError, match="'r4000' of .* is in .* already"):
        build(tmp_path / "more", tmp_path / "again", base=tmp_path / "large", **settings)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"leaves": 5000}, "leaves=5000 are more than the 4000 vectors"),
        ({"target_recall": 1.5}, "target_recall=1.5"),
        ({"target_recall": 0.9, "sample": 1}, "two queries or more"),
    ],
)
def test_mistakes_are_told(made, tmp_path, settings, told):
    with pytest.raises(UserError, match=told):
        build(made[0] / "vectors", tmp_path / "out", **settings)


@pytest.mark.parametrize(
    ("rows", "leaves", "hashed"), [(19_999, 0, False), (20_000, 0, True), (1_000_000, 2000, True)]
)
def test_presets_by_size(rows, leaves, hashed):
    assert Scann.preset(rows) == Preset(leaves, hashed)


def test_the_own_row_is_no_neighbour():
    rows = np.array([[4, 1, 2], [7, 8, 9]])
    np.testing.assert_array_equal(tuning.without(rows, np.array([1, 5])), [[4, 2], [7, 8]])


def test_tensorflow_stays_out(made):
    """It would cost seconds and 600 MB, and crash in another version than ScaNN's."""
    code = (
        "import sys; from qac_jax.retrieval.index import Index; "
        f"Index.load({str(made[0] / 'index')!r}).searcher; "
        "assert 'scann' in sys.modules and 'tensorflow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_reordering_takes_more_than_k(made, monkeypatch):
    folder, array, _ = made
    searcher = Index.load(folder / "index").searcher
    assert isinstance(searcher, Scann)
    asked = {}

    class Part:
        def search_batched(self, queries, **settings):
            asked.update(settings)
            return np.zeros((1, K), np.int64), np.zeros((1, K), np.float32)

    monkeypatch.setattr(searcher, "_parts", [Part()])
    searcher.search(array[:1], K, Effort(1, 1))
    assert asked["pre_reorder_num_neighbors"] == math.ceil(1.25 * K)


def test_parts_are_searched_together(made, tmp_path, monkeypatch):
    folder, array, centres = made
    queries = toy.clustered(np.random.default_rng(5), 50, WIDTH, centres)
    settings = {"method": "scann", "leaves": 16, "part_rows": 1500}
    found = build(folder / "vectors", tmp_path / "parts", **settings)
    index = Index(found)
    rows_of = [part["rows"] for part in index.description["parts"].values()]
    assert rows_of == [1333, 1333, 1334]
    searcher = index.searcher
    assert isinstance(searcher, Scann)
    scores, rows = searcher.search(queries, K, Effort(16, 1500))
    exact = -np.sort(-(queries @ array.T), axis=1)[:, :K]
    assert np.allclose(scores, exact, atol=1e-4)
    assert np.allclose((queries[:, None] * array[rows]).sum(-1), exact, atol=1e-4)
    monkeypatch.setattr("psutil.virtual_memory", lambda: Free(0.6e9))
    with pytest.raises(UserError, match="about .* give --part_rows"):
        approximate.refuse_too_large(10**6, 768)


@dataclasses.dataclass
class Free:
    available: float
