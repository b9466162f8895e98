"""Twenty steps of every objective by the command line give the losses of `frozen_losses.json`.

A change of the code must not change them. Where a change is meant to (a paper's fact corrected),
`QAC_FREEZE=1` writes the file anew, and its commit says why.
"""

import json
import os
import random
from pathlib import Path

import jax
import pytest

from qac_jax import cli
from qac_jax.training import mesh


FILE = Path(__file__).with_name("frozen_losses.json")
STEMS = "tide mill barley curve array shape index matrix storm lamp oil river stone".split()
BERT = ["--gin_file", "models/bert_tiny.gin"]
CROPS = [*BERT, "--gin.optimizers.Optimizer.warmup_steps=2"]
# The file is of contexts of at most 32 tokens; the recipes' longer ones hold the same objectives.
CONTEXTS = [*BERT, "--gin.CONTEXT_TOKENS=32"]
T5 = ["--gin_file", "models/t5_tiny.gin", "--gin.VOCAB_SIZE=16512"]
# Objective: the verb, the examples' task, and what else is given.
RUNS: dict[str, tuple[str, str, list[str]]] = {
    "mlm": ("pretrain", "mlm", BERT),
    "condenser": ("pretrain", "mlm", BERT),
    "retromae": ("pretrain", "mlm", BERT),
    "dupmae": ("pretrain", "mlm", BERT),
    "cocondenser": ("pretrain", "passage_query", CONTEXTS),
    "cotmae": ("pretrain", "passage_query", CONTEXTS),
    "augtriever": ("pretrain", "augtriever", CROPS),
    "augtriever_moco": ("pretrain", "augtriever", CROPS),
    "pair": ("pretrain", "triples", BERT),
    "finetune": ("finetune", "triples", [*BERT, "--gin.N_PASSAGES=3"]),
    "cross_encoder": ("finetune", "cross_encoder", BERT),
    "cross_encoder_localized": ("finetune", "cross_encoder_group", [*BERT, "--gin.N_PASSAGES=3"]),
    "listwise": ("finetune", "groups", [*BERT, "--gin.N_PASSAGES=8", "--gin.N_QUERIES=8"]),
    "seq2seq": ("pretrain", "seq2seq", T5),
}


def sentence(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(STEMS) for _ in range(count)).capitalize() + "."


def qac(*arguments: object) -> None:
    assert cli.main([str(a) for a in arguments]) == 0, arguments


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Examples of every kind, from forty documents and as many judged queries."""
    folder = tmp_path_factory.mktemp("frozen")
    rng = random.Random(7)
    (folder / "data" / "qrels").mkdir(parents=True)
    with open(folder / "data" / "corpus.jsonl", "w") as corpus:
        for n in range(40):
            text = " ".join(sentence(rng, rng.randint(4, 12)) for _ in range(rng.randint(3, 9)))
            corpus.write(json.dumps({"_id": f"d{n}", "title": f"Doc {n}", "text": text}) + "\n")
    queries, qrels = folder / "data" / "queries.jsonl", folder / "data" / "qrels" / "train.tsv"
    lines = [json.dumps({"_id": f"q{n}", "text": sentence(rng, 4)}) for n in range(40)]
    queries.write_text("\n".join(lines) + "\n")
    judged = [f"q{n}\td{n}\t1" for n in range(40)]
    qrels.write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
    passages, contexts = folder / "passages", folder / "contexts"
    qac("prepare", "--format", "beir", "--documents", folder / "data", "--out", passages)
    qac("extract", "--passages", passages, "--method", "bm25", "--keep", 3, "--out", contexts)
    for task in ("mlm", "passage_query", "augtriever", "seq2seq"):
        given = [] if task == "mlm" else ["--contexts", contexts]
        qac(
            *("tokenize", "--passages", passages, "--task", task, *given), *("--out", folder / task)
        )
    for task in ("triples", "cross_encoder", "cross_encoder_group"):
        qac(
            *("tokenize", "--passages", passages, "--task", task, "--queries", queries),
            *("--qrels", qrels, "--random_negatives", 6, "--out", folder / task),
        )
    minilm = "shipped:minilm"
    qac("embed", "--encoder", minilm, "--passages", passages, "--out", folder / "vectors")
    qac("index", "--vectors", folder / "vectors", "--method", "exact", "--out", folder / "index")
    qac("bm25", "--passages", passages, "--out", folder / "bm25")
    fusion = ["--weight", "0.3", "--normalization", "theoretical"]  # as when the losses were frozen
    joined = ["--index", folder / "index", "--bm25", folder / "bm25", "--out", folder / "both"]
    qac("fuse", *joined, *fusion)
    group = ["--passages", passages, "--contexts", contexts, "--teacher", folder / "both"]
    qac("step", "group", *group, "--size", 8, "--turns", 4, "--out", folder / "grouped")
    qac("tokenize", "--task", "groups", "--pairs", folder / "grouped", "--out", folder / "groups")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_losses_are_those_of_the_file(
    name: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Eight devices compute the same (test_objectives_equivalence.py), in six times the time.
    one = mesh.make_mesh(devices=jax.devices()[:1])
    monkeypatch.setattr(mesh, "mesh_for", lambda *_, **__: one)
    verb, task, more = RUNS[name]
    files = ["--gin_file", f"objectives/{name}.gin"]
    qac(
        *(verb, *files, *more, "--examples", made / task, "--steps", 20, "--batch_size", 8),
        *("--microbatch", 0, "--log_every", 1, "--seed", 3, "--out", tmp_path / "out"),
    )
    log = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    losses = [row["loss"] for row in map(json.loads, log) if "loss" in row]
    assert len(losses) == 20
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("QAC_FREEZE"):
        known[name] = losses
        FILE.write_text(json.dumps(known, indent=1) + "\n")
    # Equal programs give equal bits on one processor; another one adds in another order.
    assert losses == pytest.approx(known[name], rel=2e-4)
