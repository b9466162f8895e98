"""One Hugging Face model folder (config.json and weights): an encoder, a T5, a cross-encoder.

Which parts a model has is read from its weights, its shape from config.json. Every tensor must
find its place and every parameter its tensor, except for those that are allowed by name.
"""

import dataclasses
import fnmatch
import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from qac_jax import progress
from qac_jax.errors import UserError
from qac_jax.hub import shared_encoder, weights
from qac_jax.models.backbone import (
    PARTS,
    Architecture,
    BackboneConfig,
    Table,
    dense,
    model_types,
    reading,
    under,
)
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime


Loaded = tuple[nn.Module, dict[str, Any]]

# Buffers and leftovers that carry no knowledge: they are ignored without a word.
_BUFFERS = ("*position_ids", "*token_type_ids", "*.attn.bias", "*.attn.masked_bias", "*co_target")
# Pre-training heads, which `huggingface.load_heads` reads; they are ignored with a word.
_HEADS = ("*c_head.*", "*d_head.*", "*d_head_ln_f.*")


@dataclasses.dataclass(frozen=True)
class Options:
    """How a folder is read.

    pooler, mlm_head: whether an encoder has that part (None: if its weights do). allow_unused,
    allow_missing: names (shell patterns) of tensors that may go unused, or may be missing: then
    they start as in a new model, from `seed`.
    """

    runtime: Runtime = Runtime()
    pooler: bool | None = None
    mlm_head: bool | None = None
    allow_unused: tuple[str, ...] = ()
    allow_missing: tuple[str, ...] = ()
    seed: int = 0

    def on(self, runtime: Runtime | None) -> "Options":
        """The same with another runtime; None: with this one."""
        return self if runtime is None else dataclasses.replace(self, runtime=runtime)


DEFAULT = Options()
_OLD = {"gamma": "weight", "beta": "bias"}
Kind = TypeVar("Kind", bound=Architecture)


@dataclasses.dataclass(frozen=True)
class Files(Generic[Kind]):
    """A model folder: its configuration, its tensors, and which of them is which parameter."""

    folder: Path
    raw: dict[str, Any]
    config: Kind
    tensors: dict[str, np.ndarray]
    encoder: str  # what the names of the encoder begin with
    model: str  # what the names of the model around it begin with

    @property
    def table(self) -> Table:
        """The tensors of the network by itself."""
        return self.config.table(self.encoder, self.model)

    def fitted(self, module: nn.Module, table: Table, options: Options, **more: Any) -> Loaded:
        """A module, and its variables from the tensors, to which more may be added."""
        tensors, ignored = self.tensors | more, self.config.hf_ignored
        return module, fit(self.folder, module, table, tensors, options, ignored)


def load(folder: Path, options: Options) -> Loaded:
    """The network that config.json names: an encoder, a T5, a cross-encoder, a DPR …"""
    raw = weights.read_json(folder / "config.json")
    if is_cross_encoder(raw):
        return _load_cross_encoder(folder, options)
    if raw.get("model_type") == "dpr":
        return _load_dpr(folder, options)
    files = read(folder, options, Architecture)
    module, table = files.config.build(options.runtime), files.table
    more = shared_encoder.tensors(files.raw, folder, names(table))
    return files.fitted(module, table, options, **more)


def is_cross_encoder(raw: Mapping[str, Any]) -> bool:
    """Whether config.json is that of a sequence classifier."""
    return str((raw.get("architectures") or [""])[0]).endswith(_CLASS)


def names(table: Table) -> set[str]:
    return {slot.name for slot in table.values()}


def read_encoder(folder: Path, options: Options) -> Files[BackboneConfig]:
    """A folder whose model is an encoder, or has one inside."""
    return read(folder, options, BackboneConfig)


