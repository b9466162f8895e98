"""Objectives of dual encoders and cross-encoders: losses by hand, what they start from."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_objectives import BERT, SIZE, batch_for

from qac_jax.data.form import Form, form_of, title_and_body
from qac_jax.errors import UserError
from qac_jax.hub import parameters
from qac_jax.inference.encoder import Encoder
from qac_jax.models import packing
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig, l2_normalize
from qac_jax.models.heads import mean_pool
from qac_jax.models.layers import Runtime
from qac_jax.models.t5 import T5, T5Config
from qac_jax.objectives import contrastive, masking, towers
from qac_jax.objectives.augtriever import InBatch, MoCo, salience
from qac_jax.objectives.cross_encoder import Localized, Pointwise
from qac_jax.objectives.finetune import Finetune
from qac_jax.objectives.listwise import Listwise
from qac_jax.objectives.mlm import token_loss
from qac_jax.objectives.objective import Context
from qac_jax.objectives.pair import Pair
from qac_jax.objectives.seq2seq import Seq2Seq
from qac_jax.objectives.towers import passage_numbers
from qac_jax.text import tokenizers
from qac_jax.training import train


KEY = jax.random.key(0)


def model(**changes: Any) -> DualEncoder:
    return DualEncoder(DualEncoderConfig(BERT, **changes), Runtime())


def test_numbers_tell_passages_apart() -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 30_000, (20_000, 12), dtype=np.int32)
    lengths = rng.integers(1, 13, 20_000, dtype=np.int32)

    def numbered(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return np.asarray(passage_numbers(jnp.asarray(ids), jnp.asarray(lengths)))

    numbers = numbered(ids, lengths)
    real = {tuple(row[:n]) for row, n in zip(ids, lengths, strict=True)}
    assert len(set(numbers.tolist())) >= len(real) - 1
    # Padding does not count, order does.
    wider = np.pad(ids[:4], ((0, 0), (0, 3)), constant_values=7)
    assert (numbered(wider, lengths[:4]) == numbers[:4]).all()
    whole = np.full(4, 12)
    assert (numbered(ids[:4, ::-1], whole) != numbered(ids[:4], whole)).all()


def test_a_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    batch = batch_for("finetune")
    scores = batch["scores"]
    queries, passages = rng.normal(size=(SIZE, 16)), rng.normal(size=(SIZE, 3, 16))
    monkeypatch.setattr(towers, "vectors", lambda *_: (queries, passages))
    weights: Any = {"distillation_weight": 2.0, "contrastive_weight": 0.25}
    objective = Finetune(
        model(), temperature=0.5, distillation="kl", teacher_temperature=3.0, **weights
    )
    loss, aux = objective.loss({}, objective.prepare(batch, KEY), KEY, False)
    own = np.einsum("bd,bpd->bp", queries, passages)
    p, q = ((x := np.exp(logits)) / x.sum(-1, keepdims=True) for logits in (scores / 3, own / 0.5))
    expected = np.mean(np.sum(p * np.log(p / q), -1))
    assert float(aux["distillation"]) == pytest.approx(expected, rel=1e-5)
    whole = 2.0 * float(aux["distillation"]) + 0.25 * float(aux["contrastive"])
    assert float(loss) == pytest.approx(whole, rel=1e-6)


def test_prompts_are_those_of_the_examples() -> None:
    start = Finetune(model(query_prompt="query: ", default_prompt_name="query"))
    lengths = {"query": 8, "passages": 8}
    same = Context(lengths=lengths, reading={"query_prompt": "query: ", "passage_prompt": ""})
    plain = Context(lengths=lengths, reading={"query_prompt": "", "passage_prompt": ""})
    assert start.bind(same).model.config.default_prompt_name == "query"
    others = start.bind(plain).model.config
    assert (others.query_prompt, others.default_prompt_name) == ("", "")
    with pytest.raises(UserError, match="leaves prompts out of its pooling"):
        Finetune(model(include_prompt=False)).bind(same)


TEXTS = np.random.default_rng(0).integers(1, 40, (3, 8)), np.array([8, 5, 2])


def test_edges_of_means_and_norms_and_the_scale_of_queries() -> None:
    hidden = jnp.arange(12.0).reshape(2, 3, 2)
    np.testing.assert_allclose(mean_pool(hidden, jnp.array([0, 2]))[0], 0)
    zero = jnp.zeros((1, 4))
    assert np.isfinite(jax.grad(lambda x: l2_normalize(x).sum())(zero)).all()
    scaled = model(normalize=True, scale=20.0)
    variables = jax.jit(scaled.init)(KEY, *TEXTS)
    encode = jax.jit(scaled.apply, static_argnames="side")
    query, passage = (encode(variables, *TEXTS, side=s) for s in ("query", "passage"))
    np.testing.assert_allclose(query, 20 * passage, rtol=1e-5)


def test_a_cross_encoders_dropout() -> None:
    config = BERT.with_parts("pooler")
    config = dataclasses.replace(config, hidden_dropout=0.0, attention_dropout=0.0)
    keys = jax.random.split(jax.random.key(1), 3)
    module = CrossEncoder(config, labels=2, classifier_dropout=0.5)
    variables = {"params": params_of(module)}
    plain = module.apply(variables, *TEXTS)
    assert not np.allclose(plain, module.apply(variables, *TEXTS, None, keys))
    default = dataclasses.replace(module, classifier_dropout=None)  # the BERT's, which is 0
    np.testing.assert_array_equal(default.apply(variables, *TEXTS, None, keys), plain)


TOKENIZER = tokenizers.load()
WORDED = BertConfig(TOKENIZER.vocab_size, 16, 1, 2, 32, 64)
TIED = DualEncoder(DualEncoderConfig(WORDED))
UNTIED = DualEncoder(DualEncoderConfig(WORDED, tied=False))
CROSS = CrossEncoder(dataclasses.replace(WORDED, pooler=True), labels=2)


def params_of(module: Any, seed: int = 0) -> Any:
    """Random parameters without compiling anything."""
    shapes = jax.eval_shape(
        module.init, jax.random.key(0), np.zeros((1, 2), np.int32), np.ones(1, np.int32)
    )
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: rng.normal(0, 0.4, x.shape).astype(np.float32), nn.unbox(shapes)["params"]
    )


def complete(objective: Any, params: Any) -> set[str]:
    """Names of the objective's parameters that a start does not give."""
    _, _, fresh = train.matching(params, train.abstract_params(objective))
    return set(fresh)


