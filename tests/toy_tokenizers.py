"""Small tokenizers of every kind: a folder each, as Hugging Face has them."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers as hf
import toy_retrieval

from qac_jax.text import tokenizers


TEXTS = ["the tide mill ground barley", "near the sea", "the miller's mills", "x"]
_LEARNED = [*TEXTS, " ".join(toy_retrieval.WORDS)]
T5_ROLES = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def of(name: str, folder: Path) -> Path:
    """The kind that an encoder of this name comes with."""
    return _KINDS.get(name, wordpiece)(folder)


def bpe(specials: list[str], texts: Sequence[str] = _LEARNED) -> hf.Tokenizer:
    """A byte-level BPE without a template."""
    backend = hf.Tokenizer(hf.models.BPE(unk_token=specials[3]))
    backend.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = hf.decoders.ByteLevel()
    trainer = hf.trainers.BpeTrainer(vocab_size=60, special_tokens=specials, show_progress=False)
    backend.train_from_iterator([*texts] * 10, trainer)
    return backend


def byte_level(folder: Path) -> Path:
    """RoBERTa's kind of tokenizer, as older folders have it: pieces and their merges."""
    folder.mkdir()
    bpe(SPECIALS).model.save(os.fspath(folder))
    content = {"tokenizer_class": "RobertaTokenizer", "model_max_length": 32}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    return folder


def byte_level_of_bert(folder: Path) -> Path:
    """ModernBERT's kind of tokenizer: RoBERTa's pieces, BERT's special tokens."""
    roles = {"cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "pad": "[PAD]", "mask": "[MASK]"}
    backend = bpe([roles[role] for role in ("cls", "sep", "mask", "pad", "unk")])
    backend.model.unk_token = "[UNK]"
    backend.post_processor = hf.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 0), ("[SEP]", 1)],
    )
    return stored(folder, backend, roles)


def wordpiece_of_mpnet(folder: Path) -> Path:
    """MPNet's kind of tokenizer: BERT's pieces, RoBERTa's special tokens."""
    words = sorted({word for text in _LEARNED for word in text.replace("'", " ").split()})
    folder.mkdir()
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "'", *words, "<mask>"]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    content = {"tokenizer_class": "MPNetTokenizer", "model_max_length": 32, "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    return folder


def unigram(folder: Path) -> Path:
    """XLM-R's kind of tokenizer."""
    backend = pieces_of_sentences(_LEARNED * 10, 60, SPECIALS)
    backend.post_processor = hf.processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    roles = {"bos": "<s>", "cls": "<s>", "pad": "<pad>", "sep": "</s>", "eos": "</s>"}
    return stored(folder, backend, roles | {"unk": "<unk>", "mask": "<mask>"})


def pieces_of_sentences(texts: list[str], size: int, specials: list[str]) -> hf.Tokenizer:
    """SentencePiece's unigrams, learned from these texts."""
    backend = hf.Tokenizer(hf.models.Unigram())
    backend.pre_tokenizer = hf.pre_tokenizers.Metaspace()
    backend.decoder = hf.decoders.Metaspace()
    trainer = hf.trainers.UnigramTrainer(
        vocab_size=size, special_tokens=specials, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def stored(folder: Path, backend: hf.Tokenizer, roles: Mapping[str, str]) -> Path:
    """A tokenizer's folder as transformers writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(os.fspath(folder / "tokenizer.json"))
    config: dict[str, Any] = {f"{role}_token": token for role, token in roles.items()}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def wordpiece(folder: Path) -> Path:
    """BERT's tokenizer."""
    words = sorted({word for text in _LEARNED for word in text.replace("'", " ").split()})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "'", *words]
    backend = tokenizers.wordpiece({piece: number for number, piece in enumerate(pieces)})
    specials = tokenizers.special_tokens_of(pieces, {})
    tokenizers.Tokenizer(backend, specials, "toy").save(folder)
    return folder


def sentencepiece(folder: Path) -> Path:
    """T5's kind of tokenizer: no token before a text, </s> after it."""
    return stored(folder, t5(_LEARNED * 10, 45), T5_ROLES)


def t5(texts: list[str], size: int) -> hf.Tokenizer:
    backend = pieces_of_sentences(texts, size, list(T5_ROLES.values()))
    backend.post_processor = hf.processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return backend


def numbered_words(folder: Path) -> Path:
    """A tokenizer whose words are w5, w6 …"""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(5, 40))]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    backend = hf.Tokenizer(hf.models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = hf.pre_tokenizers.WhitespaceSplit()
    backend.post_processor = hf.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    roles = {name: f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk")}
    return stored(folder, backend, roles)


_KINDS = {
    "roberta": byte_level,
    "xlmr": unigram,
    "modernbert": byte_level_of_bert,
    "mpnet": wordpiece_of_mpnet,
    "t5_encoder": sentencepiece,
}
