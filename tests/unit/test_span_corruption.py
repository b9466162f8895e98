"""Span corruption: its law by enumeration, and that nothing of a text is lost."""

from __future__ import annotations

import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.models.t5 import T5, T5Config
from qac_jax.objectives.objective import Context
from qac_jax.objectives.seq2seq import Seq2Seq
from qac_jax.objectives.span_corruption import SpanCorruption, SpanNoise
from qac_jax.text import tokenizers


TOP, EOS, PAD, WIDTH = 999, 1, 0, 40


def corrupt(ids: np.ndarray, lengths: np.ndarray, noise: SpanNoise, seed: int = 0) -> list:
    keys = jax.random.split(jax.random.key(seed), len(ids))
    call = jax.jit(lambda i, n, k: noise(i, n, k, top=TOP, eos=EOS, pad=PAD))
    return [np.asarray(x) for x in call(ids, lengths, keys)]


def texts(lengths: np.ndarray) -> np.ndarray:
    """Every token says where it stands."""
    place = np.arange(WIDTH)
    return np.where(place < lengths[:, None], 100 + place, PAD).astype(np.int32)


def restored(inputs: np.ndarray, targets: np.ndarray) -> list[int]:
    """The text again, from whole inputs and targets with their end tokens."""
    assert inputs[-1] == EOS and targets[-1] == EOS
    spans: dict[int, list[int]] = {}
    sentinel = -1
    for token in targets[:-1].tolist():
        if token > 900:
            assert token == TOP - len(spans)
            sentinel = token
            spans[sentinel] = []
        else:
            spans[sentinel].append(token)
    assert all(spans.values()), "every span has a token"
    text: list[int] = []
    for token in inputs[:-1].tolist():
        text += spans.pop(token) if token > 900 else [token]
    assert not spans
    return text


@pytest.mark.parametrize("noise", [SpanNoise(), SpanNoise(0.5, 2.0), SpanNoise(0.9, 1.0)], ids=str)
def test_inputs_and_targets_restore_the_text(noise: SpanNoise) -> None:
    lengths = np.concatenate([np.arange(2, WIDTH + 1)] * 2).astype(np.int32)
    ids = texts(lengths)
    inputs, inputs_length, targets, targets_length = corrupt(ids, lengths, noise)
    tokens, spans = noise.counts(WIDTH)
    assert (inputs.shape[1], targets.shape[1]) == noise.widths(WIDTH)
    assert inputs_length.max() == inputs.shape[1] and targets_length.max() == targets.shape[1]
    for i, n in enumerate(lengths):
        assert inputs_length[i] == n - tokens[n] + spans[n] + 1
        assert targets_length[i] == tokens[n] + spans[n] + 1
        assert (inputs[i, inputs_length[i] :] == PAD).all()
        assert (targets[i, targets_length[i] :] == PAD).all()
        text = restored(inputs[i, : inputs_length[i]], targets[i, : targets_length[i]])
        assert text == ids[i, :n].tolist()
        assert inputs[i, 0] == ids[i, 0], "a text starts with a stretch that is kept"


def test_counts_are_t5s() -> None:
    tokens, spans = SpanNoise().counts(568)
    # 512 inputs and 114 targets: T5's own figures for texts of 568 tokens.
    assert (tokens[568], spans[568]) == (85, 28)
    assert 568 - tokens[568] + spans[568] + 1 == 512 and tokens[568] + spans[568] + 1 == 114
    assert tokens[:4].tolist() == [0, 0, 1, 1] and tokens[10] == 2 and tokens[30] == 4


def test_every_way_to_cut_is_equally_likely() -> None:
    noise, draws, n = SpanNoise(0.45, 1.5), 6000, 9
    tokens, spans = (int(x[n]) for x in noise.counts(n))
    assert (tokens, spans) == (4, 3)

    def cuts(items: int) -> list[tuple[int, ...]]:
        ways = itertools.product(range(1, items), repeat=spans)
        return [way for way in ways if sum(way) == items]

    expected = set()
    for kept, lost in itertools.product(cuts(n - tokens), cuts(tokens)):
        pieces = zip(kept, lost, strict=True)
        expected.add(tuple(flag for k, m in pieces for flag in [False] * k + [True] * m))
    keys = jax.random.split(jax.random.key(1), draws)
    mask = jax.jit(lambda n, k: noise.mask(n, k, 12))(jnp.full(draws, n), keys)
    seen = Counter(tuple(row) for row in np.asarray(mask)[:, :n].tolist())
    assert not np.asarray(mask)[:, n:].any()
    assert set(seen) == expected
    share = 1 / len(expected)
    error = 4.5 * np.sqrt(share * (1 - share) / draws)
    assert all(abs(count / draws - share) < error for count in seen.values())


