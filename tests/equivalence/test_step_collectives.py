"""The collectives of compiled steps are the stored ones.

An accidental all-gather of parameters, or an encoder that every device computes whole, shows here.
After a deliberate change run this file with QAC_STORE_COLLECTIVES=1 and read the difference.
"""

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
import toy

from qac_jax.models import packing
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives import chunked
from qac_jax.objectives.masking import Vocabulary
from qac_jax.objectives.mlm import Mlm
from qac_jax.training import mesh as meshes
from qac_jax.training.step import Engine


STORED = Path(__file__).parents[1] / "collectives.json"
BERT = Bert(
    BertConfig(vocab_size=64, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32),
    Runtime(scan=True),
)
MLM = Mlm(BERT, vocabulary=Vocabulary(np.arange(64) % 3 == 2))
CASES: dict[str, tuple[Any, tuple[int, int, int], int]] = {
    "mlm direct 8x1x1": (toy.ToyMlm(), (8, 1, 1), 0),
    "mlm accumulated 8x1x1": (toy.ToyMlm(), (8, 1, 1), 8),
    "mlm direct 2x2x2": (toy.ToyMlm(), (2, 2, 2), 0),
    "bert mlm 2x4x1": (MLM, (2, 4, 1), 0),
    "contrastive direct 8x1x1": (toy.ToyContrastive(), (8, 1, 1), 0),
    "contrastive chunked 8x1x1": (toy.ToyContrastive(chunk=8), (8, 1, 1), 0),
    "contrastive chunked 2x4x1": (toy.ToyContrastive(chunk=8), (2, 4, 1), 0),
    "contrastive chunked gathered 2x4x1": (toy.ToyContrastive(chunk=8, gather=True), (2, 4, 1), 0),
}


def counted(objective: Any, shape: tuple[int, int, int], microbatch: int) -> dict[str, int]:
    mesh = meshes.make_mesh(shape)
    engine = Engine(objective, optax.adamw(1e-3), mesh, microbatch=microbatch)
    return toy.collectives(engine.compile_step(toy.batch(32)))


@pytest.mark.parametrize("name", list(CASES))
def test_collectives_are_the_stored_ones(name: str) -> None:
    found = counted(*CASES[name])
    assert found, "a step over eight devices without any communication"
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if os.environ.get("QAC_STORE_COLLECTIVES"):
        stored.setdefault("steps", {})[name] = found
        stored["jax"] = ".".join(jax.__version__.split(".")[:2])
        STORED.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    if jax.__version__.startswith(stored["jax"] + "."):
        assert found == stored["steps"][name]
    else:
        # Another compiler may merge differently, but not gather twice as much.
        assert sum(found.values()) <= 2 * sum(stored["steps"][name].values())


@pytest.mark.slow
def test_what_a_gpu_is_told_needs_no_communication() -> None:
    """XLA would gather every activation whose layout is constrained (models/packing.py)."""
    with packing.made_for("gpu"):
        found = counted(*CASES["bert mlm 2x4x1"])
    assert sum(found.values()) <= sum(counted(*CASES["bert mlm 2x4x1"]).values())


def test_gradients_meet_once_and_not_in_every_microbatch() -> None:
    assert not [name for name in counted(*CASES["mlm accumulated 8x1x1"]) if "loop" in name]


@pytest.mark.slow
def test_contiguous_chunks_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    def contiguous(batch: Any, count: int) -> Any:
        return jax.tree.map(lambda x: x.reshape(count, x.shape[0] // count, *x.shape[1:]), batch)

    strided = counted(*CASES["contrastive chunked 8x1x1"])
    monkeypatch.setattr(chunked, "split", contiguous)
    monkeypatch.setattr(
        chunked, "join", lambda c: jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), c)
    )
    assert sum(counted(*CASES["contrastive chunked 8x1x1"]).values()) > sum(strided.values())
