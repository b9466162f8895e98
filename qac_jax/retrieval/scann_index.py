"""Approximate search by ScaNN, which is imported here only, inside functions."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from qac_jax.errors import UserError
from qac_jax.processes import cores
from qac_jax.retrieval.approximate import Approximate, Effort, check_reordering, tree_for


# Queries that a thread searches together; fewer than twice the first are searched by one thread.
_SMALLEST_BATCH, _BATCH = 4, 64


@dataclasses.dataclass(frozen=True)
class Preset:
    """How an index is built."""

    leaves: int  # 0: no tree
    hashed: bool = True
    dims_per_block: int = 2
    threshold: float = 0.2  # of anisotropic quantisation
    training_rows: int = 100_000
    reordering: str = "float32"
    soar: float = 0.0  # lambda of a second leaf for each row (0: none)


def preset_for(rows: int, *, leaves: int | None = None, **changes: Any) -> Preset:
    """The default preset for a number of rows, with some of its settings changed."""
    leaves, hashed = tree_for(rows, leaves)
    preset = Preset(leaves, hashed, **changes)
    check_reordering(preset.reordering)
    return preset


def version() -> str:
    return importlib.metadata.version("scann")


def build(vectors: np.ndarray, preset: Preset, folder: str | os.PathLike[str]) -> None:
    """Builds one part and writes it into an empty folder that may be moved afterwards."""
    scann = library()
    count, width = vectors.shape
    builder = scann.builder(np.ascontiguousarray(vectors, np.float32), 100, "dot_product")
    del vectors
    sample = min(count, preset.training_rows)
    if preset.leaves:
        builder = builder.tree(
            num_leaves=preset.leaves,
            num_leaves_to_search=max(1, preset.leaves // 10),
            training_sample_size=sample,
            **({"soar_lambda": preset.soar} if preset.soar else {}),
        )
    if preset.hashed:
        builder = builder.score_ah(
            min(preset.dims_per_block, width),
            anisotropic_quantization_threshold=preset.threshold,
            training_sample_size=sample,
        )
        builder = builder.reorder(100, quantize=_reordering(preset.reordering))
    else:
        builder = builder.score_brute_force()
    os.makedirs(folder, exist_ok=True)
    searcher = builder.build()
    del builder  # and with it our copy of the vectors, where the caller has none
    try:
        searcher.serialize(os.fspath(folder), relative_path=True)
    except RuntimeError as error:
        if "I/O error" not in str(error):
            raise
        raise UserError(
            f"ScaNN cannot write its index to {folder} ({error}); check that the disk has space, "
            "and run the command again"
        ) from error


class Scann(Approximate):
    """Searches the parts of an index; rows are numbered across the parts."""

    def __init__(
        self,
        folders: Sequence[str | os.PathLike[str]],
        rows: Sequence[int],
        width: int,
        presets: Sequence[Preset],
        effort: Effort | None = None,
    ):
        pairs = zip(folders, rows, strict=True)
        super().__init__([_load(*pair) for pair in pairs], rows, width, presets, effort)

    def _search_part(
        self, part: Any, preset: Preset, queries: np.ndarray, k: int, effort: Effort
    ) -> tuple[np.ndarray, np.ndarray]:
        settings: dict[str, int] = {"final_num_neighbors": k}
        if preset.hashed:
            settings["pre_reorder_num_neighbors"] = effort.reorder
        if preset.leaves:
            settings["leaves_to_search"] = effort.leaves
        if len(queries) >= 2 * _SMALLEST_BATCH:
            own = np.clip(-(-len(queries) // cores()), _SMALLEST_BATCH, _BATCH)
            rows, scores = part.search_batched_parallel(queries, batch_size=int(own), **settings)
        else:
            rows, scores = part.search_batched(queries, **settings)
        # Where the leaves have too few rows, ScaNN pads with NaN.
        return scores, np.where(np.isnan(scores), -1, rows.astype(np.int64))


def _load(folder: str | os.PathLike[str], count: int) -> Any:
    try:
        part = library().load_searcher(os.fspath(folder))
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(
            f"{folder} cannot be loaded by ScaNN {version()} "
            f"({str(error).splitlines()[0]}); build the index again"
        ) from error
    if part.size() != count:
        raise UserError(
            f"{folder} holds {part.size()} vectors instead of {count}; build the index again"
        )
    return part


def _reordering(name: str) -> Any:
    from scann import ReorderType

    return getattr(ReorderType, name.upper())


def library() -> Any:
    """ScaNN's searchers in C++, which work without TensorFlow.

    Its package imports TensorFlow where it is installed, for graph operators that are not used
    here: this takes seconds and 600 MB, and crashes with another version than ScaNN was built for.
    So TensorFlow is hidden during the import, unless it is loaded already.
    """
    absent = object()
    if "scann" not in sys.modules:
        before = sys.modules.get("tensorflow", absent)
        if before is absent:
            sys.modules["tensorflow"] = None  # type: ignore[assignment]
        try:
            import scann  # noqa: F401
        except ImportError as error:
            raise UserError(
                f"ScaNN cannot be imported ({error}); install scann==1.4.2, or use an exact index"
            ) from error
        finally:
            if before is absent:
                del sys.modules["tensorflow"]
    from scann.scann_ops.py import scann_ops_pybind

    return scann_ops_pybind
