"""FAISS's indexes: equal to exact search at the highest effort, recall as promised, refusals."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
import toy_retrieval as toy

from qac_jax import artifacts, cli, extras
from qac_jax.errors import UserError
from qac_jax.pipeline import stage
from qac_jax.retrieval import corpus, tuning
from qac_jax.retrieval.approximate import Effort, Faiss, Graph, Lists
from qac_jax.retrieval.index import Index
from qac_jax.retrieval.search import approximation
from qac_jax.stages import index as stages


needs_faiss = pytest.mark.skipif(
    importlib.util.find_spec("faiss") is None, reason="needs the extra faiss"
)

ROWS, WIDTH, TARGET, K = 3000, 32, 0.95, 10
MOST = Effort(60, ROWS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray]:
    """(folder with vectors and queries' vectors, vectors, centres)."""
    folder = tmp_path_factory.mktemp("faiss")
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(60, WIDTH))
    array = toy.clustered(rng, ROWS, WIDTH, centres)
    toy.write_vectors(folder / "vectors", array)
    toy.write_vectors(folder / "queries", toy.clustered(rng, 400, WIDTH, centres))
    return folder, array, centres


def build(vectors: Path, out: Path, **settings: object) -> artifacts.Artifact:
    """Lists with codes, which so few vectors would not get by themselves."""
    given: dict[str, object] = {"method": "faiss", "recall_at": K, **settings}
    if given.get("faiss") != "hnsw":
        given.setdefault("leaves", 60)
    given = {n: str(x) if isinstance(x, Path) else x for n, x in given.items()}
    return stage.execute(stages.Index(vectors=str(vectors), **given), out)  # type: ignore[arg-type]


def searcher(index: Index) -> Faiss:
    found = index.searcher
    assert isinstance(found, Faiss)
    return found


@needs_faiss
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"leaves": 0},  # all scores are exact
        {"leaves": 60, "dims_per_block": 5, "part_rows": 1100},  # 5 does not divide 32
        {"faiss": "hnsw"},
        {"faiss": "hnsw", "part_rows": 1100},
    ],
)
def test_the_highest_effort_is_exact_search(made, tmp_path, settings):
    folder, array, centres = made
    index = Index(build(folder / "vectors", tmp_path / "index", **settings))
    queries = toy.clustered(np.random.default_rng(7), 40, WIDTH, centres)
    scores, rows = searcher(index).search(queries, K, MOST)
    best, truth = toy.brute_force(queries, array, K)
    assert (rows == truth).mean() > 0.999
    np.testing.assert_allclose(scores, best, rtol=0, atol=1e-6)
    assert scores.dtype == np.float32 and rows.dtype == np.int64


@needs_faiss
@pytest.mark.parametrize("settings", [{}, {"faiss": "hnsw"}, {"leaves": 3}])
@pytest.mark.parametrize("count", [1, 5, 17])
def test_fewer_rows_than_k(tmp_path, settings, count):
    array = toy.clustered(np.random.default_rng(1), count, 6)
    toy.write_vectors(tmp_path / "vectors", array, shards=1)
    given = {"leaves": 0, **settings}
    if given.get("faiss") == "hnsw" or given["leaves"] > count:
        given["leaves"] = -1
    index = Index(build(tmp_path / "vectors", tmp_path / "index", **given))
    scores, rows = index.search(array[:2], 30)
    best, truth = toy.brute_force(array[:2], array, count)
    assert scores.shape == rows.shape == (len(array[:2]), 30)
    np.testing.assert_array_equal(rows[:, :count], truth)
    np.testing.assert_allclose(scores[:, :count], best, atol=1e-6)
    assert (rows[:, count:] == -1).all() and np.isneginf(scores[:, count:]).all()


@needs_faiss
def test_lists_with_too_few_rows(made, tmp_path):
    folder, array, _ = made
    found = searcher(Index(build(folder / "vectors", tmp_path / "index")))
    scores, rows = found.search(array[:5], 1000, Effort(1, 1000))
    missing = rows < 0
    assert missing.any(axis=1).all() and np.isneginf(scores[missing]).all()
    assert np.isfinite(scores[~missing]).all() and (rows[~missing] < ROWS).all()


