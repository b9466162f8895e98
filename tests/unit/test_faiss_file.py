"""`qac export --faiss`: what FAISS itself would write, and what it reads."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import toy_retrieval as toy

from qac_jax import cli
from qac_jax.artifacts import load
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import execute
from qac_jax.stages.export_faiss import FILE, ExportFaiss
from qac_jax.stages.index import Index


ROWS = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.write_vectors(tmp_path_factory.mktemp("faiss") / "vectors", ROWS)


def test_the_file_and_its_ids(vectors: Path, tmp_path: Path) -> None:
    assert cli.main(["export", "--faiss", str(vectors), "--out", str(tmp_path / "out")]) == 0
    made = load(tmp_path / "out", "faiss")
    data = (made.path / FILE).read_bytes()
    head = struct.unpack_from("<4siqqq?i", data)
    assert head == (b"IxFI", 5, 7, 1 << 20, 1 << 20, True, 0)
    assert struct.unpack_from("<Q", data, 37) == (35,)
    np.testing.assert_array_equal(np.frombuffer(data[45:], "<f4").reshape(7, 5), ROWS)
    assert (made.path / "ids.txt").read_text().split() == [f"r{n}" for n in range(7)]
    assert "IndexFlatIP (5 dimensions" in (made.path / "README.md").read_text()


def test_faiss_reads_what_it_would_write(vectors: Path, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    index = execute(Index(vectors=str(vectors), method="exact"), tmp_path / "index")
    made = execute(ExportFaiss(faiss=str(index.path)), tmp_path / "out")
    own = faiss.IndexFlatIP(5)
    own.add(ROWS)
    assert (made.path / FILE).read_bytes() == faiss.serialize_index(own).tobytes()
    opened = faiss.read_index(str(made.path / FILE))
    np.testing.assert_array_equal(opened.search(ROWS, 3)[1], own.search(ROWS, 3)[1])


def test_half_precision_becomes_single(tmp_path: Path) -> None:
    halves = toy.write_vectors(tmp_path / "vectors", ROWS.astype(np.float16))
    made = execute(ExportFaiss(faiss=str(halves)), tmp_path / "out")
    rows = np.frombuffer((made.path / FILE).read_bytes()[45:], "<f4").reshape(7, 5)
    np.testing.assert_array_equal(rows, ROWS.astype(np.float16).astype(np.float32))


def test_what_has_no_vectors_is_refused(tmp_path: Path) -> None:
    rows = toy.clustered(np.random.default_rng(1), 200, 8)
    made = toy.write_vectors(tmp_path / "vectors", rows)
    index = execute(Index(vectors=str(made), method="scann"), tmp_path / "index")
    with pytest.raises(
        UserError, match="is an approximate index, .*give the vectors that it was made of"
    ):
        execute(ExportFaiss(faiss=str(index.path)), tmp_path / "out")