@pytest.mark.parametrize(
    ("module", "model"),
    [(Bert(WORDED), UNTIED), (TIED, UNTIED), (CROSS, TIED)],
    ids=["bert-two", "dual-two", "cross-one"],
)
def test_towers_start_from_anything_with_a_bert(module: Any, model: DualEncoder) -> None:
    objective, params = Pair(model, alpha=0.2).start_from(module, params_of(module))
    assert objective.alpha == 0.2 and objective.model.config.tied is model.config.tied
    assert complete(objective, params) == set()
    if not model.config.tied:
        same = jax.tree.map(np.array_equal, params["query"], params["passage"])
        assert all(jax.tree.leaves(same))


def test_cross_encoders_start_from_anything_with_a_bert() -> None:
    objective = Pointwise(CrossEncoder(WORDED, labels=2))
    output = {"classifier/kernel", "classifier/bias"}
    pooler = {"backbone/pooler/kernel", "backbone/pooler/bias"}
    for module, fresh in ((CROSS, set()), (Bert(WORDED), output | pooler), (TIED, output | pooler)):
        found, params = objective.start_from(module, params_of(module))
        assert complete(found, params) == fresh
    one = Localized(CrossEncoder(WORDED, labels=1))
    shaped, params = one.start_from(CROSS, params_of(CROSS))
    assert shaped.model.labels == 1 and complete(shaped, params) == output


def test_a_cross_encoder_remembers_that_it_reads_scores() -> None:
    objective = Pointwise(CROSS)
    reading = {"title": "space", "query_prompt": "", "passage_prompt": "", "scores": True}
    told = objective.bind(Context(reading=reading))
    assert parameters.build_module(parameters.describe_module(told.model), Runtime()).reads_scores
    # One that goes on from it on pairs without scores reads none.
    plain = {name: value for name, value in reading.items() if name != "scores"}
    assert not told.bind(Context(reading=plain)).model.reads_scores


def test_titles_are_read_as_in_training() -> None:
    lengths, settings = {"query": 16, "passages": 24}, {"title_types": True}
    reading = {"title": "separate", "query_prompt": "", "passage_prompt": ""}
    objective = Pair(TIED).bind(Context(lengths=lengths, reading=reading, settings=settings))
    assert objective.model.config.title == "segments"
    config = train.exported(objective, {"encoder": {}})[0].config
    assert (config.query_length, config.passage_length) == (16, 24)
    params = params_of(TIED)
    encoder = Encoder.of(objective.model, params, TOKENIZER)
    records = [
        {"title": "", "text": "Granite is a stone."},
        {"title": "A long title of many words indeed", "text": "words " * 30},
    ]
    texts = [encoder.passage_text(record) for record in records]
    form = Form(**form_of(TOKENIZER), crop="right")
    for text, vector in zip(texts, encoder.encode(texts), strict=True):
        raw = np.array(TOKENIZER.encode_batch([text])[0], np.int32)
        ids, types = title_and_body(raw, form, 24)
        given = {"params": params}, ids[None], np.array([len(ids)])
        np.testing.assert_allclose(vector, TIED.apply(*given, types[None])[0], atol=2e-5)
        assert types.sum() > 3 and np.abs(vector - TIED.apply(*given)[0]).max() > 1e-2
    assert len(ids) == 24


