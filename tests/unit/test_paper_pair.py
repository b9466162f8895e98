"""PAIR's recipes against the paper (Ren et al., 2021) and RocketQA, whose settings it takes over.

What the paper leaves open and the released code says is marked "code".
"""

from typing import Any

import pytest
import toy_recipes
from toy_recipes import says

from qac_jax.objectives.cross_encoder import Pointwise
from qac_jax.objectives.pair import Pair


RECIPES = ("pair_msmarco", "pair_nq")
GPUS = 8
# Table 3 and Table 5.
ABLATIONS = {
    "without_passage_centric",
    "without_pseudo_labels",
    "passage_centric_finetuning",
    "without_shared_parameters",
    "without_pretraining",
}
THRESHOLDS = ((0.9, 0.1), (0.8, 0.2), (0.7, 0.3), (0.6, 0.4))


@pytest.fixture(scope="module")
def built() -> dict[str, dict[str, Any]]:
    return {name: toy_recipes.stages(name) for name in RECIPES}


def test_two_training_stages(built: Any) -> None:
    """Section 3.4: pre-training with both losses, fine-tuning with the query-centric one."""
    for name in RECIPES:
        found = built[name]
        pretrained, pair = found["pretrained"], found["pair"]
        assert isinstance(pretrained.objective, Pair) and isinstance(pair.objective, Pair)
        assert (pretrained.objective.alpha, pair.objective.alpha) == (0.1, 0.0)
        assert pair.init == "stage:pretrained"
        for train in (pretrained, pair):
            says(train, learning_rate=3e-5, schedule_name="linear", warmup_ratio=0.1)
            says(train, lengths={"query": 32, "passages": 128})
            says(train, epochs=10)  # code
            says(train.objective.model.config, tied=True, pooling="cls")
        # On unlabelled queries alone, then on labelled ones.
        assert found["labels"].queries == "stage:unlabelled/queries.jsonl"
        assert "unlabelled" not in found["judged_labels"].queries


def test_batches_and_optimizers(built: Any) -> None:
    """Experimental settings: LAMB on MS MARCO, Adam otherwise; 512 examples on each GPU."""
    msmarco, nq = (built[name] for name in RECIPES)
    for stage in ("pretrained", "pair"):
        says(msmarco[stage], batch_size=GPUS * 512)
        says(msmarco[stage].optimizer, name="lamb")
        says(msmarco[stage].objective, negatives_group=0)  # cross-batch negatives
        says(nq[stage].optimizer, name="adamw", weight_decay=0.0)
        says(nq[stage].objective, negatives_group=512)  # in-batch ones
    assert nq["pretrained"].schedule.batch_size == GPUS * 512
    assert nq["pair"].schedule.batch_size == 512  # code: one GPU


def test_pseudo_labels(built: Any) -> None:
    """Section 3.3: thresholds 0.9 and 0.1; negatives 1:4; more positives of labelled queries."""
    for name in RECIPES:
        for stage in ("labels", "judged_labels"):
            positive, negative = THRESHOLDS[0]
            says(
                built[name][stage].rule, positive=positive, negative=negative, count=4, extend=True
            )
            assert built[name][stage].exclude  # dev and test questions
        sample = built[name]["unlabelled"]
        assert sample.count == 1_800_000
        for source in ("yahoo", "squad", "triviaqa", "hotpotqa", "orcas"):
            assert source in sample.queries.lower()


def test_the_teacher(built: Any) -> None:
    """RocketQA's cross-encoder: ERNIE-large, 64 pairs on each of four GPUs (NQ: one), 2 epochs,
    1e-5, 160 tokens, negatives of the top 1,000 (NQ: 100), 1:4 (NQ: 1:1)."""
    for name, batch, depth, negatives in (("pair_msmarco", 256, 1000, 4), ("pair_nq", 64, 100, 1)):
        found = built[name]
        teacher = found["teacher"]
        assert isinstance(teacher.objective, Pointwise)
        says(teacher.objective.model.config, num_layers=24, hidden_size=1024, num_heads=16)
        says(teacher, batch_size=batch, epochs=2, lengths={"pair": 160})
        says(teacher, learning_rate=1e-5, weight_decay=0.01, warmup_ratio=0.0)
        assert found["train_run" if name == "pair_msmarco" else "candidates"].k == depth
        assert found["teacher_examples"].kept_negatives.negatives_per_query == negatives


