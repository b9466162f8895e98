"""Approximate search by FAISS, the package's extra `faiss`; it is imported inside functions only.

Two families: an inverted file of 4-bit product codes whose candidates are rescored ("ivf"), and a
graph, HNSW over the vectors themselves ("hnsw").
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from qac_jax import extras
from qac_jax.errors import UserError
from qac_jax.retrieval.approximate import Approximate, Effort, check_reordering, tree_for


IVF, HNSW = FAMILIES = ("ivf", "hnsw")
EXTRA = "faiss"
FILE = "index.faiss"

# Vectors that a 4-bit quantiser's 16 centres are learned on, at least.
_CENTRES = 16
# Training vectors of a list, at least.
_OF_LIST = 64
# The longest queue of a graph that tuning tries, whatever k is.
_QUEUE = 1024


# What GNU's OpenMP reads when it is loaded: rounds of waiting before a thread sleeps.
_SPINNING = {"GOMP_SPINCOUNT": "1000"}


@dataclasses.dataclass(frozen=True)
class Lists:
    """How an inverted file is built; without lists all codes are scanned."""

    leaves: int  # lists; 0: none
    hashed: bool = True  # 4-bit codes, then exact scores of candidates; False: exact scores only
    dims_per_block: int = 2
    training_rows: int = 100_000
    reordering: str = "float32"


@dataclasses.dataclass(frozen=True)
class Graph:
    """How a graph (HNSW) is built."""

    links: int = 32  # M: neighbours of a node, twice as many on the lowest level
    construction: int = 100  # efConstruction

    @property
    def leaves(self) -> int:
        return 0

    @property
    def hashed(self) -> bool:
        return True


FaissPreset = Lists | Graph


def family_of(preset: FaissPreset) -> str:
    return HNSW if isinstance(preset, Graph) else IVF


def preset_for(rows: int, family: str, *, leaves: int | None = None, **changes: Any) -> FaissPreset:
    """The default preset for a number of rows, with some of its settings changed."""
    if family == HNSW:
        return Graph()
    leaves, hashed = tree_for(rows, leaves)
    preset = Lists(leaves, hashed and rows >= _CENTRES, **changes)
    check_reordering(preset.reordering)
    return preset


def restored(described: dict[str, Any]) -> FaissPreset:
    """The preset that an index's description holds."""
    return Graph(**described) if "links" in described else Lists(**described)


def library(what: str = "an index of FAISS") -> Any:
    """The package; raises UserError where it is not installed.

    Its threads wait for one another by spinning for milliseconds, at every step of k-means: where
    other programs use the cores this made a build 60 times slower. So they spin for less.
    """
    if "faiss" in sys.modules or _SPINNING.keys() & os.environ.keys():
        return extras.load("faiss", EXTRA, what)
    os.environ.update(_SPINNING)
    try:
        return extras.load("faiss", EXTRA, what)
    finally:
        for name in _SPINNING:
            del os.environ[name]


def version() -> str:
    return str(library().__version__)


def build(vectors: np.ndarray, preset: FaissPreset, folder: str | os.PathLike[str]) -> None:
    """Builds one part and writes it into an empty folder that may be moved afterwards."""
    faiss = library()
    vectors = np.ascontiguousarray(vectors, np.float32)
    os.makedirs(folder, exist_ok=True)
    made = graph(vectors, preset) if isinstance(preset, Graph) else _lists(vectors, preset)
    try:
        faiss.write_index(made, os.path.join(os.fspath(folder), FILE))
    except RuntimeError as error:
        raise UserError(
            f"FAISS cannot write its index to {folder} ({_reason(error)}); check that the disk has "
            "space, and run the command again"
        ) from error


def _lists(vectors: np.ndarray, preset: Lists) -> Any:
    if not preset.hashed:
        return coded(f"IVF{preset.leaves},Flat" if preset.leaves else "Flat", vectors)
    codes = f"PQ{blocks(vectors.shape[1], preset.dims_per_block)}x4fs"
    # Codes of what a list's centre leaves of a vector: faster at equal recall.
    name = f"IVF{preset.leaves},{codes}r" if preset.leaves else codes
    training_rows = max(preset.training_rows, _OF_LIST * preset.leaves)
    return refined(coded(name, vectors, training_rows), vectors, preset.reordering)


def blocks(width: int, dims: int) -> int:
    """The blocks that a product quantiser cuts a vector into: of equal size, at most `dims`."""
    return width // max(size for size in range(1, max(dims, 1) + 1) if width % size == 0)


