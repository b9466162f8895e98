"""Counting the operations of a compiled program, from its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from qac_jax.bench import elsewhere, hlo, kernels
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
    hlo._write(page, "hlo", "new")
    assert page.read_text() == "# Speed\n\n<!-- hlo -->\nnew\n<!-- /hlo -->\nafter\n"
    page.write_text("nothing")
    with pytest.raises(UserError, match="has no line <!-- hlo -->"):
        hlo._write(page, "hlo", "new")


@pytest.mark.parametrize("name", ["mlm", "cotmae", "finetune", "cross_encoder"])
def test_batches_have_padding(name: str) -> None:
    batch = hlo.Hlo(examples=8).batch(name)
    for feature, lengths in batch.items():
        if feature.endswith("_length"):
            ids = batch[feature.removesuffix("_length")]
            assert ids.shape[:-1] == lengths.shape and lengths.max() <= ids.shape[-1]
            assert 0.2 < lengths.mean() / ids.shape[-1] < 0.9


GPU_PROGRAM = """HloModule jit_step, is_scheduled=true

%inside (p: bf16[64,8], i: s32[]) -> bf16[8,8] {
  %p = bf16[64,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %cut = bf16[8,8]{1,0} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={8,8}
}

%in_place (p.1: f32[100], q.1: f32[10], i.1: s32[]) -> f32[100] {
  %p.1 = f32[100]{0} parameter(0)
  %q.1 = f32[10]{0} parameter(1)
  %i.1 = s32[] parameter(2)
  ROOT %put = f32[100]{0} dynamic-update-slice(%p.1, %q.1, %i.1)
}

%body (s: (s32[], bf16[64,8])) -> (s32[], bf16[64,8]) {
  %s = (s32[], bf16[64,8]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%s), index=0
  %g = bf16[64,8]{1,0} get-tuple-element(%s), index=1
  %fused = bf16[8,8]{1,0} fusion(%g, %n), kind=kLoop, calls=%inside
  %input_transpose_fusion.1 = bf16[8,8]{1,0} fusion(%fused, %n), kind=kInput, calls=%inside
  ROOT %r = (s32[], bf16[64,8]{1,0}) tuple(%n, %g)
}

ENTRY %main (a: bf16[64,8], b: f32[100], c: f32[10]) -> f32[100] {
  %a = bf16[64,8]{1,0} parameter(0)
  %b = f32[100]{0} parameter(1)
  %c = f32[10]{0} parameter(2)
  %w = (s32[], bf16[64,8]) while(%a), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %m = (bf16[64,64]{1,0}, s8[33554432]{0}) custom-call(%a, %a), custom_call_target="__cublas$lt$matmul"
  %t = (bf16[64,8]{1,0}, s8[1024]{0}) custom-call(%a), custom_call_target="__cudnn$fmhaSoftmax"
  %copy.1 = bf16[64,8]{1,0} copy(%a)
  ROOT %f = f32[100]{0} fusion(%b, %c, %n), kind=kLoop, calls=%in_place
}
"""  # noqa: E501


def test_bytes_of_a_gpus_kernels() -> None:
    found = kernels.kernels(GPU_PROGRAM)
    a, cut, index = 64 * 8 * 2, 8 * 8 * 2, 4
    twice_in_a_loop_of_three = 2 * 3
    assert sum(kernel.times for kernel in found) == 4 + twice_in_a_loop_of_three
    assert {kind: round(size * 1e9) for kind, size in kernels.gigabytes(found).items()} == {
        "product": 2 * a + 64 * 64 * 2,
        "attention": 2 * a,
        "copy": 2 * a,
        "transpose": 3 * (cut + index + cut),
        "rest": 3 * (cut + index + cut) + 40 + 40,  # ten numbers of a hundred are put in place
    }


def test_a_gpu_that_is_not_here_needs_the_plugin(monkeypatch) -> None:
    monkeypatch.setattr(elsewhere.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"needs JAX's plugin for CUDA, though no GPU; pip install"):
        hlo.Hlo(device="h100").run()
