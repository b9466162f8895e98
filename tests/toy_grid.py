"""The grid of the first claim at a tiny size, for the tests of grids.

Its other collection is the same one again, by `qac evaluate --beir`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import toy_retrieval


GRID = """
recipe = @qac.claim_qac()
grid.Grid:
    systems = SYSTEMS
    recipe = 'tiny_cell.gin'
    seeds = [0]
    permutations = 50
    metrics = 'metrics,elsewhere'
    rows = {"run_1": "retriever 1", "run_2": "retriever 2", "data": "on another collection"}
"""
SYSTEMS: Mapping[str, Mapping[str, Any]] = {"none": {"pretraining": False}, "queries-cotmae": {}}
# One layer of width 32, a few steps, queries made elsewhere instead of generated.
CELL = """
recipe = @qac.claim_cell()
claim_cell:
    generator = ''
    round_trip = 0
    elsewhere = 'data:..'
    mlm_steps = 2
    pretraining_steps = 6
    finetuning_steps = 6
    passage_tokens = 16
    context_tokens = 8
generate.Generate.imported = 'data:queries_of_passages.jsonl'
mine.Mining.depth = 6
mine.Mining.keep = 3
cotmae.CotMae.mlm_layers = 1
bert.BertConfig.num_layers = 1
bert.BertConfig.hidden_size = 32
bert.BertConfig.num_heads = 2
bert.BertConfig.intermediate_size = 48
bert.BertConfig.max_positions = 96
train.Schedule.batch_size = 8
evaluate.Evaluate.permutations = 50
"""


def write(folder: Path, systems: Mapping[str, Mapping[str, Any]] = SYSTEMS) -> list[str]:
    """Writes data and gin files; returns the arguments of `qac run` for the grid."""
    data = toy_retrieval.write_collection(folder / "data", 40, 24)
    lines = (data / "qrels" / "test.tsv").read_text().splitlines()
    for name, chosen in (("train", lines[1:13]), ("test", lines[13:])):
        (data / "qrels" / f"{name}.tsv").write_text("\n".join([lines[0], *chosen]) + "\n")
    words = toy_retrieval.WORDS
    asked = [
        {"_id": f"p{n}", "queries": [f"{words[n % 20]} {words[k]} {n}" for k in (1, 2)]}
        for n in range(40)
    ]
    text = "".join(json.dumps(line) + "\n" for line in asked)
    (data / "queries_of_passages.jsonl").write_text(text)
    for name, text in (
        ("tiny_grid", GRID.replace("SYSTEMS", repr(dict(systems)))),
        ("tiny_cell", CELL),
    ):
        (folder / f"{name}.gin").write_text(text)
    grid = str(folder / "tiny_grid.gin")
    return [grid, f"--gin_search_paths={folder}", f"--data_dir={data}"]
