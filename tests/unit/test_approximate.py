"""ScaNN's and FAISS's indexes: exact at the highest effort, recall as promised, parts, refusals."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import toy_retrieval as toy

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.exporting.export import ExportFaiss
from qac_jax.pipeline import stage
from qac_jax.retrieval import approximate, tuning
from qac_jax.retrieval.approximate import Approximate, Effort
from qac_jax.retrieval.index import Index
from qac_jax.retrieval.search import approximation
from qac_jax.stages import index as stages


needs_faiss = pytest.mark.skipif(
    importlib.util.find_spec("faiss") is None, reason="needs the extra faiss"
)
ROWS, WIDTH, TARGET, K = 3000, 32, 0.95, 10
MOST = Effort(60, ROWS)
SCANN: dict[str, Any] = {"method": "scann", "leaves": 60}
IVF: dict[str, Any] = {"method": "faiss", "leaves": 60}
# A tree with quantised vectors, which so few vectors would not get by themselves.
ENGINES = [pytest.param(SCANN, id="scann"), pytest.param(IVF, id="ivf", marks=needs_faiss)]
Made = tuple[Path, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """(folder with vectors, queries' vectors and a tuned index of ScaNN, vectors, centres)."""
    folder = tmp_path_factory.mktemp("approximate")
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(60, WIDTH))
    array = toy.clustered(rng, ROWS, WIDTH, centres)
    toy.write_vectors(folder / "vectors", array)
    toy.write_vectors(folder / "queries", toy.clustered(rng, 1000, WIDTH, centres))
    tuned = {"target_recall": (TARGET,), "queries": folder / "queries"}
    build(folder / "vectors", folder / "index", **SCANN, **tuned)
    return folder, array, centres


def build(vectors: Path, out: Path, **settings: object) -> artifacts.Artifact:
    given = {"recall_at": (K,), **settings}
    given = {n: str(x) if isinstance(x, Path) else x for n, x in given.items()}
    return stage.execute(stages.Index(vectors=str(vectors), **given), out)  # type: ignore[arg-type]


def searcher(index: Index) -> Approximate:
    assert isinstance(index.searcher, Approximate)
    return index.searcher


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "scann", "leaves": 16, "part_rows": 1100},
        pytest.param({**IVF, "reordering": "int8"}, marks=needs_faiss),
        pytest.param({**IVF, "leaves": 0}, marks=needs_faiss),  # all scores are exact
        # 5 does not divide 32
        pytest.param({**IVF, "dims_per_block": 5, "part_rows": 1100}, marks=needs_faiss),
    ],
)
def test_the_highest_effort_is_exact_search(made: Made, tmp_path: Path, settings: Any) -> None:
    folder, array, centres = made
    index = Index(build(folder / "vectors", tmp_path / "index", **settings))
    queries = toy.clustered(np.random.default_rng(7), 40, WIDTH, centres)
    scores, rows = searcher(index).search(queries, K, MOST)
    best, truth = toy.brute_force(queries, array, K)
    if "reordering" in settings:  # candidates are rescored with smaller vectors
        assert tuning.recall(rows, truth).mean() > 0.9
        np.testing.assert_allclose(scores, best, rtol=0, atol=0.02)
    else:
        assert (rows == truth).mean() > 0.999
        np.testing.assert_allclose(scores, best, rtol=0, atol=1e-6)
    assert scores.dtype == np.float32 and rows.dtype == np.int64


@pytest.mark.slow
@pytest.mark.parametrize("settings", ENGINES)
def test_promised_recall_is_kept_on_other_queries(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: Any
) -> None:
    folder, array, centres = made
    tuned = {**settings, "recall_at": (K, 100), "target_recall": (TARGET, 0.999)}
    tuned["queries"] = folder / "queries"
    index = Index(build(folder / "vectors", tmp_path / "index", **tuned))
    shallow, deep = index.artifact.info["tunings"]
    assert deep["k"] == 100 and deep["recall"] >= 0.999
    assert searcher(index).efforts[100].leaves > searcher(index).efforts[K].leaves
    assert shallow["recall"] >= TARGET and shallow["target"] == TARGET
    others = toy.clustered(np.random.default_rng(9), 500, WIDTH, centres)
    scores, rows = index.search(others, K)
    truth = toy.brute_force(others, array, K)[1]
    assert tuning.recall(rows, truth).mean() >= TARGET - 0.01
    expected = np.where(rows >= 0, np.einsum("qd,qkd->qk", others, array[rows]), -np.inf)
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    effort = searcher(index).efforts[K]
    assert effort.reorder < ROWS and effort.leaves < 60
    assert f"with {effort}" in capsys.readouterr().err
    for k, of in ((1, shallow), (K, shallow), (K + 1, deep), (1000, deep)):
        assert approximation(index.artifact, k) == {"k": of["k"], "recall": of["held_out_recall"]}


