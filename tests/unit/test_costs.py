"""Plans: hours, bytes and memory of every stage, once sizes are known; FLOPs by hand."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_process import Qac

from qac_jax import hardware
from qac_jax.errors import UserError
from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives.augtriever import InBatch, MoCo
from qac_jax.objectives.cotmae import CotMae
from qac_jax.objectives.masking import Vocabulary
from qac_jax.pipeline import costs, grid, recipe
from qac_jax.queries.prompts import tqgen
from qac_jax.retrieval import approximate
from qac_jax.stages.embed import Embed
from qac_jax.stages.evaluate import Evaluate
from qac_jax.stages.extract import Extract
from qac_jax.stages.generate import Generate
from qac_jax.stages.index import Bm25, Index
from qac_jax.stages.mine import Group, Label, Mine
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize
from qac_jax.text.passages import Cutting
from qac_jax.training import step


ASKED: dict[str, Any] = {"queries": "queries.tsv", "passages": "stage:passages"}
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
    "reranked": Search(candidates="stage:run", **ASKED, reranker="x", k=20),
    "labels": Label(candidates="stage:run", **ASKED, teacher="x"),
    "negatives": Mine.make(index="stage:index", **ASKED, qrels="qrels.tsv"),
    "metrics": Evaluate(runs="stage:run", qrels="qrels.tsv"),
}


def planned(
    sizes: dict[str, int], stages: dict[str, Any] = STAGES
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    plans = recipe.plan(recipe.Recipe(stages), sizes)
    return {one["stage"]: one["plan"] for one in plans}, costs.totals(plans)


def test_every_stage_has_its_cost_once_sizes_are_known():
    plans, total = planned({"passages": 10_000_000, "queries": 50_000})
    assert total["without_hours"] == ["questions"]  # a generator that nobody knows has no size
    by_models = {"vectors", "reranked", "labels"}
    assert {name for name, plan in plans.items() if "hours" in plan} == by_models
    assert {n for n, plan in plans.items() if "core_hours" in plan} == set(plans) - (
        by_models | {"questions"}
    )
    hours = 1e7 / costs.CORE["prepare"] / 3600
    assert plans["passages"]["core_hours"] == pytest.approx(hours)
    tokens = 1e7 * costs.PASSAGE_TOKENS
    hours = 2 * costs.USUAL_PARAMETERS * tokens / (989e12 * costs.ENCODER_MFU) / 3600
    assert plans["vectors"]["hours"]["H100"] == pytest.approx(hours)
    # ScaNN's time grows with the index.
    times = 1e7 / costs.MEASURED_ROWS["search"]
    hours = 50_000 * times / costs.CORE["search"] / 3600
    assert plans["run"]["core_hours"] == pytest.approx(hours)


def test_the_index_of_wikipedia_is_built_in_128_gb():
    plans, _ = planned({"passages": 21_000_000, "queries": 1})
    assert plans["index"]["parts"] == 5
    assert approximate.build_bytes(21_000_000 // 5, 768) < 60e9


def test_exact_search_is_a_product_of_matrices() -> None:
    stages = {**STAGES, "index": Index(vectors="stage:vectors", method="exact")}
    plans, _ = planned({"passages": 8_841_823, "queries": 502_939}, stages)
    for name in ("run", "negatives"):
        flops = plans[name]["hours"]["H100"] * 3600 * 989e12 * costs.EXACT_MFU
        assert flops == pytest.approx(2 * 768 * 8_841_823 * 502_939)


def test_four_texts_of_t0_for_wikipedia() -> None:
    """The models of papers are known by name; texts and documents are as long as they are."""
    asked: dict[str, Any] = {"passages": "stage:passages", "samples": 1}
    stages = {
        "passages": Prepare(documents="dump", format="wikipedia", cutting=Cutting(cut="lines")),
        "texts": Generate.make(**asked, generator="data:T0_3B", prompts=tqgen()),
    }
    plan = planned({"passages": 22_600_000}, stages)[0]["texts"]
    read, written = (22.6e6 * each for each in (4 * costs.DOCUMENT_TOKENS["wikipedia"], 88))
    assert plan["flops"] == pytest.approx(2.7e9 * (read + written))
    assert 30 < plan["hours"]["H100"] < 100


def test_a_grid_costs_every_stage_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cells share is planned once; a size may be of a stage that not every cell has."""

    def cell(name: str, encoder: str) -> grid.Cell:
        stages = {
            "passages": STAGES["passages"],
            name: Embed(encoder=encoder, passages="stage:passages"),
        }
        return grid.Cell(name, 0, stages, grid._places(stages))

    planned, plan_of = list[Any](), recipe.plan_of

    def counted(stage: Any, before: Any) -> Any:
        planned.append(stage)
        return plan_of(stage, before)

    monkeypatch.setattr(recipe, "plan_of", counted)
    cells, sizes = [cell("a", "a"), cell("b", "b")], {"passages": 1_000_000, "b": 2_000_000}
    found = grid.plan(cells, sizes)
    assert len(planned) == 3
    prepared, embedded = (one["plan"] for one in found["first_cell"])
    assert found["totals"]["core_hours"] == prepared["core_hours"] > 0
    assert found["totals"]["hours"]["H100"] == pytest.approx(3 * embedded["hours"]["H100"])
    assert embedded["hours"]["H100"] > 0
    with pytest.raises(UserError, match="'c' is neither a stage"):
        grid.plan(cells, {"c": 1})