def coded(description: str, vectors: np.ndarray, training_rows: int = 0) -> Any:
    """An index by FAISS's name for it, trained on some of the vectors (0: on all) and filled."""
    faiss = library()
    index = faiss.index_factory(vectors.shape[1], description, faiss.METRIC_INNER_PRODUCT)
    for part in ("cp", "pq.cp"):
        with contextlib.suppress(AttributeError):  # no warning of few vectors: lists may be small
            operator.attrgetter(part)(index).min_points_per_centroid = 1
    index.train(_sample(vectors, training_rows))
    index.add(vectors)
    return index


def _sample(vectors: np.ndarray, count: int) -> np.ndarray:
    if not 0 < count < len(vectors):
        return vectors
    rows = np.random.default_rng(0).choice(len(vectors), count, replace=False)
    return vectors[np.sort(rows)]


def refined(index: Any, vectors: np.ndarray, reordering: str = "float32") -> Any:
    """The index with the vectors that its candidates are rescored with."""
    faiss = library()
    width, product = vectors.shape[1], faiss.METRIC_INNER_PRODUCT
    if reordering == "float32":
        whole = faiss.IndexFlatIP(width)
    else:
        types = faiss.ScalarQuantizer
        stored = types.QT_bf16 if reordering == "bfloat16" else types.QT_8bit
        whole = faiss.IndexScalarQuantizer(width, stored, product)
        whole.train(vectors)
    whole.add(vectors)
    return faiss.IndexRefine(index, whole)


def graph(vectors: np.ndarray, preset: Graph) -> Any:
    """By one thread: threads would link the same vectors differently each time."""
    faiss = library()
    index = faiss.IndexHNSWFlat(vectors.shape[1], preset.links, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = preset.construction
    with _one_thread(faiss):
        index.add(vectors)
    return index


@contextlib.contextmanager
def _one_thread(faiss: Any) -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def search_lists(
    index: Any, queries: np.ndarray, k: int, lists: int, candidates: int
) -> tuple[np.ndarray, np.ndarray]:
    """Searches a number of its lists (0: it has none), and rescores candidates (0: none are)."""
    faiss = library()
    params = faiss.SearchParametersIVF(nprobe=lists) if lists else None
    if candidates:
        known = {} if params is None else {"base_index_params": params}
        # FAISS cuts k times the factor down to a whole number.
        params = faiss.IndexRefineSearchParameters(k_factor=(candidates + 0.5) / k, **known)
    return index.search(queries, k, params=params)


def search_graph(
    index: Any, queries: np.ndarray, k: int, candidates: int
) -> tuple[np.ndarray, np.ndarray]:
    """Searches with a queue of candidates, efSearch."""
    return index.search(queries, k, params=library().SearchParametersHNSW(efSearch=candidates))


class Faiss(Approximate):
    """Searches the parts of an index; rows are numbered across the parts."""

    presets: Sequence[FaissPreset]

    def __init__(
        self,
        folders: Sequence[str | os.PathLike[str]],
        rows: Sequence[int],
        width: int,
        presets: Sequence[FaissPreset],
        effort: Effort | None = None,
    ):
        pairs = zip(folders, rows, strict=True)
        super().__init__([_load(*pair, width) for pair in pairs], rows, width, presets, effort)

    def _search_part(
        self, part: Any, preset: FaissPreset, queries: np.ndarray, k: int, effort: Effort
    ) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(preset, Graph):
            return search_graph(part, queries, k, effort.reorder)
        candidates = effort.reorder if preset.hashed else 0
        return search_lists(part, queries, k, effort.leaves, candidates)

    def largest_effort(self, k: int) -> Effort:
        most = super().largest_effort(k)
        if family_of(self.presets[0]) == IVF:
            return most
        return Effort(0, min(len(self), max(most.reorder, _QUEUE)))

    def named(self, effort: Effort) -> str:
        if family_of(self.presets[0]) == HNSW:
            return f"efSearch {effort.reorder}"
        return f"nprobe {effort.leaves} and {effort.reorder} candidates"

    def remedy(self) -> str:
        return "give --faiss ivf" if family_of(self.presets[0]) == HNSW else super().remedy()


def _load(folder: str | os.PathLike[str], count: int, width: int) -> Any:
    faiss = library()
    try:
        part = faiss.read_index(os.path.join(os.fspath(folder), FILE))
    except RuntimeError as error:
        raise UserError(
            f"{folder} cannot be loaded by FAISS {version()} ({_reason(error)}); build the index "
            "again"
        ) from error
    if (part.ntotal, part.d) != (count, width):
        raise UserError(
            f"{folder} holds {part.ntotal} vectors of {part.d} dimensions instead of {count} of "
            f"{width}; build the index again"
        )
    return part


def _reason(error: RuntimeError) -> str:
    """What FAISS says behind the place in its source."""
    return str(error).splitlines()[0].rpartition("Error: ")[2]
