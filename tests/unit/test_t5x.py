"""T5X's checkpoints as generators and encoders, from folders in its two layouts."""

from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import tensorstore
import toy_generation
from flax import serialization, traverse_util

from qac_jax.errors import UserError
from qac_jax.hub import backbones, huggingface
from qac_jax.inference.encoder import Encoder
from qac_jax.inference.generator import Generator, Request
from qac_jax.inference.settings import EncoderOptions
from qac_jax.models.decoding.settings import Decoding
from qac_jax.models.t5 import T5, T5Config, T5EncoderConfig


def names_of_t5x(params: Any, gated: bool) -> dict[str, np.ndarray]:
    """The parameters as T5X's minimal T5 names them (t5x/examples/t5/network.py)."""
    found = {}
    for path, array in traverse_util.flatten_dict(params, sep=".").items():
        stack = path.partition(".")[0]
        own = "self_attention" if stack == "decoder" else "attention"
        turned = path.endswith((".relative_bias.embedding", "lm_head.embedding"))
        for ours, theirs in (
            *(("shared", "token_embedder"), ("lm_head.embedding", "decoder.logits_dense.kernel")),
            *(("relative_bias.", "relpos_bias.rel_"), (f"{stack}.norm", f"{stack}.{stack}_norm")),
            *((".layers.", ".layers_"), (".attention_norm", f".pre_{own}_layer_norm")),
            *((".cross_attention_norm", ".pre_cross_attention_layer_norm"), (".down.", ".wo.")),
            *((".mlp_norm", ".pre_mlp_layer_norm"), (".attention.", f".{own}.")),
            *((".cross_attention.", ".encoder_decoder_attention."), (".output.", ".out.")),
            *((".gate.", ".wi_0."), (".up.", ".wi_1." if gated else ".wi.")),
        ):
            path = path.replace(ours, theirs)
        found[path] = np.asarray(array.T if turned else array)
    return found


def write(folder: Path, arrays: dict[str, np.ndarray], layout: str) -> Path:
    """A checkpoint as T5X's Checkpointer writes it: arrays in the msgpack, or in TensorStore."""
    target: dict[str, Any] = dict(arrays)
    for name, array in arrays.items() if layout == "zarr" else ():
        kept = {"driver": "file", "path": f"target.{name}"}
        meta = {"shape": list(array.shape), "compressor": {"id": "gzip"}}
        spec = {"driver": "zarr", "dtype": array.dtype.name, "kvstore": kept, "metadata": meta}
        target[name] = spec
        there = {**spec, "kvstore": {**kept, "path": str(folder / f"target.{name}")}}
        tensorstore.open(there, create=True).result().write(array).result()
    folder.mkdir(exist_ok=True)
    tree = traverse_util.unflatten_dict(target, sep=".")
    state = {"version": 3, "optimizer": {"target": tree, "state": {"step": 1000}}}
    (folder / "checkpoint").write_bytes(serialization.to_bytes(state))
    return folder


@pytest.mark.parametrize("layout", ["msgpack", "zarr"])
def test_generates_and_encodes_like_the_same_model(layout: str, tmp_path: Path) -> None:
    _, params = toy_generation.model()
    ours = toy_generation.save_generator(tmp_path / "ours")
    theirs = write(tmp_path / "checkpoint_1000", names_of_t5x(params, False), layout)
    for file in ("tokenizer.json", "config.json"):  # which has this T5's own [CLS] and distances
        (theirs / file).write_bytes((ours / file).read_bytes())
    folders = (ours, theirs)
    (module, loaded), (same, variables) = map(huggingface.load, folders)
    assert module == same
    jax.tree.map(np.testing.assert_array_equal, loaded, variables)
    asked = [Request("a", "copper is a metal"), Request("b", "how do plants grow")]
    writers = [Generator.load(folder, Decoding(max_tokens=6)) for folder in folders]
    assert writers[0].generate(asked) == writers[1].generate(asked)
    texts = [request.text for request in asked]
    encoders = [Encoder.load(folder, EncoderOptions(pooling="mean")) for folder in folders]
    assert isinstance(encoders[1].module.config.backbone, T5EncoderConfig)
    first, second = (encoder.encode(texts) for encoder in encoders)
    np.testing.assert_array_equal(first, second)
    assert np.isfinite(first).all() and np.ptp(first) > 0


def test_shape_follows_from_arrays(tmp_path: Path) -> None:
    """A T5 v1.1 in bfloat16 without a config.json; and its encoder alone."""
    shape: dict[str, Any] = {"vocab_size": 40, "d_model": 12, "d_kv": 4, "d_ff": 20}
    shape |= {"num_layers": 2, "num_decoder_layers": 1, "num_heads": 3, "num_buckets": 16}
    module = T5(T5Config(**shape, feed_forward="gated-gelu", tied=False, scaled=False))
    params = backbones.new_parameters(module, 1)
    arrays = names_of_t5x(params, True)
    halved = {name: array.astype(ml_dtypes.bfloat16) for name, array in arrays.items()}
    loaded, variables = huggingface.load(write(tmp_path / "whole", halved, "zarr"))
    assert loaded == module
    rounded = jax.tree.map(lambda a: np.asarray(a).astype(ml_dtypes.bfloat16), params)
    jax.tree.map(np.testing.assert_array_equal, rounded, variables["params"])
    own = {name: array for name, array in arrays.items() if not name.startswith("decoder")}
    alone = huggingface.load(write(tmp_path / "encoder", own, "msgpack"))[0]
    assert isinstance(alone.config, T5EncoderConfig) and alone.config.num_layers == 2
    with pytest.raises(UserError, match="not the checkpoint of T5X's"):
        huggingface.load(write(tmp_path / "other", {"cls.kernel": np.ones((2, 2))}, "msgpack"))
