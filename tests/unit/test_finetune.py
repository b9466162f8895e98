"""Fine-tuning: losses in closed form, duplicates, teachers, what it starts from."""

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
from qac_jax.models.layers import Runtime
from qac_jax.objectives import towers
from qac_jax.objectives.finetune import Finetune, passage_numbers
from qac_jax.objectives.objective import Context, Objective
from qac_jax.training import train


BERT = BertConfig(
    vocab_size=48,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=24,
    max_positions=16,
)
Q, P, LENGTH = 4, 3, 8
KEY = jax.random.key(0)


def model(**changes: Any) -> DualEncoder:
    return DualEncoder(DualEncoderConfig(BERT, **changes), Runtime(dropout="hash"))


def make_batch(**more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    passages = rng.integers(5, 48, (Q, P, LENGTH), dtype=np.int32)
    batch = {
        "query": rng.integers(5, 48, (Q, LENGTH), dtype=np.int32),
        "query_length": rng.integers(3, LENGTH + 1, Q, dtype=np.int32),
        "passages": passages,
        "passages_length": rng.integers(3, LENGTH + 1, (Q, P), dtype=np.int32),
    }
    return {**batch, **more}


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Vectors in the place of what the model would say: all zero, until some are given."""
    given = {"queries": np.zeros((Q, 16)), "passages": np.zeros((Q, P, 16))}
    monkeypatch.setattr(towers, "vectors", lambda *_: (given["queries"], given["passages"]))
    return given


def value(objective: Finetune, batch: dict[str, Any]) -> tuple[float, Any]:
    loss, aux = objective.loss({}, objective.prepare(batch, KEY), KEY, False)
    return float(loss), {name: float(part) for name, part in aux.items()}


def test_it_is_an_objective_and_zero_vectors_know_nothing(encoded: Any) -> None:
    assert isinstance(Finetune(model()), Objective)
    loss, aux = value(Finetune(model()), make_batch())
    assert loss == pytest.approx(math.log(Q * P))
    assert aux["contrastive"] == loss


def test_a_group_sees_itself_only(encoded: Any) -> None:
    loss, _ = value(Finetune(model(), negatives_group=2), make_batch())
    assert loss == pytest.approx(math.log(2 * P))


def test_copies_of_a_positive_are_no_negatives(encoded: Any) -> None:
    batch = make_batch()
    for name in ("passages", "passages_length"):
        batch[name] = batch[name].copy()
        batch[name][3, 2] = batch[name][0, 0]  # among another query's negatives
    loss, _ = value(Finetune(model()), batch)
    all_but_one = (3 * math.log(Q * P) + math.log(Q * P - 1)) / 4
    assert loss == pytest.approx(all_but_one)
    loss, _ = value(Finetune(model(), mask_duplicates=False), batch)
    assert loss == pytest.approx(math.log(Q * P))


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
    swapped = numbered(ids[:4, ::-1], np.full(4, 12))
    assert (swapped != numbered(ids[:4], np.full(4, 12))).all()


@pytest.mark.parametrize("name", ["margin_mse", "kl"])
def test_a_teacher(name: str, encoded: Any) -> None:
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(Q, P)).astype(np.float32)
    queries = encoded["queries"] = rng.normal(size=(Q, 16))
    passages = encoded["passages"] = rng.normal(size=(Q, P, 16))
    batch = make_batch(scores=scores)
    objective = Finetune(
        model(),
        temperature=0.5,
        distillation=name,
        distillation_weight=2.0,
        contrastive_weight=0.25,
        teacher_temperature=3.0,
    )
    loss, aux = value(objective, batch)
    own = np.einsum("bd,bpd->bp", queries, passages)
    if name == "margin_mse":
        expected = np.mean((own[:, :1] - own[:, 1:] - scores[:, :1] + scores[:, 1:]) ** 2)
    else:
        teacher, student = scores / 3.0, own / 0.5
        p = np.exp(teacher) / np.exp(teacher).sum(-1, keepdims=True)
        q = np.exp(student) / np.exp(student).sum(-1, keepdims=True)
        expected = np.mean(np.sum(p * np.log(p / q), -1))
    assert aux["distillation"] == pytest.approx(expected, rel=1e-5)
    assert loss == pytest.approx(2.0 * aux["distillation"] + 0.25 * aux["contrastive"], rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "batch", "sentence"),
    [
        ({"distillation": "mse"}, {}, "margin_mse"),
        ({"temperature": 0.0}, {}, "more than 0"),
        ({"contrastive_weight": 0.0}, {}, "nothing to learn"),
        ({"distillation": "kl"}, {}, "teacher"),
        ({"distillation": "margin_mse"}, {"scores": 1, "passages": np.ones((1, 1, 4))}, "n_passa"),
    ],
)
def test_what_cannot_be_is_told(changes: Any, batch: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Finetune(model(), **changes).prepare(make_batch(**batch), KEY)


@pytest.mark.parametrize("tied", [True, False])
def test_it_starts_from_a_bert(tied: bool) -> None:
    other = dataclasses.replace(BERT, num_layers=2, mlm_head=True)
    bert = Bert(other)
    params = nn.unbox(jax.eval_shape(bert.init, KEY, jnp.zeros((1, 2), jnp.int32)))["params"]
    objective, given = Finetune(model(tied=tied, pooling="mean", normalize=True)).start_from(
        bert, params
    )
    kept, unused, fresh = train.matching(given, train.abstract_params(objective))
    assert not fresh and all("mlm_head" in name for name in unused)
    assert set(kept) == ({"encoder"} if tied else {"query", "passage"})
    config = objective.model.config
    assert (config.backbone.num_layers, config.pooling, config.normalize) == (2, "mean", True)


def test_what_is_exported_knows_how_it_reads() -> None:
    reading = {"title": "separate", "query_prompt": "query: ", "passage_prompt": ""}
    objective = Finetune(model()).bind(
        Context(lengths={"query": 12, "passages": 16}, reading=reading)
    )
    module, _ = train.exported(objective, {"encoder": {}})
    config = module.config
    assert (config.query_length, config.passage_length) == (12, 16)
    assert (config.title, config.query_prompt) == ("separate", "query: ")


def test_prompts_of_the_start_and_of_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    start = Finetune(model(query_prompt="query: ", default_prompt_name="query"))
    lengths = {"query": 8, "passages": 8}
    same = {"query_prompt": "query: ", "passage_prompt": ""}
    assert (
        start.bind(Context(lengths=lengths, reading=same)).model.config.default_prompt_name
        == "query"
    )
    assert not capsys.readouterr().err
    plain = {"query_prompt": "", "passage_prompt": ""}
    others = start.bind(Context(lengths=lengths, reading=plain)).model.config
    assert (others.query_prompt, others.default_prompt_name) == ("", "")
    assert "has the prompts 'query: ' and ''" in capsys.readouterr().err
    without = Finetune(model(include_prompt=False))
    with pytest.raises(UserError, match="leaves prompts out of its pooling"):
        without.bind(Context(lengths=lengths, reading=same))
