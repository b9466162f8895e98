"""Recipes of fine-tuning say what the papers say; `released` turns its switches and no others."""

from __future__ import annotations

from typing import Any

import pytest
import toy_recipes

from qac_jax import config
from qac_jax.errors import UserError
from qac_jax.objectives.cocondenser import CoCondenser
from qac_jax.objectives.cotmae import CotMae
from qac_jax.objectives.dupmae import DupMae
from qac_jax.objectives.finetune import Finetune
from qac_jax.objectives.listwise import Listwise
from qac_jax.objectives.retromae import RetroMae
from qac_jax.pipeline import recipe


MSMARCO = ("msmarco_qac_cotmae", "msmarco_qac_cocondenser")


def built(files: list[str], bindings: tuple[str, ...] = ()) -> dict[str, Any]:
    config.register([recipe.Recipe])
    try:
        config.apply(config.Settings(files=files, bindings=bindings))
        return recipe.ordered(config.build(recipe.Recipe))
    finally:
        config.apply(config.Settings())


@pytest.mark.parametrize("name", MSMARCO)
def test_two_stages_on_ms_marco(name: str) -> None:
    found = built([f"recipes/{name}.gin"])
    for number in (1, 2):
        train = found[f"retriever_{number}"]
        assert isinstance(train.objective, Finetune)
        assert (train.verb, found["encoder"].verb) == ("finetune", "pretrain")
        assert train.init == "stage:encoder"  # both start from the pre-trained encoder
        assert (
            train.schedule.epochs,
            train.schedule.batch_size,
            train.reading.settings["n_passages"],
        ) == (3.0, 64, 16)
        assert train.reading.lengths == {"query": 32, "passages": 144}
        assert (train.optimizer.learning_rate, train.optimizer.weight_decay) == (2e-5, 0.01)
        assert train.optimizer.warmup_ratio == 0.1 and train.schedule.microbatch == 0
        assert train.objective.mask_duplicates and train.objective.temperature == 1.0
        model = train.objective.model.config
        assert (model.tied, model.pooling, model.normalize) == (True, "cls", False)
    assert (found["negatives_2"].mining.depth, found["negatives_2"].mining.keep) == (200, 128)
    assert found["negatives_2"].negatives == "mined+bm25"
    assert found["triples_1"].negatives.startswith("data:")  # the official triples
    assert found["triples_2"].negatives == "stage:negatives_2"
    assert found["metrics"].rules.protocol == "msmarco"
    assert {found[s].rules.protocol for s in ("dl19", "dl20")} == {"trec_dl"}


@pytest.mark.parametrize("name", MSMARCO)
def test_released_switches(name: str) -> None:
    found = built([f"recipes/{name}.gin", "overlays/released.gin"])
    first, second = found["retriever_1"], found["retriever_2"]
    assert first.optimizer.weight_decay == second.optimizer.weight_decay == 0.0
    assert not first.objective.mask_duplicates
    assert found["negatives_2"].negatives == "mined"
    assert (first.reading.lengths["passages"], second.reading.lengths["passages"]) == (130, 144)
    assert found["vectors_2"].options.max_length == 130
    assert first.optimizer.learning_rate == 2e-5


def test_before_beir() -> None:
    found = built(["recipes/msmarco_beir.gin"], ("ENCODER = 'out/encoder'",))
    train = found["retriever"]
    assert (
        train.schedule.batch_size,
        train.schedule.epochs,
        train.reading.settings["n_passages"],
    ) == (75, 10.0, 2)
    assert train.reading.lengths == {"query": 350, "passages": 350}
    assert train.optimizer.warmup_steps == 1000
    model = train.objective.model.config
    assert (model.pooling, model.normalize) == ("mean", True)
    assert train.objective.temperature == pytest.approx(1 / 20)
    assert found["beir"].encoder == "stage:retriever"


@pytest.mark.parametrize("budget", ["tiny", "small", "medium", "large"])
def test_budgets(budget: str) -> None:
    found = built(["recipes/own_corpus.gin"], (f"BUDGET = {budget}", "START = none"))
    smaller = built(["recipes/own_corpus.gin"], ("BUDGET = 'tiny'", "START = 'none'"))
    for name in ("base", "encoder"):
        assert found[name].schedule.steps >= smaller[name].schedule.steps > 0
        assert not found[name].schedule.epochs
    for name in {"trained_1", "trained_2"} & found.keys():
        assert found[name].schedule.total_steps(160) >= smaller[name].schedule.total_steps(160)
    bert = found["base"].objective.model.config
    assert bert.hidden_size % bert.num_heads == 0
    assert len(recipe.plan(recipe.Recipe(found))) == len(found)


