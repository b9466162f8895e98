"""AugTriever's objectives: what follows from their definitions, on a tiny encoder."""

from __future__ import annotations

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
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.objectives import contrastive
from qac_jax.objectives.augtriever import InBatch, MoCo, local_gradients, salience


BERT = BertConfig(
    vocab_size=64, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=24, max_positions=16
)
MODEL = DualEncoder(DualEncoderConfig(BERT, pooling="mean"))
BATCH, WIDTH = 8, 16


def vectors(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (*shape, WIDTH))


def batch(seed: int = 0, spans: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def texts(*shape: int) -> tuple[np.ndarray, np.ndarray]:
        ids = rng.integers(5, 64, shape).astype(np.int32)
        lengths = rng.integers(3, shape[-1] + 1, shape[:-1]).astype(np.int32)
        return ids * (np.arange(shape[-1]) < lengths[..., None]), lengths

    found: dict[str, Any] = {}
    names: dict[str, tuple[int, ...]] = {"passage": (BATCH, 12), "context": (BATCH, 8)}
    if spans:
        names["spans"] = (BATCH, spans, 6)
        found["extract"] = (np.arange(BATCH) % 2).astype(np.int32)
    for name, shape in names.items():
        found[name], found[f"{name}_length"] = texts(*shape)
    return found


@pytest.fixture(scope="module")
def moco() -> tuple[MoCo, Any]:
    objective = MoCo(MODEL, queue_size=32, momentum=0.9)
    return objective, nn.unbox(jax.jit(objective.init)(jax.random.key(0)))


def test_a_zero_query_finds_its_key_among_the_queue() -> None:
    objective = MoCo(MODEL, queue_size=24)
    ranked = objective.rank(jnp.zeros((4, WIDTH)), vectors(1, 4), vectors(2, 24))
    np.testing.assert_allclose(ranked.loss, math.log(1 + 24), rtol=1e-6)
    both = dataclasses.replace(objective, in_batch_negatives=True)
    ranked = both.rank(jnp.zeros((4, WIDTH)), vectors(1, 4), vectors(2, 24))
    np.testing.assert_allclose(ranked.loss, math.log(4 + 24), rtol=1e-6)


def test_the_queue_begins_as_unit_vectors_and_the_second_encoder_as_a_copy(moco: Any) -> None:
    _, variables = moco
    np.testing.assert_allclose(jnp.linalg.norm(variables["queue"]["keys"], axis=1), 1, rtol=1e-5)
    assert np.std(variables["queue"]["keys"]) > 0.1 and int(variables["queue"]["pointer"]) == 0
    jax.tree.map(np.testing.assert_array_equal, variables["params"], variables["momentum"])


def test_first_in_first_out() -> None:
    objective = MoCo(MODEL, queue_size=6)
    queue = {"keys": vectors(0, 6), "pointer": jnp.int32(0)}
    rounds = [vectors(n, 2) for n in range(1, 6)]
    for keys in rounds:
        queue = objective.queued(queue, keys)
    assert int(queue["pointer"]) == 10 % 6
    # Rounds 4, 5 have overwritten rounds 1, 2; the third is still there.
    expected = jnp.concatenate([rounds[3], rounds[4], rounds[2]])
    np.testing.assert_array_equal(queue["keys"], expected)
    with pytest.raises(UserError, match="queue_size=6 is not a multiple of the batch of 4"):
        objective.queued(queue, vectors(9, 4))


def test_keys_have_no_gradient_and_state_stands_still_in_validation(moco: Any) -> None:
    objective, variables = moco
    prepared = objective.prepare(batch(), jax.random.key(1))

    def loss(slow: Any) -> jax.Array:
        return objective.loss({**variables, "momentum": slow}, prepared, jax.random.key(0), True)[0]

    gradients = jax.jit(jax.grad(loss))(variables["momentum"])
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradients))
    _, aux = objective.loss(variables, prepared, jax.random.key(0), False)
    assert "state" not in aux


