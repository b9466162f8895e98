"""frontier.gin is put together as its header says; its small grid takes one part away at a time."""

from __future__ import annotations

import dataclasses

import pytest
import toy_recipes
from toy_recipes import different

from qac_jax.errors import UserError
from qac_jax.objectives.augtriever import InBatch
from qac_jax.objectives.cross_encoder import Localized
from qac_jax.objectives.dupmae import DupMae
from qac_jax.objectives.finetune import Finetune
from qac_jax.objectives.pair import Pair


def test_the_parts_of_the_recipe() -> None:
    found = toy_recipes.stages("frontier")
    encoder, contrastive, teacher, last = (
        found[name] for name in ("encoder", "contrastive", "teacher", "retriever_3")
    )
    assert isinstance(encoder.objective, DupMae) and encoder.objective.bag == "text"
    assert encoder.reading.kind == contrastive.reading.kind == "passage_query"
    assert isinstance(contrastive.objective, InBatch) and contrastive.init == "stage:encoder"
    assert (contrastive.schedule.batch_size, contrastive.schedule.microbatch) == (2048, 256)
    for number in (1, 2):
        assert found[f"retriever_{number}"].init == "stage:contrastive"
        assert found[f"triples_{number}"].negatives.endswith(
            ("triples.train.full.2.tsv.gz", "stage:negatives_2")[number - 1]
        )
    assert isinstance(teacher.objective, Localized)
    assert found["teacher_examples"].negatives == "stage:negatives_2"
    assert found["train_run"].index == "stage:index_2"
    assert found["labels"].teacher == "stage:teacher" and found["labels"].rule.depth == 100
    assert isinstance(last.objective, Finetune) and last.objective.distillation == "kl"
    assert last.reading.settings["teacher"] and found["triples_3"].kept_negatives.teacher
    assert found["metrics"].runs.endswith("stage:run_3")
    for name in ("dl19", "dl20"):
        assert found[name].runs.endswith(f"stage:run_3_{name}")


def test_all_cells_share_the_teacher_and_its_scores() -> None:
    found = toy_recipes.grid_of("frontier_small_grid")
    places = {
        cell.places[name]
        for cell in toy_recipes.placed(found)
        for name in ("teacher", "labels")
        if name in cell.places
    }
    assert len(places) == 2


def test_rows_that_some_systems_lack_are_refused_before_anything_runs() -> None:
    found = toy_recipes.grid_of("frontier_small_grid")
    assert found.partial
    with pytest.raises(UserError, match="qac_cotmae/seed_0 judges no run 'run_3'.*partial"):
        toy_recipes.cells_of(dataclasses.replace(found, partial=False))


def test_the_small_recipe_has_the_masks_of_dupmae() -> None:
    small, large = (
        toy_recipes.stages(name)["encoder"].objective for name in ("frontier_small", "frontier")
    )
    assert isinstance(small, DupMae)
    assert (small.masking, small.decoder_masking) == (large.masking, large.decoder_masking)


def test_every_system_of_the_grid_differs_in_its_part() -> None:
    cells = toy_recipes.cells("frontier_small_grid")
    whole = cells.pop("complete")
    changed = {name: different(whole, stages) for name, stages in cells.items()}
    for name in ("without_bag_of_words", "bag_of_the_query", "without_enhanced_decoder"):
        assert changed[name] == {"encoder": {"objective"}}
    assert changed["passage_itself"] == {"encoder": {"examples", "reading"}}
    assert "contrastive" not in cells["without_contrastive"]
    assert cells["without_pretraining"]["retriever_1"].init == "stage:base"
    assert "pairs" not in cells["without_pretraining"]
    for name in ("qac_cotmae", "qac_cocondenser", "augtriever"):
        assert "teacher" not in cells[name] and "run_3" not in cells[name]["metrics"].runs
    assert cells["augtriever"]["contrastive"].init == "stage:base"
    assert "encoder" not in cells["augtriever"]
    assert isinstance(cells["pair"]["retriever_3"].objective, Pair)
    assert different(cells["pair"], cells["without_pretraining"]) == {"retriever_3": {"objective"}}
