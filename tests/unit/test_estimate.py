"""Plans: what does not fit is refused with what would, and hours add up."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from qac_jax import hardware
from qac_jax.data.featurizer import settle
from qac_jax.data.form import Form
from qac_jax.errors import UserError
from qac_jax.hardware import Device
from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.objectives.finetune import Finetune
from qac_jax.objectives.pair import Pair
from qac_jax.pipeline import costs
from qac_jax.training import estimate
from qac_jax.training import mesh as meshes


BERT = BertConfig(
    vocab_size=64, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, max_positions=64
)
TRIPLES = settle(
    "triples", Form(), lengths={"query": 8, "passages": 16}, settings={"n_passages": 2}
)


def model() -> DualEncoder:
    return DualEncoder(DualEncoderConfig(BERT))


@pytest.mark.parametrize("objective", [Finetune(model()), Pair(model())])
def test_dual_encoders_keep_what_their_texts_keep(objective: Any) -> None:
    kept = objective.activation_bytes(estimate.spec(TRIPLES, 4))
    runtime = objective.runtime
    whole = BERT.activation_bytes(runtime, 4, 8) + BERT.activation_bytes(runtime, 8, 16)
    of_cls = [BERT.activation_bytes(runtime, n, length, rows=1) for n, length in ((4, 8), (8, 16))]
    assert kept == sum(of_cls) < whole  # of the last layer only [CLS] is computed


def test_what_cannot_fit_is_refused_with_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, mesh = Finetune(model()), meshes.mesh_for((-1, 1, 1), 64, 0)
    estimate.refuse_too_large(objective, TRIPLES, 64, 0, mesh)  # of unknown memory
    kept = objective.activation_bytes(estimate.spec(TRIPLES, 64))
    small = Device("Toy", 1e12, kept / mesh.size / 3)
    monkeypatch.setattr(hardware, "find", lambda kind: small)
    with pytest.raises(UserError, match=r"on each of 8 Toy, .* use --microbatch (8|16)"):
        estimate.refuse_too_large(objective, TRIPLES, 64, 0, mesh)
    monkeypatch.setattr(hardware, "find", lambda kind: dataclasses.replace(small, memory_bytes=10))
    with pytest.raises(UserError, match="cut its parameters over devices"):
        estimate.refuse_too_large(objective, TRIPLES, 64, 0, mesh)
    assert jax.device_count() == 8


def test_chunks_are_kept_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, mesh = Finetune(model()).with_chunk(16), meshes.mesh_for((-1, 1, 1), 64, 16)

    def kept(chunks: float, chosen: Finetune = objective) -> int:
        """With memory for the state and this number of chunks."""
        each = objective.activation_bytes(estimate.spec(TRIPLES, 16)) / mesh.size
        memory = (estimate._state_bytes(objective, mesh) + chunks * each) / 0.9
        monkeypatch.setattr(hardware, "find", lambda kind: Device("Toy", 1e12, memory))
        return estimate.keeping(chosen, estimate.spec(TRIPLES, 64), mesh).runtime.kept

    assert [kept(chunks) for chunks in (0, 0.5, 1.1, 3.1, 3.9, 4.1, 99)] == [0, 0, 0, 2, 2, 4, 4]
    assert kept(99, Finetune(model())) == 0  # computed at once, in no chunks
    assert kept(3.1, objective.with_packed(((8, 0.6), (16, 0.6)))) == 4  # smaller without padding
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