def test_sizes() -> None:
    (line,) = costs.shown(planned({})[1])
    assert line.startswith("not counted, since the size is not known (--sizes NAME=N): passages,")
    plans = recipe.plan(recipe.Recipe(STAGES), {"passages": 10**7, "queries": 5 * 10**4})
    lines = costs.shown(costs.totals(plans), plans, ["budget", "window"])
    assert [line.split()[0] for line in lines] == ["time", "disk", "slowest", "cheaper", "not"]
    assert lines[1] == "disk     about 71GB; --keep none leaves less"
    assert "slowest  spans " in lines[2] and lines[3] == "cheaper  fewer documents"
    assert costs.sizes_of("passages=1e6, queries=10") == {"passages": 1_000_000, "queries": 10}
    with pytest.raises(UserError, match="'pasages' is neither a stage.* 'passages'"):
        planned({"pasages": 10})


def test_pairs_of_a_teacher() -> None:
    group: Any = {"passages": "stage:passages", "contexts": "c", "teacher": "t", "size": 32}
    stages = {
        "passages": STAGES["passages"],
        "all": Group(**group, reranker="x", turns=2, per_passage=4),
        "some": Group(**group, reranker="x", turns=2, per_passage=4, at_most=10),
        "fused": Group(**group),
    }
    plans, _ = planned({"passages": 1000}, stages)
    assert plans["all"]["pairs"] == 2 * 1000 * 4 * 8 and plans["some"]["pairs"] == 320 * 4 * 8
    tokens = 320 * 4 * 8 * costs.PAIR_TOKENS
    assert plans["some"]["flops"] == 2 * costs.USUAL_PARAMETERS * tokens and not plans["fused"]


def command(qac: Qac, *words: str) -> dict[str, dict[str, Any]]:
    return {one["stage"]: one["plan"] for one in qac.json("plan", *words)["stages"]}


@pytest.mark.slow
def test_hours_of_a_training_on_every_device(qac: Qac) -> None:
    plan = command(qac, "msmarco_qac_cotmae")["encoder"]
    assert plan["mfu"] == costs.PACKED_MFU == 0.598  # the recipe leaves padding out
    for name, device in hardware.DEVICES.items():
        hours = plan["flops"] / (device.peak_flops * costs.MOST_MFU.get(name, 0.598)) / 3600
        assert plan["hours"][name] == pytest.approx(hours)
    assert plan["hours"]["V100-32"] / 16 == pytest.approx(60, rel=0.02)  # the paper's


