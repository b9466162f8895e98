"""RetroMAE against its equations (Xiao et al., 2022), written again in numpy and float64.

Only what is drawn at random (masked words, visible tokens) is taken from the objective; that it is
drawn as the paper says is tested by itself.
"""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives.dupmae import DupMae
from qac_jax.objectives.masking import Masking, Vocabulary
from qac_jax.objectives.retromae import RetroMae


VOCABULARY = Vocabulary(np.arange(64) % 3 == 2)
HEADS, SIZE, LENGTH, CONTEXT = 2, 6, 14, 9
BERT = BertConfig(64, 16, 1, HEADS, 24, LENGTH)
OBJECTIVE = RetroMae(Bert(BERT, Runtime("float64")), vocabulary=VOCABULARY)
_erf = np.vectorize(math.erf)

Tree = Any


def texts(length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, length + 1, SIZE).astype(np.int32)
    ids = rng.integers(5, 64, (SIZE, length)).astype(np.int32)
    ids[:, 0] = VOCABULARY.cls
    ids[np.arange(SIZE), lengths - 1] = VOCABULARY.sep
    return np.where(np.arange(length) < lengths[:, None], ids, 0).astype(np.int32), lengths


def features(pairs: bool) -> dict[str, np.ndarray]:
    names = {"passage": LENGTH, "context": CONTEXT} if pairs else {"tokens": LENGTH}
    batch = {}
    for seed, (name, length) in enumerate(names.items()):
        batch[name], batch[f"{name}_length"] = texts(length, seed)
    return batch


# The paper's model, one text at a time.


def norm(p: Tree, x: np.ndarray) -> np.ndarray:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + BERT.layer_norm_eps) * p["scale"] + p["bias"]


