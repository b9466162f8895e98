"""Arrays on a full disk: an error, never a shorter file that counts as whole."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qac_jax.artifacts import arrays


ARRAYS = [np.arange(516, dtype=np.float32), np.ones((3, 5), np.int64).T, np.zeros((0, 4), "<f2")]


@pytest.mark.parametrize("array", ARRAYS, ids=range(len(ARRAYS)))
def test_the_bytes_are_those_of_numpy(array: np.ndarray, tmp_path: Path) -> None:
    arrays.save(tmp_path / "ours.npy", array)
    np.save(tmp_path / "theirs.npy", array)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()


@pytest.fixture
def limited() -> Iterator[None]:
    """Files of at most 2,191 bytes, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2191, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_at_the_last_byte_is_an_error(limited: None, tmp_path: Path) -> None:
    """Fault 9: `qac bm25` ended well, with one byte less, and the artefact called itself whole."""
    with pytest.raises(OSError):
        arrays.save(tmp_path / "a.npy", ARRAYS[0])
    with pytest.raises(OSError), (tmp_path / "b.npy").open("wb") as file:
        arrays.write(file, ARRAYS[0])


def test_nothing_writes_past_it() -> None:
    """Only benchmarks use numpy's own function."""
    package = Path(arrays.__file__).parents[1]
    for file in sorted(package.rglob("*.py")):
        if "bench" not in file.parts and file.name != "arrays.py":
            text = file.read_text()
            for name in ("np.save(", ".tofile(", "open_memmap("):
                assert name not in text, f"{file} uses {name}; take artifacts/arrays.py"
