"""Approximate search by ScaNN: presets by corpus size, parts on disk, one searcher over them.

ScaNN is imported here only, inside functions. Presets follow its rules of thumb: brute force below
20,000 rows, hashing and reordering below 100,000, and above that a tree of about 2 sqrt(rows)
leaves as well.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from qac_jax.errors import UserError
from qac_jax.processes import cores
from qac_jax.retrieval.exact import check_width


BRUTE_FORCE, HASHED = 20_000, 100_000
REORDERINGS = ("float32", "bfloat16", "int8")

# Candidates whose scores are computed exactly, as a multiple of k: always more than k, since the
# quantised scores may rank a true neighbour just behind the last of the top k.
SLACK, _USUAL_SLACK = 1.25, 5
# Without tuning at least this number of leaves is searched.
_FEW_LEAVES = 30
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


@dataclasses.dataclass(frozen=True)
class Effort:
    """What trades speed for recall at search time."""

    leaves: int  # leaves searched; 0: there is no tree
    reorder: int  # candidates whose score is computed exactly; 0: all scores are exact


def preset_for(rows: int, **changes: Any) -> Preset:
    """The default preset for a number of rows, with some of its settings changed."""
    leaves = changes.pop("leaves", 0 if rows < HASHED else _leaves(rows))
    preset = Preset(leaves, hashed=rows >= BRUTE_FORCE or leaves > 0, **changes)
    if preset.leaves > rows:
        raise UserError(
            f"leaves={preset.leaves} are more than the {rows} vectors; use about {_leaves(rows)}, "
            "or 0 for no tree"
        )
    if preset.reordering not in REORDERINGS:
        raise UserError(f"reordering={preset.reordering!r} is not one of {', '.join(REORDERINGS)}")
    return preset


def usual_effort(presets: Sequence[Preset], k: int = 100) -> Effort:
    """The default without tuning: recall matters more than speed."""
    most = largest_effort(presets, _USUAL_SLACK * k, k)
    return Effort(min(most.leaves, max(most.leaves // 10, _FEW_LEAVES)), most.reorder)


def largest_effort(presets: Sequence[Preset], rows: int, k: int) -> Effort:
    """The effort above which recall does not grow."""
    hashed = any(preset.hashed for preset in presets)
    return Effort(max(p.leaves for p in presets), min(rows, 20 * k) if hashed else 0)


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


class Scann:
    """Searches the parts of an index; rows are numbered across the parts."""

    def __init__(
        self,
        folders: Sequence[str | os.PathLike[str]],
        rows: Sequence[int],
        width: int,
        presets: Sequence[Preset],
        effort: Effort | None = None,
    ):
        scann = library()
        self.presets = presets
        self.effort = effort  # None: not tuned
        self.width = width
        self._starts = [0, *np.cumsum(rows).tolist()]
        self._parts = []
        for folder, count in zip(folders, rows, strict=True):
            try:
                part = scann.load_searcher(os.fspath(folder))
            except (RuntimeError, ValueError, OSError) as error:
                raise UserError(
                    f"{folder} cannot be loaded by ScaNN {version()} "
                    f"({str(error).splitlines()[0]}); build the index again"
                ) from error
            if part.size() != count:
                raise UserError(
                    f"{folder} holds {part.size()} vectors instead of {count}; build the index "
                    "again"
                )
            self._parts.append(part)

    def __len__(self) -> int:
        return self._starts[-1]

    def search(
        self, queries: np.ndarray, k: int, effort: Effort | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `Exact.search`: scores and rows of the approximate top k, row -1 for none."""
        check_width(queries, self.width)
        queries = np.ascontiguousarray(queries, np.float32)
        effort = effort or self.effort or usual_effort(self.presets, max(k, 100))
        candidates = max(effort.reorder, math.ceil(SLACK * k))
        scores = np.full((len(queries), k * len(self._parts)), -np.inf, np.float32)
        rows = np.full(scores.shape, -1, np.int64)
        if not len(queries):
            return scores[:, :k], rows[:, :k]
        for number, (part, preset) in enumerate(zip(self._parts, self.presets, strict=True)):
            count = self._starts[number + 1] - self._starts[number]
            settings: dict[str, int] = {"final_num_neighbors": min(k, count)}
            if preset.hashed:
                settings["pre_reorder_num_neighbors"] = min(candidates, count)
            if preset.leaves:
                settings["leaves_to_search"] = min(effort.leaves, preset.leaves)
            if len(queries) >= 2 * _SMALLEST_BATCH:
                own = np.clip(-(-len(queries) // cores()), _SMALLEST_BATCH, _BATCH)
                best, gains = part.search_batched_parallel(queries, batch_size=int(own), **settings)
            else:
                best, gains = part.search_batched(queries, **settings)
            place = slice(number * k, number * k + best.shape[1])
            # Where the leaves have too few rows, ScaNN pads with NaN.
            missing = np.isnan(gains)
            scores[:, place] = np.where(missing, -np.inf, gains)
            rows[:, place] = np.where(missing, -1, best.astype(np.int64) + self._starts[number])
        # Most rankings of a single part are in order; of equal scores the earlier row wins.
        loose = np.flatnonzero((scores[:, 1:] >= scores[:, :-1]).any(1))
        order = np.lexsort((rows[loose], -scores[loose]), axis=1)
        scores[loose] = np.take_along_axis(scores[loose], order, 1)
        rows[loose] = np.take_along_axis(rows[loose], order, 1)
        return scores[:, :k], rows[:, :k]


def _leaves(rows: int) -> int:
    """Twice the square root: a quarter faster at equal recall than the square root itself."""
    return max(1, round(2 * rows**0.5))


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
