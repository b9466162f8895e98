"""T5 against its golden cases, and its encoder against transformers' T5EncoderModel.

Hugging Face's T5 takes the mean square of its norm and its softmax in float32 even when the model
is float64. So the cases' `__f64` values carry float32 noise (1e-6), and are compared at float32's
tolerance. What x64 really computes is held at 1e-9 against the same torch model with those two
casts taken out (`test_float64`).
"""

import dataclasses
import functools
import os
from functools import partial
from pathlib import Path
from typing import Any

import golden_cases as golden
import hf_encoders as hf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_tokenizers
from toy_pretraining import VOCABULARY
from toy_tokenizers import TEXTS

from qac_jax.errors import UserError
from qac_jax.hub import backbones, huggingface, weights
from qac_jax.inference.encoder import Encoder
from qac_jax.models.layers import Runtime
from qac_jax.models.t5 import T5, T5EncoderConfig, shift_right
from qac_jax.models.t5_layers import relative_buckets
from qac_jax.objectives.masking import Masking
from qac_jax.objectives.mlm import Mlm


precision = golden.precision
CASES = golden.parameters("08a_", "08b_")
# T5's gradients: torch's own float32 is up to 9e-5 away from float64 (README of the cases).
GRADIENT_FACTOR = 5e-4 / 2e-5
IGNORED = -100
NOISE = "float32"  # the precision of all reference values, see above


@functools.cache
def model(case: Path, precision: str, scan: bool = False) -> tuple[T5, dict]:
    """The case's T5 in `precision`; call it inside of the precision's context."""
    module, variables = huggingface.load(case / "model", Runtime(dtype=precision, scan=scan))
    return module, jax.tree.map(lambda x: x.astype(precision), variables)


