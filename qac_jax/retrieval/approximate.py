"""Approximate search by ScaNN, or by FAISS (the package's extras `papers` and `faiss`).

Both are imported inside functions only. Presets follow ScaNN's rules of thumb, which suit FAISS as
well: brute force below 20,000 rows, quantised vectors and reordering below 100,000, and above that
a tree of about 2 sqrt(rows) leaves. FAISS's is an inverted file of 4-bit product codes whose
candidates are rescored.
"""

import abc
import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import math
import operator
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from etils import epath

from qac_jax import extras, progress
from qac_jax.errors import UserError
from qac_jax.processes import cores
from qac_jax.retrieval.exact import check_width
from qac_jax.retrieval.vectors import Vectors


METHODS = SCANN, FAISS = ("scann", "faiss")
BRUTE_FORCE, HASHED = 20_000, 100_000
# Vectors of a part where nobody says how many: 5 million of 768 dimensions build in 54 GB.
PART_ROWS = 5_000_000

# Candidates whose scores are computed exactly, as a multiple of k: always more than k, since the
# quantised scores may rank a true neighbour just behind the last of the top k.
SLACK, _USUAL_SLACK = 1.25, 5
_FEW_LEAVES = 30  # without tuning at least this number of leaves is searched
# ScaNN: queries that a thread searches together; fewer than twice the first are searched by one.
_SMALLEST_BATCH, _BATCH = 4, 64
# FAISS: vectors that a 4-bit quantiser's 16 centres, and a list's centre, are learned on, at least.
_CENTRES, _OF_LIST = 16, 64
_FAISS_FILE = "index.faiss"
# What GNU's OpenMP reads when it is loaded: rounds of waiting before a thread sleeps.
_SPINNING = {"GOMP_SPINCOUNT": "1000"}

# The factors of memory are measured (docs/results/search.md): copies, while a part is built, of its
# vectors in float32 (ours and the library's) and of the sample that centres are learned on.
_COPIES = {SCANN: 3.4, FAISS: 2.4}
_SAMPLE, _SAMPLE_COPIES = 100_000, 5.0
_PROCESS = 0.5e9

Folder = str | os.PathLike[str]
Found = tuple[np.ndarray, np.ndarray]  # scores float32, rows int64: [queries, k]


@dataclasses.dataclass(frozen=True)
class Preset:
    leaves: int  # of FAISS lists; 0: none, all is scanned
    hashed: bool = True  # codes, then exact scores of candidates; False: exact scores only
    dims_per_block: int = 2
    threshold: float = 0.2  # ScaNN: of anisotropic quantisation
    training_rows: int = 100_000
    reordering: str = "float32"
    soar: float = 0.0  # ScaNN: lambda of a second leaf for each row (0: none)


def preset(method: str, rows: int, *, leaves: int | None = None, **changes: Any) -> Preset:
    """The default preset for a number of rows, with some of its settings changed."""
    # Twice the square root: a quarter faster at equal recall than the square root itself.
    usual = max(1, round(2 * rows**0.5))
    if leaves is None:
        leaves = 0 if rows < HASHED else usual
    if leaves > rows:
        raise UserError(f"leaves={leaves} are more than the {rows} vectors; about {usual}, or 0")
    hashed = rows >= BRUTE_FORCE or leaves > 0
    return Preset(leaves, hashed and (method == SCANN or rows >= _CENTRES), **changes)


@dataclasses.dataclass(frozen=True)
class Effort:
    """Settings that trade speed for recall at search time."""

    leaves: int  # leaves searched (nprobe of an inverted file); 0: there is no tree
    reorder: int  # candidates whose score is computed exactly; 0: all scores are exact

    def __str__(self) -> str:
        leaves = f"{self.leaves} leaves and " if self.leaves else ""
        return f"{leaves}{self.reorder} candidates"


