"""T5X's checkpoints (Roberts et al., 2022) of its minimal T5, whose shape follows from the arrays.

A folder has the file `checkpoint` (msgpack: the parameters, or where they are) and for each array
that is not in it a folder such as `target.encoder.layers_0.mlp.wo.kernel`, TensorStore's zarr.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
from flax import serialization, traverse_util

from qac_jax.errors import UserError
from qac_jax.hub import backbones, parameters, weights
from qac_jax.hub.backbones import Loaded, Options
from qac_jax.models.t5 import T5Config, encoder_of


_TARGET = "target."
# T5X's names -> ours, one after the other.
_NAMES = (
    (r"token_embedder", "shared"),
    (r"decoder\.logits_dense\.kernel", "lm_head/embedding"),
    (r"relpos_bias\.rel_embedding", "relative_bias/embedding"),
    (r"(en|de)coder_norm", "norm"),
    (r"layers_(\d+)", r"layers/\1"),
    (r"pre_(?:self_)?(attention|cross_attention|mlp)_layer_norm", r"\1_norm"),
    (r"encoder_decoder_attention", "cross_attention"),
    (r"self_attention", "attention"),
    (r"\bout\b", "output"),
    (r"\bwi_0\b", "gate"),
    (r"\bwi(_1)?\b", "up"),
    (r"\bwo\b", "down"),
    (r"\.", "/"),
)
_TURNED = ("lm_head/embedding", "relative_bias/embedding")  # stored the other way around


def is_folder(folder: Path) -> bool:
    return (folder / "checkpoint").is_file() or any(folder.glob(f"{_TARGET}*/.zarray"))


def load(folder: Path, options: Options) -> Loaded:
    """A T5, or the encoder of one without a decoder. What arrays do not tell is as in T5X, or as a
    config.json beside them says."""
    arrays = {_ours(name): array.astype(np.float32) for name, array in _arrays(folder).items()}
    arrays = {n: array.T if n.endswith(_TURNED) else array for n, array in arrays.items()}
    config = _config(folder, arrays)
    if (file := folder / "config.json").is_file():
        config = dataclasses.replace(config, **T5Config.taken(weights.read_json(file)))
    params = traverse_util.unflatten_dict(arrays, sep="/")
    table, whole = config.table(), "decoder" in params
    if not whole:
        table = {path: slot for path, slot in table.items() if not path.startswith("decoder/")}
    tensors = weights.tensors_of(table, params)
    kept = config if whole else encoder_of(config, params)[0]
    module = kept.build(options.runtime)
    return module, backbones.fit(folder, module, kept.table(), tensors, options)


def _ours(name: str) -> str:
    for theirs, ours in _NAMES:
        name = re.sub(theirs, ours, name)
    return name


def _arrays(folder: Path) -> dict[str, np.ndarray]:
    """The parameters of a checkpoint by T5X's names, joined by dots."""
    found: dict[str, np.ndarray] = {}
    if (file := folder / "checkpoint").is_file():
        state = serialization.msgpack_restore(file.read_bytes())
        flat = traverse_util.flatten_dict(state.get("optimizer", state)["target"], sep=".")
        found = {name: value for name, value in flat.items() if isinstance(value, np.ndarray)}
    kept = {
        mark.parent.name.removeprefix(_TARGET): {"driver": "file", "path": str(mark.parent)}
        for mark in folder.absolute().glob(f"{_TARGET}*/.zarray")
    }
    return found | parameters.read_zarr(folder, kept)


def _config(folder: Path, arrays: dict[str, np.ndarray]) -> T5Config:
    def layers(stack: str) -> int:
        return sum(bool(re.fullmatch(rf"{stack}/layers/\d+/mlp_norm/scale", n)) for n in arrays)

    first, tied = "encoder/layers/0", "lm_head/embedding" not in arrays
    try:
        buckets, heads = arrays["encoder/relative_bias/embedding"].shape
        sizes: dict[str, Any] = {
            "d_kv": arrays[f"{first}/attention/query/kernel"].shape[1] // heads,
            "d_ff": arrays[f"{first}/mlp/up/kernel"].shape[1],
        }
        sizes["vocab_size"], sizes["d_model"] = arrays["shared/embedding"].shape
    except (KeyError, ValueError):
        raise UserError(
            f"{folder} is not the checkpoint of T5X's minimal T5, in which every layer has arrays "
            "of its own; export the model to Hugging Face's form"
        ) from None
    return T5Config(
        **sizes,
        num_layers=layers("encoder"),
        num_decoder_layers=layers("decoder") or 1,
        num_heads=heads,
        num_buckets=buckets,
        feed_forward="gated-gelu" if f"{first}/mlp/gate/kernel" in arrays else "relu",
        tied=tied,
        scaled=tied,
    )
