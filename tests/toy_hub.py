"""A cache of the Hugging Face Hub with tiny models, laid out as huggingface_hub does."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qac_jax.hub import names
from qac_jax.text import tokenizers


BERT = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 32,
}


def save_bert(folder: Path, kind: str = "Model", seed: int = 0, **changes: Any) -> Path:
    """A BERT with random weights, saved by transformers, and the vocabulary that ships."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    tokenizer = tokenizers.load()
    config = transformers.BertConfig(vocab_size=tokenizer.vocab_size, **{**BERT, **changes})
    model = getattr(transformers, f"Bert{kind}")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def pin(monkeypatch: pytest.MonkeyPatch, cache: Path, offline: bool = True) -> None:
    """Lets huggingface_hub use this cache; it reads its environment only once."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    names.forget()


def add(
    cache: Path, name: str, folder: Path, *, refs: Sequence[str] = ("main",), without: Any = ()
) -> str:
    """Adds a folder as a commit of a repository, without some of its files; returns the commit.

    The refs (branches and tags) stand for it from then on.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    commit = hashlib.sha1(b"".join(path.read_bytes() for path in files)).hexdigest()
    snapshot = cache / f"models--{name.replace('/', '--')}" / "snapshots" / commit
    ignored = shutil.ignore_patterns(*without)
    shutil.copytree(folder, snapshot, ignore=ignored, dirs_exist_ok=True)
    (snapshot.parent.parent / "blobs").mkdir(exist_ok=True)
    point(cache, name, commit, refs)
    return commit


def point(cache: Path, name: str, commit: str, refs: Sequence[str]) -> None:
    """Moves branches or tags to a commit."""
    for ref in refs:
        file = cache / f"models--{name.replace('/', '--')}" / "refs" / ref
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(commit)
