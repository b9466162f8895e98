"""How a retriever reads texts: prompts, and how a title stands before its passage."""

from __future__ import annotations

import dataclasses
import os
from typing import TypeVar

from qac_jax.errors import UserError
from qac_jax.hub import huggingface
from qac_jax.models.encoders import DualEncoder


Texts = TypeVar("Texts")


def texts_read_by(place: str | os.PathLike[str], texts: Texts) -> Texts:
    """Settings of texts with title, query_prompt and passage_prompt of a retriever; of a bare
    encoder as they are."""
    module, _ = huggingface.load(place)
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