@needs_faiss
@pytest.mark.parametrize("family", ["ivf", "hnsw"])
def test_promised_recall_is_kept_on_other_queries(made, tmp_path, capsys, family):
    folder, array, centres = made
    settings = {"faiss": family, "target_recall": TARGET, "queries": folder / "queries"}
    index = Index(build(folder / "vectors", tmp_path / "index", **settings))
    tuned = index.artifact.info["tuning"]
    assert tuned["chosen"]["recall"] >= TARGET and tuned["target"] == TARGET
    others = toy.clustered(np.random.default_rng(9), 300, WIDTH, centres)
    truth = toy.brute_force(others, array, K)[1]
    scores, rows = index.search(others, K)
    assert tuning.recall(rows, truth).mean() >= TARGET - 0.01
    np.testing.assert_allclose(scores, np.einsum("qd,qkd->qk", others, array[rows]), atol=1e-6)
    effort = searcher(index).effort
    assert effort is not None and effort.reorder < ROWS
    assert effort.leaves < 60 if family == "ivf" else effort.leaves == 0
    word = "nprobe" if family == "ivf" else "efSearch"
    assert f"with {word} {effort.leaves or effort.reorder}" in capsys.readouterr().err
    assert approximation(index.artifact) == {"k": K, "recall": tuned["held_out_recall"]}


@needs_faiss
def test_a_graph_is_tuned_beyond_twenty_times_k(made, tmp_path):
    folder, _, _ = made
    index = Index(build(folder / "vectors", tmp_path / "index", faiss="hnsw"))
    assert searcher(index).largest_effort(1) == Effort(0, 1024)
    assert searcher(index).largest_effort(100) == Effort(0, 2000)
    assert approximation(index.artifact) == {}


@needs_faiss
@pytest.mark.parametrize("reordering", ["bfloat16", "int8"])
def test_smaller_vectors_to_rescore_with(made, tmp_path, reordering):
    folder, array, _ = made
    index = Index(build(folder / "vectors", tmp_path / "index", reordering=reordering))
    scores, rows = searcher(index).search(array[:50], K, MOST)
    truth = toy.brute_force(array[:50], array, K)[1]
    assert tuning.recall(rows, truth).mean() > 0.9
    np.testing.assert_allclose(
        scores, np.einsum("qd,qkd->qk", array[:50], array[rows]), rtol=0, atol=0.02
    )
    whole = (index.artifact.path / "part-00000" / "index.faiss").stat().length
    assert whole < ROWS * WIDTH * 4


@needs_faiss
@pytest.mark.parametrize("family", ["ivf", "hnsw"])
def test_the_same_vectors_are_the_same_bytes(made, tmp_path, family):
    folder, _, _ = made
    one, two = (
        build(folder / "vectors", tmp_path / name, faiss=family, part_rows=1600) for name in "ab"
    )
    assert one.identity == two.identity
    names = [name for name in one.files if name.endswith("index.faiss")]
    assert len(names) == 2
    for name in names:
        assert one.path.joinpath(name).read_bytes() == two.path.joinpath(name).read_bytes()


