"""How a passage's title joins its text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qac_jax.text.tokenizers import Tokenizer


TITLES = ("none", "separate", "space")
# How an encoder may read them: `separate`, or that with token types of their own.
SEGMENTS = "segments"
# Or AugTriever's way on BEIR: title, the words " TEXT: ", text.
MARKED = "marked"


def text_of(tokenizer: Tokenizer, passage: Mapping[str, Any], title: str) -> str:
    """A passage with its title: left out, before a separator token, a space, or a mark in words.

    The separator is written as text: tokenisers know their own special tokens.
    """
    name = (passage.get("title") or "").strip()
    if title == "none" or not name:
        return passage["text"]
    if title == "space":
        return f"{name} {passage['text']}"
    if title == MARKED:
        return f"{name} TEXT: {passage['text']}"
    role = "sep" if tokenizer.has("sep") else "eos"
    tokenizer.special(role)  # or one sentence about what it has
    return f"{name}{tokenizer.special_tokens[role]}{passage['text']}"