def nearest_k(tuned: Collection[int], k: int) -> int:
    """Of the k that searches were tuned for, the one to search the top k with; 0: there is none."""
    return min((each for each in tuned if each >= k), default=max(tuned, default=0))


class Approximate(abc.ABC):
    """Searches the parts of an index; rows are numbered across the parts."""

    NAME: ClassVar[str]

    def __init__(
        self,
        folders: Sequence[Folder],
        rows: Sequence[int],
        width: int,
        presets: Sequence[Preset],
        efforts: Mapping[int, Effort] = MappingProxyType({}),
    ):
        self.presets = presets
        self.efforts = efforts  # by the k that each was tuned for
        self.width = width
        self._starts = [0, *np.cumsum(rows).tolist()]
        self._parts = []
        for folder, count in zip(folders, rows, strict=True):
            held: object
            try:
                part, held = self._load(os.fspath(folder))
            except (RuntimeError, ValueError, OSError) as error:
                held = str(error).splitlines()[0]
            if held != count:
                said = f"cannot be loaded by {self.NAME} {self.version()} as {count} vectors"
                raise UserError(f"{folder} {said} ({held}); build the index again")
            self._parts.append(part)

    @classmethod
    @abc.abstractmethod
    def build(cls, vectors: np.ndarray, preset: Preset, folder: Folder) -> None:
        """Builds one part and writes it into an empty folder that may be moved afterwards."""

    @classmethod
    @abc.abstractmethod
    def version(cls) -> str: ...

    @classmethod
    @abc.abstractmethod
    def _load(cls, folder: str) -> tuple[Any, int]:
        """A part, and how many vectors it holds."""

    @abc.abstractmethod
    def _search_part(
        self, part: Any, preset: Preset, queries: np.ndarray, k: int, effort: Effort
    ) -> Found:
        """The top k of one part; row -1 where there is none."""

    def __len__(self) -> int:
        return self._starts[-1]

    def search(self, queries: np.ndarray, k: int, effort: Effort | None = None) -> Found:
        """As `Exact.search`: scores and rows of the approximate top k, row -1 for none."""
        check_width(queries, self.width)
        queries = np.ascontiguousarray(queries, np.float32)
        effort = effort or self.efforts.get(nearest_k(self.efforts, k))
        if effort is None:  # without tuning recall matters more than speed
            most = self.largest_effort(max(k, 100), _USUAL_SLACK * max(k, 100))
            leaves = min(most.leaves, max(most.leaves // 10, _FEW_LEAVES))
            effort = Effort(leaves, most.reorder)
        candidates = max(effort.reorder, math.ceil(SLACK * k))
        scores = np.full((len(queries), k * len(self._parts)), -np.inf, np.float32)
        rows = np.full(scores.shape, -1, np.int64)
        if not len(queries):
            return scores[:, :k], rows[:, :k]
        for number, (part, preset) in enumerate(zip(self._parts, self.presets, strict=True)):
            start, stop = self._starts[number : number + 2]
            count = stop - start
            own = Effort(min(effort.leaves, preset.leaves), min(candidates, count))
            gains, best = self._search_part(part, preset, queries, min(k, count), own)
            place = slice(number * k, number * k + best.shape[1])
            missing = best < 0
            scores[:, place] = np.where(missing, -np.inf, gains)
            rows[:, place] = np.where(missing, -1, best + start)
        # Most rankings of a single part are in order; of equal scores the earlier row wins.
        loose = np.flatnonzero((scores[:, 1:] >= scores[:, :-1]).any(1))
        order = np.lexsort((rows[loose], -scores[loose]), axis=1)
        scores[loose] = np.take_along_axis(scores[loose], order, 1)
        rows[loose] = np.take_along_axis(rows[loose], order, 1)
        return scores[:, :k], rows[:, :k]

    def largest_effort(self, k: int, rows: int | None = None) -> Effort:
        hashed = any(preset.hashed for preset in self.presets)
        candidates = min(len(self) if rows is None else rows, 20 * k) if hashed else 0
        return Effort(max(preset.leaves for preset in self.presets), candidates)


class Scann(Approximate):
    NAME = "ScaNN"

    @classmethod
    def build(cls, vectors: np.ndarray, preset: Preset, folder: Folder) -> None:
        count, width = vectors.shape
        builder = scann_library().builder(
            np.ascontiguousarray(vectors, np.float32), 100, "dot_product"
        )
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
            from scann import ReorderType

            builder = builder.score_ah(
                min(preset.dims_per_block, width),
                anisotropic_quantization_threshold=preset.threshold,
                training_sample_size=sample,
            )
            stored = getattr(ReorderType, preset.reordering.upper())
            builder = builder.reorder(100, quantize=stored)
        else:
            builder = builder.score_brute_force()
        os.makedirs(folder, exist_ok=True)
        searcher = builder.build()
        del builder  # and with it our copy of the vectors, where the caller has none
        searcher.serialize(os.fspath(folder), relative_path=True)

    @classmethod
    def version(cls) -> str:
        return importlib.metadata.version("scann")

    @classmethod
    def _load(cls, folder: str) -> tuple[Any, int]:
        part = scann_library().load_searcher(folder)
        return part, part.size()

    def _search_part(
        self, part: Any, preset: Preset, queries: np.ndarray, k: int, effort: Effort
    ) -> Found:
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


class Faiss(Approximate):
    NAME = "FAISS"

    @classmethod
    def build(cls, vectors: np.ndarray, preset: Preset, folder: Folder) -> None:
        """An inverted file of 4-bit codes, with the vectors that candidates are rescored with."""
        faiss, vectors = faiss_library(), np.ascontiguousarray(vectors, np.float32)
        width, metric = vectors.shape[1], faiss.METRIC_INNER_PRODUCT
        # A product quantiser cuts a vector into blocks of equal size. In lists it codes what their
        # centres leave of a vector: faster at equal recall.
        size = max(n for n in range(1, max(preset.dims_per_block, 1) + 1) if width % n == 0)
        codes = f"PQ{width // size}x4fs" if preset.hashed else "Flat"
        residual = "r" if preset.hashed else ""
        name = f"IVF{preset.leaves},{codes}{residual}" if preset.leaves else codes
        index = faiss.index_factory(width, name, metric)
        for part in ("cp", "pq.cp"):
            with contextlib.suppress(AttributeError):  # no warning of few vectors in small lists
                operator.attrgetter(part)(index).min_points_per_centroid = 1
        training_rows = max(preset.training_rows, _OF_LIST * preset.leaves)
        sample = vectors
        if preset.hashed and training_rows < len(vectors):
            rows = np.random.default_rng(0).choice(len(vectors), training_rows, replace=False)
            sample = vectors[np.sort(rows)]
        index.train(sample)
        index.add(vectors)
        if preset.hashed:
            stored = {"float32": "Flat", "bfloat16": "SQbf16", "int8": "SQ8"}[preset.reordering]
            whole = faiss.index_factory(width, stored, metric)
            whole.train(vectors)
            whole.add(vectors)
            index = faiss.IndexRefine(index, whole)
        os.makedirs(folder, exist_ok=True)
        faiss.write_index(index, os.path.join(os.fspath(folder), _FAISS_FILE))

    @classmethod
    def version(cls) -> str:
        return str(faiss_library().__version__)

    @classmethod
    def _load(cls, folder: str) -> tuple[Any, int]:
        part = faiss_library().read_index(os.path.join(folder, _FAISS_FILE))
        return part, part.ntotal

    def _search_part(
        self, part: Any, preset: Preset, queries: np.ndarray, k: int, effort: Effort
    ) -> Found:
        faiss = faiss_library()
        params = faiss.SearchParametersIVF(nprobe=effort.leaves) if preset.leaves else None
        if preset.hashed:
            known = {} if params is None else {"base_index_params": params}
            # FAISS cuts k times the factor down to a whole number.
            factor = (effort.reorder + 0.5) / k
            params = faiss.IndexRefineSearchParameters(k_factor=factor, **known)
        return part.search(queries, k, params=params)


ENGINES: dict[str, type[Approximate]] = {SCANN: Scann, FAISS: Faiss}


def opened(
    method: str,
    folder: epath.Path,
    width: int,
    parts: Mapping[str, Mapping[str, Any]],
    efforts: Mapping[int, Effort] = MappingProxyType({}),
) -> Approximate:
    """One searcher over the parts in a folder, as an index's description holds them."""
    return ENGINES[method](
        [folder / name for name in parts],
        [part["rows"] for part in parts.values()],
        width,
        [Preset(**part["preset"]) for part in parts.values()],
        efforts,
    )


def scann_library() -> Any:
    """ScaNN's searchers in C++, which work without TensorFlow.

    Its package imports TensorFlow where it is installed, for graph operators that are not used
    here: this takes seconds and 600 MB, and crashes with another version than ScaNN was built for.
    So TensorFlow is hidden during the import, unless it is loaded already.
    """
    hidden = "scann" not in sys.modules and "tensorflow" not in sys.modules
    if hidden:
        sys.modules["tensorflow"] = None  # type: ignore[assignment]
    try:
        from scann.scann_ops.py import scann_ops_pybind
    except ImportError as error:
        raise UserError(
            f"ScaNN cannot be imported ({error}); {extras.remedy('papers')} (on Linux), or give "
            "--method faiss or exact"
        ) from error
    finally:
        if hidden:
            del sys.modules["tensorflow"]
    return scann_ops_pybind


@functools.cache
def best_installed() -> str:
    """ScaNN, or what takes over where it is not installed: FAISS, else exact search."""
    found = next(filter(importlib.util.find_spec, METHODS), "exact")
    if found != SCANN:
        progress.say(f"ScaNN is not installed ({extras.remedy('papers')}); {found} takes over")
    return found


def faiss_library(what: str = "an index of FAISS") -> Any:
    """FAISS; raises UserError where it is not installed.

    Its threads wait for one another by spinning for milliseconds, at every step of k-means: where
    other programs use the cores this made a build 60 times slower. So they spin for less.
    """
    if "faiss" in sys.modules or _SPINNING.keys() & os.environ.keys():
        return extras.load("faiss", "faiss", what)
    os.environ.update(_SPINNING)
    try:
        return extras.load("faiss", "faiss", what)
    finally:
        for name in _SPINNING:
            del os.environ[name]


def flat(vectors: Vectors) -> Any:
    """All vectors, in single precision, as FAISS's exact index; row numbers are its ids."""
    index = faiss_library().IndexFlatIP(vectors.width)
    for _, block in vectors.blocks(1 << 16):
        index.add(np.ascontiguousarray(block, np.float32))
    return index


def part_rows(total: int, most: int = 0) -> list[tuple[int, int]]:
    """(start, stop) of parts of nearly equal size with at most `most` rows (0: PART_ROWS)."""
    count = max(1, -(-total // (most or PART_ROWS)))
    bounds = [total * n // count for n in range(count + 1)]
    return list(zip(bounds, bounds[1:], strict=False))


def build_bytes(rows: int, width: int, method: str = SCANN) -> float:
    copied = _COPIES[method] * rows + _SAMPLE_COPIES * min(rows, _SAMPLE)
    return _PROCESS + 4 * width * copied


def refuse_too_large(rows: int, width: int, method: str = SCANN) -> None:
    """Raises where a part cannot be built in the memory that is free."""
    import psutil

    free, needed = psutil.virtual_memory().available, build_bytes(rows, width, method)
    if needed > free:
        raise UserError(
            f"an index of {rows:,} vectors takes about {needed / 1e9:.1f} GB of memory, and "
            f"{free / 1e9:.1f} are free; give a smaller --part_rows, or --method exact"
        )
