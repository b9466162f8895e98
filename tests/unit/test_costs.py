"""Plans of stages that train nothing: hours, bytes and memory, once their sizes are known."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qac_jax import cli
from qac_jax.errors import UserError
from qac_jax.pipeline import costs, recipe
from qac_jax.retrieval import approximate
from qac_jax.stages.embed import Embed
from qac_jax.stages.evaluate import Evaluate
from qac_jax.stages.extract import Extract
from qac_jax.stages.generate import Generate
from qac_jax.stages.index import Bm25, Index
from qac_jax.stages.mine import Label, Mine
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize


STAGES = {
    "passages": Prepare(documents="corpus.jsonl"),
    "examples": Tokenize(passages="stage:passages", task="mlm"),
    "questions": Generate(passages="stage:passages", generator="t5"),
    "spans": Extract(passages="stage:passages"),
    "vectors": Embed(encoder="bert", passages="stage:passages"),
    "index": Index(vectors="stage:vectors"),
    "bm25": Bm25(passages="stage:passages"),
    "run": Search(index="stage:index", queries="queries.tsv", k=100),
    "lexical": Search(index="stage:bm25", queries="queries.tsv", k=100),
    "reranked": Search(
        candidates="stage:run", queries="queries.tsv", passages="stage:passages", reranker="x", k=20
    ),
    "labels": Label(
        candidates="stage:run", queries="queries.tsv", passages="stage:passages", teacher="x"
    ),
    "negatives": Mine.make(
        passages="stage:passages", index="stage:index", queries="queries.tsv", qrels="qrels.tsv"
    ),
    "metrics": Evaluate(runs="stage:run", qrels="qrels.tsv"),
}


def planned(sizes: dict[str, int]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    plans = recipe.plan(recipe.Recipe(STAGES), sizes)
    return {one["stage"]: one["plan"] for one in plans}, costs.totals(plans)


def test_every_stage_has_its_cost_once_sizes_are_known():
    plans, total = planned({"passages": 10_000_000, "queries": 50_000})
    assert total["without_hours"] == []
    by_models = {"questions", "vectors", "reranked", "labels"}
    assert {name for name, plan in plans.items() if "hours" in plan} == by_models
    assert {n for n, plan in plans.items() if "core_hours" in plan} == set(plans) - by_models
    rate = costs.CORE["prepare"].per_second
    assert plans["passages"]["core_hours"] == pytest.approx(1e7 / rate / 3600)
    assert plans["vectors"]["bytes"] == 1e7 * 768 * 4
    tokens = 1e7 * costs.PASSAGE_TOKENS
    hours = 2 * costs.USUAL_PARAMETERS * tokens / (989e12 * costs.ENCODER_MFU) / 3600
    assert plans["vectors"]["hours"]["H100"] == pytest.approx(hours)
    # ScaNN's time grows with the index.
    times = 1e7 / costs.MEASURED_ROWS["search"]
    rate = costs.CORE["search"].per_second
    assert plans["run"]["core_hours"] == pytest.approx(50_000 * times / rate / 3600)
    assert total["bytes"] > plans["vectors"]["bytes"] and total["core_hours"] > 0


def test_what_has_no_size_is_named():
    plans, total = planned({})
    assert set(total["without_hours"]) == set(STAGES) and not total["hours"]
    (line,) = costs.shown(total)
    assert line.startswith("not counted, since the size is not known (--sizes NAME=N): passages,")
    _, total = planned({"passages": 1000})
    asking = {"run", "lexical", "reranked", "labels", "negatives", "metrics"}
    assert set(total["without_hours"]) == asking
    assert len(costs.shown(total)) == 5


def test_the_index_of_wikipedia_is_built_in_128_gb():
    plans, _ = planned({"passages": 21_000_000, "queries": 1})
    plan = plans["index"]
    assert plan["parts"] == 5
    assert approximate.build_bytes(21_000_000 // 5, 768) < 60e9
    assert approximate.build_bytes(21_000_000, 768) > 128e9
    small = Index(vectors="stage:vectors", reordering="bfloat16", part_rows=2_000_000)
    sized = small.plan({"vectors": {"count": 21_000_000, "dimension": 768}})
    assert sized["parts"] == 11 and sized["bytes"] < 60e9 < plan["bytes"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("passages", "not NAME=N"), ("passages=many", "not NAME=N"), ("passages=0", "not NAME=N")],
)
def test_wrong_sizes(text, said):
    with pytest.raises(UserError, match=said):
        costs.sizes_of(text)


def test_sizes_of_what_is_not_there():
    assert costs.sizes_of("passages=1e6, queries=10") == {"passages": 1_000_000, "queries": 10}
    with pytest.raises(UserError, match="'pasages' is neither a stage .* 'passages'"):
        planned({"pasages": 10})


@pytest.mark.slow
def test_the_command_line_takes_sizes(capsys):
    assert cli.main(["plan", "pair_msmarco", "--sizes", "passages=8841823,queries=502939"]) == 0
    shown = capsys.readouterr().out
    assert "hours of one core for all else" in shown and "written: " in shown
    words = ["plan", "pair_msmarco", "--sizes", "passages=8841823", "--json"]
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["core_hours"] > 0
