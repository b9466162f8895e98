"""A cluster on loopback: processes of some devices each give what one process gives."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qac_jax import artifacts
from qac_jax.hub import parameters


GENERATOR = "shipped:tqgen"
# Queries of which several shards are made (`TOGETHER` of retrieval/search.py).
QUERIES = 2500
_WORDS = [f"{a}{b}{c}" for a in "bdfg" for b in "aeiou" for c in "lmnr"]


def virtual(out: str, processes: str = "4", devices: str = "2") -> None:
    """Trains on all devices at once, embeds, generates, searches and labels in shards."""
    root, count, each = Path(out), int(processes), int(devices)
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    rng = random.Random(0)
    _write(root / "corpus.jsonl", _texts(rng, "p", 64, 20))
    _write(root / "queries.jsonl", _texts(rng, "q", QUERIES, 4))
    lines = [f"q{n}\tp{rng.randrange(64)}\t1\n" for n in range(QUERIES)]
    (root / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    _run(root, "passages", "prepare", "--input", root / "corpus.jsonl", "--cut", "none")
    _train_together(root, count, each)
    _divide(root, count, each)


def _train_together(root: Path, count: int, each: int) -> None:
    """A training in `count` processes is that in one, but for the order of sums."""
    _run(root, "examples", "tokenize", "--task", "mlm", "--passages", root / "passages")
    train = ("pretrain", "--gin_file", "objectives/mlm.gin", "--gin_file", "models/bert_tiny.gin")
    train = (*train, "--examples", root / "examples", "--steps", 4, "--batch_size", 16)
    _run(root, "encoder", *train, devices=count * each)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    _together(root, "encoder", count, each, *train, "--coordinator", address)
    _say("train", _farthest(root / "encoder", root / "encoder_divided") < 1e-4)


def _divide(root: Path, count: int, each: int) -> None:
    """What is divided by shards is the same byte for byte."""
    queries, passages = root / "queries.jsonl", root / "passages"
    encoder, vectors, run = root / "encoder", root / "vectors", root / "run"
    verbs: tuple[tuple[Any, ...], ...] = (
        ("vectors", "embed", "--encoder", encoder, "--pooling", "mean", "--passages", passages,
         "--shard_rows", 8),
        ("questions", "generate", "--passages", passages, "--generator", GENERATOR,
         "--samples", 1, "--max_tokens", 4, "--shard_passages", 8),
        ("run", "search", "--index", root / "index", "--queries", queries, "--k", 10),
        ("labels", "label", "--candidates", run, "--passages", passages, "--queries", queries,
         "--qrels", root / "qrels.tsv", "--depth", 10),
    )  # fmt: skip
    for name, *words in verbs:
        _run(root, name, *words, devices=each)
        if name == "vectors":
            _run(root, "index", "index", "--vectors", vectors, "--method", "exact")
        _together(root, name, count, each, *words)
        whole, parts = (artifacts.load(root / n) for n in (name, f"{name}_divided"))
        _say(words[0], whole.identity == parts.identity)


def _texts(rng: random.Random, prefix: str, count: int, words: int) -> Iterator[dict[str, str]]:
    for number in range(count):
        text = " ".join(rng.choices(_WORDS, k=words))
        yield {"_id": f"{prefix}{number}", "title": "", "text": text}


def _write(path: Path, records: Iterator[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def _command(*words: Any) -> list[str]:
    return [sys.executable, "-m", "qac_jax.cli", *map(str, words)]


def _environment(devices: int) -> dict[str, str]:
    return {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}


def _run(root: Path, name: str, *words: Any, devices: int = 1) -> None:
    """A verb in one process."""
    command = _command(*words, "--out", root / name)
    subprocess.run(command, check=True, env=_environment(devices), stdout=subprocess.DEVNULL)


def _together(root: Path, name: str, count: int, devices: int, *words: Any) -> None:
    """The same verb in `count` processes."""
    command = _command(*words, "--out", root / f"{name}_divided", "--processes", count, "--process")
    started = [
        subprocess.Popen([*command, str(n)], env=_environment(devices), stdout=subprocess.DEVNULL)
        for n in range(count)
    ]
    if any([process.wait() for process in started]):
        raise SystemExit(f"{words[0]}: a process failed")


def _farthest(one: Path, two: Path) -> float:
    """The largest difference of parameters, by the largest value of each array.

    Biases of attention's keys change nothing, so that Adam moves them by rounding alone: arrays as
    small as these (1e-8) are of no matter.
    """
    import jax
    import numpy as np

    trees = (parameters.load_whole(artifacts.load(folder)) for folder in (one, two))
    pairs = zip(*map(jax.tree.leaves, trees), strict=True)
    return max(float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-3)) for a, b in pairs)


def _say(verb: str, equal: bool) -> None:
    print(f"{verb}: {'equal' if equal else 'DIFFERENT'}", flush=True)
    if not equal:
        raise SystemExit(1)
