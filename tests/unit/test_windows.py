"""Windows: means of some tokens in a row, by the best of which a passage is ranked too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import toy_retrieval as toy

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.formats.records import Records
from qac_jax.inference.encoder import Encoder
from qac_jax.models import pooling
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval.hybrid import Hybrid
from qac_jax.retrieval.index import Index
from qac_jax.stages import bm25, embed, index, prepare
from qac_jax.stages import hybrid as hybrids


SIZE = 6


@pytest.mark.parametrize("size, start", [(2, 0), (6, 0), (6, 2), (7, 1), (64, 0)])
def test_windows_are_means_that_reach_the_end(size: int, start: int) -> None:
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(5, 23, 3)).astype(np.float32)
    lengths = np.array([23, 3, 9, 22, 4])
    counts = pooling.window_counts(lengths, size, start)
    found = pooling.windows(jnp.array(hidden), jnp.array(lengths), size, start)
    for row, length, count, vectors in zip(hidden, lengths, counts, found, strict=True):
        ends = []
        for number in range(count):
            first = start + number * (size // 2)
            ends.append(min(first + size, length))
            np.testing.assert_allclose(vectors[number], row[first : ends[-1]].mean(0), atol=1e-5)
        assert ends[-1] == length and length not in ends[:-1]


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windows")
    data = toy.write_collection(folder / "toys")
    toy.save_encoder(folder / "encoder")
    execute(prepare.Prepare.make(documents=str(data), format="beir"), folder / "passages")
    passages = str(folder / "passages")
    for name, window in (("plain", 0), ("windows", SIZE)):
        stage = embed.Embed(
            encoder=str(folder / "encoder"), passages=passages, window=window, shard_rows=480
        )
        execute(stage, folder / f"vectors_{name}")
        execute(index.Index(vectors=str(folder / f"vectors_{name}")), folder / f"index_{name}")
    execute(bm25.Bm25(passages=passages), folder / "bm25")
    return folder


def hybrid(road: Path, out: Path, name: str, **settings: Any) -> Hybrid:
    stage = hybrids.Hybrid.make(
        index=str(road / f"index_{name}"), bm25=str(road / "bm25"), depth=40, **settings
    )
    return Hybrid(execute(stage, out))


def by_hand(road: Path) -> tuple[Encoder, list[np.ndarray]]:
    """The windows of each passage, each from the passage alone."""
    encoder = Index.load(road / "index_windows").encoder
    texts = [encoder.passage_text(r) for r in Records(artifacts.load(road / "passages"))]
    rows = encoder.tokenize(texts)
    return encoder, [encoder.encode_windows([row], SIZE)[1][0] for row in rows]


def test_texts_have_the_same_vectors_and_short_ones_one_window(road: Path) -> None:
    plain, found = Index.load(road / "index_plain"), Index.load(road / "index_windows")
    every = np.arange(len(plain))
    np.testing.assert_allclose(plain.vectors.take(every), found.vectors.take(every), atol=1e-6)
    encoder, windows = by_hand(road)
    lengths = [len(row) for row in encoder.tokenize([encoder.passage_text(r) for r in _all(road)])]
    assert [len(w) for w in windows] == pooling.window_counts(np.array(lengths), SIZE).tolist()
    assert max(map(len, windows)) > 5
    short = encoder.encode_windows([[2, 9, 8, 3]], SIZE)
    np.testing.assert_allclose(short[0][0], short[1][0][0], atol=1e-3)  # float16
    assert plain.windows is None


def _all(road: Path) -> Records:
    return Records(artifacts.load(road / "passages"))


@pytest.mark.parametrize("weight, share", [(0.4, 0.25), (0.0, 1.0), (0.4, 0.0)])
def test_a_passage_has_the_score_of_its_best_window_too(
    road: Path, tmp_path: Path, weight: float, share: float
) -> None:
    asked = ["river lamp bread", "stone"]
    found = hybrid(road, tmp_path / "out", "windows", weight=weight, windows=share)
    encoder, windows = by_hand(road)
    queries = encoder.encode(asked, "query")
    whole = found.parts.dense.vectors.take(np.arange(40)) @ queries.T
    best = np.stack([(w @ queries.T).max(0) for w in windows])
    dense = (1 - share) * whole + share * best
    if not share:
        plain = hybrid(road, tmp_path / "plain", "plain", weight=weight)
        for ours, theirs in zip(found.find(asked, 40), plain.find(asked, 40), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
        return
    words = np.stack(found.parts.scores_by_words(asked, [np.arange(40)] * 2), 1)
    both = (1 - weight) * (dense + 1) / (dense.max(0) + 1) + weight * words / words.max(0)
    scores, rows = found.find(asked, 40)
    for number in range(2):
        np.testing.assert_allclose(scores[number], both[rows[number], number], atol=2e-3)
        assert sorted(rows[number].tolist()) == list(range(40))
    (first, *_), _ = found.ask(asked, 3)
    assert first.scores["dense"] == pytest.approx(dense[rows[0][0], 0], abs=2e-3)


def test_settings_that_cannot_be(road: Path) -> None:
    with pytest.raises(UserError, match="window=1; expected 2 tokens"):
        embed.Embed(encoder="e", passages="p", window=1).check()
    with pytest.raises(UserError, match="windows=2 is not a share"):
        hybrids.Hybrid.make(index="i", bm25="b", windows=2)


def test_scann_keeps_none(road: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = index.Index(vectors=str(road / "vectors_windows"), method="scann", leaves=0)
    made = Index(execute(stage, tmp_path / "index"))
    assert made.windows is None
    assert "ScaNN's index keeps no windows; --method exact does" in capsys.readouterr().err


def test_windows_are_means(road: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy.save_encoder(tmp_path / "cls", pooling="cls")
    stage = embed.Embed(encoder=str(tmp_path / "cls"), passages=str(road / "passages"), window=SIZE)
    made = execute(stage, tmp_path / "vectors")
    assert not [name for name in made.files if name.startswith("window")]
    assert "no windows, which are means: the encoder's pooling is cls" in capsys.readouterr().err