def test_what_starts_from_a_model_has_its_shape(qac: Qac) -> None:
    plans = command(qac, "own_corpus", "--data_dir=none", "--sizes=passages=5000", "--rounds=2")
    assert plans["trained_1"]["parameters"] == 22_713_216  # MiniLM
    assert plans["vectors_2"] == plans["vectors_1"] == plans["vectors_start"]
    # 2 FLOPs a parameter of the layers and token: no word embeddings.
    assert plans["vectors_start"]["flops"] == pytest.approx(2 * 10.6e6 * 5000 * 80, rel=0.05)
    parts = [plans[name]["count"] for name in ("training", "validation", "test")]
    assert sum(parts) == 5000 and parts[1] == parts[2] > 0
    assert plans["contexts"]["count"] == parts[0]


def test_documents_that_are_there_are_counted_as_they_are_cut(tmp_path: Path) -> None:
    lines = [{"_id": f"d{n}", "text": "Lamps give light at night. " * 60} for n in range(5)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    stages = {
        "cut": Prepare.make(documents="data:a.jsonl", format="jsonl", max_tokens=64),
        "vectors": Embed(encoder="bert", passages="stage:cut"),
    }
    cut, vectors = recipe.plan(recipe.Recipe(stages, data_dir=str(tmp_path)), here=True)
    assert cut["plan"]["count"] > 10
    assert all(one["plan"]["seconds_here"] > 0 for one in (cut, vectors))


BATCH, LENGTH = 2, 48
IDS = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
LENGTHS = jax.ShapeDtypeStruct((BATCH,), jnp.int32)
# Wide heads, so that what is not counted (softmax, norms, gelu) is small.
CONFIG = BertConfig(250, 256, 2, 2, 512, max_positions=64)


def test_bert_base_is_the_known_figure() -> None:
    """2 FLOPs a parameter of the layers and a token, plus attention: 85 M parameters."""
    module = BertConfig().build(Runtime(scan=True))
    ids, lengths = np.zeros((1, 128), np.int32), np.ones(1, np.int32)
    variables = jax.eval_shape(module.init, jax.random.key(0), ids, lengths)
    parameters = 12 * (4 * 768 * 768 + 2 * 768 * 3072)
    attention = 12 * 4 * 768 * 128 * 128
    found = hardware.flops_of(module.apply, variables, ids, lengths)
    assert found == 2 * parameters * 128 + attention


@pytest.mark.slow
def test_a_step_is_three_forward_passes_of_what_is_trained() -> None:
    spec = {"passage": IDS, "passage_length": LENGTHS, "context": IDS, "context_length": LENGTHS}
    vocabulary = Vocabulary(np.zeros(CONFIG.vocab_size, bool))
    saving: dict[str, Any] = {"plain": {}, "saving": {"remat": "layer", "scan": True}}
    objectives = {
        name: CotMae(CONFIG.build(Runtime(**options)), vocabulary=vocabulary)
        for name, options in saving.items()
    }
    found = {name: step.model_flops(one, spec) for name, one in objectives.items()}
    assert found["plain"] == pytest.approx(found["saving"], rel=0.01)  # recomputing is no use
    module = objectives["plain"].module
    variables = jax.eval_shape(module.init, jax.random.key(0), IDS, LENGTHS)
    assert found["plain"] > 3 * hardware.flops_of(module.apply, variables, IDS, LENGTHS)
    # Keys have no backward pass.
    model = DualEncoder(DualEncoderConfig(CONFIG))
    both, one = InBatch(model), MoCo(model, queue_size=BATCH)
    ratio = step.model_flops(one, spec) / step.model_flops(both, spec)
    assert ratio == pytest.approx(4 / 6, rel=0.03)
