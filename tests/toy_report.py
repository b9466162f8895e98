"""A tiny run's folder of real artefacts: everything that a report shows is in it once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from toy_retrieval import WORDS, sentence

from qac_jax import artifacts
from qac_jax.formats.records import write_records
from qac_jax.formats.runs import Ranking, ranked, write_lines
from qac_jax.pipeline.stage import execute
from qac_jax.stages.evaluate import Evaluate


PASSAGES, QUERIES = 40, 24
# How late the relevant passage comes at the most: the fewer, the better the system.
SYSTEMS = {"bm25": 30, "retriever 1": 8, "retriever 2": 3}


def build(folder: Path) -> Path:
    """passages, contexts, encoder (with a history), runs and natural (metrics)."""
    rng = np.random.default_rng(0)
    named = [(f"p{n}", WORDS[n % 20], WORDS[(n + 1) % 20]) for n in range(PASSAGES)]
    with artifacts.create(folder / "passages", kind="passages", stage="prepare") as out:
        titles = [(name, f"About {word} <{name[1:]}>") for name, word, _ in named]
        write_records(out, [{"_id": n, "title": t, "text": sentence(rng, 20)} for n, t in titles])
        out.info["seconds"] = 12.5
    with artifacts.create(folder / "queries", kind="contexts", stage="generate") as out:
        asked = [
            (
                {"text": f"what is {word}?", "origin": "t5", "score": -1.25},
                {"text": f"who likes a {other} & why?", "origin": "title"},
            )
            for _, word, other in named
        ]
        found = [{"_id": of[0], "contexts": c} for of, c in zip(named, asked, strict=True)]
        write_records(out, found, "contexts")
        out.info.update(seconds=75.0, peak_resident_bytes=2**30)
    fields = {"type": "x.Train", "steps": 1000}
    with artifacts.create(
        folder / "encoder", kind="parameters", stage="pretrain", fields=fields
    ) as out:
        with out.open("metrics.jsonl") as file:
            for step in range(10, 1001, 10):
                loss = 2 + 6 * float(np.exp(-step / 200))
                row = {"step": step, "loss": loss, "learning_rate": 1e-3 * (1 - step / 1000)}
                file.write(json.dumps({**row, "step_ms": 80.0}) + "\n")
                if step % 250 == 0:
                    file.write(json.dumps({"step": step, "validation/loss": loss + 0.4}) + "\n")
        out.info.update(seconds=605.0, gin="train.Train.steps = 1000\n")
    judged(folder, rng)
    return folder


def judged(folder: Path, rng: np.random.Generator) -> None:
    sources = folder / "sources"
    sources.mkdir()
    truth = {f"q{n}": f"p{int(rng.integers(PASSAGES))}" for n in range(QUERIES)}
    with open(sources / "queries.jsonl", "w") as file:
        for name, passage in truth.items():
            number = int(passage[1:])
            text = f"where is the {WORDS[number % 20]} of {number}?"
            file.write(json.dumps({"_id": name, "text": text}) + "\n")
    lines = [f"{query}\t{passage}\t1" for query, passage in truth.items()]
    (sources / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    for system, latest in SYSTEMS.items():
        place = folder / system.replace(" ", "_")
        with artifacts.create(
            place,
            kind="run",
            stage="search",
            fields={"queries": os.fspath(sources / "queries.jsonl")},
        ) as out:
            with out.open("run.trec") as file:
                write_lines(file, {q: late(rng, p, latest) for q, p in truth.items()})
            out.count = QUERIES
            out.info["seconds"] = 1.0
    runs = ",".join(os.fspath(folder / system.replace(" ", "_")) for system in SYSTEMS)
    stage = Evaluate.make(
        runs=runs,
        qrels=os.fspath(sources / "test.tsv"),
        measures=("ndcg@10", "mrr@10", "recall@20"),
        permutations=999,
    )
    execute(stage, folder / "natural")


def late(rng: np.random.Generator, relevant: str, latest: int) -> Ranking:
    ids = [f"p{n}" for n in rng.permutation(PASSAGES) if f"p{n}" != relevant]
    ids.insert(int(rng.integers(latest)), relevant)
    return ranked(ids, 20 - np.arange(len(ids)) / 2)
