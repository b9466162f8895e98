"""Hybrid indexes and fused runs: scales, fused scores and chosen weights by hand; windows."""

import functools
import math
import os
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import toy_retrieval as toy
from toy_process import Qac

from qac_jax import Retriever, artifacts
from qac_jax.errors import UserError
from qac_jax.evaluation import metrics
from qac_jax.exporting.export import ExportFaiss
from qac_jax.formats import runs
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.formats.runs import Run, ranked
from qac_jax.inference.encoder import Encoder
from qac_jax.models import heads
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval import fusion, search
from qac_jax.retrieval.bm25 import Bm25
from qac_jax.retrieval.hybrid import Hybrid
from qac_jax.stages import embed, index
from qac_jax.stages.search import Fuse


SIZE = 6  # tokens of a window
QUESTIONS = ["copper lamp river", "winter whisper", "anchor", "zebra"]


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a collection, an encoder and both indexes; "bm25_turned" has other rows."""
    folder = toy.indexed(tmp_path_factory.mktemp("hybrid"))
    turned = (folder / "toys" / "corpus.jsonl").read_text().splitlines()[::-1]
    other = [turned[0].replace('"_id": "p', '"_id": "x'), *turned[1:]]
    for name, lines in (("turned", turned), ("other", other)):
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        execute(index.Bm25(passages=str(folder / f"{name}.jsonl")), folder / f"bm25_{name}")
    given: dict[str, Any] = {n: str(folder / n) for n in ("encoder", "passages")}
    execute(embed.Embed(**given, window=SIZE, shard_rows=480), folder / "vectors_windows")
    execute(index.Index(vectors=str(folder / "vectors_windows")), folder / "index_windows")
    return folder


def built(
    road: Path, out: Path, lexical: str = "bm25", dense: str = "index", **settings: object
) -> Hybrid:
    stage = index.Hybrid.make(index=str(road / dense), bm25=str(road / lexical), **settings)
    return opened(execute(stage, out).path)


def opened(place: os.PathLike[str]) -> Any:
    """An index with the one encoder of these tests, loaded once."""
    found = search.open_index(place)
    if not isinstance(found, Bm25):
        found.__dict__["encoder"] = encoder(found.artifact.info["encoder"]["path"])
    return found


@functools.cache
def encoder(place: str) -> Encoder:
    return Encoder.load(place)


def test_scores_do_not_depend_on_k_and_come_in_parts(road, tmp_path):
    joined = built(road, tmp_path / "out", "bm25_turned", weight=0.3, depth=10)
    deep, deep_rows = joined.find(QUESTIONS, 40)
    flat, flat_rows = joined.find(QUESTIONS, 5)
    np.testing.assert_array_equal(deep_rows[:, :5], flat_rows)
    np.testing.assert_allclose(deep[:, :5], flat, atol=1e-6)
    for question, rows, hits in zip(QUESTIONS, flat_rows, joined.ask(QUESTIONS, 5), strict=True):
        assert [hit.id for hit in hits] == [joined.ids[row] for row in rows] and hits[0].text
        for system, name in (("dense", "index"), ("bm25", "bm25")):
            exact = {hit.id: hit.score for hit in opened(road / name).ask([question], 40)[0]}
            for hit in hits:
                assert hit.scores[system] == pytest.approx(exact.get(hit.id, 0.0), abs=1e-5)


def test_a_weight_chosen_on_judged_queries(road: Path, tmp_path: Path, qac: Qac) -> None:
    data = road / "toys"
    words = ["fuse", "--index", road / "index", "--bm25", road / "bm25", "--out", tmp_path / "out"]
    asked = ["--queries", data / "queries.jsonl", "--qrels", data / "qrels" / "test.tsv"]
    shown = qac(*words, *asked).out
    artifact = artifacts.load(tmp_path / "out")
    curve = artifact.info["choice"]["curve"]
    assert "chosen on 12 questions, MRR@10" in shown and len(curve) == 21
    # Queries are words of their passages, and the encoder is random.
    assert curve[20][1] > curve[0][1] and artifact.info["weight"] > 0.25
    assert Hybrid(artifact).settings.weight == artifact.info["weight"]
    judged = by_query(read_judgements(data / "qrels" / "test.tsv"))
    texts = {query.id: query.text for query in read_queries(data / "queries.jsonl")}
    for name, weight in (("index", 0), ("bm25", 20)):
        run = opened(road / name).run(texts, 10)
        measured = metrics.evaluate(run, judged, ("mrr@10",))
        assert curve[weight][1] == pytest.approx(measured.mean("mrr@10"), abs=1e-6)


def test_a_moved_folder_works_with_its_encoder(road, tmp_path):
    expected = built(road, road / "joined").ask(QUESTIONS, 5)
    # All that is needed of the two indexes is in the new folder.
    for name in ("encoder", "passages", "joined"):
        shutil.copytree(road / name, tmp_path / "moved" / name)
    away = road.rename(road.with_name("away"))
    try:
        artifacts.load(tmp_path / "moved" / "joined").verify()
        retriever = Retriever.load(tmp_path / "moved" / "joined")
        assert retriever.search(QUESTIONS, k=5) == expected
    finally:
        away.rename(road)


def test_its_vectors_are_exported_to_faiss(road, tmp_path):
    faiss = pytest.importorskip("faiss")
    joined = built(road, tmp_path / "out", "bm25_turned")
    exported = execute(ExportFaiss(faiss=str(tmp_path / "out")), tmp_path / "faiss")
    flat = faiss.read_index(str(exported.path / "index.faiss"))
    (vectors,) = joined.parts.dense.vectors.take_each([np.arange(len(joined))])
    np.testing.assert_array_equal(flat.reconstruct_n(0, len(joined)), vectors)
    assert (exported.path / "ids.txt").read_text().split() == [*joined.parts.dense.ids]


def test_other_passages_are_refused(road, tmp_path):
    with pytest.raises(UserError, match="hold different passages"):
        built(road, tmp_path / "out", "bm25_other")


def test_scann_has_no_vectors_so_the_lowest_score_stands_in(road, tmp_path):
    scann = execute(index.Index(vectors=str(road / "vectors"), method="scann"), tmp_path / "scann")
    (hits,) = built(road, tmp_path / "flat", dense=str(scann.path), depth=3).ask(QUESTIONS[:1], 3)
    (near,) = opened(scann.path).ask(QUESTIONS[:1], 3)
    assert min(hit.scores["dense"] for hit in hits) >= near[-1].score - 1e-6


def test_windows_are_means_that_reach_the_end() -> None:
    for size, start in [(2, 0), (6, 2), (7, 1), (64, 0)]:
        rng = np.random.default_rng(0)
        hidden = rng.normal(size=(5, 23, 3)).astype(np.float32)
        lengths = np.array([23, 3, 9, 22, 4])
        counts = heads.window_counts(lengths, size, start)
        found = heads.windows(jnp.array(hidden), jnp.array(lengths), size, start)
        for row, length, count, vectors in zip(hidden, lengths, counts, found, strict=True):
            ends = []
            for number in range(count):
                first = start + number * (size // 2)
                ends.append(min(first + size, length))
                np.testing.assert_allclose(
                    vectors[number], row[first : ends[-1]].mean(0), atol=1e-5
                )
            assert ends[-1] == length and length not in ends[:-1]


@pytest.mark.parametrize("weight, share", [(0.4, 0.25), (0.0, 1.0), (0.3, 0.0)])
def test_scores_are_those_of_words_passages_and_best_windows(
    road: Path, tmp_path: Path, weight: float, share: float
) -> None:
    asked = ["river lamp bread", "stone"]
    found = built(
        road, tmp_path / "out", dense="index_windows", depth=40, weight=weight, windows=share
    )
    encoder = found.encoder
    texts = [encoder.passage_text(r) for r in Records(artifacts.load(road / "passages"))]
    # The windows of each passage, from the passage alone.
    windows = [encoder.encode_windows([row], SIZE)[1][0] for row in encoder.tokenize(texts)]
    assert max(map(len, windows)) > 5
    queries = encoder.encode(asked, "query")
    whole = opened(road / "index").vectors.take(np.arange(40)) @ queries.T
    best = np.stack([(w @ queries.T).max(0) for w in windows])
    dense = (1 - share) * whole + share * best
    words = np.stack(found.parts.scores_by_words(asked, [np.arange(40)] * 2), 1)
    # BM25's score as a share of what the question's words say.
    having = [sum(word in text.lower() for text in texts) for word in " ".join(asked).split()]
    idf = [math.log(1 + (40 - count + 0.5) / (count + 0.5)) for count in having]
    words = words / [sum(idf[:3]), idf[3]]
    both = (1 - weight) * (dense + 1) / (dense.max(0) + 1) + weight * words
    scores, rows = found.find(asked, 40)
    for number in range(2):
        np.testing.assert_allclose(scores[number], both[rows[number], number], atol=2e-3)
        assert sorted(rows[number].tolist()) == list(range(40))
    alone, ranked_alone = found.find(asked[1:], 40)  # whose windows are not multiplied together
    np.testing.assert_allclose(alone, scores[1:], atol=1e-6)
    np.testing.assert_array_equal(ranked_alone, rows[1:])
    (first, *_), _ = found.ask(asked, 3)
    assert first.scores["dense"] == pytest.approx(dense[rows[0][0], 0], abs=2e-3)


DENSE = {"q": ranked(["a", "b", "c"], [0.8, 0.6, 0.2])}
BM25 = {"q": ranked(["c", "a", "d"], [10.0, 5.0, 4.0])}


def scores(run: Run) -> dict[str, float]:
    return dict(zip(*run["q"], strict=True))


def test_scores_that_are_equal_say_nothing_and_the_lowest_may_be_unknown():
    assert fusion.scale(np.array([2.0, 2.0]), "min_max", None) == (2.0, 1.0)
    assert fusion.lowest_score({"q": ranked(["a", "b"], [7.0, -2.0])}) is None
    assert fusion.scale(np.array([10.0, 4.0, 1.0]), "theoretical", None) == (1.0, 9.0)


def test_convex_by_hand():
    # Cosines from -1: 1, 1.6/1.8, 1.2/1.8, and d as the last; BM25 from 0: b as the last, 0.4.
    fused = fusion.convex([DENSE, BM25], weights=[3, 1])
    assert fused["q"].ids == ("a", "b", "c", "d")
    assert scores(fused) == pytest.approx(
        {
            "a": 0.75 + 0.25 * 0.5,
            "b": 0.75 * 1.6 / 1.8 + 0.25 * 0.4,
            "c": 0.75 * 1.2 / 1.8 + 0.25,
            "d": 0.75 * 1.2 / 1.8 + 0.25 * 0.4,
        }
    )
    lowest = fusion.convex([DENSE, BM25], weights=[1, 1], normalization="min_max", depth=2)
    assert scores(lowest) == pytest.approx({"a": 0.5 + 0.5 / 6, "c": 0.5})
    # A query that one run lacks keeps the order of the other.
    alone = fusion.convex([DENSE, {}], weights=[0.5, 0.5])
    assert alone["q"].ids == DENSE["q"].ids
    with pytest.raises(UserError, match="1 weights for 2 runs"):
        fusion.convex([DENSE, BM25], weights=[1])


def test_reciprocal_ranks_by_hand():
    parts = np.array([[1.0, 0.5, 0.0], [0.0, 0.2, 1.0]])
    ranks = fusion.reciprocal_ranks(parts, np.array([False, False, True]), [0.0, 0.4, 0.6, 1.0])
    # Weight 0.4: 0.6, 0.38, 0.4 -> second; weight 0.6: 0.4, 0.32, 0.6 -> first.
    assert ranks.tolist() == [1 / 3, 1 / 2, 1.0, 1.0]


def test_the_weight_nearest_to_the_prior_within_two_standard_errors():
    grid = [0.0, 0.5, 1.0]
    # Differences to the best of 0, 0, 0.5, 0.5: mean 0.25, standard error 0.144: near enough.
    gains = np.array([[0.1, 0.1, 0.1, 0.1], [1.0, 1.0, 0.5, 0.5], [1.0, 1.0, 1.0, 1.0]])
    choice = fusion.choose(gains, grid, prior=0.25)
    assert (choice.weight, choice.best, choice.questions) == (0.5, 1.0, 4)
    assert [mean for _, mean, _ in choice.curve] == pytest.approx([0.1, 0.75, 1.0])
    far = np.array([gains[0], [1.0, 0.5, 0.5, 0.5], gains[2]])  # 0.375, three standard errors
    assert fusion.choose(far, grid, prior=0.25).weight == 1.0
    # A weight beyond the prior, whose differences are noisier, is not nearer by that.
    noisy = np.array([[1.0] * 4, [0.5] * 4, [1.0, 0.0] * 2])
    assert fusion.choose(noisy, grid, prior=0.55).weight == 0.0
    # Where all are equal, the prior decides.
    assert fusion.choose(np.ones((3, 5)), grid, prior=0.4).weight == 0.5


def test_reciprocal_rank_fusion_by_hand():
    one = {"q": ranked(["a", "b"], [9, 8]), "only": ranked(["z"], [1])}
    two = {"q": ranked(["b", "c"], [0.2, 0.1])}
    fused = fusion.reciprocal_rank([one, two])
    assert fused["q"].ids == ("b", "a", "c")
    expected = [1 / 62 + 1 / 61, 1 / 61, 1 / 62]
    np.testing.assert_allclose(fused["q"].scores, expected, rtol=1e-6)
    assert fused["only"].ids == ("z",)
    assert fusion.reciprocal_rank([one, two], weights=[1, 0], depth=1)["q"].ids == ("a",)


def test_merged_runs_are_the_run_of_one_index(tmp_path: Path) -> None:
    given = np.random.default_rng(0).permutation(300 * 7).reshape(7, 300) / 16
    for name, start, stop in (("whole", 0, 300), ("a", 0, 130), ("b", 130, 131), ("c", 131, 300)):
        ids = [f"d{row}" for row in range(start, stop)]
        run = {f"q{n}": ranked(ids, row[start:stop]).top(20) for n, row in enumerate(given)}
        runs.write_run(tmp_path / f"{name}.trec", run)
    parts = ",".join(str(tmp_path / f"{name}.trec") for name in "abc")
    merged = execute(Fuse(runs=parts, method="merge", depth=20), tmp_path / "merged")
    assert (merged.path / "run.trec").read_bytes() == (tmp_path / "whole.trec").read_bytes()
    assert merged.info["runs"] == ["a", "b", "c"]
    # A passage of two runs has its best score, and no query is lost.
    first = {"q": ranked(["a", "b"], [2.0, -1.0]), "alone": ranked(["c"], [0.5])}
    joined = fusion.merged([first, {"q": ranked(["b", "d"], [-0.5, -3.0])}], None)
    assert joined["alone"].ids == ("c",) and scores(joined) == {"a": 2.0, "b": -0.5, "d": -3.0}