def test_a_text_too_short_for_noise_says_nothing() -> None:
    lengths = np.array([0, 1, 2], np.int32)
    inputs, inputs_length, _, targets_length = corrupt(texts(lengths), lengths, SpanNoise())
    assert inputs_length.tolist() == [1, 2, 3] and targets_length.tolist() == [0, 0, 3]
    assert inputs[1, :2].tolist() == [100, EOS]


def test_a_row_does_not_depend_on_the_rest_of_the_batch() -> None:
    lengths = np.arange(20, 28).astype(np.int32)
    keys = jax.random.split(jax.random.key(2), 8)
    call = jax.jit(lambda i, n, k: SpanNoise()(i, n, k, top=TOP, eos=EOS, pad=PAD))
    order = np.array([3, 1, 7, 0, 2, 6, 5, 4])
    first = call(texts(lengths), lengths, keys)
    moved = call(texts(lengths)[order], lengths[order], keys[order])
    for one, other in zip(first, moved, strict=True):
        assert (np.asarray(one)[order] == np.asarray(other)).all()


def small(**settings: object) -> SpanCorruption:
    config = T5Config(vocab_size=1000, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    return SpanCorruption(T5(config), **settings)  # type: ignore[arg-type]


def test_the_end_token_of_a_text_is_not_corrupted() -> None:
    lengths = np.array([20, 21], np.int32)
    ids = texts(lengths)
    ids[1, 20] = EOS
    batch = {"tokens": ids, "tokens_length": lengths}
    ready = jax.jit(small().prepare)(batch, jax.random.key(0))
    assert ready["inputs_length"].tolist() == [20 - 3 + 1 + 1] * 2
    assert ((ready["inputs"] == EOS).sum(1) == 1).all()
    assert ((ready["targets"] == EOS).sum(1) == 1).all()
    weights = np.asarray(ready["weights"])
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-6)
    assert ((weights > 0).sum(1) == 3 + 1 + 1).all()
    assert (ready["targets"][:, 0] == TOP).all(), "the model's last row is the first sentinel"


def test_sentinels_come_from_the_tokenizer_or_from_rows_to_spare() -> None:
    pieces = ["[PAD]", "</s>", "[UNK]", *(f"w{i}" for i in range(850)), "<extra_id_0>"]

    def tokenizer(pieces: list[str]) -> tokenizers.Tokenizer:
        backend = tokenizers.wordpiece({piece: i for i, piece in enumerate(pieces)})
        return tokenizers.Tokenizer(backend, {"pad": "[PAD]", "eos": "</s>"}, "test")

    assert small().bind(Context(tokenizer(pieces))).top == len(pieces) - 1
    assert small().bind(Context(tokenizer(pieces[:-1]))).top == 999
    assert small(top=5).bind(Context(tokenizer(pieces[:-1]))).top == 5
    with pytest.raises(UserError, match="leaves no room for 200 sentinels"):
        small(sentinels=200).bind(Context(tokenizer(pieces[:-1])))
    with pytest.raises(UserError, match="vocab_size=1000 of the model is too small"):
        small().bind(Context(tokenizer([*pieces, *(f"x{i}" for i in range(200))])))
    with pytest.raises(UserError, match=r"end of text, 2 \(</s>\); set eos_id=2 of T5Config"):
        small().bind(Context(tokenizer(["[PAD]", "[UNK]", "</s>"])))


def test_the_start_token_of_a_target_is_given_not_asked_for() -> None:
    config = T5Config(vocab_size=50, start_id=2, eos_id=3)
    targets = np.array([[2, 9, 8, 3], [9, 8, 3, 0], [2, 7, 3, 0]], np.int32)
    lengths = np.array([4, 3, 3], np.int32)
    batch = {"inputs": targets, "inputs_length": lengths}
    batch |= {"targets": targets, "targets_length": lengths}
    ready = Seq2Seq(T5(config)).prepare(batch, jax.random.key(0))
    assert ready["targets"].tolist() == [[9, 8, 3, 0], [9, 8, 3, 0], [7, 3, 0, 0]]
    assert ((ready["weights"] > 0).sum(1) == np.array([3, 3, 2])).all()


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UserError, match="density = 1.5"):
        SpanNoise(1.5)
    batch = {"tokens": np.full((1, 40), 9, np.int32), "tokens_length": np.array([40], np.int32)}
    with pytest.raises(UserError, match="lose up to 2 spans, but there are 1 sentinels"):
        small(sentinels=1).prepare(batch, jax.random.key(0))