def inputs(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ids, lengths = arrays["input_ids"], golden.lengths(arrays["attention_mask"])
    return ids.astype(np.int32), lengths, arrays["decoder_input_ids"].astype(np.int32)


def mean_loss(module: T5, variables: dict, arrays: dict[str, np.ndarray]) -> jax.Array:
    """Mean cross-entropy over the labels that count."""
    labels = arrays["labels"]
    scores = jax.nn.log_softmax(module.apply(variables, *inputs(arrays)))
    chosen = jnp.take_along_axis(scores, jnp.maximum(labels, 0)[..., None], -1)[..., 0]
    kept = labels != IGNORED
    return -(chosen * kept).sum() / kept.sum()


@functools.cache
def loss_and_gradient(case: Path, precision: str) -> tuple[jax.Array, dict]:
    """The loss, and its gradients under Hugging Face's names and in its layout."""
    _, arrays = golden.load(case)
    with golden.precision_context(precision):
        module, variables = model(case, precision)
        loss = functools.partial(mean_loss, module, arrays=arrays)
        value, gradient = jax.jit(jax.value_and_grad(loss))(variables)
    looped = weights.looped(gradient["params"])
    return value, weights.tensors_of(module.config.table(), looped)


@golden.each_case("08a_", "08b_")
def test_forward(case: Path, precision: str) -> None:
    _, arrays = golden.load(case)
    ids, lengths, targets_in = inputs(arrays)
    states = [n for n in golden.names(arrays, "encoder_hidden_state_")]
    assert states, "the case lists no hidden state of the encoder"
    module, variables = model(case, precision, scan=precision == "float32")

    @jax.jit
    def forward(variables):
        memory, hidden = module.apply(
            variables, ids, lengths, wanted=tuple(map(int, states)), method="encode_states"
        )
        decoded = module.apply(variables, targets_in, memory, lengths, method="decode_hidden")
        return memory, hidden, decoded, module.apply(variables, decoded, method="logits")

    memory, hidden, decoded, logits = forward(variables)

    def check(actual: jax.Array, name: str) -> None:
        assert actual.dtype == precision
        reference = golden.expected(arrays, name, precision)
        golden.assert_activation(actual, reference, NOISE, what=name)

    check(memory, "encoder_last_hidden_state")
    for name in states:
        check(hidden[int(name)], f"encoder_hidden_state_{name}")
    check(decoded, "decoder_last_hidden_state")
    check(logits, "decoder_logits")


@golden.each_case("08a_", "08b_")
def test_loss_and_gradients(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    value, theirs = loss_and_gradient(case, precision)
    assert value.dtype == precision
    golden.assert_loss(value, golden.expected(arrays, "loss", precision), NOISE)
    named = list(golden.names(arrays, "grad__"))
    assert named, "the case lists no gradients"
    for name in named:
        reference = golden.expected(arrays, f"grad__{name}", precision)
        golden.assert_gradient(theirs[name], reference, NOISE, factor=GRADIENT_FACTOR, what=name)
    norms = meta["grad_norms_f64"]
    assert norms.keys() == theirs.keys()
    for name, norm in norms.items():
        golden.assert_gradient_norm(theirs[name], norm, NOISE, factor=GRADIENT_FACTOR, what=name)


@pytest.mark.parametrize("case", CASES)
def test_float64(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits, loss and all gradients at 1e-9, against torch in float64 throughout."""
    torch = pytest.importorskip("torch")
    from transformers import T5ForConditionalGeneration
    from transformers.models.t5 import modeling_t5

    def norm(self, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (x * scale)

    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(modeling_t5.T5LayerNorm, "forward", norm)
    monkeypatch.setattr(
        torch.nn.functional, "softmax", lambda x, dim=-1, **_: softmax(x.double(), dim=dim)
    )
    theirs = T5ForConditionalGeneration.from_pretrained(
        case / "model", attn_implementation="eager"
    ).double()
    _, arrays = golden.load(case)
    names = ("input_ids", "attention_mask", "labels", "decoder_input_ids")
    reference = theirs(**{name: torch.tensor(arrays[name]) for name in names})
    reference.loss.backward()
    with golden.precision_context("float64"):
        module, variables = model(case, "float64")
        logits = jax.jit(module.apply)(variables, *inputs(arrays))
    value, ours = loss_and_gradient(case, "float64")
    golden.assert_activation(logits, reference.logits.detach().numpy(), "float64")
    golden.assert_loss(value, reference.loss.detach().numpy(), "float64")
    for name, parameter in theirs.named_parameters():
        golden.assert_gradient(ours[name], parameter.grad.numpy(), "float64", what=name)


@pytest.mark.parametrize("case", CASES)
def test_buckets_and_decoder_input(case: Path) -> None:
    _, arrays = golden.load(case)
    config = huggingface.load(case / "model")[0].config
    sizes = {"buckets": config.num_buckets, "max_distance": config.max_distance}
    for name, both in (("bucket_bidirectional", True), ("bucket_causal", False)):
        actual = relative_buckets(arrays["rel_positions"], bidirectional=both, **sizes)
        np.testing.assert_array_equal(actual, arrays[name], err_msg=name)
    labels = arrays["labels"]
    targets = np.where(labels == IGNORED, config.pad_id, labels)
    shifted = shift_right(jnp.asarray(targets), config.start_id)
    np.testing.assert_array_equal(shifted, arrays["decoder_input_ids"])


# The encoder by itself.

SIZES: dict[str, Any] = {
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}
ENCODERS = {
    "v1.0": hf.Case("T5", SIZES, pad=0),
    "v1.1": hf.Case("T5", SIZES | {"feed_forward_proj": "gated-gelu"}, pad=0),
}
CONFIG = T5EncoderConfig(50, 16, 2, 3, 24, head_size=4, num_buckets=8, max_distance=12)
encoders = pytest.mark.parametrize("name", ENCODERS)


@encoders
def test_hidden_states_of_the_encoder(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    case = ENCODERS[name]
    folder, model = case.folder(tmp_path, "EncoderModel")
    with torch.no_grad():
        expected = model(**hf.asked(case), output_hidden_states=True)
    ids, states = case.texts(), tuple(range(3))
    for scan, dtype, tolerance in ((False, "float32", 2e-5), (True, "bfloat16", hf.BF16)):
        module, given = huggingface.load(folder, Runtime(dtype=dtype, scan=scan))
        out = jax.jit(partial(module.apply, hidden_states=states))(given, ids, hf.LENGTHS)
        hf.check_states(out, expected.hidden_states, tolerance, dtype)
        alone = jax.jit(partial(module.apply, rows=2))(given, ids[1:2, : hf.LENGTHS[1]]).last
        reference = expected.last_hidden_state[1:2, :2].numpy()
        assert hf.scaled(alone, reference) <= tolerance, f"{dtype} first rows"


def test_gradients_of_the_encoder(tmp_path: Path) -> None:
    """Of a sum of the last hidden states, each within 2e-5 of PyTorch's largest entry."""
    torch = pytest.importorskip("torch")
    case = ENCODERS["v1.1"]
    folder, model = case.folder(tmp_path, "EncoderModel")
    weight = np.random.default_rng(1).normal(size=(*hf.seen().shape, 16)).astype(np.float32)
    weight = np.where(hf.seen()[..., None], weight, 0)
    (model(**hf.asked(case)).last_hidden_state * torch.tensor(weight)).sum().backward()
    theirs = {name: p.grad.numpy() for name, p in model.named_parameters()}
    module, given = huggingface.load(folder)

    def total(given: Any) -> jax.Array:
        return (module.apply(given, case.texts(), hf.LENGTHS).last * weight).sum()

    ours = backbones.loop_params(jax.jit(jax.grad(total))(given))
    written = weights.tensors_of(module.config.table(), ours)
    assert written.keys() == theirs.keys()
    for name, expected in theirs.items():
        golden.assert_gradient(written[name], expected, "float32", what=name)


@encoders
def test_round_trip(name: str, tmp_path: Path) -> None:
    hf.check_round_trip(ENCODERS[name], tmp_path, "EncoderModel", scan=name == "v1.1")


def test_refusals(tmp_path: Path) -> None:
    hf.check_refusals(ENCODERS["v1.1"], tmp_path, "EncoderModel")


def test_whole_t5s_and_encoders(tmp_path: Path) -> None:
    """A whole T5 is a generator, and no encoder where one is wanted."""
    whole, _ = ENCODERS["v1.0"].folder(tmp_path / "whole", "ForConditionalGeneration")
    assert isinstance(huggingface.load(whole)[0], T5)
    with pytest.raises(UserError, match="holds a 't5' model; expected an encoder"):
        backbones.read_encoder(whole, backbones.Options())
    alone, _ = ENCODERS["v1.0"].folder(tmp_path / "alone", "EncoderModel")
    assert isinstance(huggingface.load(alone)[0].config, T5EncoderConfig)


def test_sentence_t5(tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    torch = pytest.importorskip("torch")
    folder, _ = ENCODERS["v1.1"].folder(tmp_path / "e", "EncoderModel")
    toy_tokenizers.sentencepiece(folder)
    torch.manual_seed(0)
    dense = parts.Dense(16, 6, bias=False, activation_function=torch.nn.Identity())
    modules = [parts.Transformer(os.fspath(folder)), parts.Pooling(16, "mean"), dense]
    peer = st.SentenceTransformer(modules=[*modules, parts.Normalize()], device="cpu")
    expected, theirs = peer.encode(TEXTS), tmp_path / "theirs"
    peer.save(os.fspath(theirs))
    np.testing.assert_allclose(Encoder.load(theirs).encode(TEXTS), expected, rtol=0, atol=2e-5)
    module, given = huggingface.load(theirs)
    assert module.config.backbone.feed_forward == "gated-gelu"
    ours = huggingface.save(tmp_path / "ours", module, given, tokenizer=theirs, max_length=32)
    for place in (".", "2_Dense"):
        hf.assert_same(*(weights.read_folder(folder / place) for folder in (ours, theirs)))
    again = st.SentenceTransformer(os.fspath(ours), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(again, expected, rtol=0, atol=1e-6)


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a T5 encoder has neither a \[MASK\] token nor"):
        CONFIG.with_parts("mlm_head")
    objective = Mlm(CONFIG.build(Runtime()), Masking(0.3), VOCABULARY)
    with pytest.raises(UserError, match="predicts no masked words"):
        objective.init(jax.random.key(0))
    with pytest.raises(UserError, match="T5 encoder has no mlm_head"):
        folder, _ = ENCODERS["v1.0"].folder(tmp_path, "EncoderModel")
        huggingface.load(folder, options=backbones.Options(mlm_head=True))
    with pytest.raises(UserError, match="feed_forward='gated-silu'"):
        dataclasses.replace(CONFIG, feed_forward="gated-silu")
    with pytest.raises(UserError, match="600 tokens do not fit"):
        module = CONFIG.build(Runtime())
        params = backbones.new_parameters(module)
        module.apply({"params": params}, np.ones((1, 600), np.int32))
