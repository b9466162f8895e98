"""The bridge to Hugging Face folders: models, pre-training heads and dual encoders, both ways.

    module, variables = huggingface.load("path/to/bert-base-uncased")
    huggingface.save("out/model", module, variables, tokenizer="path/to/bert-base-uncased")

What is saved, transformers and sentence-transformers load with the same results.
"""

import contextlib
import dataclasses
import itertools
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import flax.linen as nn
import jax

from qac_jax import artifacts
from qac_jax.errors import UserError, nearest
from qac_jax.hub import (
    backbones,
    names,
    parameters,
    sentence_transformers,
    shared_encoder,
    t5x,
    weights,
)
from qac_jax.hub.backbones import DEFAULT, Loaded, Options
from qac_jax.hub.head_files import FILE, save_heads
from qac_jax.hub.head_files import load_heads as load_heads
from qac_jax.hub.names import TOKENIZER_FILES
from qac_jax.models import backbone
from qac_jax.models.backbone import Backbone
from qac_jax.models.encoders import SIDES, CrossEncoder, DualEncoder, DualEncoderConfig, backbone_of
from qac_jax.models.heads import POOLINGS
from qac_jax.models.layers import Runtime
from qac_jax.models.t5 import T5
from qac_jax.text.tokenizers import lowercases


Texts = TypeVar("Texts")
Place = str | os.PathLike[str]

# The kind of artefact that is a Hugging Face folder as well (`qac export`).
EXPORTED = "model"
DTYPES = ("float32", "float16")


def load(
    place: Place,
    runtime: Runtime | None = None,
    options: Options = DEFAULT,
    *,
    pooling: str | None = None,
) -> Loaded:
    """(module, variables) of a folder, by what its files say.

    An encoder (BERT, ERNIE, Contriever …) gives a Backbone, a sequence classifier a CrossEncoder,
    a T5 (T5X's checkpoint, too) a T5, an artefact of ours what was trained, a sentence-transformers
    or DPR folder a DualEncoder, as do two of them, or of encoders whose vectors `pooling` makes,
    in `query` and `passage`. Heads beside it: `load_heads`.
    With `Options(mlm_head=True, allow_missing=("cls.*",))` a BERT without that part gets a new one.
    """
    folder = names.folder(place)
    with weights.sound(folder):
        return _load(folder, options.on(runtime), pooling)


def _load(folder: Path, options: Options, pooling: str | None) -> Loaded:
    if artifacts.peek(folder) is not None:
        artifact = artifacts.load(folder, (parameters.KIND, EXPORTED))
        if artifact.kind == parameters.KIND:
            return parameters.load(artifact, options.runtime)
    if t5x.is_folder(folder):
        return t5x.load(folder, options)
    if sentence_transformers.is_folder(folder):
        return sentence_transformers.load(folder, options)
    if all((folder / side).is_dir() for side in SIDES):
        sides = folder / "query", folder / "passage"
        return load_dual_encoder(*sides, options=options, pooling=pooling)
    return backbones.load(folder, options)


def is_cross_encoder(place: Place) -> bool:
    """Whether `load` gives a CrossEncoder, by what describes the model, without its weights."""
    folder = names.folder(place, names.TOKENIZER)
    module, config = folder / parameters.MODULE, folder / "config.json"
    if module.is_file():
        return bool(weights.read_json(module)["class"] == CrossEncoder.__name__)
    return config.is_file() and backbones.is_cross_encoder(weights.read_json(config))


def load_dual_encoder(
    query: Place,
    passage: Place | None = None,
    runtime: Runtime | None = None,
    options: Options = DEFAULT,
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
) -> Loaded:
    """A DualEncoder from any encoder's folder, or from two (`passage`: another one's).

    A sentence-transformers folder says how it makes vectors, and so does a DPR; a bare encoder does
    not, so that `pooling` must say it. pooling and normalize replace what a folder says.
    """
    loaded = [
        as_dual_encoder(load(place, runtime, options, pooling=pooling), place, pooling, normalize)
        for place in (query, passage)
        if place is not None
    ]
    return loaded[0] if len(loaded) == 1 else sentence_transformers.pair(*loaded)