def read(folder: Path, options: Options, base: type[Kind]) -> Files[Kind]:
    """A folder of one of the architectures that are a `base`.

    Its configuration is that of config.json, with the optional parts whose tensors are there.
    """
    file = folder / "config.json"
    raw = weights.read_json(file)
    cls = architecture_of(raw, folder, base)
    parts = cls.hf_parts()
    asked = {part: getattr(options, part, None) for part in parts}
    if odd := [part for part in PARTS if getattr(options, part) and part not in asked]:
        raise UserError(f"{cls.display_name} has no {odd[0]}; leave {odd[0]}=True out")
    # LayerNorm's parameters were called gamma and beta once.
    usual = partial(re.sub, r"(?<=LayerNorm\.)(gamma|beta)$", lambda m: _OLD[m[1]])
    tensors = {usual(name): tensor for name, tensor in weights.read_folder(folder).items()}
    encoder = _encoder_prefix(folder, cls, tensors)
    model = next((encoder.removesuffix(b) for b in cls.hf_bases if encoder.endswith(b)), encoder)
    prefixes = {"encoder": encoder, "model": model}

    def beginnings(of: Iterable[str]) -> tuple[str, ...]:
        """The prefixes of these parts' tensors; parts may share some."""
        return tuple(name.format(**prefixes) for part in of for name in parts[part])

    unwanted = beginnings(part for part, wanted in asked.items() if wanted is False)
    with weights.sound(file):
        table = cls.from_hf(raw, **dict.fromkeys(asked, True)).table(encoder, model)
    copies = {n.format(**prefixes): of.format(**prefixes) for n, of in cls.hf_tied.items()}
    copies = {name: of for name, of in copies.items() if not name.startswith(unwanted)}
    _drop_copies(folder, tensors, copies, names(table))
    has = {
        part: cls.hf_has(part, raw, set(tensors), table) if wanted is None else wanted
        for part, wanted in asked.items()
    }
    own = beginnings(part for part in has if has[part])
    tensors = {n: t for n, t in tensors.items() if n.startswith(own) or not n.startswith(unwanted)}
    return Files(folder, raw, cls.from_hf(raw, **has), tensors, encoder, model)


def architecture_of(raw: dict[str, Any], folder: Path, base: type[Kind]) -> type[Kind]:
    """The architecture of a folder among those that are a `base`; others are refused by name."""
    if (found := reading(raw, base)) is not None:
        return found
    wanted = "an encoder" if base is BackboneConfig else "a model"
    wanted += f" of one of the types {', '.join(model_types(base))}"
    raise UserError(f"{folder} holds a {raw.get('model_type')!r} model; expected {wanted}")


def _encoder_prefix(folder: Path, cls: type[Architecture], tensors: Mapping[str, Any]) -> str:
    """The prefix of the encoder's tensors: "", "bert.", "ernie.", "lm.bert." …"""
    if not cls.hf_bases:
        return ""
    words = cls.hf_words
    prefixes = sorted(name.removesuffix(words) for name in tensors if name.endswith(words))
    if len(prefixes) != 1:
        several = ", ".join(map(repr, prefixes))
        none = f"no {cls.display_name}: no name ends in {words}"
        found = f"several encoders, with prefixes {several}; keep one" if prefixes else none
        raise UserError(f"the weights of {folder} hold {found}")
    return prefixes[0]


def _drop_copies(
    folder: Path, tensors: dict[str, np.ndarray], copies: Mapping[str, str], parameters: set[str]
) -> None:
    """Removes tensors that repeat others (tied weights), if they do."""
    for name, original in copies.items():
        if name not in tensors:
            continue
        same = original in tensors and np.array_equal(tensors[name], tensors[original])
        if name in parameters and not same:
            continue  # it may be a parameter of its own
        if original in tensors and not same:
            raise UserError(
                f"{name} of {folder} differs from {original}; untied output embeddings of this "
                "architecture are not supported"
            )
        tensors.setdefault(original, tensors.pop(name))


def saved_table(config: Architecture) -> Table:
    """The names under which a network is saved: those of transformers' class of the same parts."""
    inside = isinstance(config, BackboneConfig) and config.mlm_head
    return config.table(encoder=config.hf_base if inside else "")


def fit(
    source: Path,
    module: nn.Module,
    table: Table,
    tensors: Mapping[str, np.ndarray],
    options: Options,
    ignored: Iterable[str] = (),
) -> dict[str, Any]:
    """The module's variables from the tensors, after checking that nothing is left over.

    ignored: patterns of tensors that need not be used, beside those of the options.
    """
    expected = names(table)
    missing = expected - tensors.keys()
    _account(source, "lack", missing, options.allow_missing, "allow_missing")
    weights.check_finite({name: tensors[name] for name in expected - missing}, source)
    extra = {n for n in tensors.keys() - expected if not _matches(n, _BUFFERS)}
    _account(source, "hold", extra, (*options.allow_unused, *_HEADS, *ignored), "allow_unused")
    present = {path: slot for path, slot in table.items() if slot.name not in missing}
    params = traverse_util.flatten_dict(weights.parameters(present, tensors), sep="/")
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
    tree = weights.scanned(params) if module.runtime.scan else params
    return {"params": jax.tree.map(jnp.asarray, tree)}


