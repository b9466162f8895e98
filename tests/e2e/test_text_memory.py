"""Memory does not grow with the corpus: documents are read and records written as streams."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


MEGABYTE = 1 << 20
ALLOWED_GROWTH = 100 * MEGABYTE

# VmHWM and not ru_maxrss: that one starts with the memory of the process that launched us.
ROAD = """
import sys
from qac_jax import artifacts
from qac_jax.text import documents
from qac_jax.text.records import Records, write_records

format, source, out = sys.argv[1:]
with artifacts.create(out, kind="passages") as writer:
    write_records(
        writer,
        (
            {"_id": d.id, "doc": d.id, "position": 0, "title": d.title, "text": d.text}
            for d in documents.read(format, source)
        ),
    )
records = Records(artifacts.load(out))
ids = sum(1 for _ in records.ids())
texts = sum(len(record["text"]) for record in records)
middle = records[len(records) // 2]["_id"]
assert records.positions([middle]) == [len(records) // 2]
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(ids, texts, int(peak.split()[1]) * 1024)
"""

WORDS = "retrieval passages are read one by one and never held all together in memory ".split()


def _text(number: int) -> str:
    return " ".join(WORDS[(number * 7 + i * (number % 5 + 1)) % len(WORDS)] for i in range(150))


def _jsonl(folder: Path, size: int) -> Path:
    path, number = folder / "corpus.jsonl", 0
    with open(path, "w") as file:
        while file.tell() < size:
            file.write(json.dumps({"id": number, "text": f"{number} {_text(number)}"}) + "\n")
            number += 1
    return path


def _rocketqa(folder: Path, size: int) -> Path:
    number = 0
    with open(folder / "para.txt", "w") as texts, open(folder / "para.title.txt", "w") as titles:
        while texts.tell() < size:
            texts.write(f"{number}\t{number} {_text(number)}\n")
            titles.write(f"{number}\ttitle of {number}\n")
            number += 1
    return folder


def _wikipedia(folder: Path, size: int) -> Path:
    path, number = folder / "dump.xml", 0
    article = "\n\n".join(f"'''{_text(i)}''' [[Target {i}|label]]" for i in range(12))
    with open(path, "w") as file:
        file.write("<mediawiki>\n")
        while file.tell() < size:
            file.write(
                f"<page><title>T{number}</title><ns>0</ns><id>{number}</id>"
                f"<revision><text>{number} {article}</text></revision></page>\n"
            )
            number += 1
        file.write("</mediawiki>\n")
    return path


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    "format, make",
    [
        ("jsonl", _jsonl),
        ("msmarco_passages", _rocketqa),
        pytest.param("wikipedia", _wikipedia, marks=pytest.mark.slow),
    ],
)
def test_five_times_the_corpus_takes_no_more_memory(
    tmp_path: Path, format: str, make: Callable[[Path, int], Path]
):
    peaks, texts = [], []
    for megabytes in (10, 50):
        folder = tmp_path / str(megabytes)
        folder.mkdir()
        source = make(folder, megabytes * MEGABYTE)
        command = [sys.executable, "-c", ROAD, format, str(source), str(tmp_path / f"o{megabytes}")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        _, length, peak = map(int, done.stdout.split())
        texts.append(length)
        peaks.append(peak)
    assert texts[1] > 4 * texts[0] > 20 * MEGABYTE
    assert peaks[1] - peaks[0] < ALLOWED_GROWTH, f"{peaks[0]:,} -> {peaks[1]:,} bytes"
