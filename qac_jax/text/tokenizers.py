"""Texts into token ids: tokenisers from a local Hugging Face folder, or the one we ship.

WordPiece (BERT), Unigram / SentencePiece (T5) and BPE all come through the `tokenizers` library.
Ids are made without special tokens; whoever builds an example adds them. Nothing is downloaded.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import qac_jax
from qac_jax.errors import UserError
from qac_jax.text import backends
from qac_jax.text.word_lengths import WordLengths


ASSETS = Path(qac_jax.__file__).parent / "assets"
SHIPPED = "wordpiece-16k"

# White space as byte-level BPE writes it, a space first.
_BYTE_LEVEL_SPACES = ("Ġ", "Ċ", "ĉ", "č")


class Tokenizer:
    """Text to ids and back; batches are tokenised on all cores."""

    def __init__(self, backend: Any, special_tokens: dict[str, str], name: str):
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.name = name
        self.special_tokens = special_tokens
        self._specials = {role: backend.token_to_id(t) for role, t in special_tokens.items()}

    def __repr__(self) -> str:
        return f"Tokenizer({self.name}, {self.vocab_size} pieces)"

    @functools.cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included: the rows an embedding needs."""
        ids = self.backend.get_vocab(with_added_tokens=True).values()
        if not ids:
            raise UserError(f"tokenizer {self.name} has no pieces; copy its folder again")
        return 1 + max(ids)

    @functools.cached_property
    def identity(self) -> str:
        """A hash of all that decides the ids."""
        return hashlib.sha256(self.backend.to_str().encode()).hexdigest()

    @functools.cached_property
    def model_type(self) -> str:
        """WordPiece, Unigram or BPE."""
        return json.loads(self.backend.to_str())["model"]["type"]

    def has(self, role: str) -> bool:
        """Whether there is such a special token ("cls", "mask", "eos"…)."""
        return self._specials.get(role) is not None

    def special(self, role: str) -> int:
        """The id of the special token of a role."""
        if not self.has(role):
            raise UserError(
                f"tokenizer {self.name} has no {role!r} token, which is needed here; "
                f"use one that has it (its special tokens: {', '.join(sorted(self._specials))})"
            )
        return self._specials[role]

    @property
    def pad_id(self) -> int:
        return self.special("pad")

    @property
    def unk_id(self) -> int:
        return self.special("unk")

    @property
    def cls_id(self) -> int:
        return self.special("cls")

    @property
    def sep_id(self) -> int:
        return self.special("sep")

    @property
    def mask_id(self) -> int:
        return self.special("mask")

    @property
    def eos_id(self) -> int:
        return self.special("eos")

    @functools.cached_property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of all special tokens, added ones included, in ascending order."""
        added = self.backend.get_added_tokens_decoder()
        ids = {i for i, token in added.items() if token.special}
        return tuple(sorted(ids | {i for i in self._specials.values() if i is not None}))

    @functools.cached_property
    def continuation(self) -> np.ndarray:
        """A truth value for each id: does the piece go on with the word before it?"""
        spec = json.loads(self.backend.to_str())
        vocab = self.backend.get_vocab(with_added_tokens=True)
        table = np.zeros(self.vocab_size, bool)
        if self.model_type == "WordLevel":
            return table
        if prefix := spec["model"].get("continuing_subword_prefix"):
            table[[i for piece, i in vocab.items() if piece.startswith(prefix)]] = True
        else:
            around = json.dumps([spec["pre_tokenizer"], spec["decoder"]])
            marks = _BYTE_LEVEL_SPACES if '"ByteLevel"' in around else ("▁",)
            table[[i for piece, i in vocab.items() if not piece.startswith(marks)]] = True
            if table.all():
                raise UserError(
                    f"tokenizer {self.name} does not mark where words begin (no piece starts with "
                    f"{marks[0]!r}), which whole-word masking needs; use a WordPiece, byte-level "
                    "BPE or SentencePiece tokenizer"
                )
        table[list(self.special_ids)] = False
        return table

    @functools.cached_property
    def splits_at_spaces(self) -> bool:
        """Whether words are tokenised one by one, so that lengths of parts add up."""
        spec = json.loads(self.backend.to_str())["pre_tokenizer"] or {}
        first = spec.get("pretokenizers", [spec])[0] or {}
        return first.get("type") in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")

    def encode(self, text: str) -> list[int]:
        """The ids of one text, without special tokens."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all cores."""
        encoded = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [e.ids for e in encoded]

    def count(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has, without special tokens."""
        return self._counts(texts)

    @functools.cached_property
    def _counts(self) -> Callable[[Sequence[str]], list[int]]:
        def measure(texts: Sequence[str]) -> list[int]:
            encoded = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
            return [len(e) for e in encoded]

        spec = json.loads(self.backend.to_str())
        parts = [(spec[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer")]
        bert = parts == ["BertNormalizer", "BertPreTokenizer"] and self.model_type == "WordPiece"
        cleans = bert and spec["normalizer"]["clean_text"]
        return WordLengths(measure).count if cleans else measure

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The place of each token in the text, in characters."""
        return self.backend.encode(text, add_special_tokens=False).offsets

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special tokens are left out."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=True)

    def token(self, index: int) -> str:
        """The piece with this id."""
        piece = self.backend.id_to_token(int(index))
        return piece if piece is not None else f"[id {index}]"

    def save(self, folder: str | Path) -> None:
        """Writes a folder that `load` and Hugging Face's AutoTokenizer read."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(self.backend.to_str(pretty=True), encoding="utf-8")
        config: dict[str, Any] = {f"{r}_token": t for r, t in self.special_tokens.items()}
        config["model_max_length"] = 512
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        # An MPNet's has other special tokens, which BertTokenizer would not put between two texts.
        if self.model_type == "WordPiece" and self.special_tokens.get("cls") in (None, "[CLS]"):
            config["tokenizer_class"] = "BertTokenizer"
            config["do_lower_case"] = bool(getattr(self.backend.normalizer, "lowercase", True))
            pieces = (self.backend.id_to_token(i) for i in range(self.vocab_size))
            (folder / "vocab.txt").write_text("".join(f"{p}\n" for p in pieces), encoding="utf-8")
        text = json.dumps(config, indent=1, ensure_ascii=False) + "\n"
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def load(name: str = SHIPPED) -> Tokenizer:
    """A tokeniser by the name of one we ship, or from a folder in Hugging Face's layout."""
    folder = ASSETS / name if name in shipped() else Path(name)
    if not folder.is_dir():
        raise UserError(
            f"tokenizer {name!r} is neither a folder nor one that is shipped "
            f"({', '.join(shipped())}); give a local Hugging Face tokenizer folder"
        )
    # A folder may be written again while we run (a vocabulary learned anew).
    # A link may lead nowhere, which matters only where the file is needed.
    files = [file for file in folder.iterdir() if file.exists()]
    written = max((file.stat().st_mtime_ns for file in files), default=0)
    return _load(folder, name, written)


@functools.lru_cache(maxsize=8)
def _load(folder: Path, name: str, written: int) -> Tokenizer:
    del written
    backend = backends.load(folder)
    return Tokenizer(backend, backends.special_tokens(folder, backend), name)


def shipped() -> list[str]:
    """The names of the vocabularies that come with the package."""
    folders = (path.parent for path in ASSETS.glob("*/tokenizer.json"))
    return sorted(folder.name for folder in folders if not (folder / "config.json").exists())