def linear(p: Tree, x: np.ndarray) -> np.ndarray:
    return x @ p["kernel"] + p["bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + _erf(x / math.sqrt(2)))


def attention(p: Tree, h1: np.ndarray, h2: np.ndarray, m: np.ndarray) -> np.ndarray:
    """A = softmax(Q Kᵀ / √d + M) V of every head (5)."""
    q, k, v = linear(p["query"], h1), linear(p["key"], h2), linear(p["value"], h2)
    width, mixed = q.shape[1] // HEADS, []
    for head in range(HEADS):
        own = slice(head * width, (head + 1) * width)
        scores = q[:, own] @ k[:, own].T / math.sqrt(width) + m
        weights = np.exp(scores - scores.max(1, keepdims=True))
        mixed.append(weights / weights.sum(1, keepdims=True) @ v[:, own])
    return linear(p["output"], np.concatenate(mixed, 1))


def layer(p: Tree, of_attention: Tree, h1: np.ndarray, h2: np.ndarray, m: np.ndarray) -> np.ndarray:
    x = norm(p["attention_norm"], h1 + attention(of_attention, h1, h2, m))
    return norm(p["mlp_norm"], x + linear(p["mlp"]["down"], gelu(linear(p["mlp"]["up"], x))))


def embedded(p: Tree, ids: np.ndarray) -> np.ndarray:
    tables = p["embeddings"]
    x = tables["word"]["embedding"][ids] + tables["position"]["embedding"][: len(ids)]
    return norm(tables["norm"], x + tables["type"]["embedding"][0])


def encoded(p: Tree, ids: np.ndarray) -> np.ndarray:
    x, everything = embedded(p, ids), np.zeros((len(ids), len(ids)))
    for number in range(BERT.num_layers):
        of_layer = p["layers"][str(number)]
        x = layer(of_layer, of_layer["attention"], x, x, everything)
    return x


def nll(p: Tree, hidden: np.ndarray, labels: np.ndarray) -> np.ndarray:
    head = p["mlm_head"]
    x = norm(head["norm"], gelu(linear(head["dense"], hidden)))
    logits = x @ p["embeddings"]["word"]["embedding"].T + head["bias"]
    log_z = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    return log_z - logits[np.arange(len(labels)), labels]


def mask_matrix(visible: np.ndarray) -> np.ndarray:
    """M (6): 0 where x_j was sampled for row i, or j = 0 and i ≠ 0; -∞ elsewhere and at j = i."""
    seen = visible | (np.arange(len(visible)) == 0)
    return np.where(seen & ~np.eye(len(visible), dtype=bool), 0.0, -np.inf)


def losses(objective: RetroMae, p: Tree, batch: Tree) -> tuple[float, float]:
    """(the encoder's loss, the decoder's) of a prepared batch."""
    source, target = batch["encoded"], batch["decoded"]
    mlm, decoded = [], []
    if objective.enhanced:
        visible = np.asarray(objective.visible(target.ids, target.lengths, target.keys))
    for row in range(SIZE):
        size = source.lengths[row]
        hidden = encoded(p, source.ids[row, :size])
        places = source.positions[row][source.weights[row] > 0]
        mlm += list(nll(p, hidden[places], source.labels[row][source.weights[row] > 0]))

        size = target.lengths[row]
        ids, h = target.ids[row, :size], hidden[0]
        if objective.embeddings == "layer":
            e_p = embedded(p, ids)
        else:
            tables = p["embeddings"]
            e_p = tables["word"]["embedding"][ids] + tables["position"]["embedding"][:size]
        h2 = np.concatenate([h[None], e_p[1:]])  # (2) and (4)
        if objective.enhanced:
            h1 = h + p["embeddings"]["position"]["embedding"][:size]  # (4)
            m, labels = mask_matrix(visible[row, :size, :size]), ids
            places = np.arange(1, size - 1)  # x₁ … x_N, between [CLS] and [SEP]
        else:
            h1, m = h2, np.zeros((size, size))
            wanted = target.weights[row] > 0
            places, labels = target.positions[row][wanted], np.zeros(size, int)
            labels[places] = target.labels[row][wanted]
        hidden = layer(p["decoder"], p["decoder"], h1, h2, m)
        decoded += list(nll(p, hidden[places], labels[places]))
    return float(np.mean(mlm)), float(np.mean(decoded))


def prepared(objective: Any, given: Tree) -> tuple[Tree, Tree, Any]:
    """Parameters larger than a new model's, so that every part matters; a batch; the loss."""
    shapes = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))["params"]
    rng = np.random.default_rng(7)
    params = jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape), shapes)
    batch = jax.jit(objective.prepare)(given, jax.random.key(1))

    @jax.jit
    def run(params: Tree) -> Any:
        return objective.loss({"params": params}, batch, jax.random.key(2), False)

    plain = jax.tree.map(
        lambda x: x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x), batch
    )
    return params, plain, run


@pytest.mark.parametrize(
    ("pairs", "change"),
    [
        pytest.param(False, {}, marks=pytest.mark.slow),
        pytest.param(True, {"embeddings": "sum", "visible_sets": 3}, marks=pytest.mark.slow),
        (False, {"enhanced": False}),
    ],
    ids=["enhanced", "pairs", "basic"],
)
def test_losses_and_gradients_are_the_equations(pairs: bool, change: dict[str, Any]) -> None:
    with jax.enable_x64(True):
        objective = dataclasses.replace(OBJECTIVE, **change)
        params, batch, run = prepared(objective, features(pairs))
        (loss, aux), gradient = jax.jit(jax.value_and_grad(run, has_aux=True))(params)
        mlm, decoded = losses(objective, params, batch)
        np.testing.assert_allclose(aux["encoder_mlm_loss"], mlm, rtol=1e-10)
        np.testing.assert_allclose(aux["decoder_loss"], decoded, rtol=1e-10)
        np.testing.assert_allclose(loss, mlm + decoded, rtol=1e-10)
        rng = np.random.default_rng(8)
        direction = jax.tree.map(lambda x: rng.normal(size=x.shape), params)

        def moved(step: float) -> float:
            there = jax.tree.map(lambda p, d: p + step * d, params, direction)
            return sum(losses(objective, there, batch))

        step = 1e-5
        slope = (moved(step) - moved(-step)) / (2 * step)
        products = jax.tree.map(lambda g, d: np.sum(np.asarray(g) * d), gradient, direction)
        assert abs(slope) > 1e-2
        np.testing.assert_allclose(sum(jax.tree.leaves(products)), slope, rtol=1e-6)


