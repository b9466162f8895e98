"""Drills at size: hosts that are killed, ten million passages, memory by size of the corpus."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qac_jax import artifacts


WORDS = [f"{a}{b}{c}" for a in "bdfgklmn" for b in "aeiou" for c in "lmnrst"]
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"


def qac(*words: Any) -> list[str]:
    return [sys.executable, "-m", "qac_jax.cli", *map(str, words)]


def texts(count: int, seed: int = 0) -> Iterator[dict[str, str]]:
    rng = random.Random(seed)
    for number in range(count):
        yield {"_id": f"p{number}", "title": "", "text": " ".join(rng.choices(WORDS, k=40))}


def write(path: Path, records: Iterator[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def kills(times: str, out: str, encoder: str = ENCODER) -> None:
    """Two processes embed; one of them is killed at a random moment, then 1 to 3 continue."""
    root, rng = Path(out), random.Random(0)
    write(root / "corpus.jsonl", texts(4000))
    given = ("embed", "--encoder", encoder, "--passages", root / "corpus.jsonl")
    given = (*given, "--shard_rows", 100)
    began = time.monotonic()
    subprocess.run(qac(*given, "--out", root / "whole"), check=True)
    lasted, wanted = time.monotonic() - began, artifacts.load(root / "whole").identity
    for number in range(int(times)):
        target = root / "killed"
        shutil.rmtree(target, ignore_errors=True)
        for count, victim in ((2, rng.randrange(2)), (rng.randint(1, 3), None)):
            hosts = [
                ("--processes", count, "--process", n) if count > 1 else () for n in range(count)
            ]
            started = [subprocess.Popen(qac(*given, "--out", target, *host)) for host in hosts]
            if victim is not None:
                time.sleep(rng.random() * lasted)
                started[victim].kill()
            for process in started:
                process.wait()
        if artifacts.load(target).identity != wanted:
            raise SystemExit(f"kill {number}: the vectors differ")
        print(f"kill {number + 1} of {times}: equal", flush=True)


def road(count: str, out: str, encoder: str = ENCODER) -> None:
    """Seconds and peak memory of every step over synthetic passages."""
    root = Path(out)
    if not (root / "corpus.jsonl").exists():
        write(root / "corpus.jsonl", texts(int(count)))
        write(root / "queries.jsonl", texts(1000, seed=1))
    corpus, queries = root / "corpus.jsonl", root / "queries.jsonl"
    steps = (
        ("passages", "prepare", "--input", corpus, "--cut", "none"),
        ("vectors", "embed", "--encoder", encoder, "--passages", root / "passages"),
        ("index", "index", "--vectors", root / "vectors"),
        ("run", "search", "--index", root / "index", "--queries", queries, "--k", 100),
    )
    for name, *words in steps:
        subprocess.run(qac(*words, "--out", root / name), check=True)
        info = artifacts.load(root / name).info
        peak = info["peak_resident_bytes"] / 1e9
        print(f"{name}: {info['seconds']:,.0f} s, {peak:.2f} GB", flush=True)


def memory(out: str) -> None:
    """Peak resident memory of labelling a run of 1, 10 and 100 times a few rows."""
    root = Path(out)
    write(root / "corpus.jsonl", texts(2000))
    passages = ("prepare", "--input", root / "corpus.jsonl", "--cut", "none")
    subprocess.run(qac(*passages, "--out", root / "passages"), check=True)
    print("| rows of the run | peak resident memory |\n|---|---|")
    for times in (1, 10, 100):
        rng, folder = random.Random(times), root / str(times)
        names = [f"q{number}" for number in range(200 * times)]
        write(folder / "queries.jsonl", ({"_id": n, "text": n} for n in names))
        with open(folder / "run.trec", "w", encoding="utf-8") as run:
            for name in names:
                found = rng.sample(range(2000), 200)
                run.writelines(f"{name} Q0 p{p} {r} {-r} t\n" for r, p in enumerate(found))
        with open(folder / "qrels.tsv", "w", encoding="utf-8") as judged:
            judged.write("query-id\tcorpus-id\tscore\n")
            judged.writelines(f"{name}\tp{rng.randrange(2000)}\t1\n" for name in names)
        given = ("--passages", root / "passages", "--queries", folder / "queries.jsonl")
        given = (*given, "--candidates", folder / "run.trec", "--qrels", folder / "qrels.tsv")
        command = qac("label", *given, "--depth", 50, "--out", folder / "labels")
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        peak = artifacts.load(folder / "labels").info["peak_resident_bytes"]
        print(f"| {200 * len(names):,} | {peak / 1e6:,.0f} MB |", flush=True)


if __name__ == "__main__":
    {"kills": kills, "road": road, "memory": memory}[sys.argv[1]](*sys.argv[2:])
