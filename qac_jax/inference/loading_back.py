"""Compares the outputs of an exported model folder with those of the model itself.

The folder is loaded by qac_jax, and by the library it was exported for where that is installed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from qac_jax.data.form import Form, form_of, prompt_tokens
from qac_jax.errors import UserError
from qac_jax.hub import dpr, huggingface
from qac_jax.inference.tokenizer import tokenizer_of
from qac_jax.models.backbone import Backbone
from qac_jax.models.encoders import SIDES, CrossEncoder, DualEncoder
from qac_jax.models.pointer import PointerGenerator
from qac_jax.text.tokenizers import Tokenizer


TEXTS = (
    "How do plants turn sunlight into sugar?",
    "Photosynthesis",
    "Chlorophyll absorbs light, mostly blue and red, and its energy splits water: "
    + "the oxygen escapes, the hydrogen helps to bind carbon. " * 8,
    "naïve café №5: 1,234.5 km²",
)
# As a share of the model's largest output value. A wrong weight differs by a multiple of this.
TOLERANCES = {"float32": 2e-3, "float16": 5e-2}

_LONGEST = 64
Outputs = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Difference:
    """The greatest absolute difference, and the largest value of the expected outputs."""

    by: str
    greatest: float
    largest: float


def differences(
    folder: Path, module: nn.Module, variables: Mapping[str, Any], tokenizer: Tokenizer, peers: bool
) -> list[Difference]:
    """The differences between the folder's model and `module`, for each library that loads it."""
    with jax.default_matmul_precision("highest"):
        expected = _outputs(module, variables, tokenizer)
        own, loaded = huggingface.load(folder, module.runtime)
        by_library = {"qac_jax": _outputs(own, loaded, tokenizer_of(folder))}
    if peers:
        by_library |= _peers(folder, module, tokenizer)
    return [_difference(by, expected, outputs) for by, outputs in by_library.items()]


def check(compared: list[Difference], dtype: str) -> None:
    """Raises UserError for a folder whose outputs differ by more than the tolerance."""
    for difference in compared:
        # Not written with ">", so that a NaN does not pass.
        if not difference.greatest <= TOLERANCES[dtype] * difference.largest:
            raise UserError(
                f"loaded back by {difference.by}, the exported model differs by up to "
                f"{difference.greatest:.3g} where values reach {difference.largest:.3g}; "
                + (
                    "keep --dtype float32"
                    if dtype != "float32"
                    else "the folder is not written; please report this model's configuration"
                )
            )


def _difference(by: str, expected_outputs: Outputs, outputs: Outputs) -> Difference:
    gaps, sizes = [], []
    for name, expected in expected_outputs.items():
        if outputs[name].shape != expected.shape:
            return Difference(by, float("inf"), float(np.abs(expected).max()))
        gaps.append(float(np.abs(outputs[name] - expected).max()))
        sizes.append(float(np.abs(expected).max()))
    return Difference(by, max(gaps), max(sizes))


def _outputs(module: Any, variables: Mapping[str, Any], tokenizer: Tokenizer) -> Outputs:
    """The model's outputs for the texts."""
    if isinstance(module, DualEncoder):
        # Vectors are compared, not scores: other libraries do not have a scale.
        module = module.clone(config=dataclasses.replace(module.config, scale=1.0))
        return {side: _vectors(module, variables, tokenizer, side) for side in SIDES}
    ids, lengths, types = _batch(module, tokenizer)
    real = np.arange(ids.shape[1]) < lengths[:, None]
    if isinstance(module, Backbone):
        states = jax.jit(lambda v, i, n: module.apply(v, i, n).last)(variables, ids, lengths)
        return {"states": np.where(real[..., None], np.asarray(states, np.float32), 0)}
    if isinstance(module, CrossEncoder):
        logits = jax.jit(module.apply)(variables, ids, lengths, types)
        return {"logits": np.asarray(logits, np.float32)}
    logits = jax.jit(module.apply)(variables, ids, lengths, ids[:, :8])
    return {"logits": np.asarray(logits, np.float32)}


def _vectors(module: Any, variables: Any, tokenizer: Tokenizer, side: str) -> np.ndarray:
    """The vectors of the texts by one side of a dual encoder, in one batch."""
    prompt = getattr(module.config, f"{side}_prompt")
    form = Form(**form_of(tokenizer), crop="right")
    limit = min(_LONGEST, module.config.backbone.max_length)
    most = limit - len(form.before) - len(form.after)
    encoded = tokenizer.encode_batch([prompt + text for text in TEXTS])
    ids, lengths = _padded([[*form.before, *e[:most], *form.after] for e in encoded], form.pad)
    skip = 0 if module.config.include_prompt else prompt_tokens(tokenizer, form, prompt)
    return np.asarray(_program(module, side, skip)(variables, ids, lengths), np.float32)


@functools.lru_cache(maxsize=8)
def _program(module: Any, side: str, skip: int) -> Any:
    """Compiled once, as the model and the loaded one have the same architecture."""
    return jax.jit(functools.partial(module.apply, side=side, skip=skip))


