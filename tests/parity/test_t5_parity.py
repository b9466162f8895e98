"""T5 against the reference: states, logits, loss, gradients, buckets, greedy decoding.

Hugging Face's T5 takes the mean square of its norm and its softmax in float32 even when the model
is float64. So the cases' `__f64` values carry float32 noise (1e-6), and are compared at float32's
tolerance. What x64 really computes is held at 1e-9 against the same torch model with those two
casts taken out (`test_float64`).
"""

from __future__ import annotations

import functools
from pathlib import Path

import golden_cases as golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_decoding import greedy

from qac_jax.hub import huggingface, weights
from qac_jax.models.layers import Runtime
from qac_jax.models.t5 import T5, shift_right
from qac_jax.models.t5_layers import relative_buckets


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


@pytest.mark.parametrize(
    ("precision", "scan"),
    [("float32", False), ("float32", True), ("float64", False)],
    ids=["float32-loop", "float32-scan", "float64-loop"],
)
@pytest.mark.parametrize("case", CASES)
def test_forward(case: Path, precision: str, scan: bool) -> None:
    _, arrays = golden.load(case)
    ids, lengths, targets_in = inputs(arrays)
    states = [n for n in golden.names(arrays, "encoder_hidden_state_")]
    assert states, "the case lists no hidden state of the encoder"
    with golden.precision_context(precision):
        module, variables = model(case, precision, scan)

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


@pytest.mark.parametrize("precision", golden.PRECISIONS)
@pytest.mark.parametrize("case", CASES)
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
def test_buckets(case: Path) -> None:
    _, arrays = golden.load(case)
    config = huggingface.load(case / "model")[0].config
    for name, bidirectional in (("bucket_bidirectional", True), ("bucket_causal", False)):
        actual = relative_buckets(
            arrays["rel_positions"],
            bidirectional=bidirectional,
            buckets=config.num_buckets,
            max_distance=config.max_distance,
        )
        np.testing.assert_array_equal(actual, arrays[name], err_msg=name)


@pytest.mark.parametrize("precision", golden.PRECISIONS)
@pytest.mark.parametrize("name", ["greedy20", "greedy20_no_eos"])
@pytest.mark.parametrize("case", CASES)
def test_greedy(case: Path, name: str, precision: str) -> None:
    """The reference's sequences, through the cache."""
    _, arrays = golden.load(case)
    ids, lengths, _ = inputs(arrays)
    expected = arrays[f"{name}_sequences"]
    with golden.precision_context(precision):
        module, variables = model(case, precision)
        steps = expected.shape[1] - 1
        actual = greedy(module, variables, ids, lengths, steps, stop=name == "greedy20")
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("case", CASES)
def test_decoder_input(case: Path) -> None:
    _, arrays = golden.load(case)
    config = huggingface.load(case / "model")[0].config
    labels = arrays["labels"]
    targets = np.where(labels == IGNORED, config.pad_id, labels)
    shifted = shift_right(jnp.asarray(targets), config.start_id)
    np.testing.assert_array_equal(shifted, arrays["decoder_input_ids"])
