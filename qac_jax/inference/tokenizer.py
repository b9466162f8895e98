"""The tokenizer that belongs to a model."""

import os
from pathlib import Path

from qac_jax.errors import UserError
from qac_jax.hub import names
from qac_jax.text import tokenizers
from qac_jax.text.tokenizers import Tokenizer


def tokenizer_of(folder: Path) -> Tokenizer:
    return tokenizers.load(os.path.normpath(tokenizer_folder(folder)))


def tokenizer_folder(folder: Path) -> Path:
    """Where a model's tokenizer is: in its folder, or in the sub-folder that its format uses."""
    if place := names.tokenizer_folder(folder):
        return place
    raise UserError(
        f"{folder} does not contain a tokenizer; copy {names.TOKENIZER_FILES[0]} of the model into "
        "it"
    )


def check_vocabulary(tokenizer: Tokenizer, rows: int, model: str) -> None:
    """Raises UserError for a tokenizer with more pieces than the model has embedding rows."""
    if tokenizer.vocab_size > rows:
        raise UserError(
            f"the tokenizer {tokenizer.name} has {tokenizer.vocab_size} pieces and the {model} "
            f"{rows} rows for them; give the tokenizer it was trained with"
        )
