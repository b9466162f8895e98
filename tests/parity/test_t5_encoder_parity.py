"""T5's encoder is transformers' T5EncoderModel: hidden states, folders, sentence-t5's modules."""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from pathlib import Path
from typing import Any

import golden_cases as golden
import hf_encoders as hf
import jax
import numpy as np
import pytest
import toy_tokenizers
from toy_pretraining import VOCABULARY
from toy_tokenizers import TEXTS

from qac_jax.errors import UserError
from qac_jax.hub import backbones, huggingface, weights
from qac_jax.inference.encoder import Encoder
from qac_jax.models.layers import Runtime
from qac_jax.models.t5 import T5, T5Encoder, T5EncoderConfig
from qac_jax.objectives.masking import Masking
from qac_jax.objectives.mlm import Mlm


SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}
CASES = {
    "v1.0": hf.Case("T5", SIZES, pad=0),
    "v1.1": hf.Case("T5", SIZES | {"feed_forward_proj": "gated-gelu"}, pad=0),
}
CONFIG = T5EncoderConfig(
    vocab_size=50,
    hidden_size=16,
    num_layers=2,
    num_heads=3,
    intermediate_size=24,
    head_size=4,
    num_buckets=8,
    max_distance=12,
)
cases = pytest.mark.parametrize("name", CASES)


@cases
def test_hidden_states(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    case = CASES[name]
    folder, model = case.folder(tmp_path, "EncoderModel")
    with torch.no_grad():
        expected = model(**hf.asked(case), output_hidden_states=True)
    ids, states = case.texts(), tuple(range(3))
    for scan, dtype, tolerance in ((False, "float32", 2e-5), (True, "bfloat16", hf.BF16)):
        module, given = huggingface.load(folder, Runtime(dtype=dtype, scan=scan))
        out = jax.jit(partial(module.apply, hidden_states=states))(given, ids, hf.LENGTHS)
        for number in states:
            reference = expected.hidden_states[number].numpy()
            hf.close(out.hidden_states[number], reference, tolerance, f"{dtype} state {number}")
        hf.close(out.last, expected.last_hidden_state.numpy(), tolerance, f"{dtype} last")
        alone = jax.jit(partial(module.apply, rows=2))(given, ids[1:2, : hf.LENGTHS[1]]).last
        reference = expected.last_hidden_state[1:2, :2].numpy()
        assert hf.scaled(alone, reference) <= tolerance, f"{dtype} first rows"


def test_gradients(tmp_path: Path) -> None:
    """Of a sum of the last hidden states, each within 2e-5 of PyTorch's largest entry."""
    torch = pytest.importorskip("torch")
    case = CASES["v1.1"]
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


@cases
def test_round_trip(name: str, tmp_path: Path) -> None:
    hf.check_round_trip(CASES[name], tmp_path, "EncoderModel", scan=name == "v1.1")


def test_refusals(tmp_path: Path) -> None:
    hf.check_refusals(CASES["v1.1"], tmp_path, "EncoderModel")


def test_whole_t5s_and_encoders(tmp_path: Path) -> None:
    """A whole T5 is a generator, and no encoder where one is wanted."""
    whole, _ = CASES["v1.0"].folder(tmp_path / "whole", "ForConditionalGeneration")
    assert isinstance(huggingface.load(whole)[0], T5)
    with pytest.raises(UserError, match="holds a 't5' model; expected an encoder"):
        backbones.read_encoder(whole, backbones.Options())
    alone, _ = CASES["v1.0"].folder(tmp_path / "alone", "EncoderModel")
    assert isinstance(huggingface.load(alone)[0], T5Encoder)


def stored(path: Path, folder: Path, model: Any) -> Path:
    """A folder of sentence-t5's modules around an encoder, as sentence-transformers writes it."""
    st = pytest.importorskip("sentence_transformers")
    parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    torch = pytest.importorskip("torch")
    toy_tokenizers.sentencepiece(folder)
    torch.manual_seed(0)
    dense = parts.Dense(16, 6, bias=False, activation_function=torch.nn.Identity())
    modules = [parts.Transformer(os.fspath(folder)), parts.Pooling(16, "mean"), dense]
    model = st.SentenceTransformer(modules=[*modules, parts.Normalize()], device="cpu")
    model.save(os.fspath(path))
    return path


def test_sentence_t5(tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    theirs = stored(tmp_path / "theirs", *CASES["v1.1"].folder(tmp_path / "e", "EncoderModel"))
    expected = st.SentenceTransformer(os.fspath(theirs), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(Encoder.load(theirs).encode(TEXTS), expected, rtol=0, atol=2e-5)
    module, given = huggingface.load(theirs)
    assert module.config.backbone.feed_forward == "gated-gelu"
    ours = huggingface.save(tmp_path / "ours", module, given, tokenizer=theirs, max_length=32)
    for place in (".", "2_Dense"):
        before, after = (weights.read_folder(folder / place) for folder in (theirs, ours))
        assert before.keys() == after.keys()
        assert all(after[name].tobytes() == tensor.tobytes() for name, tensor in before.items())
    again = st.SentenceTransformer(os.fspath(ours), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(again, expected, rtol=0, atol=1e-6)


def test_what_is_refused(tmp_path: Path) -> None:
    for part in ("mlm_head", "pooler"):
        with pytest.raises(UserError, match=r"a T5 encoder has neither a \[MASK\] token nor"):
            CONFIG.with_parts(part)
    objective = Mlm(T5Encoder(CONFIG), Masking(0.3), VOCABULARY)
    with pytest.raises(UserError, match="predicts no masked words"):
        objective.init(jax.random.key(0))
    with pytest.raises(UserError, match="T5 encoder has no mlm_head"):
        folder, _ = CASES["v1.0"].folder(tmp_path, "EncoderModel")
        huggingface.load(folder, options=backbones.Options(mlm_head=True))
    with pytest.raises(UserError, match="feed_forward='gated-silu'"):
        dataclasses.replace(CONFIG, feed_forward="gated-silu")
    with pytest.raises(UserError, match="600 tokens do not fit"):
        module = T5Encoder(CONFIG)
        params = backbones.new_parameters(module)
        module.apply({"params": params}, np.ones((1, 600), np.int32))
