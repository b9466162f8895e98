"""A stand-in for an encoder, and living indexes of toy passages."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from toy_retrieval import WORDS

from qac_jax.inference.encoder import Encoder
from qac_jax.live.index import LiveIndex
from qac_jax.live.store import LiveSettings
from qac_jax.retrieval.corpus import passage_text
from qac_jax.text import tokenizers


WIDTH = 16


class StubEncoder:
    """A text's vector is the mean of random ones of its words, of length 1; no model is compiled.

    `calls` has the number of texts of each call.
    """

    width = WIDTH
    tokenizer = tokenizers.load()
    module = SimpleNamespace(config=SimpleNamespace(pooling="mean"))

    def __init__(self) -> None:
        self.calls: list[int] = []

    def passage_text(self, record: Mapping[str, Any]) -> str:
        return passage_text(record)

    def encode(
        self,
        texts: Sequence[str],
        side: str = "passage",
        *,
        advance: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        self.calls.append(len(texts))
        rows = np.zeros((len(texts), WIDTH), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()) or ["?"]:
                seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest())
                row += np.random.default_rng(seed).normal(size=WIDTH)
            row /= np.linalg.norm(row)
        return rows


def stub() -> Encoder:
    return cast(Encoder, StubEncoder())


SETTINGS = LiveSettings({"path": "stub", "options": {}}, WIDTH, cosine=True)


def records(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Passages of some words, with a language, a year and tags."""
    made = []
    for number in range(start, start + count):
        rng = np.random.default_rng(number)
        made.append(
            {
                "_id": f"d{number}",
                "title": f"About {WORDS[number % 20]}",
                "text": " ".join(rng.choice(WORDS, int(rng.integers(3, 30)))) + f" n{number}",
                "lang": ("en", "de", "fr")[number % 3],
                "year": 2000 + number % 25,
                "tags": [WORDS[number % 5], WORDS[number % 7]],
            }
        )
    return made


def live(folder: Path, passages: Sequence[Mapping[str, Any]] = (), **changes: Any) -> LiveIndex:
    """A new index that has some passages."""
    settings = LiveSettings(**{**vars(SETTINGS), **changes})
    made = LiveIndex.create(folder, settings, encoder=stub())
    if passages:
        made.add(passages)
    return made
