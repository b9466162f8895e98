"""One Hugging Face model folder (config.json and weights) to a module and its parameters.

Which parts a model has is read from its weights, its shape from config.json. Every tensor must
find its place and every parameter its tensor, except for those that are allowed by name.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from qac_jax import progress
from qac_jax.errors import UserError
from qac_jax.hub import hf_config, name_maps, weights
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.models.heads import BidirectionalHead, CausalDecoder
from qac_jax.models.layers import Runtime
from qac_jax.models.t5 import T5


Loaded = tuple[nn.Module, dict[str, Any]]

# Buffers and leftovers that carry no knowledge: they are passed over without a word.
_BUFFERS = ("*position_ids", "*token_type_ids", "*.attn.bias", "*.attn.masked_bias", "*co_target")
# Parts of known checkpoints that no module here has; they are passed over with a word. Heads are
# what `huggingface.load_heads` reads.
_KNOWN = (
    "*cls.seq_relationship.*",
    "*c_head.*",
    "*d_head.*",
    "*d_head_ln_f.*",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
)
_WORDS = "embeddings.word_embeddings.weight"
# In config.json of a cross-encoder: it was trained on queries behind a first ranking's score.
READS_SCORES = "qac_reads_scores"


@dataclasses.dataclass(frozen=True)
class Options:
    """How a folder is read.

    pooler, mlm_head: whether a BERT has that part (None: if its weights do). prefix: which
    encoder, where a file holds several. allow_unused, allow_missing: names (shell patterns) of
    tensors that may go unused, or may be missing: then they start as in a new model, from `seed`.
    """

    runtime: Runtime = Runtime()
    pooler: bool | None = None
    mlm_head: bool | None = None
    prefix: str | None = None
    allow_unused: tuple[str, ...] = ()
    allow_missing: tuple[str, ...] = ()
    seed: int = 0


class BertFiles(NamedTuple):
    """A BERT's folder: its shape, its tensors, and which of them is which parameter."""

    raw: dict[str, Any]
    config: BertConfig
    table: name_maps.Table
    tensors: dict[str, np.ndarray]
    encoder: str  # what the names of the encoder begin with
    model: str  # what the names of heads begin with


def load(folder: Path, options: Options) -> Loaded:
    """The module that config.json names: Bert, CrossEncoder, T5, or a DPR's DualEncoder."""
    raw = hf_config.read_json(folder / "config.json")
    if hf_config.family(raw, folder) == "t5":
        return _load_t5(folder, raw, options)
    if hf_config.architecture(raw).endswith("ForSequenceClassification"):
        return _load_cross_encoder(folder, options)
    if raw["model_type"] == "dpr":
        return _load_dpr(folder, options)
    files = read_bert(folder, options)
    module = Bert(files.config, options.runtime)
    return module, fit(folder, module, files.table, files.tensors, options)


def read_bert(folder: Path, options: Options) -> BertFiles:
    """A folder whose model is a BERT, or has one inside."""
    raw = hf_config.read_json(folder / "config.json")
    if hf_config.family(raw, folder) != "bert":
        raise UserError(
            f"{folder} holds a {raw['model_type']!r} model; expected a BERT, which is what "
            "encoders are made of here"
        )
    tensors = _usual_names(weights.read_folder(folder))
    encoder = _encoder_prefix(folder, tensors, options.prefix)
    model = encoder.removesuffix("bert.").removesuffix("ernie.")
    has = {
        "pooler": f"{encoder}pooler.dense.weight" in tensors,
        "mlm_head": f"{model}cls.predictions.transform.dense.weight" in tensors,
    }
    for part, names in (("pooler", f"{encoder}pooler."), ("mlm_head", f"{model}cls.")):
        wanted = getattr(options, part)
        if wanted is False:
            tensors = {n: t for n, t in tensors.items() if not n.startswith(names)}
        has[part] = has[part] if wanted is None else wanted
    copies = {
        f"{model}cls.predictions.decoder.weight": f"{encoder}{_WORDS}",
        f"{model}cls.predictions.decoder.bias": f"{model}cls.predictions.bias",
    }
    _drop_copies(folder, tensors, copies)
    config = hf_config.bert_config(raw, **has)
    table = name_maps.bert(config, encoder, model)
    return BertFiles(raw, config, table, tensors, encoder, model)


