"""Word vectors of a larger model as the token embedding of a small one that starts from scratch.

A small generator that sees some thousand texts has no time to find out which words are alike; a
model that read the web knows. Its vectors are not taken as they are: they share a large mean and
a few loud directions, and a state that is read by inner products (a copying start, a tied output
matrix) needs rows that differ about as much as random ones. So the mean goes, and the
first two principal components (Mu & Viswanath, "All-but-the-top", 2018); the next `width` stay,
softened, and all rows become equally long.
"""

import os
from typing import Any

import numpy as np

from qac_jax.errors import UserError
from qac_jax.hub import weights
from qac_jax.models import backbone


_MARKS = ("##", "▁", "Ġ")  # how pieces say that a word goes on, or begins
_LOUD = 2  # components that tell frequent words from rare ones, and little else
_APART = 0.3  # of a random row: "array" and "##array" may have the same vector
_CENTRINGS = 2  # a mean of unit vectors is not that of the vectors: once is not enough


def of_folder(folder: str | os.PathLike[str]) -> np.ndarray:
    """[their vocabulary, their width] of a model folder in Hugging Face's layout."""
    names = tuple({cls.hf_words for cls in backbone.registered().values()})
    for name, tensor in weights.read_folder(folder).items():
        if name.endswith(names):
            return tensor
    raise UserError(
        f"{folder} has no word vectors; expected the folder of one of these models: "
        + ", ".join(backbone.model_types(backbone.Architecture))
    )


def table(
    vectors: np.ndarray, theirs: Any, own: Any, shape: tuple[int, int], spread: float, seed: int
) -> np.ndarray:
    """An embedding [rows, width] whose entries have the deviation `spread`.

    theirs, own: tokenizers. A piece that they share has their vector, another one the mean of what
    they cut it into; special tokens, what they do not know and spare rows are random.
    """
    rows, width = shape
    if vectors.shape[1] < width + _LOUD:
        raise UserError(
            f"word vectors of width {vectors.shape[1]} are too narrow for an embedding of width "
            f"{width}; give a model of width {width + _LOUD} or more"
        )
    if theirs.vocab_size > len(vectors):
        raise UserError(
            f"the tokenizer of the word vectors has {theirs.vocab_size} pieces and there are "
            f"{len(vectors)} vectors; give a folder whose tokenizer is the model's own"
        )
    known_vectors, known = _looked_up(vectors, theirs, own, rows)
    known &= np.linalg.norm(known_vectors, axis=1) > 0
    made = np.random.default_rng(seed).standard_normal((rows, width))
    apart = _unit(_flattened(known_vectors[known], width) + _APART * _unit(made[known]))
    made[known] = apart * np.sqrt(width)  # as long as random rows
    return (made * spread).astype(np.float32)


def _looked_up(
    vectors: np.ndarray, theirs: Any, own: Any, rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Their vector of each of our pieces, and which pieces have one."""
    same = theirs.backend.get_vocab() if theirs.model_type == own.model_type else {}
    known_vectors = np.zeros((rows, vectors.shape[1]))
    known = np.zeros(rows, bool)
    special, unknown = set(own.special_ids), theirs.unk_id if theirs.has("unk") else -1
    for index in range(min(rows, own.vocab_size)):
        piece = own.token(index)
        if index in special:
            continue
        ids = [same[piece]] if piece in same else theirs.encode(_bare(piece))
        if ids and unknown not in ids:
            known_vectors[index] = vectors[ids].mean(0)
            known[index] = True
    return known_vectors, known


def _bare(piece: str) -> str:
    for mark in _MARKS:
        piece = piece.removeprefix(mark)
    return piece


def _flattened(vectors: np.ndarray, width: int) -> np.ndarray:
    """Rows of length 1 that point in all directions, their neighbours kept."""
    rows = _unit(vectors)
    for _ in range(_CENTRINGS):
        rows = _unit(rows - rows.mean(0))
    rows = rows - rows.mean(0)
    components = np.linalg.svd(rows, full_matrices=False)[2]
    kept = rows @ components[_LOUD : _LOUD + width].T
    # Half-way to equal deviations: whitened rows would weigh noise as much as meaning.
    kept = kept / np.sqrt(np.maximum(kept.std(0), 1e-6))
    return _unit(kept)


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