def test_tables_1_and_2(built: Any) -> None:
    """RocketQA's passages with titles; 58,812 questions of DPR's training file; R@5, R@20, R@100
    by answers on NQ, MRR@10, R@50, R@1000 on MS MARCO."""
    msmarco, nq = (built[name] for name in RECIPES)
    assert msmarco["passages"].format == "msmarco_passages" and nq["passages"].format == "dpr"
    assert {"mrr@10", "hit@50", "hit@1000"} <= set(msmarco["metrics"].rules.resolved().measures)
    assert nq["dpr_examples"].training.endswith("biencoder-nq-train.json")
    assert nq["judged_labels"].queries == nq["dpr_examples"].training
    assert nq["judged_labels"].qrels == nq["judged_labels"].answers == nq["judged_labels"].queries
    assert nq["metrics"].queries.endswith("nq-test.qa.csv") and not nq["metrics"].qrels
    assert nq["metrics"].runs == "stage:pair_run,stage:dpr_run,stage:bm25_run"
    for found, k in ((msmarco, 1000), (nq, 100)):  # ScaNN's, as deep as a measure reads
        says(found["pair_index"], method="auto", recall_at=(k,), target_recall=(0.999,))
        assert found["pair_run"].vectors == "stage:pair_vectors"
    says(msmarco["dpr_index"], recall_at=(100, 1000), target_recall=(0.99, 0.999))


def test_tables_3_and_5() -> None:
    found = toy_recipes.cells("pair_nq_tables")
    assert set(found) >= ABLATIONS
    rules = {
        (cell["judged_labels"].rule.positive, cell["judged_labels"].rule.negative)
        for cell in found.values()
    }
    assert rules == set(THRESHOLDS)
    assert found["without_passage_centric"]["pretrained"].objective.alpha == 0
    assert found["passage_centric_finetuning"]["pair"].objective.alpha == 0.1
    assert not found["without_shared_parameters"]["pair"].objective.model.config.tied
    assert not found["without_pseudo_labels"]["labels"].scored
    assert found["without_pseudo_labels"]["labels"].queries.endswith("biencoder-nq-train.json")
    # Section 3.4: what is fine-tuned on is ground truth and pseudo-labels of judged questions.
    alone = found["without_pretraining"]
    assert "pretrained" not in alone and "labels" not in alone
    assert alone["pair"].examples == "stage:judged_examples"
    assert alone["judged_labels"] == found["complete"]["judged_labels"]


def test_small_runs_follow_it() -> None:
    found = toy_recipes.stages("pair_small")
    assert found["labels"].queries == "stage:union/unjudged_queries.jsonl"
    assert found["judged_labels"].queries == "stage:union/judged_queries.jsonl"
    assert found["judged_labels"].rule.extend


def test_figure_4(built: Any) -> None:
    """All 3,610 test questions."""
    says(built["pair_nq"]["figure_4"], at_most=0, depth=100)


def test_the_released_switches() -> None:
    released = "overlays/released.gin"
    for name, optimizer in (("pair_msmarco", "lamb_paddle18"), ("pair_nq", "adamw")):
        found = toy_recipes.stages(name, released)
        for stage in ("pretrained", "pair"):
            says(found[stage].objective, denominator="official_code", mask_duplicates=False)
            says(found[stage].optimizer, schedule_name="paddle_jump", name=optimizer)
        count, fill = (1, 0) if name == "pair_nq" else (4, 1000)
        says(found["labels"], positives="best", count=count, fill=fill)
        says(found["judged_labels"], positives="best")
        assert bool(found["judged_labels"].qrels) == (name == "pair_msmarco")
        assert found["teacher"].objective.adversarial_step == 0.01
    decayed = toy_recipes.stages("pair_msmarco", released)["pretrained"].optimizer
    assert decayed.weight_decay == 0.01 and decayed.no_decay == ()
