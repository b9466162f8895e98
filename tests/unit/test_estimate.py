"""Plans: hours add up, and as many chunks keep their activations as there is memory for."""

from __future__ import annotations

import dataclasses
from typing import Any

from qac_jax import hardware
from qac_jax.data.featurizer import settle
from qac_jax.data.form import Form
from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.objectives.finetune import Finetune
from qac_jax.pipeline import costs
from qac_jax.training import estimate


BERT = BertConfig(
    vocab_size=64, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, max_positions=64
)
TRIPLES = settle(
    "triples", Form(), lengths={"query": 8, "passages": 16}, settings={"n_passages": 2}
)


def model() -> DualEncoder:
    return DualEncoder(DualEncoderConfig(BERT))


def test_plans_with_a_kernel_of_gpus_are_made_anywhere() -> None:
    plans = {}
    for attention in ("auto", "cudnn"):
        network = model()
        runtime = dataclasses.replace(network.runtime, attention=attention)
        objective = Finetune(network.clone(runtime=runtime))
        plans[attention] = estimate.plan(objective, steps=1, batch_size=4)
    assert plans["auto"] == plans["cudnn"]


def test_hours_and_the_longest_path() -> None:
    def one(stage: str, hours: float | None, *before: str) -> dict[str, Any]:
        plan: dict[str, Any] = {"batch_size": 8} if hours != 0 else {}
        if hours:
            plan["hours"] = dict.fromkeys(hardware.DEVICES, hours)
        return {"stage": stage, "inputs": {name: name for name in before}, "plan": plan}

    plans = [one("a", 2), one("b", 3), one("c", 0, "a", "b"), one("d", 4, "c"), one("e", None)]
    found = costs.totals(plans)
    assert (found["hours"]["H100"], found["longest_path_hours"]["H100"]) == (9, 7)
    assert found["without_hours"] == ["e"]
