"""The libraries that build and search approximate indexes, by an index's method."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.errors import UserError
from qac_jax.retrieval import faiss_index, scann_index
from qac_jax.retrieval.approximate import Approximate, Effort
from qac_jax.retrieval.faiss_index import Faiss
from qac_jax.retrieval.scann_index import Scann


METHODS = SCANN, FAISS = ("scann", "faiss")

AnyPreset = scann_index.Preset | faiss_index.FaissPreset


def preset_for(method: str, rows: int, *, family: str, soar: float, **changes: Any) -> AnyPreset:
    """The default preset for a number of rows; family is FAISS's, soar ScaNN's."""
    if method == FAISS:
        return faiss_index.preset_for(rows, family, **changes)
    return scann_index.preset_for(rows, soar=soar, **changes)


def family(method: str, wanted: str, parts: Iterable[Mapping[str, Any]]) -> str:
    """FAISS's family, which all parts share; wanted: "auto" or one. "" for another method."""
    if method != FAISS:
        if wanted != "auto":
            raise UserError(f"faiss={wanted!r} goes with --method faiss, not with {method}")
        return ""
    for part in parts:
        known = faiss_index.family_of(faiss_index.restored(dict(part["preset"])))
        if wanted not in ("auto", known):
            raise UserError(
                f"faiss={wanted!r}, but the index to add to is of the family {known!r}; give that "
                "or auto"
            )
        return known
    return faiss_index.IVF if wanted == "auto" else wanted


def build(method: str, vectors: np.ndarray, preset: Any, folder: str | os.PathLike[str]) -> None:
    """Builds one part and writes it into an empty folder that may be moved afterwards."""
    (faiss_index if method == FAISS else scann_index).build(vectors, preset, folder)


def version(method: str) -> str:
    return faiss_index.version() if method == FAISS else scann_index.version()


def opened(
    method: str,
    folders: Sequence[str | os.PathLike[str]],
    rows: Sequence[int],
    width: int,
    presets: Sequence[Mapping[str, Any]],
    effort: Effort | None = None,
) -> Approximate:
    """One searcher over parts; presets as an index's description holds them."""
    if method == FAISS:
        restored = [faiss_index.restored(dict(preset)) for preset in presets]
        return Faiss(folders, rows, width, restored, effort)
    return Scann(folders, rows, width, [scann_index.Preset(**p) for p in presets], effort)