@needs_faiss
@pytest.mark.parametrize("family", ["ivf", "hnsw"])
def test_adding_vectors(made, tmp_path, family):
    _, array, centres = made
    more = toy.clustered(np.random.default_rng(6), 400, WIDTH, centres)
    toy.write_vectors(tmp_path / "first", array)
    toy.write_vectors(tmp_path / "more", more, first=ROWS)
    settings: dict[str, object] = {} if family == "hnsw" else {"leaves": 20}
    build(tmp_path / "first", tmp_path / "small", faiss=family, **settings)
    other = {"ivf": "hnsw", "hnsw": "ivf"}[family]
    with pytest.raises(UserError, match=f"to add to is of the family {family!r}"):
        build(tmp_path / "more", tmp_path / "no", base=tmp_path / "small", faiss=other, leaves=-1)
    with pytest.raises(UserError, match="is of the method 'faiss'"):
        build(tmp_path / "more", tmp_path / "or", base=tmp_path / "small", method="scann")
    added = {"method": "auto", "base": tmp_path / "small", "leaves": settings.get("leaves", -1)}
    build(tmp_path / "more", tmp_path / "large", **added)
    shutil.rmtree(tmp_path / "small")
    index = Index.load(tmp_path / "large")
    index.artifact.verify()
    both = np.concatenate([array, more])
    assert (len(index), index.ids[ROWS + 3]) == (ROWS + 400, f"r{ROWS + 3}")
    kinds = {"ivf": Lists, "hnsw": Graph}
    assert {type(p) for p in searcher(index).presets} == {kinds[family]}
    truth = toy.brute_force(both[-50:], both, K)[1]
    assert tuning.recall(index.search(both[-50:], K)[1], truth).mean() > 0.95


