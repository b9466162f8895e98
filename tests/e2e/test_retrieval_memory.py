"""What searching and building take beside the vectors, in processes of their own.

The promise at 1,000,000 x 384: exact search at most 0.5 times the vectors and 1 GB, ScaNN's build
4.5 times, its search 2 times and 1 GB. Here a tenth of the rows is measured against fewer, so that
what Python, the libraries and whole blocks of vectors always take does not hide what grows.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import toy_retrieval as toy


WIDTH, QUERIES = 384, 200
FEW, MANY = 30_000, 100_000
SLACK = 100_000_000  # what allocators keep differs from run to run

# VmHWM: the most that was resident, files' pages and all; ru_maxrss starts with our parent's.
CODE = """
import sys

import numpy as np

from qac_jax import artifacts
from qac_jax.pipeline import stage
from qac_jax.retrieval.exact import Exact
from qac_jax.retrieval.index import Index
from qac_jax.retrieval.vectors import Vectors
from qac_jax.stages import index

what, folder, queries = sys.argv[1], sys.argv[2], np.load(sys.argv[3])
if what == "exact":
    Exact(Vectors.of(artifacts.load(f"{folder}/vectors"))).search(queries, 100)
if what == "build":
    wanted = index.Index(vectors=f"{folder}/vectors", method="scann", leaves=300)
    stage.execute(wanted, f"{folder}/index")
if what == "search":
    Index.load(f"{folder}/index").search(queries, 100)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) * 1024)
"""


def peak(what: str, folder: Path) -> int:
    queries = folder.parent / "queries.npy"
    done = subprocess.run(
        [sys.executable, "-c", CODE, what, str(folder), str(queries)],
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": ""},
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_grows_as_promised(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "queries.npy", toy.clustered(rng, QUERIES, WIDTH))
    for name, rows in (("few", FEW), ("many", MANY)):
        (tmp_path / name).mkdir()
        toy.write_vectors(tmp_path / name / "vectors", toy.clustered(rng, rows, WIDTH), shards=4)
    grown = 4 * WIDTH * (MANY - FEW)
    for what, share in (("exact", 0.5), ("build", 4.5), ("search", 2.0)):
        few, many = (peak(what, tmp_path / name) for name in ("few", "many"))
        assert many - few < share * grown + SLACK, (what, few, many, (many - few) / grown)
