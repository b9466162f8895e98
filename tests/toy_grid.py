"""The grid of the first claim at a tiny size, for the tests of grids.

Its other collection is the same one again, by `qac evaluate`.
"""

from __future__ import annotations

from pathlib import Path

import toy_retrieval


# One layer of width 32, a few steps, queries extracted instead of generated.
GRID = """
from __gin__ import dynamic_registration
from qac_jax.pipeline import grid

include 'recipes/claim_qac.gin'

grid.Grid.systems = SYSTEMS
grid.Grid.recipe = 'tiny_cell.gin'
grid.Grid.seeds = [0]
grid.Grid.permutations = 50
grid.Grid.metrics = 'metrics,elsewhere'
grid.Grid.rows = {"run_1": "retriever 1", "run_2": "retriever 2", "data": "on another collection"}
"""
SYSTEMS = '{"none": ["PRETRAINING = {}", "ENCODER = %INIT"], "queries-cotmae": []}'
CELL = """
from __gin__ import dynamic_registration
from qac_jax.models import bert
from qac_jax.objectives import cotmae
from qac_jax.retrieval import mining as retrieval
from qac_jax.stages import questions
from qac_jax.stages import evaluate
from qac_jax.stages import extract
from qac_jax.stages import train

include 'recipes/claim_cell.gin'
include 'overlays/zero_shot.gin'

CONTEXTS_STAGES = {"contexts": @extract.Extract()}
extract.Extract.passages = "stage:passages"
extract.Extract.method = "bm25"
extract.Extract.keep = 2
MLM_STEPS = 2
PRETRAINING_STEPS = 6
FINETUNING_STEPS = 6
PASSAGE_TOKENS = 16
CONTEXT_TOKENS = 8
PASSAGE_LENGTH = 16
QUERY_LENGTH = 8
DEPTH = 10
retrieval.Mining.depth = 6
retrieval.Mining.keep = 3
cotmae.CotMae.mlm_layers = 1
bert.BertConfig.num_layers = 1
bert.BertConfig.hidden_size = 32
bert.BertConfig.num_heads = 2
bert.BertConfig.intermediate_size = 48
bert.BertConfig.max_positions = 64
base/train.Schedule.batch_size = 8
encoder/train.Schedule.batch_size = 8
finetuned/train.Schedule.batch_size = 8
judging/evaluate.Evaluate.permutations = 50
"""


def write(folder: Path, systems: str = SYSTEMS) -> list[str]:
    """Writes data and gin files; returns the arguments of `qac run` for the grid."""
    data = toy_retrieval.write_collection(folder / "data", 40, 24)
    lines = (data / "qrels" / "test.tsv").read_text().splitlines()
    for name, chosen in (("train", lines[1:13]), ("test", lines[13:])):
        (data / "qrels" / f"{name}.tsv").write_text("\n".join([lines[0], *chosen]) + "\n")
    for name, text in (("tiny_grid", GRID.replace("SYSTEMS", systems)), ("tiny_cell", CELL)):
        (folder / f"{name}.gin").write_text(text)
    grid = str(folder / "tiny_grid.gin")
    return [grid, f"--gin_search_paths={folder}", f"--data_dir={data}"]