@needs_faiss
def test_interrupted_it_keeps_finished_parts(made, tmp_path, monkeypatch):
    folder, _, _ = made
    whole = build(folder / "vectors", tmp_path / "whole", part_rows=1100)
    before, built = Faiss.build, []

    def interrupted(vectors, preset, place):
        built.append(len(vectors))
        if len(built) == 2:
            raise KeyboardInterrupt
        before(vectors, preset, place)

    monkeypatch.setattr(Faiss, "build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(folder / "vectors", tmp_path / "out", part_rows=1100)
    with pytest.raises(UserError, match="is unfinished"):
        artifacts.load(tmp_path / "out")
    again = build(folder / "vectors", tmp_path / "out", part_rows=1100)
    assert len(built) == 4  # the first part once
    again.verify()
    assert again.identity == whole.identity
    assert not (tmp_path / "out" / artifacts.SCRATCH).exists()


@needs_faiss
def test_damaged_indexes_are_refused(made, tmp_path, monkeypatch):
    index = tmp_path / "index"
    build(made[0] / "vectors", index)
    file = index / "part-00000" / "index.faiss"
    size = file.stat().st_size
    file.unlink()
    file.write_bytes(bytes(size))
    with pytest.raises(UserError, match="bytes are not those that were written"):
        artifacts.load(index).verify()
    monkeypatch.setenv("QAC_VERIFY", "0")
    with pytest.raises(UserError, match="cannot be loaded by FAISS .*build the index again"):
        _ = Index.load(index).searcher


@needs_faiss
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"leaves": 5000}, "leaves=5000 are more than the 3000 vectors"),
        ({"soar": 1.0}, "soar=1.0 is of ScaNN"),
        ({"faiss": "hnsw", "leaves": 10}, "leaves=10 does not go with faiss='hnsw'"),
        ({"faiss": "hnsw", "reordering": "int8"}, "reordering='int8' does not go with"),
        ({"faiss": "ivf", "method": "exact"}, "faiss='ivf' goes with --method faiss"),
        ({"faiss": "hnsw", "method": "auto"}, "goes with --method faiss; give that"),
        ({"faiss": "tree"}, "faiss = 'tree' is not one of auto, ivf, hnsw"),
    ],
)
def test_mistakes_are_refused(made, tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        build(made[0] / "vectors", tmp_path / "out", **settings)


def test_a_missing_package_is_one_sentence(made, tmp_path, monkeypatch, capsys):
    real = importlib.util.find_spec
    gone = lambda name, *rest: None if name == "faiss" else real(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", gone)
    words = ["index", "--vectors", made[0] / "vectors", "--method", "faiss"]
    assert cli.main([*map(str, words), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert extras.remedy("faiss") in printed and printed.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_index_without_the_package_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(UserError, match=r"needs faiss, .*pip install 'qac_jax\[faiss\]'"):
        Faiss([tmp_path], [1], 2, [Graph()])


def test_presets_by_size():
    assert Faiss.preset(19_999, family="ivf") == Lists(0, False)
    assert Faiss.preset(20_000, family="ivf") == Lists(0, True)
    assert Faiss.preset(1_000_000, family="ivf") == Lists(2000, True)
    assert Faiss.preset(9, family="ivf", leaves=3) == Lists(3, False)  # 16 centres need 16
    assert Faiss.preset(1_000_000, family="hnsw") == Graph()


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a collection, its vectors, an exact index, two of FAISS, and BM25."""
    pytest.importorskip("faiss")
    folder = tmp_path_factory.mktemp("road")
    data = toy.write_collection(folder / "toys") / "corpus.jsonl"
    toy.save_encoder(folder / "encoder")
    corpus.store(folder / "passages", corpus.read_passages(str(data)))
    for words in (
        ["embed", "--model", folder / "encoder", "--input", data, "--out", folder / "vectors"],
        ["bm25", "--passages", data, "--out", folder / "bm25"],
        ["index", "--vectors", folder / "vectors", "--out", folder / "exact"],
        *(
            ["index", "--vectors", folder / "vectors", "--method", "faiss", "--faiss", family,
             "--out", folder / family, *more]
            for family, more in (("ivf", ["--leaves", 3, "--target_recall", 0.9]), ("hnsw", []))
        ),
    ):  # fmt: skip
        assert cli.main([str(word) for word in words]) == 0
    return folder


def run_of(road: Path, index: Path, out: Path) -> list[list[str]]:
    words = ["search", "--index", index, "--queries", road / "toys" / "queries.jsonl"]
    assert cli.main([*map(str, words), "--k", "5", "--run", str(out)]) == 0
    return [line.split() for line in out.read_text().splitlines()]


def test_search_by_the_command_line(road, tmp_path):
    expected = run_of(road, road / "exact", tmp_path / "exact.trec")
    found = run_of(road, road / "hnsw", tmp_path / "hnsw.trec")
    assert [line[:4] for line in found] == [line[:4] for line in expected]
    np.testing.assert_allclose(
        [float(line[4]) for line in found], [float(line[4]) for line in expected], atol=1e-5
    )
    near = run_of(road, road / "ivf", tmp_path / "ivf.trec")
    pairs = {(line[0], line[2]) for line in expected}
    assert len(pairs & {(line[0], line[2]) for line in near}) > 0.8 * len(pairs)


def test_a_run_tells_its_measured_recall(road, tmp_path):
    for family in ("ivf", "hnsw"):
        words = ["search", "--index", road / family, "--queries", road / "toys" / "queries.jsonl"]
        assert cli.main([*map(str, words), "--out", str(tmp_path / family)]) == 0
    known = artifacts.load(tmp_path / "ivf").info["approximate"]
    assert known["recall"] > 0.5 and known["k"] == 39
    assert artifacts.load(tmp_path / "hnsw").info["approximate"] == {}


def test_fusion_and_mining_over_it(road, tmp_path):
    for name in ("exact", "hnsw"):
        words = ["hybrid", "--index", road / name, "--bm25", road / "bm25", "--depth", 40]
        assert cli.main([*map(str, words), "--out", str(tmp_path / name)]) == 0
    runs = [run_of(road, tmp_path / name, tmp_path / f"{name}.trec") for name in ("exact", "hnsw")]
    assert [line[:4] for line in runs[0]] == [line[:4] for line in runs[1]]
    words = ["mine", "--index", road / "hnsw", "--passages", road / "passages"]
    words += ["--queries", road / "toys" / "queries.jsonl"]
    words += ["--qrels", road / "toys" / "qrels" / "test.tsv", "--depth", 10, "--keep", 4]
    assert cli.main([*map(str, words), "--out", str(tmp_path / "mined")]) == 0


def test_the_retriever_and_a_living_index(road, tmp_path):
    import qac_jax

    retriever = qac_jax.Retriever.load(road / "encoder")
    said = [toy.sentence(np.random.default_rng(n), 8) for n in range(30)]
    retriever.index(said, method="faiss")
    (hits,) = retriever.search([said[7]], k=3)
    assert (hits[0].id, hits[0].text) == ("7", said[7])
    retriever.add(["a new passage of copper and lamp"])
    assert len(retriever.search([said[7]], k=40)[0]) == 31
