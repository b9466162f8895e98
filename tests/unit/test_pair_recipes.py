"""PAIR's recipes say what the paper says, overlays turn one thing each, `released` its switches."""

from __future__ import annotations

from typing import Any

import pytest
import toy_recipes
from toy_recipes import different

from qac_jax.objectives.cross_encoder import Pointwise
from qac_jax.objectives.pair import Pair


# What the paper varies, as gin files and bindings.
OVERLAYS = {
    "without_passage_centric": ["ALPHA = 0.0"],
    "without_pseudo_labels": ["LABELLED_QUERIES = %JUDGED_QUERIES", "SCORED = ''"],
    "passage_centric_finetuning": ["FINETUNING_ALPHA = %ALPHA"],
    "without_shared_parameters": ["TIED = False"],
    "without_pretraining": ["overlays/pair/without_pretraining.gin"],
    **{
        f"thresholds_{n}_{10 - n}": [f"POSITIVE = 0.{n}", f"NEGATIVE = 0.{10 - n}"]
        for n in (6, 7, 8, 9)
    },
    **{f"alpha_{n:02}": [f"ALPHA = {n / 10}"] for n in range(11)},
}


def stages(name: str, *overlays: str, **macros: Any) -> dict[str, Any]:
    return toy_recipes.stages(name, *overlays, macros=macros)


def test_pair_on_ms_marco() -> None:
    found = stages("pair_msmarco")
    pretrained, pair, labels = (found[n] for n in ("pretrained", "pair", "labels"))
    assert isinstance(pretrained.objective, Pair)
    assert pretrained.schedule.batch_size == pair.schedule.batch_size == 8 * 512
    assert pretrained.schedule.epochs == pair.schedule.epochs == 10
    assert (pretrained.optimizer.name, pretrained.optimizer.learning_rate) == ("lamb", 3e-5)
    assert pretrained.optimizer.schedule_name == "linear"
    assert pretrained.optimizer.warmup_ratio == 0.1
    assert (pretrained.objective.alpha, pair.objective.alpha) == (0.1, 0.0)
    assert pretrained.objective.denominator == "paper_inbatch_and_hard"
    assert pretrained.objective.negatives_group == 0
    assert pretrained.objective.model.config.tied and not found["dpr"].objective.model.config.tied
    assert pretrained.reading.lengths == {"query": 32, "passages": 128}
    assert (labels.rule.positive, labels.rule.negative, labels.rule.count) == (0.9, 0.1, 4)
    assert labels.rule.positives == "all" and labels.exclude
    teacher = found["teacher"]
    assert isinstance(teacher.objective, Pointwise) and teacher.reading.lengths == {"pair": 160}
    assert teacher.objective.model.config.num_layers == 24
    assert found["teacher_examples"].kept_negatives.negatives_per_query == 4
    assert found["train_run"].k == found["teacher_examples"].kept_negatives.depth == 1000
    assert pair.init == "stage:pretrained"


def test_pair_on_natural_questions() -> None:
    found = stages("pair_nq")
    for name in ("pretrained", "pair"):
        assert found[name].objective.negatives_group == 512
        optimizer = found[name].optimizer
        assert (optimizer.name, optimizer.weight_decay, optimizer.learning_rate) == (
            "adamw",
            0,
            3e-5,
        )
    assert (found["pretrained"].schedule.batch_size, found["pair"].schedule.batch_size) == (
        4096,
        512,
    )
    assert found["labels"].rule.count == 4 and found["labels"].answers
    assert (found["teacher"].schedule.batch_size, found["dpr"].optimizer.name) == (64, "adamw")
    assert found["metrics"].queries and not found["metrics"].qrels


def test_the_released_switches() -> None:
    released = "overlays/released/pair.gin"
    for name, optimizer in (("pair_msmarco", "lamb_paddle18"), ("pair_nq", "adamw")):
        found = stages(name, released)
        for stage in ("pretrained", "pair"):
            assert found[stage].objective.denominator == "official_code"
            assert not found[stage].objective.mask_duplicates
            assert found[stage].optimizer.schedule_name == "paddle_jump"
            assert found[stage].optimizer.name == optimizer
        assert found["labels"].rule.positives == found["judged_labels"].rule.positives == "best"
        assert found["labels"].rule.count == (1 if name == "pair_nq" else 4)
        assert found["teacher"].objective.adversarial_step == 0.01
        changed = different(stages(name), found)
        assert "dpr" not in changed
    decayed = stages("pair_msmarco", released)["pretrained"].optimizer
    assert decayed.weight_decay == 0.01 and decayed.no_decay == ()


@pytest.mark.parametrize("name", ["pair_msmarco", "pair_nq"])
def test_overlays_touch_what_they_say(name: str) -> None:
    plain = stages(name)
    assert len(OVERLAYS) == 5 + 4 + 11
    for stem, overlay in OVERLAYS.items():
        found = different(plain, stages(name, *overlay))
        if stem.startswith("thresholds"):
            expected = {} if stem == "thresholds_9_1" else {"labels", "judged_labels"}
        elif stem.startswith("alpha"):
            expected = {} if stem == "alpha_01" else {"pretrained"}
        else:
            expected = {
                "without_passage_centric": {"pretrained"},
                "without_pseudo_labels": {"labels", "judged_labels"},
                "passage_centric_finetuning": {"pair"},
                "without_shared_parameters": {"pretrained", "pair"},
                "without_pretraining": {"pretrained", "pair", "labels"},
            }[stem]
        assert set(found) == set(expected), stem


def test_the_small_recipe_builds_with_every_overlay() -> None:
    small = stages("pair_small")
    reader, teacher = small["reader"], small["teacher"]
    assert reader.init == "shipped:minilm"
    assert teacher.init == "stage:reader"
    assert (reader.reading.lengths, teacher.reading.lengths) == ({"pair": 160}, {"pair": 256})
    assert (reader.objective, reader.optimizer) == (teacher.objective, teacher.optimizer)
    reads, told = small["reader_examples"], small["teacher_examples"]
    assert told.kept_negatives.scores and not reads.kept_negatives.scores
    assert told.negatives == reads.negatives
    assert reader.examples == "stage:reader_examples"
    assert small["pretrained"].init == "stage:start" and small["start"].init == "stage:encoder"
    assert small["metrics"].runs.count("stage:") == 3
    for overlay in OVERLAYS.values():
        stages("pair_small", *overlay)


def test_students_of_all_seeds_have_one_teacher() -> None:
    found = different(stages("pair_small"), stages("pair_small", SEED=1))
    assert found == {"pretrained": {"seed"}, "pair": {"seed"}}
