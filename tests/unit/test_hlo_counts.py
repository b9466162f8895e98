"""Counting the operations of a compiled program, from its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from qac_jax.bench import hlo
from qac_jax.errors import UserError


PROGRAM = """HloModule jit_step, is_scheduled=true

%fused_computation (p: f32[4,8]) -> bf16[8,4] {
  %p = f32[4,8]{1,0} parameter(0)
  %c.1 = bf16[4,8]{1,0} convert(f32[4,8]{1,0} %p)
  ROOT %t = bf16[8,4]{1,0} transpose(%c.1), dimensions={1,0}
}

%body (s: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %s = (s32[], f32[4,8]{1,0}) parameter(0)
  %g = f32[4,8]{1,0} get-tuple-element(%s), index=1
  %d = f32[4,8]{1,0} dot(%g, %g), lhs_contracting_dims={1}
  ROOT %r = (s32[], f32[4,8]{1,0}) tuple(%d, %d)
}

ENTRY %main (a: f32[4,8]) -> bf16[8,4] {
  %a = f32[4,8]{1,0} parameter(0)
  %w = (s32[], f32[4,8]{1,0}) while(%a), condition=%cond, body=%body
  %e = f32[4,8]{1,0} scatter(%a, %a, %a), to_apply=%add
  ROOT %f = bf16[8,4]{1,0} fusion(%e), kind=kLoop, calls=%fused_computation
}
"""


def test_kernels_are_what_is_outside_of_fusions() -> None:
    found = hlo.counts(PROGRAM)
    assert found["kernels"] == 3  # the product in the loop, the scatter, the fusion
    assert (found["fusions"], found["products"], found["scatters"]) == (1, 1, 1)
    assert (found["casts"], found["transposes"], found["gathers"]) == (1, 1, 0)


def test_the_table_is_written_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text("# Speed\n\n<!-- hlo -->\nold\n<!-- /hlo -->\nafter\n")
    hlo._write(page, "new")
    assert page.read_text() == "# Speed\n\n<!-- hlo -->\nnew\n<!-- /hlo -->\nafter\n"
    page.write_text("nothing")
    with pytest.raises(UserError, match="has no line <!-- hlo -->"):
        hlo._write(page, "new")


@pytest.mark.parametrize("name", ["mlm", "cotmae", "finetune", "cross_encoder"])
def test_batches_have_padding(name: str) -> None:
    batch = hlo.Hlo(examples=8).batch(name)
    for feature, lengths in batch.items():
        if feature.endswith("_length"):
            ids = batch[feature.removesuffix("_length")]
            assert ids.shape[:-1] == lengths.shape and lengths.max() <= ids.shape[-1]
            assert 0.2 < lengths.mean() / ids.shape[-1] < 0.9