def _usual_names(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """LayerNorm's parameters were called gamma and beta once."""
    renamed = {}
    for name, tensor in tensors.items():
        if name.endswith("LayerNorm.gamma"):
            name = name.removesuffix("gamma") + "weight"
        elif name.endswith("LayerNorm.beta"):
            name = name.removesuffix("beta") + "bias"
        renamed[name] = tensor
    return renamed


def _encoder_prefix(folder: Path, tensors: Mapping[str, Any], prefix: str | None) -> str:
    """What the names of the encoder begin with: "", "bert.", "ernie.", "lm.bert." …"""
    found = sorted(name.removesuffix(_WORDS) for name in tensors if name.endswith(_WORDS))
    if prefix is not None and prefix in found:
        return prefix
    if len(found) == 1 and prefix is None:
        return found[0]
    if not found:
        raise UserError(f"the weights of {folder} hold no BERT: no name ends in {_WORDS}")
    listed = ", ".join(repr(p) for p in found)
    if prefix is None:
        raise UserError(f"{folder} holds several encoders, with prefixes {listed}; pass prefix=")
    raise UserError(f"prefix={prefix!r} is not in the weights of {folder}, which have {listed}")


def _drop_copies(folder: Path, tensors: dict[str, np.ndarray], copies: Mapping[str, str]) -> None:
    """Removes tensors that repeat others (tied weights), if they do."""
    for name, original in copies.items():
        if name not in tensors:
            continue
        if original in tensors and not np.array_equal(tensors[name], tensors[original]):
            raise UserError(
                f"{name} of {folder} differs from {original}, but here they are one parameter; "
                "untied output embeddings of a BERT are not supported"
            )
        tensors.setdefault(original, tensors[name])
        del tensors[name]


def _load_cross_encoder(folder: Path, options: Options) -> Loaded:
    files = read_bert(folder, dataclasses.replace(options, pooler=True, mlm_head=False))
    bias = files.tensors.get(f"{files.model}classifier.bias")
    labels = len(files.raw.get("id2label") or "01") if bias is None else len(bias)
    rate = files.raw.get("classifier_dropout")
    scores = bool(files.raw.get(READS_SCORES))
    module = CrossEncoder(files.config, options.runtime, labels, rate, scores)
    table = name_maps.cross_encoder(files.config, files.encoder, files.model)
    return module, fit(folder, module, table, files.tensors, options)


def _load_dpr(folder: Path, options: Options) -> Loaded:
    """One side of a DPR: the [CLS] vector, projected where projection_dim says so."""
    # Old DPR files hold a pooler that the model never used.
    files = read_bert(folder, dataclasses.replace(options, pooler=False, mlm_head=False))
    width = files.raw.get("projection_dim") or None
    module = DualEncoder(DualEncoderConfig(files.config, projection=width), options.runtime)
    table = name_maps.under("encoder/bert", files.table)
    if width:
        name = f"{files.encoder.removesuffix('bert_model.')}encode_proj"
        table |= name_maps.dense("encoder/projection", name)
    return module, fit(folder, module, table, files.tensors, options)


def _load_t5(folder: Path, raw: dict[str, Any], options: Options) -> Loaded:
    tensors = weights.read_folder(folder)
    shared, copies = "shared.weight", ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    _drop_copies(folder, tensors, dict.fromkeys(copies, shared))
    head = tensors.get("lm_head.weight")
    tied = head is None or (shared in tensors and np.array_equal(head, tensors[shared]))
    if tied:
        tensors.pop("lm_head.weight", None)
    config = hf_config.t5_config(raw, tied=tied)
    module = T5(config, options.runtime)
    return module, fit(folder, module, name_maps.t5(config), tensors, options)


def bert_table(config: BertConfig) -> name_maps.Table:
    """The names under which a BERT is saved: Hugging Face's, with the MLM head or without."""
    return name_maps.bert(config, encoder="bert." if config.mlm_head else "")


def fit(
    source: Path,
    module: nn.Module,
    table: name_maps.Table,
    tensors: Mapping[str, np.ndarray],
    options: Options,
) -> dict[str, Any]:
    """The module's variables from the tensors, after checking that nothing is left over."""
    expected = name_maps.names(table)
    missing = expected - tensors.keys()
    _account(source, "lack", missing, options.allow_missing, "allow_missing")
    extra = {n for n in tensors.keys() - expected if not _matches(n, _BUFFERS)}
    _account(source, "hold", extra, (*options.allow_unused, *_KNOWN), "allow_unused")
    present = {path: slot for path, slot in table.items() if slot.name not in missing}
    params = traverse_util.flatten_dict(name_maps.read(present, tensors), sep="/")
    # Shapes and new parameters come from the loop form, which tables speak of.
    plain = module.clone(runtime=Runtime())
    shapes = traverse_util.flatten_dict(new_parameters(plain, abstract=True), sep="/")
    for path, array in params.items():
        if array.shape != shapes[path].shape:
            raise UserError(
                f"{table[path].name} of {source} has shape {tensors[table[path].name].shape}, "
                f"which does not fit config.json (parameter {path}: expected "
                f"{shapes[path].shape}, found {array.shape})"
            )
    if missing:
        drawn = traverse_util.flatten_dict(new_parameters(plain, options.seed), sep="/")
        params |= {path: drawn[path] for path in table.keys() - params.keys()}
    return variables(traverse_util.unflatten_dict(params, sep="/"), module)


def variables(params: Any, module: nn.Module) -> dict[str, Any]:
    """{"params": …} on the device, in the form (loop or scan) that the module wants."""
    tree = name_maps.scanned(params) if module.runtime.scan else params
    return {"params": jax.tree.map(jnp.asarray, tree)}


def loop_params(variables: Mapping[str, Any]) -> Any:
    """The parameters of variables on the host, layers as a loop, without names of axes."""
    return name_maps.looped(_unbox(variables["params"]))


def _unbox(tree: Any) -> Any:
    """Values without names of axes; unlike Flax's unbox it constrains nothing under a mesh."""

    def boxed(x: Any) -> bool:
        return isinstance(x, nn.Partitioned)

    return jax.tree.map(lambda x: x.value if boxed(x) else x, tree, is_leaf=boxed)


def new_parameters(module: nn.Module, seed: int = 0, *, abstract: bool = False) -> Any:
    """A module's parameters as a new model has them, without names of axes."""
    ids, lengths = jnp.zeros((1, 2), jnp.int32), jnp.ones((1,), jnp.int32)
    inputs: tuple[jax.Array, ...] = (ids, lengths)
    if isinstance(module, T5):
        inputs = (ids, lengths, ids)
    elif isinstance(module, BidirectionalHead | CausalDecoder):
        width = module.config.hidden_size
        inputs = (jnp.zeros((1, width)), jnp.zeros((1, 2, width)))
    init = partial(jax.eval_shape, module.init) if abstract else jax.jit(module.init)
    return _unbox(init(jax.random.key(seed), *inputs)["params"])


def _account(source: Path, verb: str, odd: set[str], allowed: Iterable[str], option: str) -> None:
    """Refuses odd names that are not allowed, and tells of those that are."""
    refused = sorted(name for name in odd if not _matches(name, allowed))
    if refused:
        listed = ", ".join(refused[:8]) + (f" and {len(refused) - 8} more" * (len(refused) > 8))
        expected = "that no parameter takes" if verb == "hold" else "that the model needs"
        count = f"{len(refused)} tensor" + "s" * (len(refused) > 1)
        raise UserError(
            f"the weights of {source} {verb} {count} {expected}: {listed}; "
            f"name them (patterns such as 'cls.*') in {option} if that is intended"
        )
    if odd:
        word = "not used" if verb == "hold" else "missing, started anew"
        progress.say(f"{source}: {word}: {', '.join(_roots(odd))}")


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _roots(odd: set[str]) -> list[str]:
    """The first two parts of names, once each: enough to tell what they belong to."""
    return sorted({".".join(name.split(".")[:2]) for name in odd})