def loop_params(variables: Mapping[str, Any]) -> Any:
    """The parameters of variables on the host, layers as a loop, without names of axes."""
    return weights.looped(_unbox(variables["params"]))


def _unbox(tree: Any) -> Any:
    """Values without names of axes; unlike Flax's unbox it constrains nothing under a mesh."""
    box = nn.Partitioned
    return jax.tree.map(
        lambda x: x.value if isinstance(x, box) else x, tree, is_leaf=lambda x: isinstance(x, box)
    )


def new_parameters(module: nn.Module, seed: int = 0, *, abstract: bool = False) -> Any:
    """A module's parameters as a new model has them, without names of axes."""
    init = partial(jax.eval_shape, module.init) if abstract else jax.jit(module.init)
    return _unbox(init(jax.random.key(seed), *module.example_inputs())["params"])


def _account(source: Path, verb: str, odd: set[str], allowed: Iterable[str], option: str) -> None:
    """Refuses odd names that are not allowed, and tells of those that are."""
    refused = sorted(name for name in odd if not _matches(name, allowed))
    if refused:
        count = f"{len(refused)} tensor" + "s" * (len(refused) > 1)
        raise UserError(
            f"the weights of {source} {verb} {count} unlike the model: "
            f"{', '.join(refused[:8])}; name them (as 'cls.*') in {option} if that is intended"
        )
    if odd:
        word = "not used" if verb == "hold" else "missing, started anew"
        # The first two parts of names tell what they belong to.
        roots = sorted({".".join(name.split(".")[:2]) for name in odd})
        progress.say(f"{source}: {word}: {', '.join(roots)}")


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


# Cross-encoders as transformers' sequence classifiers.

_CLASS = "ForSequenceClassification"
# In config.json: it was trained on queries behind a first ranking's score.
_READS_SCORES = "qac_reads_scores"


def _load_cross_encoder(folder: Path, options: Options) -> Loaded:
    options = dataclasses.replace(options, pooler=True, mlm_head=False)
    files = read_encoder(folder, options)
    config = files.config
    table = config.classifier_table(files.encoder, files.model)
    bias = files.tensors.get(table["classifier/bias"].name)
    labels = len(files.raw.get("id2label") or "01") if bias is None else len(bias)
    rate, scores = files.raw.get(config.hf_classifier_dropout), bool(files.raw.get(_READS_SCORES))
    module = CrossEncoder(config, options.runtime, labels, rate, scores)
    return files.fitted(module, table, options)


def save_cross_encoder(folder: Path, module: CrossEncoder, params: Mapping[str, Any]) -> None:
    config = module.config
    raw = config.to_hf(module.labels)
    rate = module.classifier_dropout
    if rate is not None or config.hf_classifier_dropout not in raw:
        raw[config.hf_classifier_dropout] = rate
    if module.reads_scores:
        raw[_READS_SCORES] = True
    table = config.classifier_table(encoder=config.hf_base)
    weights.write_file(folder / weights.SAFETENSORS, weights.tensors_of(table, params))
    weights.write_json(folder / "config.json", raw)


def _load_dpr(folder: Path, options: Options) -> Loaded:
    """An encoder of a DPR (DPRQuestionEncoder, DPRContextEncoder): the [CLS] vector, projected
    where projection_dim says so."""
    # Old files hold a pooler that the model never used.
    files = read_encoder(folder, dataclasses.replace(options, pooler=False, mlm_head=False))
    width = files.raw.get("projection_dim") or None
    module = DualEncoder(DualEncoderConfig(files.config, projection=width), options.runtime)
    table = under("encoder/backbone", files.table)
    if width:
        name = f"{files.encoder.removesuffix('bert_model.')}encode_proj"
        table |= dense("encoder/projection", name)
    return files.fitted(module, table, options)