@pytest.mark.slow
def test_texts_of_other_devices_learn_nothing_where_their_gradient_is_off() -> None:
    queries, passages = vectors(1, BATCH), vectors(2, BATCH, 2)
    on = InBatch(MODEL, temperature=1.0)
    off = dataclasses.replace(on, remote_key_grad=False, device_group=4)
    np.testing.assert_allclose(
        on.rank(queries, passages).loss, off.rank(queries, passages).loss, rtol=1e-5
    )

    def gradients(objective: InBatch) -> Any:
        return jax.grad(lambda q, p: objective.rank(q, p).loss.mean(), (0, 1))(queries, passages)

    (query_on, passage_on), (query_off, passage_off) = gradients(on), gradients(off)
    np.testing.assert_allclose(query_on, query_off, atol=1e-6)
    # By hand: softmax minus one-hot, over the queries of the passage's own device only.
    scores = queries @ passages.reshape(-1, WIDTH).T
    pull = jax.nn.softmax(scores) - jax.nn.one_hot(2 * jnp.arange(BATCH), 2 * BATCH)
    own = (jnp.arange(BATCH)[:, None] // 4) == (jnp.arange(2 * BATCH) // 8)
    expected = (pull * own).T @ queries / BATCH
    np.testing.assert_allclose(passage_off.reshape(-1, WIDTH), expected, atol=1e-6)
    assert np.abs(passage_on - passage_off).max() > 1e-2
    with pytest.raises(UserError, match="device_group=3 does not divide"):
        local_gradients(queries, passages, 3)


def test_groups_see_only_one_another() -> None:
    queries, passages = vectors(1, BATCH), vectors(2, BATCH, 1)
    objective = InBatch(MODEL, negatives_group=2)
    found = objective.rank(queries, passages).loss
    pairs = [objective.rank(queries[i : i + 2], passages[i : i + 2]).loss for i in (0, 2, 4, 6)]
    np.testing.assert_allclose(found, jnp.concatenate(pairs), rtol=1e-5)


def test_the_best_span_becomes_the_query() -> None:
    objective = InBatch(MODEL)
    variables = nn.unbox(objective.init(jax.random.key(0)))
    given = batch(spans=5)
    prepared = objective.prepare(given, jax.random.key(1))
    prepared.pop("keys")
    documents = objective.passages(variables["params"], prepared)[:, 0]
    flat = (given["spans"].reshape(-1, 6), given["spans_length"].reshape(-1))
    spans = MODEL.apply(variables, *flat).reshape(BATCH, 5, -1)
    best = np.asarray(salience(spans, documents)).argmax(1)
    ids, lengths = objective._extracted(variables["params"], prepared, documents)
    for row in range(BATCH):
        if row % 2:
            expected, length = given["spans"][row, best[row]], given["spans_length"][row, best[row]]
        else:
            expected, length = given["context"][row], given["context_length"][row]
        assert int(lengths[row]) == length
        np.testing.assert_array_equal(ids[row, :length], expected[:length])
        assert not np.any(ids[row, length:])
    assert len(set(best.tolist())) > 1


def test_triples_are_read_too() -> None:
    """Fine-tuning: a positive and one negative a query."""
    pairs = batch()
    group = np.stack([pairs["passage"], pairs["passage"][::-1]], 1)
    lengths = np.stack([pairs["passage_length"], pairs["passage_length"][::-1]], 1)
    triples = {"query": pairs["context"], "query_length": pairs["context_length"]}
    triples |= {"passages": group, "passages_length": lengths}
    objective = InBatch(MODEL, temperature=1.0)
    variables = nn.unbox(objective.init(jax.random.key(0)))
    prepared = objective.prepare(triples, jax.random.key(1))
    loss, _ = objective.loss(variables, prepared, jax.random.key(2), False)
    queries = MODEL.apply(variables, triples["query"], triples["query_length"])
    texts = MODEL.apply(variables, group.reshape(-1, 12), lengths.reshape(-1))
    expected = contrastive.in_batch(queries, texts.reshape(BATCH, 2, -1)).loss.mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_starting_from_a_bert_and_what_is_kept(moco: Any) -> None:
    bert = Bert(BERT)
    params = nn.unbox(bert.init(jax.random.key(3), jnp.zeros((1, 2), jnp.int32)))["params"]
    objective, given = moco[0].start_from(bert, params)
    state = objective.initial_state(given)
    jax.tree.map(np.testing.assert_array_equal, state["momentum"]["encoder"]["backbone"], params)
    assert objective.export({"params": given, **state})[1] is given
    for change, normalized in (
        ({}, False),
        ({"similarity": "cosine"}, True),
        ({"normalize_passage": True}, True),
    ):
        module, _ = dataclasses.replace(objective, **change).export({"params": {}})
        assert module.config.normalize is normalized


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (InBatch, {"temperature": 0.0}, "temperature = 0.0"),
        (InBatch, {"remote_key_grad": False}, "device_group"),
        (MoCo, {"similarity": "cosin"}, "cosine"),
        (MoCo, {"queue_size": 0}, "queue_size = 0"),
    ],
)
def test_what_does_not_fit_is_refused(kind: Any, settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        kind(MODEL, **settings)


def test_one_encoder_only_has_a_running_mean() -> None:
    towers = MODEL.clone(config=dataclasses.replace(MODEL.config, tied=False))
    with pytest.raises(UserError, match="tied"):
        MoCo(towers)
