"""Plans: hours add up, and as many chunks keep their activations as there is memory for."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from qac_jax import hardware
from qac_jax.data.featurizer import settle
from qac_jax.data.form import Form
from qac_jax.hardware import Device
from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.objectives.finetune import Finetune
from qac_jax.pipeline import costs
from qac_jax.training import estimate, step
from qac_jax.training import mesh as meshes


BERT = BertConfig(
    vocab_size=64, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, max_positions=64
)
TRIPLES = settle(
    "triples", Form(), lengths={"query": 8, "passages": 16}, settings={"n_passages": 2}
)


def model() -> DualEncoder:
    return DualEncoder(DualEncoderConfig(BERT))


def test_chunks_are_kept_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, mesh = Finetune(model()).with_chunk(16), meshes.mesh_for((-1, 1, 1), 64, 16)

    def kept(chunks: float, chosen: Finetune = objective) -> int:
        """With memory for the state and this number of chunks."""
        each = step.activation_bytes(objective, estimate.spec(TRIPLES, 16)) / mesh.size
        memory = (estimate._state_bytes(objective, mesh) + chunks * each) / 0.9
        monkeypatch.setattr(hardware, "find", lambda kind: Device("Toy", 1e12, memory))
        return estimate.keeping(chosen, estimate.spec(TRIPLES, 64), mesh).runtime.kept

    assert [kept(chunks) for chunks in (0, 0.5, 1.1, 3.1, 3.9, 4.1, 99)] == [0, 0, 0, 2, 2, 4, 4]
    assert kept(99, Finetune(model())) == 0  # computed at once, in no chunks
    assert kept(3.5, objective.with_packed(((8, 0.6), (16, 0.6)))) == 4  # smaller without padding
    monkeypatch.setattr(hardware, "find", lambda kind: None)
    assert estimate.keeping(objective, estimate.spec(TRIPLES, 64), mesh) is objective


def test_memory_is_what_jax_may_take_of_a_device() -> None:
    def device(stats: dict[str, int] | None, kind: str = "NVIDIA H100 80GB HBM3") -> Any:
        return SimpleNamespace(memory_stats=lambda: stats, device_kind=kind)

    assert estimate._memory(device({"bytes_limit": 1000})) == 950
    assert estimate._memory(device(None)) == 0.9 * hardware.DEVICES["H100"].memory_bytes
    assert estimate._memory(device(None, "a toaster")) is None


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