def as_dual_encoder(
    loaded: Loaded, place: Place, pooling: str | None = None, normalize: bool | None = None
) -> Loaded:
    """A loaded encoder, or that of a T5, as a DualEncoder; `place` is only spoken of."""
    module, variables = loaded
    if isinstance(module, Backbone | T5):
        if pooling is None:
            raise UserError(
                f"{place} does not say how it makes a vector of a text; give --pooling mean, or "
                f"another of {', '.join(POOLINGS)}; for a verb without --pooling, "
                f"`qac export --model {place} --pooling mean --out DIR` makes a folder that says it"
            )
        inside = backbone_of(module, variables["params"])
        assert inside is not None
        config = DualEncoderConfig(inside[0], pooling=pooling, normalize=bool(normalize))
        params = {"encoder": {"backbone": inside[1]}}
        return DualEncoder(config, module.runtime), {"params": params}
    if not isinstance(module, DualEncoder):
        raise UserError(f"{place} is a {type(module).__name__}, not an encoder of texts")
    config = dataclasses.replace(
        module.config,
        pooling=pooling or module.config.pooling,
        normalize=module.config.normalize if normalize is None else normalize,
    )
    return DualEncoder(config, module.runtime), variables


def texts_read_by(place: str | os.PathLike[str], texts: Texts) -> Texts:
    """Settings of texts with a retriever's title and prompts; of a bare encoder as they are."""
    module, _ = load(place)
    if not isinstance(module, DualEncoder):
        return texts
    config = module.config
    if config.title == "segments":
        raise UserError(
            f"{place} reads titles with token types of their own; tokenize without --like, and "
            "train with title_types=True"
        )
    read = {name: getattr(config, name) for name in ("title", "query_prompt", "passage_prompt")}
    return dataclasses.replace(texts, **read)  # type: ignore[type-var]


def save(
    folder: Place,
    module: nn.Module,
    variables: Mapping,
    *,
    tokenizer: Place | None = None,
    max_length: int | None = None,
    heads: Mapping[str, Loaded] | None = None,
    dtype: str = "float32",
    encoder: str = "",
) -> Path:
    """Writes a model folder that transformers loads, whole or not at all.

    tokenizer: a folder whose tokenizer files are copied. max_length: where sentence-transformers
    is to cut texts (DualEncoder). heads: written beside the model. dtype "float16" halves the
    files, whose loaders compute in float32 all the same. encoder: a pointer-generator's is left
    out, as it is that of this model that ships.
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype={dtype!r} is not known; {nearest(dtype, DTYPES)}")
    sources = [] if tokenizer is None else _tokenizer_files(names.folder(tokenizer))
    lowercase = bool(sources) and lowercases(sources[0].parent)
    params = backbones.loop_params(variables)
    if dtype == "float16":
        params = jax.tree.map(weights.halved, params)
    with _new_folder(Path(folder)) as path:
        towers = {"encoder": path}
        if isinstance(module, DualEncoder):
            config = module.config
            if not config.tied:
                towers = {side: path / side for side in SIDES}
                sentence_transformers.save_router(path, config)
            for name, place in towers.items():
                place.mkdir(exist_ok=True)
                tower = params[name]
                sentence_transformers.save_tied(place, config, tower, max_length, lowercase)
        elif isinstance(module, CrossEncoder):
            backbones.save_cross_encoder(path, module, params)
        else:
            _save_backbone(path, module, params, encoder)
        for file, place in itertools.product(sources, towers.values()):
            names.refuse_foreign_link(file)
            shutil.copyfile(file, place / file.name)
        if heads:
            save_heads(path / FILE, heads)
    return Path(folder)


def _save_backbone(path: Path, module: nn.Module, params: Mapping, encoder: str) -> None:
    config = backbone.of_module(module)
    if config is None:
        raise UserError(f"a {type(module).__name__} has no Hugging Face form")
    tensors, raw = weights.tensors_of(backbones.saved_table(config), params), config.to_hf()
    if encoder:
        tensors, said = shared_encoder.without(tensors, encoder)
        raw |= said
    weights.write_file(path / weights.SAFETENSORS, tensors)
    for name, content in {"config.json": raw, **config.hf_files()}.items():
        weights.write_json(path / name, content)


def _tokenizer_files(folder: Path) -> list[Path]:
    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not files:
        raise UserError(f"{folder} has no tokenizer; expected one of {', '.join(TOKENIZER_FILES)}")
    return files


@contextlib.contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """A folder beside the target that takes its place when all went well."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists and is not empty; choose another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
