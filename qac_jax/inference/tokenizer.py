"""The tokenizer that belongs to a model."""

from __future__ import annotations

import os
from pathlib import Path

from qac_jax.errors import UserError
from qac_jax.hub import huggingface, parameters, sentence_transformers
from qac_jax.text import tokenizers
from qac_jax.text.tokenizers import Tokenizer


def tokenizer_of(folder: Path) -> Tokenizer:
    """The tokenizer of a model."""
    return tokenizers.load(os.path.normpath(tokenizer_folder(folder)))


def tokenizer_folder(folder: Path) -> Path:
    """Where a model's tokenizer is: in its folder, or in the sub-folder that its format uses."""
    usual = [folder / name for name in (parameters.TOKENIZER, ".", "0_Transformer", "passage")]
    if sentence_transformers.is_folder(folder):
        usual.append(sentence_transformers.transformer_folder(folder))
    for place in usual:
        if any((place / file).is_file() for file in huggingface.TOKENIZER_FILES):
            return place
    raise UserError(
        f"{folder} does not contain a tokenizer; copy {huggingface.TOKENIZER_FILES[0]} of the "
        "model into it"
    )


def check_vocabulary(tokenizer: Tokenizer, rows: int, model: str) -> None:
    """Raises UserError for a tokenizer with more pieces than the model has embedding rows."""
    if tokenizer.vocab_size > rows:
        raise UserError(
            f"the tokenizer {tokenizer.name} has {tokenizer.vocab_size} pieces and the {model} "
            f"{rows} rows for them; give the tokenizer it was trained with"
        )
