"""The memory that plans say a training needs, beside what the compiler says."""

from __future__ import annotations

from typing import Any

import jax
import optax
import pytest

from qac_jax.bench import hlo
from qac_jax.models import memory, packing
from qac_jax.models.backbone import BackboneConfig
from qac_jax.models.bert import BertConfig
from qac_jax.models.layers import Runtime
from qac_jax.models.mpnet import MpnetConfig
from qac_jax.training import mesh as meshes
from qac_jax.training import packing as rooms
from qac_jax.training import report
from qac_jax.training.step import Engine


BENCH = hlo.Hlo(layers=2, hidden=256, vocabulary=4000, examples=32, passage=128)


@pytest.mark.slow
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("name", sorted(BENCH._objectives()))
def test_plans_are_within_15_percent_of_the_compiler(name: str, pack: bool) -> None:
    objective, batch = BENCH._objectives()[name], BENCH.batch(name)
    mesh = meshes.make_mesh(devices=jax.devices()[:1])
    engine = Engine(objective, optax.adamw(1e-4), mesh, meshes.rules_named("default"))
    engine = rooms.packed(engine, rooms.room(engine, batch) if pack else ())
    needed = report.memory(engine.compile_step(batch))["peak"]
    assert hlo.planned_bytes(engine.objective, batch) == pytest.approx(needed, rel=0.15)


def test_packed_texts_keep_queries_keys_and_values_as_padded_ones() -> None:
    """14 of 17 numbers shrink with the room, and all where the kernel reads packed texts; of other
    lengths, nothing does."""

    def kept(length: int, kernel: str = "cudnn", **fields: Any) -> float:
        return memory.layers(Runtime(**fields), 1, length, 1, 8, 2, kernel=kernel) / (
            4 * length * 8
        )

    assert kept(10) == kept(16, packed=((10, 0.5),)) == 17 + 4
    assert kept(10, packed=((10, 0.5),)) == 14 / 2 + 3 + 4 / 2
    assert kept(10, packed=((10, 0.5),), remat="layer") == 1 / 2 + 4 / 2
    assert kept(10, "triton", packed=((10, 0.5),)) == 17 / 2 + 4 / 2


def test_a_kernel_chosen_by_itself_keeps_no_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs, in half precision; with biased scores none, with dropout the one that has it."""

    def kept(kernel: str, config: type[BackboneConfig] = BertConfig, **fields: Any) -> float:
        dtype, dropout = fields.pop("dtype", "bfloat16"), fields.pop("dropout", "hash")
        runtime = Runtime(dtype=dtype, attention=kernel, dropout=dropout)
        return config(**{"attention_dropout": 0.0} | fields).activation_bytes(runtime, 4, 64)

    assert kept("auto") == kept("xla") > kept("cudnn")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(packing, "one_part_a_device", lambda: True)
    assert kept("auto") == kept("cudnn") < kept("xla")
    assert kept("auto", attention_dropout=0.1) == kept("auto")
    drops = {"attention_dropout": 0.1, "dropout": "threefry"}
    for fields in (drops, {"dtype": "float32"}, {"config": MpnetConfig}):
        assert kept("auto", **fields) == kept("xla", **fields)


@pytest.mark.parametrize("remat", ["none", "attention", "dots", "layer"])
def test_a_last_layer_of_a_few_positions_keeps_what_the_others_give_it(remat: str) -> None:
    """Its input, keys and values of all positions; everything of those that are computed."""
    runtime, width, heads, length = Runtime(remat=remat), 8, 2, 10

    def kept(count: int, rows: int | None = None) -> float:
        return memory.layers(runtime, 1, length, count, width, heads, rows=rows)

    whole, of_others = kept(2) - kept(1), 4 * length * min(3, memory._WIDTHS[remat]) * width
    assert kept(2, rows=1) == pytest.approx(kept(1) + of_others + whole / length)
    assert kept(2, rows=length) == kept(2) and kept(0, rows=1) == kept(0)