def test_few_vectors_are_searched_exactly_with_one_notice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages._say_once.cache_clear()  # another test of this process may have had the notice
    toy.write_vectors(tmp_path / "vectors", np.eye(4, 3, dtype=np.float32))
    for name in "ab":
        made = build(tmp_path / "vectors", tmp_path / name, target_recall=(0.999,))
        assert made.info["method"] == "exact" and approximation(made, K) is None
    assert capsys.readouterr().err.count("fewer than 20,000 vectors are searched exactly") == 1
    with pytest.raises(UserError, match="between 0 and 1 for each k"):
        build(tmp_path / "vectors", tmp_path / "c", target_recall=(0.99, 0.999))


@pytest.mark.parametrize("settings", ENGINES)
def test_leaves_with_too_few_rows(made: Made, tmp_path: Path, settings: Any) -> None:
    folder, array, _ = made
    with pytest.raises(UserError, match="leaves=5000 are more than the 3000 vectors"):
        build(folder / "vectors", tmp_path / "out", **{**settings, "leaves": 5000})
    index = Index(build(folder / "vectors", tmp_path / "index", **settings))
    scores, rows = searcher(index).search(array[:5], 1000, Effort(1, 1000))
    missing = rows < 0
    assert missing.any(axis=1).all() and np.isneginf(scores[missing]).all()
    assert np.isfinite(scores[~missing]).all() and (rows[~missing] < ROWS).all()


@pytest.mark.slow
@pytest.mark.parametrize("settings", ENGINES)
def test_the_same_vectors_are_the_same_index(made: Made, tmp_path: Path, settings: Any) -> None:
    """Though ScaNN's threads do not make the same bytes twice."""
    folder, _, _ = made
    one, two = (
        build(folder / "vectors", tmp_path / name, **settings, part_rows=1600) for name in "ab"
    )
    assert one.identity == two.identity
    other = build(folder / "vectors", tmp_path / "c", **settings, part_rows=1400)
    assert other.identity != one.identity
    for name in [name for name in one.files if name.endswith("index.faiss")]:
        assert one.path.joinpath(name).read_bytes() == two.path.joinpath(name).read_bytes()


def test_damaged_indexes_are_refused(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Path(build(made[0] / "vectors", tmp_path / "index", **SCANN).path)
    damaged = index / "part-00000" / "hashed_dataset.npy"
    size = damaged.stat().st_size
    damaged.unlink()  # linked to the part that was built
    damaged.write_bytes(bytes(size))
    monkeypatch.setenv("QAC_VERIFY", "0")
    with pytest.raises(UserError, match="cannot be loaded by ScaNN .*build the index again"):
        _ = Index.load(index).searcher


def test_tensorflow_stays_out(made: Made) -> None:
    """It would cost seconds and 600 MB, and crash in another version than ScaNN's."""
    code = (
        "import sys; from qac_jax.retrieval.index import Index; "
        f"Index.load({str(made[0] / 'index')!r}).searcher; "
        "assert 'scann' in sys.modules and 'tensorflow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_does_not_fit_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert approximate.part_rows(4000, 1500) == [(0, 1333), (1333, 2666), (2666, 4000)]
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=0.6e9))
    with pytest.raises(UserError, match="about .* give a smaller --part_rows"):
        approximate.refuse_too_large(10**6, 768)


@needs_faiss
def test_exported_vectors_are_faiss_own_exact_index(tmp_path: Path) -> None:
    import faiss

    array = toy.clustered(np.random.default_rng(2), 300, 16).astype(np.float16)
    toy.write_vectors(tmp_path / "vectors", array)
    exported = stage.execute(ExportFaiss(faiss=str(tmp_path / "vectors")), tmp_path / "faiss")
    index = faiss.read_index(str(exported.path / "index.faiss"))
    assert type(index) is faiss.IndexFlatIP and index.ntotal == exported.count == 300
    np.testing.assert_array_equal(index.reconstruct_n(0, 300), array.astype(np.float32))
    assert (exported.path / "ids.txt").read_text().split()[17] == "r17"
    build(tmp_path / "vectors", tmp_path / "index", method="scann", leaves=8)
    with pytest.raises(UserError, match="is an approximate index"):
        stage.execute(ExportFaiss(faiss=str(tmp_path / "index")), tmp_path / "no")


@pytest.mark.parametrize("there", ["scann", "faiss", "exact"])
def test_what_takes_over_without_scann(
    there: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(approximate, "best_installed", approximate.best_installed.__wrapped__)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == there or None)
    assert stages.Index(vectors="v")._method(50_000) == there
    assert stages.Index(vectors="v")._method(10_000) == "exact"
    assert capsys.readouterr().err.count(f"{there} takes over") == (there != "scann")
