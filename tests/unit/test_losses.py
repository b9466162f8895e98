"""Groups of a batch, losses of tokens, and masking, by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.models import packing
from qac_jax.models.t5 import T5, T5Config
from qac_jax.objectives import contrastive, masking
from qac_jax.objectives.mlm import token_loss
from qac_jax.objectives.objective import Context
from qac_jax.objectives.seq2seq import Seq2Seq
from qac_jax.text import tokenizers


all_pairs = jax.jit(contrastive.all_pairs, static_argnames=("temperature", "group"))


def vectors(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def test_a_group_sees_itself_only() -> None:
    with jax.enable_x64(True):
        q, p = jnp.asarray(vectors(0, 6, 3)), jnp.asarray(vectors(1, 6, 3))
        pairs = all_pairs(q, p, group=3).loss
        parts = [all_pairs(q[i : i + 3], p[i : i + 3]).loss for i in (0, 3)]
        np.testing.assert_allclose(pairs, jnp.concatenate(parts), rtol=1e-12)
    with pytest.raises(UserError, match="negatives_group=4 does not divide the batch of 6"):
        contrastive.in_batch(q, p[:, None], group=4)


RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(3, 4, 7)) * 3
LABELS = RNG.integers(0, 7, (3, 4))
WEIGHTS = RNG.random((3, 4)) * (RNG.random((3, 4)) > 0.3)


@pytest.fixture(params=["cpu", "gpu"])
def made_for(request):
    """The form that is usual, and the one in one pass."""
    with packing.made_for(request.param):
        yield


def test_token_loss_is_torchs_cross_entropy(made_for) -> None:
    torch = pytest.importorskip("torch")
    lowest = np.finfo(np.float64).min
    padded = np.pad(LOGITS, ((0, 0), (0, 0), (0, 3)), constant_values=lowest)
    for smoothing in (0.0, 0.2):
        losses = torch.nn.functional.cross_entropy(
            torch.tensor(LOGITS.reshape(-1, 7)),
            torch.tensor(LABELS.ravel()),
            reduction="none",
            label_smoothing=smoothing,
        )
        expected = float((losses.numpy() * WEIGHTS.ravel()).sum())
        with jax.enable_x64(True):
            for logits in (LOGITS, padded):
                arguments = map(jnp.asarray, (logits, LABELS, WEIGHTS))
                found = token_loss(*arguments, smoothing=smoothing)
                np.testing.assert_allclose(found.loss, expected, rtol=1e-12)
    right = (LOGITS.argmax(-1) == LABELS) * WEIGHTS
    np.testing.assert_allclose(found.accuracy, right.sum(), rtol=1e-12)


def test_z_loss_and_the_gradient_of_a_token(made_for) -> None:
    """The square of the normaliser; softmax minus target."""
    with jax.enable_x64(True):
        logits, labels, weights = map(jnp.asarray, (LOGITS, LABELS, WEIGHTS))
        plain = token_loss(logits, labels, weights)
        with_z = token_loss(logits, labels, weights, z_loss=0.01)
        squares = 0.01 * (WEIGHTS * np.log(np.exp(LOGITS).sum(-1)) ** 2).sum()
        np.testing.assert_allclose(with_z.loss - plain.loss, squares, rtol=1e-10)
        np.testing.assert_allclose(with_z.likelihood, plain.loss, rtol=1e-12)
        gradient = jax.grad(lambda x: token_loss(x, labels, weights).loss)(logits)
        softmax = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
        expected = (softmax - np.eye(7)[LABELS]) * WEIGHTS[..., None]
        np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-12)


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES += ["a", "b", "c", "d", "e", "f", "##1", "##2", "##3", "##4"]
VOCABULARY = masking.Vocabulary(np.array([piece.startswith("##") for piece in PIECES]))
MASK_KEYS = jax.random.split(jax.random.key(0), 4096)


def test_an_unknown_piece_uses_budget_but_is_not_predicted() -> None:
    row = jnp.array([[VOCABULARY.cls, PIECES.index("[UNK]"), VOCABULARY.sep]], jnp.int32)
    length, rule = jnp.array([3], jnp.int32), masking.Masking(0.5, "cotmae_qc")
    assert np.asarray(rule.select(row, length, MASK_KEYS[:1], VOCABULARY)).sum() == 1
    masked = jax.jit(lambda i, n, k: rule(i, n, k, VOCABULARY))(row, length, MASK_KEYS[:1])
    assert (masked.ids == row).all() and not masked.weights.any()


@pytest.mark.parametrize("variant", ["condenser", "cotmae_qc"])
def test_labels_are_the_original_tokens_and_all_others_stay(variant: str) -> None:
    rows = np.random.default_rng(1).integers(5, len(PIECES), (64, 24)).astype(np.int32)
    rule = masking.Masking(0.3, variant)
    mask = jax.jit(functools.partial(rule, vocabulary=VOCABULARY))
    masked = mask(rows, np.full(64, 24, np.int32), MASK_KEYS[:64])
    after, _, positions, labels, weights = map(np.array, masked)
    assert positions.shape == labels.shape == weights.shape == (64, rule.max_predictions(24))
    numbers, columns = np.nonzero(weights)
    places = positions[numbers, columns]
    assert len(numbers) > 64 and (labels[numbers, columns] == rows[numbers, places]).all()
    after[numbers, places] = rows[numbers, places]
    assert (after == rows).all()


def test_the_end_of_a_text_is_that_of_the_tokenizer() -> None:
    backend = tokenizers.wordpiece({"[PAD]": 0, "[UNK]": 1, "</s>": 2})
    tokenizer = tokenizers.Tokenizer(backend, {"pad": "[PAD]", "eos": "</s>"}, "test")
    with pytest.raises(UserError, match=r"end of text, 2 \(</s>\); set eos_id=2 of T5Config"):
        Seq2Seq(T5(T5Config())).bind(Context(tokenizer))


def test_the_start_token_of_a_target_is_given_not_asked_for() -> None:
    config = T5Config(vocab_size=50, start_id=2, eos_id=3)
    targets = np.array([[2, 9, 8, 3], [9, 8, 3, 0], [2, 7, 3, 0]], np.int32)
    lengths = np.array([4, 3, 3], np.int32)
    batch = {"inputs": targets, "inputs_length": lengths}
    batch |= {"targets": targets, "targets_length": lengths}
    ready = Seq2Seq(T5(config)).prepare(batch, jax.random.key(0))
    assert ready["targets"].tolist() == [[9, 8, 3, 0], [9, 8, 3, 0], [7, 3, 0, 0]]
    assert ((ready["weights"] > 0).sum(1) == np.array([3, 3, 2])).all()
