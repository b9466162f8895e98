"""Memory: documents are read and records written as streams; it does not grow with the corpus, and
searching and building take so much beside the vectors.

The promise at 1,000,000 x 384: exact search at most 0.5 times the vectors and 1 GB, ScaNN's build
4.5 times, its search 2 times and 1 GB. Here a tenth of the rows is measured against fewer, so that
what Python, the libraries and whole blocks of vectors always take does not hide what grows.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import toy_retrieval as toy
from toy_process import devices


pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory is read from /proc"
)
MEGABYTE = 1 << 20
ALLOWED_GROWTH = 100 * MEGABYTE
WIDTH, QUERIES = 384, 200
FEW, MANY = 30_000, 100_000
SLACK = 100_000_000  # what allocators keep differs from run to run

# VmHWM and not ru_maxrss: that one starts with the memory of the process that launched us.
REPORT = """
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(records, int(peak.split()[1]) * 1024)
"""


def measured(code: str, *arguments: object) -> tuple[int, int]:
    """The records and the most memory of a process."""
    done = subprocess.run(
        [sys.executable, "-c", code + REPORT, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=290,
        env=devices(),
    )
    assert done.returncode == 0, done.stderr
    records, peak = map(int, done.stdout.split()[-2:])
    return records, peak


# One worker works in this very process, so its memory is what is measured.
PREPARE = """
import os
import sys
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from qac_jax import artifacts, cli
from qac_jax.formats.records import Records

format, source, out = sys.argv[1:]
vocabulary = os.path.join(os.path.dirname(out), "vocabulary")
command = ["prepare", "--format", format, "--documents", source, "--out", out, "--cut", "lines"]
assert cli.main([*command, "--tokenizer", vocabulary, "--workers", "1"]) == 0
records = sum(1 for record in Records(artifacts.load(out)) if record["text"])
"""

WORDS = "retrieval passages are read one by one and never held all together in memory ".split()
TEXT = " ".join(WORDS * 7)
ARTICLE = f"'''{TEXT}''' [[Target|label]]\n\n" * 12
# What stands before and after the records, of which each N is the number.
FORMATS = {
    "jsonl": ("", f'{{"id": N, "text": "N {TEXT}"}}\n', ""),
    "wikipedia": (
        "<mediawiki>\n",
        f"<page><title>N</title><ns>0</ns><id>N</id><revision><text>N {ARTICLE}</text></revision>"
        "</page>\n",
        "</mediawiki>\n",
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("format", FORMATS)
def test_five_times_the_corpus_takes_no_more_memory(tmp_path: Path, format: str) -> None:
    peaks, counts = [], []
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(WORDS))]
    (tmp_path / "vocabulary").mkdir()
    (tmp_path / "vocabulary" / "vocab.txt").write_text("\n".join(pieces))
    before, record, after = FORMATS[format]
    for megabytes in (10, 50):
        source = tmp_path / f"corpus{megabytes}"
        with source.open("w") as file:
            file.write(before)
            for number in range(megabytes * MEGABYTE // len(record)):
                file.write(record.replace("N", str(number)))
            file.write(after)
        records, peak = measured(PREPARE, format, source, tmp_path / f"out{megabytes}")
        counts.append(records)
        peaks.append(peak)
    print(f"{counts[0]:,} -> {counts[1]:,} records, {peaks[0]:,} -> {peaks[1]:,} bytes")
    assert counts[1] > 4 * counts[0] > 0
    assert peaks[1] - peaks[0] < ALLOWED_GROWTH


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
records = 0
"""


@pytest.mark.slow
def test_memory_grows_as_promised(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "queries.npy", toy.clustered(rng, QUERIES, WIDTH))
    for name, rows in (("few", FEW), ("many", MANY)):
        (tmp_path / name).mkdir()
        toy.write_vectors(tmp_path / name / "vectors", toy.clustered(rng, rows, WIDTH), shards=4)
    grown = 4 * WIDTH * (MANY - FEW)
    for what, share in (("exact", 0.5), ("build", 4.5), ("search", 2.0)):
        few, many = (
            measured(CODE, what, tmp_path / name, tmp_path / "queries.npy")[1]
            for name in ("few", "many")
        )
        assert many - few < share * grown + SLACK, (what, few, many, (many - few) / grown)
