"""Drills at size: hosts that are killed, ten million passages, memory by size of the corpus."""

from __future__ import annotations

import json
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scale_virtual

from qac_jax import artifacts
from qac_jax.retrieval import approximate


WORDS = [f"{a}{b}{c}" for a in "bdfgklmn" for b in "aeiou" for c in "lmnrst"]
ENCODER = "shipped:minilm"
TINY = (
    *("--gin_file", "objectives/mlm.gin", "--gin_file", "models/bert_tiny.gin"),
    *("--gin.bert.BertConfig.hidden_size=64", "--gin.bert.BertConfig.num_layers=1"),
    *("--gin.bert.BertConfig.intermediate_size=256", "--gin.bert.BertConfig.num_heads=1"),
    *("--steps", "2", "--batch_size", "32"),
)


def qac(*words: Any) -> list[str]:
    return [sys.executable, "-m", "qac_jax.cli", *map(str, words)]


def texts(count: int, seed: int = 0, words: int = 40) -> Iterator[dict[str, str]]:
    rng = random.Random(seed)
    for number in range(count):
        yield {"_id": f"p{number}", "title": "", "text": " ".join(rng.choices(WORDS, k=words))}


def write(path: Path, records: Iterator[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def kills(times: str, out: str, encoder: str = ENCODER, count: str = "4000") -> None:
    """Two processes embed; one of them is killed at a random moment, then 1 to 3 continue.

    The moments depend on the name of `out`, so that several drills beside one another differ.
    """
    root, rng = Path(out), random.Random(Path(out).name)
    write(root / "corpus.jsonl", texts(int(count)))
    given = ("embed", "--encoder", encoder, "--passages", root / "corpus.jsonl")
    given = (*given, "--pooling", "mean", "--shard_rows", int(count) // 40)
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


def road(count: str, out: str) -> None:
    """Seconds and peak memory of every step over synthetic passages, with a tiny encoder."""
    root = Path(out)
    if not (root / "queries.jsonl").exists():
        write(root / "corpus.jsonl", texts(int(count)))
        write(root / "queries.jsonl", texts(1000, seed=1))
    passages, queries = root / "passages", root / "queries.jsonl"
    encode = ("--encoder", root / "encoder", "--pooling", "mean")
    steps: tuple[tuple[Any, ...], ...] = (
        ("passages", "prepare", "--documents", root / "corpus.jsonl", "--cut", "none"),
        ("tokens", "tokenize", "--task", "mlm", "--passages", passages),
        ("encoder", "pretrain", "--examples", root / "tokens", *TINY),
        ("vectors", "embed", *encode, "--passages", passages, "--dtype", "float16"),
        ("index", "index", "--vectors", root / "vectors", "--part_rows", 1_000_000),
        ("run", "search", "--index", root / "index", "--queries", queries, "--k", 100),
    )
    print("| step | seconds | peak of the process | peak of all its processes |\n|---|---|---|---|")
    for name, verb, *words in steps:
        whole = _peak_together(qac(verb, *words, "--out", root / name))
        info = artifacts.load(root / name).info
        peaks = f"{info['peak_resident_bytes'] / 1e9:.2f} GB | {whole / 1e9:.2f} GB"
        print(f"| {verb} | {info['seconds']:,.0f} | {peaks} |", flush=True)


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


def rates(count: str, out: str) -> None:
    """Items that one core does in a second: those of `count` passages beyond those of a fifth of
    them, by the CPU seconds between, so neither starting nor other work of the machine counts."""
    root, sizes = Path(out), (int(count) // 5, int(count))
    spent: dict[str, list[float]] = {}
    for size in sizes:
        folder = root / str(size)
        write(folder / "corpus.jsonl", texts(size))
        write(folder / "queries.jsonl", texts(size, seed=1, words=6))
        _vectors(folder / "vectors", size, 128)
        passages, run = folder / "passages", folder / "bm25_search"
        with open(folder / "qrels.tsv", "w", encoding="utf-8") as judged:
            judged.write("query-id\tcorpus-id\tscore\n")
            judged.writelines(f"p{n}\tp{n}\t1\n" for n in range(size))
        corpus, queries = folder / "corpus.jsonl", folder / "queries.jsonl"
        steps: tuple[tuple[Any, ...], ...] = (
            ("passages", "prepare", "--input", corpus, "--max_tokens", 128, "--workers", 1),
            ("tokenize", "tokenize", "--task", "mlm", "--passages", passages, "--workers", 1),
            ("bm25", "bm25", "--passages", passages),
            ("extract", "extract", "--passages", passages, "--workers", 1),
            ("bm25_search", "search", "--index", folder / "bm25", "--queries", queries, "--k", 100),
            ("evaluate", "evaluate", "--runs", run, "--qrels", folder / "qrels.tsv"),
            ("index", "index", "--vectors", folder / "vectors", "--method", "scann"),
        )  # fmt: skip
        for name, *words in steps:
            shutil.rmtree(folder / name, ignore_errors=True)
            before = _cpu()
            command = qac(*words, "--out", folder / name)
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            spent.setdefault(name, []).append(_cpu() - before)
    print("| step | items a second on one core |\n|---|---|")
    for name, (few, many) in spent.items():
        print(f"| {name} | {(sizes[1] - sizes[0]) / max(many - few, 1e-9):,.0f} |")


def index(count: str, out: str, width: str = "768") -> None:
    """Peak memory of building and of searching ScaNN's index of `count` vectors: whole and in four
    parts, by what candidates are rescored with; beside it what `qac index` plans."""
    root, rows, wide = Path(out), int(count), int(width)
    if not (root / "vectors" / artifacts.COMMIT).exists():
        _vectors(root / "vectors", rows, wide)
    print("| parts | rescored with | build: GB, planned | search: GB, planned | seconds |")
    print("|---|---|---|---|---|")
    for parts, stored in ((1, "float32"), (4, "float32"), (4, "bfloat16"), (4, "int8")):
        size, target = -(-rows // parts), root / f"index_{parts}_{stored}"
        words = ("--vectors", root / "vectors", "--method", "scann", "--part_rows", size)
        made = qac("index", *words, "--reordering", stored, "--out", target)
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        info = artifacts.load(target).info
        ask = [sys.executable, __file__, "ask", target]
        asked = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.split()[-1]
        planned = (
            approximate.build_bytes(size, wide),
            0.5e9 + 1.3 * approximate.stored_bytes(rows, wide, stored),
        )
        figures = (info["peak_resident_bytes"], planned[0], float(asked), planned[1])
        built, plan, found, plan_of = (f"{value / 1e9:.2f}" for value in figures)
        seconds = f"{info['seconds']:,.0f}"
        print(
            f"| {parts} | {stored} | {built}, {plan} | {found}, {plan_of} | {seconds} |", flush=True
        )


def ask(target: str) -> None:
    """Searches an index with random queries; prints this process's peak resident bytes."""
    import numpy as np

    from qac_jax.retrieval.index import Index

    opened = Index.load(target)
    wide = opened.description["dimension"]
    opened.search(np.random.default_rng(0).normal(size=(256, wide)).astype(np.float32), 100)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def _vectors(folder: Path, rows: int, width: int) -> None:
    """An artefact of vectors around a thousand centres, made block by block."""
    import numpy as np

    from qac_jax.retrieval import corpus
    from qac_jax.retrieval.vectors import shard_name

    rng, block = np.random.default_rng(0), 65536
    centres = rng.normal(size=(1000, width)).astype(np.float32)
    count = -(-rows // block)
    with artifacts.create(folder, kind="vectors", replace=True) as out:
        for number in range(count):
            size = min(block, rows - number * block)
            near = centres[rng.integers(1000, size=size)]
            near += rng.normal(scale=0.7, size=near.shape).astype(np.float32)
            near /= np.linalg.norm(near, axis=1, keepdims=True)
            with out.temporary(shard_name(number, count)) as path:
                np.save(str(path), near.astype(np.float16))
        out.count = corpus.write_ids(out, (f"v{row}" for row in range(rows)))
        encoder = {"path": str(folder / "encoder"), "settings": {}, "identity": ""}
        texts_of = {"path": str(folder / "texts"), "relative": "texts", "identity": ""}
        out.info.update(side="passage", texts=texts_of, encoder=encoder, dimension=width)


def _peak_together(command: list[str]) -> int:
    """Runs a command; the largest memory of it and its descendants, looked at twice a second.

    What processes share counts once (Pss), mapped files as far as they are resident.
    """
    process, peak = subprocess.Popen(command), 0
    while process.poll() is None:
        parents = dict(filter(None, map(_parent, Path("/proc").glob("[0-9]*"))))
        family = {process.pid}
        while more := {child for child, parent in parents.items() if parent in family} - family:
            family |= more
        peak = max(peak, sum(map(_proportional_bytes, family)))
        time.sleep(0.5)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peak


def _parent(folder: Path) -> tuple[int, int] | None:
    try:
        return int(folder.name), int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return None


def _proportional_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _cpu() -> float:
    """CPU seconds of all processes that have been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    drills = {"kills": kills, "road": road, "memory": memory}
    drills |= {"rates": rates, "index": index, "ask": ask, "virtual": scale_virtual.virtual}
    drills[sys.argv[1]](*sys.argv[2:])
