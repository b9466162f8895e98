"""A cache of the Hugging Face Hub with tiny models, laid out as huggingface_hub does."""

import hashlib
import os
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
    cache: Path,
    name: str,
    folder: Path,
    *,
    refs: Sequence[str] = ("main",),
    without: Sequence[str] = (),
) -> str:
    """Adds a folder as a commit of a repository, without some of its files; returns the commit.

    The refs (branches and tags) stand for it from then on.
    """
    repository = cache / f"models--{name.replace('/', '--')}"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    commit = hashlib.sha1("".join(digests.values()).encode()).hexdigest()
    for path, digest in digests.items():
        inside = path.relative_to(folder)
        if inside.as_posix() in without:
            continue
        blob = repository / "blobs" / digest
        blob.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, blob)
        link = repository / "snapshots" / commit / inside
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(os.path.relpath(blob, link.parent))
    point(cache, name, commit, refs)
    return commit


def point(cache: Path, name: str, commit: str, refs: Sequence[str]) -> None:
    """Moves branches or tags to a commit."""
    for ref in refs:
        file = cache / f"models--{name.replace('/', '--')}" / "refs" / ref
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(commit)
