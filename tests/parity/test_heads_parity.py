"""Hidden states and logits of golden cases 02, 03, 03c, 04 and 04c: Condenser, CoT-MAE."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import golden_cases as golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.hub import huggingface
from qac_jax.models.attention import causal_window
from qac_jax.models.layers import Runtime


def _lengths(arrays: dict[str, np.ndarray], prefix: str = "") -> np.ndarray:
    return golden.lengths(arrays[f"{prefix}attention_mask"])


@pytest.fixture(params=golden.PRECISIONS)
def precision(request):
    with golden.precision_context(request.param):
        yield request.param


class _Case:
    """A case's arrays, its BERT and its heads."""

    def __init__(self, case: Path, precision: str):
        self.meta, self.arrays = golden.load(case)
        runtime = Runtime(dtype=precision)
        self.bert, variables = huggingface.load(case / "model", runtime)
        self.variables = golden.in_precision(variables, precision)
        # Heads lie beside the BERT, or in its folder.
        place = case if list(case.glob("*.safetensors")) else case / "model"
        heads = huggingface.load_heads(place, self.bert.config, runtime)
        self.heads = {n: (m, golden.in_precision(v, precision)) for n, (m, v) in heads.items()}
        self.check = functools.partial(golden.assert_activation, precision=precision)
        self.expect = functools.partial(golden.expected, self.arrays, precision=precision)

    @functools.cached_property
    def cls(self) -> jax.Array:
        return self.encode(rows=1).cls

    def encode(self, **options: Any):
        run = jax.jit(functools.partial(self.bert.apply, **options))
        return run(self.variables, self.arrays["input_ids"], _lengths(self.arrays))

    def embed(self, ids: np.ndarray) -> jax.Array:
        return jax.jit(functools.partial(self.bert.apply, method="embed"))(self.variables, ids)

    def logits(self, hidden: jax.Array) -> jax.Array:
        run = jax.jit(functools.partial(self.bert.apply, method="mlm_logits"))
        return run(self.variables, hidden)

    def head(self, *inputs: Any) -> jax.Array:
        """The bidirectional head, with as many layers as its file has."""
        module, variables = self.heads["c_head"]
        return jax.jit(module.apply)(variables, *inputs)

    def decoder(self, window: int, *inputs: Any) -> jax.Array:
        module, variables = self.heads["d_head"]
        return jax.jit(module.clone(window=window).apply)(variables, *inputs)


@functools.cache
def _load(case: Path, precision: str) -> _Case:
    return _Case(case, precision)


@pytest.mark.parametrize(("case", "variant"), golden.case_variants("02_"))
def test_condenser_head(case: Path, variant: str, precision: str) -> None:
    this = _load(case, precision)
    flags = this.meta["variants"][variant]
    assert flags["n_head_layers"] == this.heads["c_head"][0].num_layers
    out = this.encode(hidden_states=(flags["skip_from"],))
    hidden = this.head(out.cls, out.hidden_states[flags["skip_from"]], _lengths(this.arrays))
    this.check(hidden, this.expect(f"{variant}__head_hidden"))


@pytest.mark.parametrize("case", golden.parameters("03_", "03c_"))
def test_cocondenser_vectors(case: Path, precision: str) -> None:
    this = _load(case, precision)
    cls = this.cls
    this.check(cls, this.expect("cls"), what="cls")
    similarities = [name for name in this.arrays if name.startswith("similarity")]
    similarities = [name for name in similarities if not name.endswith("__f64")]
    assert similarities
    for name in similarities:
        this.check(cls @ cls.T, this.expect(name), what=name)


@pytest.mark.parametrize("case", golden.parameters("04_"))
def test_cotmae_mlm_decoder(case: Path, precision: str) -> None:
    this = _load(case, precision)
    out = this.encode()
    this.check(out.cls, this.expect("cls"), what="cls")
    this.check(this.logits(out.last), this.expect("encoder_logits"), what="encoder_logits")
    embedded = this.embed(this.arrays["decoder_input_ids"])
    hidden = this.head(out.cls, embedded, _lengths(this.arrays, "decoder_"))
    this.check(hidden, this.expect("decoder_hidden"), what="decoder_hidden")


@pytest.mark.parametrize(("case", "variant"), golden.case_variants("04c_"))
def test_cotmae_query_decoders(case: Path, variant: str, precision: str) -> None:
    this = _load(case, precision)
    flags = this.meta["variants"][variant]
    cls = this.cls
    this.check(cls, this.expect("cls"), what="cls")
    computed = {}
    if flags["use_dec_head"]:
        embedded = this.embed(this.arrays["dec_head_input_ids"])
        lengths = _lengths(this.arrays, "dec_head_")
        computed["dec_hidden"] = this.decoder(flags["attn_window"], cls, embedded, lengths)
        computed["dec_logits"] = this.logits(computed["dec_hidden"])
    if flags["use_enc_head"]:
        embedded = this.embed(this.arrays["enc_head_input_ids"])
        computed["enc_hidden"] = this.head(cls, embedded, _lengths(this.arrays, "enc_head_"))
    stored = set(golden.names(this.arrays, f"{variant}__"))
    stored = {name for name in stored if name.endswith(("_hidden", "_logits"))}
    assert stored <= computed.keys(), stored  # every stored state of a head is compared
    for name in stored:
        this.check(computed[name], this.expect(f"{variant}__{name}"), what=name)


@pytest.mark.parametrize("case", golden.parameters("04c_"))
def test_attention_window(case: Path, precision: str) -> None:
    """The matrices of who sees whom, for every window and number of padded keys stored."""
    meta, arrays = golden.load(case)
    windows = {flags["attn_window"] for flags in meta["variants"].values()}
    compared = 0
    for window in windows:
        label = "full" if window == -1 else f"w{window}"
        for name in golden.names(arrays, "attn_bool_"):
            size, kind, *padding = name.split("_")
            if kind != label:
                continue
            length = int(size.removeprefix("len"))
            padded = int(padding[0].removeprefix("pad")) if padding else 0
            seen = np.array(causal_window(length, window))
            seen &= np.arange(length) < length - padded
            np.testing.assert_array_equal(seen, arrays[f"attn_bool_{name}"].astype(bool), name)
            compared += 1
    assert compared == len(list(golden.names(arrays, "attn_bool_")))


@pytest.mark.parametrize("case", golden.parameters("04c_"))
def test_receptive_field(case: Path, precision: str) -> None:
    """Output i of a one-layer decoder has a gradient exactly for the inputs it may see."""
    this = _load(case, precision)
    module, variables = this.heads["d_head"]
    window = max(flags["attn_window"] for flags in this.meta["variants"].values())
    decoder = module.clone(num_layers=1, window=window)
    embedded = this.embed(this.arrays["dec_head_input_ids"])[:1]

    def outputs(cls: jax.Array, rest: jax.Array) -> jax.Array:
        return decoder.apply(variables, cls, rest)[0]

    to_cls, to_rest = jax.jit(jax.jacrev(outputs, (0, 1)))(embedded[:, 0], embedded)
    length = embedded.shape[1]
    norms = np.array(jnp.square(to_rest[:, :, 0]).sum((1, 3)))
    norms[:, 0] = jnp.square(to_cls[:, :, 0]).sum((1, 2))
    np.testing.assert_array_equal(norms > 0, causal_window(length, window))