def _padded(rows: list[list[int]], pad: int) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(row) for row in rows], np.int32)
    ids = np.full((len(rows), lengths.max()), pad, np.int32)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    return ids, lengths


def _batch(module: Any, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids, lengths, token types) of the texts, or of pairs of them for a cross-encoder."""
    pairs = isinstance(module, CrossEncoder)
    encoded = [
        tokenizer.backend.encode(text, TEXTS[row - 1]) if pairs else tokenizer.backend.encode(text)
        for row, text in enumerate(TEXTS)
    ]
    limit = min(_LONGEST, _positions(module))
    # Plain truncation may lose the last special token, on both sides of the comparison.
    ids, lengths = _padded([encoding.ids[:limit] for encoding in encoded], tokenizer.pad_id)
    return ids, lengths, _padded([encoding.type_ids[:limit] for encoding in encoded], 0)[0]


def _positions(module: Any) -> int:
    return getattr(module.config, "max_length", _LONGEST)


def _peers(folder: Path, module: Any, tokenizer: Tokenizer) -> dict[str, Outputs]:
    """The outputs by the libraries that the folder is for, with their own tokenizers."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        return {}
    if isinstance(module, PointerGenerator):  # they have none
        return {}
    with _quiet():
        if isinstance(module, DualEncoder) and not dpr.is_pair(folder):
            if not importlib.util.find_spec("sentence_transformers"):
                return {}
            return {"sentence_transformers": _sentence_transformers(folder, module)}
        if isinstance(module, DualEncoder):
            return {"transformers": _dpr(folder, module)}
        return {"transformers": _transformers(folder, module, tokenizer)}


@contextlib.contextmanager
def _quiet() -> Any:
    """Without the progress bars and warnings of transformers."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()


def _sentence_transformers(folder: Path, module: DualEncoder) -> Outputs:
    import sentence_transformers

    theirs: Any = sentence_transformers.SentenceTransformer(os.fspath(folder), device="cpu")
    theirs.max_seq_length = min(_LONGEST, module.config.backbone.max_length)
    vectors = {}
    for side in SIDES:
        encode = theirs.encode_query if side == "query" else theirs.encode_document
        vectors[side] = np.asarray(encode(list(TEXTS), show_progress_bar=False), np.float32)
    return vectors


def _dpr(folder: Path, module: DualEncoder) -> Outputs:
    import torch
    import transformers

    vectors = {}
    limit = min(_LONGEST, module.config.backbone.max_length)
    for side, (cls, _) in dpr.CLASSES.items():
        place = folder / side
        theirs = getattr(transformers, cls).from_pretrained(place, dtype=torch.float32)
        read = transformers.AutoTokenizer.from_pretrained(place)
        batch = read(
            list(TEXTS), padding=True, truncation=True, max_length=limit, return_tensors="pt"
        )
        with torch.no_grad():
            vectors[side] = theirs.eval()(**batch).pooler_output.numpy()
    return vectors


def _transformers(folder: Path, module: Any, tokenizer: Tokenizer) -> Outputs:
    import torch
    import transformers

    ids, lengths, types = _batch(module, tokenizer)
    read = transformers.AutoTokenizer.from_pretrained(folder)
    pairs = isinstance(module, CrossEncoder)
    others = [TEXTS[row - 1] for row in range(len(TEXTS))]
    theirs_read = read(list(TEXTS), others) if pairs else read(list(TEXTS))
    for row, theirs_ids in enumerate(theirs_read["input_ids"]):
        if theirs_ids[: lengths[row]] != ids[row, : lengths[row]].tolist():
            raise UserError(
                f"transformers reads {TEXTS[row][:40]!r} as other tokens than we do; give the "
                "model a tokenizer folder that its AutoTokenizer knows"
            )
    mask = torch.tensor(np.arange(ids.shape[1]) < lengths[:, None]).long()
    inputs = {"input_ids": torch.tensor(ids).long(), "attention_mask": mask}
    auto: Any = transformers.AutoModel
    if isinstance(module, Backbone):  # AutoModel takes an encoder's model type for a whole T5
        kind = str(module.config.to_hf()["architectures"][0])
        auto = getattr(transformers, kind) if kind.endswith("EncoderModel") else auto
    if pairs:
        auto = transformers.AutoModelForSequenceClassification
        if module.config.token_types > 1:
            inputs["token_type_ids"] = torch.tensor(types).long()
    elif not isinstance(module, Backbone):
        auto = transformers.AutoModelForSeq2SeqLM
        inputs["decoder_input_ids"] = torch.tensor(ids[:, :8]).long()
    theirs = auto.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        outputs = theirs(**inputs)
    if isinstance(module, Backbone):
        return {"states": np.where(mask.numpy()[..., None], outputs.last_hidden_state.numpy(), 0)}
    return {"logits": outputs.logits.numpy()}
