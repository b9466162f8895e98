"""Tokenizers of the `tokenizers` library from the files of a folder, whatever form they have."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qac_jax.errors import UserError


# The role of each special token: its key in Hugging Face's config, and how it is usually spelt.
_SPELLINGS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
    "mask": ("[MASK]", "<mask>"),
    "bos": ("<s>",),
    "eos": ("</s>",),
}
_SENTENCEPIECE = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
_SETTINGS = "sentence_bert_config.json"
_BPE = ("vocab.json", "merges.txt")


def load(folder: Path) -> Any:
    """The tokenizer of a folder: from tokenizer.json, or from what older folders have."""
    backend = _read(folder)
    if lowercases(folder):
        from tokenizers import normalizers

        own = json.loads(backend.to_str())["normalizer"] or {}
        steps = own.get("normalizers", [own])
        if not any(step.get("type") == "Lowercase" or step.get("lowercase") for step in steps):
            inner = [backend.normalizer] if own else []
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *inner])
    return backend


def lowercases(folder: Path) -> bool:
    """Whether sentence-transformers' settings make all texts lower case, whatever the tokenizer."""
    file = folder / _SETTINGS
    return file.exists() and bool(_json(file).get("do_lower_case"))


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON ({error}); copy the folder again") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} holds no JSON object; copy the folder again")
    return content


def _read(folder: Path) -> Any:
    import tokenizers

    if (folder / "tokenizer.json").exists():
        try:
            return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises bare Exception
            raise UserError(
                f"{folder / 'tokenizer.json'} cannot be read ({error}); "
                f"copy the folder again or give another tokenizer"
            ) from error
    if (folder / "vocab.txt").exists():
        try:
            pieces = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{folder / 'vocab.txt'} is not UTF-8 ({error}); copy the folder again"
            ) from error
        vocab = {piece.rstrip("\r"): i for i, piece in enumerate(pieces) if piece}
        return wordpiece(vocab, lowercase=config(folder).get("do_lower_case", True))
    if all((folder / name).exists() for name in _BPE):
        return _byte_level(folder)
    if any((folder / name).exists() for name in _SENTENCEPIECE):
        return _from_sentencepiece(folder)
    raise UserError(
        f"{folder} holds no tokenizer; expected tokenizer.json, vocab.txt, vocab.json with "
        "merges.txt, or spiece.model in it"
    )


def config(folder: Path) -> dict[str, Any]:
    """What the config files say, the special tokens' map included."""
    merged: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).exists():
            merged.update(_json(folder / name))
    return merged


def special_tokens_of(vocab: Iterable[str], stated: Mapping[str, Any]) -> dict[str, str]:
    """The special token of each role: as a config states it, else by its usual spelling."""
    pieces = set(vocab)
    roles = {}
    for role, spellings in _SPELLINGS.items():
        token = stated.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        candidates = [token] if isinstance(token, str) else spellings
        if known := [piece for piece in candidates if piece in pieces]:
            roles[role] = known[0]
    return roles


def special_tokens(folder: Path, backend: Any) -> dict[str, str]:
    """The special token of each role in a folder's tokenizer."""
    roles = special_tokens_of(backend.get_vocab(with_added_tokens=True), config(folder))
    if "cls" in roles and "sep" in roles:
        return roles
    # RoBERTa's files do not always say that <s> and </s> have these roles; their template does.
    backend.no_padding()
    backend.no_truncation()
    frame = backend.encode("").tokens
    return {"cls": frame[0], "sep": frame[1], **roles} if len(frame) == 2 else roles


def wordpiece(vocab: Mapping[str, int], *, lowercase: bool = True) -> Any:
    """BERT's tokeniser over a vocabulary, or MPNet's, whose special tokens are a RoBERTa's."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    roles = special_tokens_of(vocab, {})
    unknown = roles.get("unk", "[UNK]")
    backend = tokenizers.Tokenizer(models.WordPiece(dict(vocab), unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens([*roles.values()])
    _frame(backend, vocab, roles)
    return backend


def _byte_level(folder: Path) -> Any:
    """RoBERTa's and GPT-2's tokenizer, from its pieces and their merges."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    pieces, merges = (str(folder / name) for name in _BPE)
    stated = config(folder)
    try:
        vocab, joins = models.BPE.read_file(pieces, merges)
        roles = special_tokens_of(vocab, stated)
        backend = tokenizers.Tokenizer(models.BPE(vocab, joins, unk_token=roles.get("unk")))
    except Exception as error:  # the library raises bare Exception
        raise UserError(
            f"{' and '.join(_BPE)} of {folder} cannot be read ({error}); copy the folder again"
        ) from error
    first = bool(stated.get("add_prefix_space", False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=first)
    backend.decoder = decoders.ByteLevel()
    # A mask stands for a word with the space before it.
    backend.add_special_tokens(
        [
            tokenizers.AddedToken(piece, lstrip=role == "mask", normalized=False)
            for role, piece in roles.items()
        ]
    )
    _frame(backend, vocab, roles)
    return backend


def _frame(backend: Any, vocab: Mapping[str, int], roles: Mapping[str, str]) -> None:
    """Special tokens around texts: a BERT's, or a RoBERTa's with two of them between texts."""
    from tokenizers import processors

    bert = "cls" in roles and "sep" in roles and roles["cls"] != roles.get("bos")
    first, last = (roles["cls"], roles["sep"]) if bert else ("<s>", "</s>")
    if first not in vocab or last not in vocab:
        return
    kind = 1 if bert else 0
    between = f"{last}:0" if bert else f"{last}:0 {last}:0"
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {between} $B:{kind} {last}:{kind}",
        special_tokens=[(first, vocab[first]), (last, vocab[last])],
    )


def _from_sentencepiece(folder: Path) -> Any:
    """A SentencePiece model, read by transformers, which knows what each family adds to it."""
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder} holds a SentencePiece model of unknown family; put a tokenizer_config.json "
            f'beside it, such as {{"tokenizer_class": "T5Tokenizer"}}'
        ) from error
    return loaded.backend_tokenizer