def test_own_documents_start_from_a_retriever() -> None:
    """Its tokenizer, prompts and weights; nothing trains on passages that are kept aside."""
    found = built(["own_corpus"], ("START = models/mine", "QAC = True", "ROUNDS = 2"))
    assert "base" not in found and found["encoder"].init == "models/mine"
    assert built(["own_corpus"], ("START = models/mine",))["trained_1"].init == "models/mine"
    assert found["trained_1"].init == "stage:encoder"
    for number in (1, 2):
        examples = found[f"examples_{number}"]
        assert examples.tokenizer == examples.like == found[f"retriever_{number}"].start
        assert isinstance(found[f"trained_{number}"].objective, Listwise)
    for name in ("contexts", "spans", "titles", "pairs"):
        assert found[name].passages == "stage:training"
    for name in ("validation", "test"):
        asked = found[f"{name}_contexts"]
        assert asked.passages == f"stage:{name}"
        assert not asked.index and not asked.filter.round_trip
    assert found["bm25"].expand == ""


@pytest.mark.parametrize(("rounds", "systems"), [(1, ["start", "1"]), (2, ["start", "1", "2"])])
def test_own_documents_have_rows_for_every_round(rounds: int, systems: list[str]) -> None:
    found = built(["own_corpus"], (f"ROUNDS = {rounds}",))
    assert ("retriever_2" in found) == (rounds == 2)
    for name in systems:  # a teacher and windows need the vectors, which ScaNN's index has not
        assert found[f"vectors_{name}"].window and found[f"index_{name}"].method == "exact"
    summary, choice = found["summary"], found["choice"]
    assert [name.removeprefix("run_") for name in summary.alone] == systems
    assert [name.removeprefix("fused_") for name in summary.fused] == systems
    assert [run.rsplit("_", 1)[1] for run in choice.runs.split(",")] == systems
    assert [place.rsplit("_", 1)[1] for place in choice.indexes.split(",")] == systems
    assert len(choice.models.split(",")) == rounds == len(found["leaks"].training.split(","))
    for name, first in (("metrics", "run"), ("validated", "valid")):
        rows = {row.removeprefix("stage:") for row in found[name].runs.split(",")}
        fused = "fused_" if first == "run" else "valid_fused_"
        assert rows == {f"{first}_bm25"} | {
            f"{p}{n}" for n in systems for p in (f"{first}_", fused)
        }


def test_the_claim_spends_the_same_on_every_system() -> None:
    cells = toy_recipes.cells("claim_qac", seed=2)
    assert "encoder" not in cells["none"] and cells["none"]["retriever_1"].init == "stage:base"
    trained = {name: stages["encoder"] for name, stages in cells.items() if name != "none"}
    assert len(trained) == 11
    spent = {
        (s.steps, s.batch_size, s.total_examples, t.optimizer, t.init, t.seed)
        for t, s in ((train, train.schedule) for train in trained.values())
    }
    assert len(spent) == 1 and spent.pop()[-1] == 2
    kinds = {"queries": "passage_query", "pairs": "passage_passage", "mixed": "mixed"}
    objectives = {
        "cotmae": (CotMae, "passage_passage"),
        "cocondenser": (CoCondenser, "two_spans"),
        "retromae": (RetroMae, "mlm"),  # the passage itself, read as by the first MLM
        "dupmae": (DupMae, "mlm"),
    }
    for name, train in trained.items():
        context, objective = name.split("-")
        kind, baseline = objectives[objective]
        examples = train.examples.removeprefix("stage:")
        assert train.reading.kind == kinds.get(context, baseline) == cells[name][examples].task
        if objective == "cotmae":
            assert train.objective.symmetric == (context == "passages")
        assert isinstance(train.objective, kind)
    both = [(s["retriever_1"], s["retriever_2"]) for s in cells.values()]
    tuned = {(a.schedule.steps, b.schedule.steps, a.optimizer) for a, b in both}
    assert len(tuned) == 1


def test_a_name_of_two_stages_is_told() -> None:
    with pytest.raises(UserError, match="names the stage 'bm25' twice"):
        built(["recipes/demo.gin"], ("recipe.Recipe.parts = [%FINETUNING, %FINETUNING]",))