def test_the_loss_is_the_divergence_of_every_query() -> None:
    settings: Any = {"temperature": 0.1, "teacher_temperature": 0.2, "labels": 0.3}
    settings |= {"alone": 0.6, "lexical": 2.0}
    made = Listwise(model(pooling="mean"), **settings)
    batch, variables = batch_for("listwise"), nn.unbox(jax.jit(made.init)(KEY))
    batch["scores"][1, :, 2] = -np.inf  # a passage that only fills the group
    batch["scores"][2, 0, 1] = batch["scores"][3, 1] = np.nan  # not scored: a passage, and all
    loss = jax.jit(lambda v, b: made.loss(v, made.prepare(b, KEY), KEY, train=False)[0])

    def vectors(name: str) -> np.ndarray:
        ids, lengths = batch[name].reshape(-1, batch[name].shape[-1]), batch[f"{name}_length"]
        found = jax.jit(made.model.apply)(variables, ids, lengths.reshape(-1))
        return np.asarray(found).reshape(*lengths.shape, -1)

    divergences = []
    for queries, passages, *numbers in zip(
        *(vectors("query"), vectors("passages")),
        *(batch[name] for name in ("scores", "lexical", "own")),
        strict=True,
    ):
        for query, of, lexical, own in zip(queries, *numbers, strict=True):
            kept = np.isfinite(of)
            near = passages[kept] @ query / 0.1
            logits = of[kept] / 0.2, near, near + 2.0 * lexical[kept]
            p, alone, beside = (np.asarray(jax.nn.softmax(x)) for x in logits)
            if own in np.flatnonzero(kept):
                p = 0.7 * p + 0.3 * (np.flatnonzero(kept) == own)
            divergences.append(np.sum(p * np.log(p / alone**0.6 / beside**0.4)))
    found, gradient = jax.value_and_grad(loss)(variables, batch)
    assert float(found) == pytest.approx(np.mean(divergences), rel=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


MODEL = model(pooling="mean")
BATCH, WIDTH = 8, 16


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (*shape, WIDTH))


@pytest.fixture(scope="module")
def moco() -> tuple[MoCo, Any]:
    objective = MoCo(MODEL, queue_size=32, momentum=0.9)
    return objective, nn.unbox(jax.jit(objective.init)(jax.random.key(0)))


@pytest.mark.slow
def test_texts_of_other_devices_learn_nothing_where_their_gradient_is_off() -> None:
    queries, passages = normal(1, BATCH), normal(2, BATCH, 2)
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


@pytest.mark.slow
def test_the_best_span_becomes_the_query() -> None:
    objective = InBatch(MODEL)
    variables = nn.unbox(objective.init(jax.random.key(0)))
    given = batch_for("spans")
    prepared = objective.prepare(given, jax.random.key(1))
    prepared.pop("keys")
    documents = objective.passages(variables["params"], prepared)[:, 0]
    flat = (given["spans"].reshape(-1, 8), given["spans_length"].reshape(-1))
    spans = MODEL.apply(variables, *flat).reshape(SIZE, 3, -1)
    best = np.asarray(salience(spans, documents)).argmax(1)
    ids, lengths = objective._extracted(variables["params"], prepared, documents)
    for row in range(SIZE):
        if row % 2:
            expected, length = given["spans"][row, best[row]], given["spans_length"][row, best[row]]
        else:
            expected, length = given["context"][row], given["context_length"][row]
        assert int(lengths[row]) == length
        np.testing.assert_array_equal(ids[row, :length], expected[:length])
        assert not np.any(ids[row, length:])
    assert len(set(best.tolist())) > 1


def test_starting_from_a_bert_and_what_is_kept(moco: Any) -> None:
    bert = Bert(BERT)
    params = params_of(bert, 3)
    objective, given = moco[0].start_from(bert, params)
    state = objective.initial_state(given)
    jax.tree.map(np.testing.assert_array_equal, state["momentum"]["encoder"]["backbone"], params)
    assert objective.export({"params": given, **state})[1] is given
    for change, normalized in ({}, False), ({"similarity": "cosine"}, True):
        module, _ = dataclasses.replace(objective, **change).export({"params": {}})
        assert module.config.normalize is normalized


def test_what_does_not_fit_is_refused() -> None:
    queue = {"keys": normal(0, 6), "pointer": jnp.int32(0)}
    for make, sentence in (
        (lambda: Finetune(model(), contrastive_weight=0.0), "nothing to learn"),
        (lambda: Finetune(model(), distillation="kl").prepare(batch_for("pair"), KEY), "teacher"),
        (lambda: Pair(model()).bind(Context(TOKENIZER)), "vocab_size=64"),
        (lambda: Pair(TIED).start_from(UNTIED, {}), "tied=False"),
        (lambda: InBatch(MODEL, remote_key_grad=False), "device_group"),
        (lambda: MoCo(MODEL, queue_size=6).queued(queue, normal(9, 4)), "not a multiple"),
        (lambda: MoCo(UNTIED), "tied"),
    ):
        with pytest.raises(UserError, match=sentence):
            make()


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