@pytest.mark.parametrize(("rate", "sets"), [(0.5, 0), pytest.param(0.7, 4, marks=pytest.mark.slow)])
def test_every_row_sees_its_own_sample_and_never_itself(rate: float, sets: int) -> None:
    objective = dataclasses.replace(
        OBJECTIVE, decoder_masking=Masking(rate), visible_sets=sets, vocabulary=Vocabulary(
            np.zeros(64, bool)  # every token a word, so that a sample's size is exact
        )
    )  # fmt: skip
    ids, lengths = texts(LENGTH, 3)
    keys = jax.random.split(jax.random.key(5), SIZE)
    found = np.asarray(jax.jit(objective.visible)(ids, lengths, keys))
    assert found.shape == (SIZE, LENGTH, LENGTH) and found.dtype == bool
    for row, size in enumerate(lengths):
        m = found[row, :size, :size]
        assert not m.diagonal().any() and m[1:, 0].all() and m[:-1, size - 1].all()
        hidden = round(rate * (size - 2))  # of the tokens between [CLS] and [SEP]
        inner = m[:, 1 : size - 1]
        for place, seen in enumerate(inner.sum(1)):
            itself = 1 if 0 < place < size - 1 else 0
            assert size - 2 - hidden - itself <= seen <= size - 2 - hidden
        others = {tuple(np.where(np.eye(size, dtype=bool), True, m)[i]) for i in range(size)}
        assert len(others) > 1
        if sets:  # rows of one set differ on the diagonal alone
            outside = found[row, size:, 1 : size - 1]  # rows of padding show whole sets
            assert len({tuple(x) for x in outside}) <= sets
    again = np.asarray(jax.jit(objective.visible)(ids[2:4], lengths[2:4], keys[2:4]))
    np.testing.assert_array_equal(again, found[2:4])


def bag_loss(p: Tree, batch: Tree) -> float:
    """DupMAE's: -log softmax of the largest scores of all tokens but [CLS], a mean over the words
    of a text, then over texts."""
    source, bag, found = batch["encoded"], batch["bag"], []
    head = p["mlm_head"]
    for row in range(SIZE):
        hidden = encoded(p, source.ids[row, : source.lengths[row]])
        x = norm(head["norm"], gelu(linear(head["dense"], hidden[1:])))
        scores = (x @ p["embeddings"]["word"]["embedding"].T + head["bias"]).max(0)
        log_z = np.log(np.exp(scores - scores.max()).sum()) + scores.max()
        words = set(bag.ids[row].tolist()) - {0, VOCABULARY.cls, VOCABULARY.sep}
        found.append(np.mean([log_z - scores[word] for word in words]))
    return float(np.mean(found))


@pytest.mark.slow
@pytest.mark.parametrize("bag", ["text", "context"])
def test_the_bag_of_words_is_the_equation(bag: str) -> None:
    with jax.enable_x64(True):
        objective = DupMae(OBJECTIVE.model, vocabulary=VOCABULARY, bag=bag, bag_coefficient=0.5)
        given = features(pairs=True)
        for name in ("passage", "context"):  # a word that comes twice, and one that is not masked
            given[name][:, 2] = given[name][:, 1]
        params, batch, run = prepared(objective, given)
        loss, aux = run(params)
        mlm, decoded = losses(objective, params, batch)
        expected = bag_loss(params, batch)
        np.testing.assert_allclose(aux["bag_loss"], expected, rtol=1e-10)
        np.testing.assert_allclose(loss, mlm + decoded + 0.5 * expected, rtol=1e-10)


def test_what_cannot_be_is_refused() -> None:
    for change, message in (
        ({"visible_sets": -1}, "visible_sets = -1; expected"),
        ({"bag": "texts"}, "did you mean 'text'"),
    ):
        with pytest.raises(UserError, match=message):
            DupMae(OBJECTIVE.model, **change)
