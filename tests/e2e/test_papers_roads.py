"""The papers' recipes from end to end: tiny files in the real layouts, eight virtual devices.

What they compute is other tests' concern; here every stage takes what the one before it wrote.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import toy_papers

from qac_jax.cli import main
from qac_jax.inference import reranker


def short(*stages: str) -> tuple[str, ...]:
    """One step of eight examples for these stages."""
    parts = ("epochs=0.0", "steps=1", "batch_size=8", "microbatch=0")
    return tuple(f"{stage}/train.Schedule.{part}" for stage in stages for part in parts)


QAC = ("GENERATED=2", "QUERIES=2")
MARCO = (*short("encoder", "retriever_1", "retriever_2"), "N_PASSAGES=2")
DPR = short("dpr")
PAIR = (*DPR, *short("teacher", "pretrained", "pair"), "CANDIDATES=8")
GROUPS = tuple(f"{stage}/pair.Pair.negatives_group=8" for stage in ("pretrained", "pair"))
AUG = ("STEPS=1", "optimizers.Optimizer.warmup_steps=0")
EIGHT = (*AUG, "train.Schedule.batch_size=8")
ENCODER = "ENCODER=data:bert-base-uncased"
ROADS: dict[str, tuple[Sequence[str], Sequence[str], Sequence[str]]] = {
    # recipe (and a word for what is run of it) -> overlays, bindings, stages with figures
    "msmarco_qac_cotmae": (["passage_pairs"], MARCO, ["metrics", "dl19", "dl20"]),
    "msmarco_qac_cocondenser": ([], (*QAC, *MARCO), ["metrics", "dl19", "dl20"]),
    "msmarco_condenser": ([], MARCO, ["metrics", "dl19"]),
    "msmarco_retromae": (
        [],
        (*MARCO, *short("general"), "blocks/prepare.Cutting.max_tokens=62"),
        ["metrics", "dl20"],
    ),
    "msmarco_doct5query": ([], ("SAMPLES=2",), ["metrics", "dl20"]),
    "pair_nq": ([], (*PAIR, *GROUPS), ["metrics", "figure_4"]),
    "pair_msmarco": ([], PAIR, ["metrics"]),
    "dpr_nq": ([], DPR, ["metrics"]),
    "dpr_msmarco": ([], DPR, ["metrics"]),
    "augtriever_cc": ([], (*EIGHT, "STRATEGY=hybrid_all"), ["beir", "table"]),
    "augtriever_wiki": ([], (*EIGHT, "STRATEGY=doc_anchor", "LOSS=moco"), ["beir", "table"]),
    "augtriever_finetuning": ([], (*EIGHT, ENCODER), ["beir", "table"]),
    "augtriever_adaptation": ([], (*EIGHT, ENCODER), ["figures"]),
    "augtriever_evaluation": ([], (ENCODER, "POOLING=mean"), ["beir", "table"]),
    "augtriever_evaluation bm25": ([], ("ENCODER=''", "BM25=anserini"), ["beir", "table"]),
    "msmarco_beir": ([], (ENCODER, AUG[-1], *short("retriever")), ["beir"]),
}
# The others are `long`.
IN_CI = ("msmarco_qac_cotmae", "pair_nq")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_papers.write(tmp_path_factory.mktemp("papers"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_CI else pytest.mark.long) for name in ROADS]
)
def test_every_stage(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A random teacher is sure of nothing: half are positives here and half negatives, so that on no
    # machine a question is left without either because the only one of them holds the answer.
    def sure(odds: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(odds)) < len(odds) // 2, 0.99, 0.01)

    monkeypatch.setattr(reranker, "probability", sure)
    overlays, bindings, figures = ROADS[name]
    files = [part for overlay in overlays for part in ("--gin_file", f"overlays/{overlay}.gin")]
    given = [f"--gin.{binding}" for binding in bindings]
    where = ["--data_dir", os.fspath(data), "--out", os.fspath(tmp_path / "out")]
    assert main(["run", name.split()[0], *where, *files, *given]) == 0
    for stage in figures:
        made = json.loads((tmp_path / "out" / stage / "artifact.json").read_text())
        assert made["count"], stage
