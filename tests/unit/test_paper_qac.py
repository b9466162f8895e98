"""Query-as-context pre-training's recipes against the paper (Wu et al., 2023): its own numbers.

What the paper leaves open and the released scripts say is marked "scripts".
"""

from typing import Any

import pytest
import toy_recipes
from toy_recipes import says

from qac_jax import fields
from qac_jax.errors import UserError
from qac_jax.formats import training
from qac_jax.objectives.cocondenser import CoCondenser
from qac_jax.objectives.condenser import Condenser
from qac_jax.objectives.cotmae import CotMae
from qac_jax.objectives.retromae import RetroMae


BASES = ("cotmae", "cocondenser")
# Experimental settings.
PRETRAINING: dict[str, dict[str, Any]] = {
    "cotmae": {"steps": 50_000, "batch_size": 16_384, "learning_rate": 4e-4},
    "cocondenser": {"steps": 120_000, "batch_size": 2048, "learning_rate": 1e-4},
}
# Table 3: the numbers of generated queries; the text's choice is 5.
QUERIES, CHOSEN = (1, 5, 10, 20), 5


@pytest.fixture(scope="module")
def built() -> dict[str, dict[str, Any]]:
    return {base: toy_recipes.stages(f"msmarco_qac_{base}") for base in BASES}


def test_pretraining(built: Any) -> None:
    """Experimental settings; the cost of both (appendix)."""
    for base in BASES:
        encoder = built[base]["encoder"]
        says(encoder, **PRETRAINING[base], kind="passage_query", settings={"queries": CHOSEN})
        assert encoder.seed == built[base]["queries"].seed == built[base]["retriever_1"].seed == 42
        assert encoder.reading.lengths["context"] == built[base]["queries"].decoding.max_tokens
        says(encoder.optimizer, name="adamw", weight_decay=0.01)
        says(encoder.optimizer, schedule_name="linear", warmup_ratio=0.1)
        assert encoder.reading.lengths["passage"] == 144
        says(encoder.objective.model.config, num_layers=12, hidden_size=768)  # BERT-base


def test_the_objectives(built: Any) -> None:
    """Section 3: a passage's query is reconstructed from its vector, or is its positive."""
    cotmae, cocondenser = (built[base]["encoder"].objective for base in BASES)
    assert isinstance(cotmae, CotMae) and isinstance(cocondenser, CoCondenser)
    # Equations 8 to 10: a masked decoder. Masks are CoT-MAE's 30 and 45 %.
    says(cotmae, decoder="mlm", rate=0.30, symmetric=False)
    assert cotmae.decoder_masking.rate == 0.45
    says(cocondenser, rate=0.15, head_layers=2, temperature=1.0, mlm_scale=1.0, coefficient=1.0)
    assert cocondenser.late_mlm
    assert built["cocondenser"]["encoder"].init == "data:condenser"
    assert built["cotmae"]["encoder"].init == "data:bert-base-uncased"


def test_spans_and_queries(built: Any) -> None:
    """Section 3: MS MARCO's documents in spans of 144 tokens; top-k 25 and top-p 0.95."""
    for base in BASES:
        spans, queries = built[base]["spans"], built[base]["queries"]
        says(spans, format="msmarco_docs", max_tokens=144)
        says(spans, short_span_probability=0.15)  # scripts
        says(queries, method="sample", top_k=25, top_p=0.95, temperature=1.0, samples=max(QUERIES))
        says(queries, prefix="text2query: ", max_tokens=64)  # scripts
        says(queries, drop_repeats=False, well_formed=False, round_trip=0)


def test_tables_3_and_4(built: Any) -> None:
    """1, 5, 10 and 20 queries: of one generation the first ones. Passage-query mixed with
    passage-passage, equally often."""
    for base in BASES:
        for count in QUERIES:
            found = toy_recipes.stages(f"msmarco_qac_{base}", f"QUERIES = {count}")
            changed = toy_recipes.different(built[base], found)
            assert found["encoder"].reading.settings == {"queries": count}
            assert set(changed) == (set() if count == CHOSEN else {"encoder"})
        reading = toy_recipes.stages(f"msmarco_qac_{base}", "overlays/mixed.gin")["encoder"].reading
        weights = reading.settings["probabilities"]
        assert reading.kind == "mixed" and reading.lengths["context"] == 144
        assert weights["query"] == pytest.approx(0.5)
        # Section 5.2: each objective's own passages.
        own = {"cocondenser": {"random"}, "cotmae": {"random", "nearby", "overlap"}}[base]
        assert weights.keys() - {"query"} == own
        assert sum(weights.values()) == pytest.approx(1, abs=1e-3)
    grid = toy_recipes.cells("qac_tables", seed=42)
    variants = ("passages", "mixed", *(f"queries_{count}" for count in QUERIES))
    assert set(grid) == {f"{base}_{variant}" for base in BASES for variant in variants}
    assert len({str(of["queries"]) for of in grid.values() if "queries" in of}) == 1
    for base in BASES:
        assert not toy_recipes.different(grid[f"{base}_queries_5"], built[base])


def test_baselines() -> None:
    """The rows of Table 1 without queries: as their own papers have contexts."""
    # Gao and Callan, 2022: two random spans of a document.
    spans = toy_recipes.stages("msmarco_qac_cocondenser", "overlays/two_spans.gin")
    assert spans["pairs"].task == spans["encoder"].reading.kind == "two_spans"
    # Wu et al., 2022: sampled, near or overlapping spans, each encoded and decoded.
    pairs = toy_recipes.stages("msmarco_qac_cotmae", "overlays/passage_pairs.gin")
    assert pairs["pairs"].task == pairs["encoder"].reading.kind == "passage_passage"
    assert pairs["encoder"].reading.settings["sorts"] == ["random", "nearby", "overlap"]
    assert pairs["encoder"].objective.symmetric
    for base, found in (("cocondenser", spans), ("cotmae", pairs)):
        assert "queries" not in found
        says(found["encoder"], **PRETRAINING[base])
    assert pairs["encoder"].schedule.microbatch == 128  # of two long texts: one H100


def test_fine_tuning(built: Any) -> None:
    """Section 3.2 and the experimental settings: two stages, each from the pre-trained encoder."""
    for base in BASES:
        found = built[base]
        for retriever in (found["retriever_1"], found["retriever_2"]):
            says(retriever, learning_rate=2e-5, weight_decay=0.01, warmup_ratio=0.1)
            says(retriever, init="stage:encoder", epochs=3, batch_size=64)
            says(retriever, lengths={"query": 32, "passages": 144})
            assert retriever.reading.settings["n_passages"] == 16
        # BM25's negatives, then mined ones combined with them; 128 of the first 200 (scripts).
        assert "qidpidtriples" in found["triples_1"].negatives
        says(found["negatives_2"], negatives="mined+bm25", depth=200, keep=128)


def test_table_1(built: Any) -> None:
    """MRR@10, R@50 and R@1k on MS MARCO, nDCG@10 on TREC DL 2019 and 2020, of both retrievers."""
    for base in BASES:
        found = built[base]
        assert {"mrr@10", "hit@50", "hit@1000"} <= set(found["metrics"].rules.resolved().measures)
        assert found["metrics"].rules.protocol == "msmarco"
        for year in ("dl19", "dl20"):
            says(found[year], runs=f"stage:run_1_{year},stage:run_2_{year}")
            assert found[year].rules.protocol == "trec_dl"
            assert "ndcg@10" in found[year].rules.resolved().measures
        for number in (1, 2):
            index = found[f"index_{number}"]
            says(index, method="auto", queries="data:marco/train.query.txt")
            assert dict(zip(index.recall_at, index.target_recall, strict=True))[1000] == 0.999
            for name in (f"run_{number}", f"run_{number}_dl19", f"run_{number}_dl20"):
                says(found[name], index=f"stage:index_{number}", k=1000)
                assert found[name].vectors == f"stage:vectors_{number}"
        says(found["index_1"], recall_at=(256, 1000), target_recall=(0.99, 0.999))
        exact = toy_recipes.stages(f"msmarco_qac_{base}", "overlays/exact.gin")
        assert exact["index_1"].method == exact["index_2"].method == "exact"
        assert "stage:run_bm25" in found["metrics"].runs


def test_rows_of_table_1_beside_them() -> None:
    """Condenser, RetroMAE."""
    # Gao and Callan, 2021: 8 epochs at 1e-4, blocks of 128 tokens, two layers over the middle one.
    condenser = toy_recipes.stages("msmarco_condenser")["encoder"]
    assert isinstance(condenser.objective, Condenser) and condenser.objective.head_layers == 2
    says(condenser, epochs=8, batch_size=1024, learning_rate=1e-4, lengths={"tokens": 128})


def test_retromae_of_table_1() -> None:
    """Liu and Shao, 2022, and its code's README: 39.3 is the model of MS MARCO's passages."""
    found = toy_recipes.stages("msmarco_retromae")
    says(found["blocks"], max_tokens=510, short_span_probability=0, overshoot=True)
    # epochs, examples of 8 GPUs, tokens
    sizes = {"general": (8, 8 * 32, 512), "encoder": (20, 8 * 128, 150)}
    for name, (epochs, examples, tokens) in sizes.items():
        says(found[name], epochs=epochs, batch_size=examples, lengths={"tokens": tokens})
        says(found[name], crop="right", learning_rate=1e-4, warmup_ratio=0.1, weight_decay=0.01)
        objective = found[name].objective
        assert isinstance(objective, RetroMae) and objective.enhanced
        assert (objective.masking.rate, objective.decoder_masking.rate) == (0.3, 0.5)
    assert found["encoder"].init == "stage:general"
    assert found["retriever_1"].init == found["retriever_2"].init == "stage:encoder"


def test_table_2() -> None:
    """BEIR's train_msmarco_v3, which the paper names: batch 75, 350 tokens, 10 epochs, 1,000
    steps of warm-up, up to 5 negatives of each system at a cross-encoder's margin of 3."""
    found = toy_recipes.stages("msmarco_beir")
    says(found["retriever"], batch_size=75, epochs=10, warmup_steps=1000)
    says(found["retriever"], lengths={"query": 350, "passages": 350})
    assert found["retriever"].reading.settings["n_passages"] == 2
    assert found["triples"].negatives.endswith("msmarco-hard-negatives.jsonl.gz")
    assert (training.MARGIN, training.PER_SYSTEM) == (3.0, 5)
    for name, cell in toy_recipes.cells("qac_beir", seed=42).items():
        assert cell["retriever"].init == "stage:encoder" and "retriever_1" not in cell
        assert ("queries" in cell) == name.endswith("_queries")


def test_the_released_switches() -> None:
    released = "overlays/released.gin"
    cotmae = toy_recipes.stages("msmarco_qac_cotmae", released)
    says(cotmae["encoder"].objective, decoder="causal", causal_layers=1, window=3)
    says(cotmae["spans"], overshoot=True, options="released=true")
    says(cotmae["queries"], max_tokens=63)
    says(cotmae["encoder"], separate_documents=False)
    assert cotmae["negatives_2"].negatives == "mined"
    assert cotmae["retriever_1"].reading.lengths == {"query": 32, "passages": 130}
    assert cotmae["retriever_2"].reading.lengths == {"query": 32, "passages": 144}
    for number in (1, 2):
        assert cotmae[f"retriever_{number}"].optimizer.weight_decay == 0
        assert not cotmae[f"retriever_{number}"].objective.mask_duplicates
    other = toy_recipes.stages("msmarco_qac_cocondenser", released)["encoder"].objective
    says(other, mlm_scale=2.0, mlm_group=64, start_head="random")


def test_the_claims_differ_in_what_they_say() -> None:
    """The same examples, steps and retrievers; only the context and the objective differ."""
    cells = toy_recipes.cells("claim_qac")
    assert len(cells) == 12 and "encoder" not in cells["none"]
    plain = cells["queries-cotmae"]
    for name, cell in cells.items():
        if name != "none":
            changed = toy_recipes.different(plain, cell)
            assert set(changed) <= {"encoder", "pairs"}, name
            assert cell["encoder"].schedule == plain["encoder"].schedule
    assert cells["passages-dupmae"]["encoder"].examples == "stage:words"


def test_roads_and_curves_of_the_claim() -> None:
    """From one start the same steps and the same fine-tuning; curves change one number each."""
    roads = toy_recipes.cells("claim_roads")
    assert {"run_1", "run_0"} <= {*roads["none"]} and "retriever_2" not in roads["none"]
    for name, cell in roads.items():
        assert "base" not in cell and cell["retriever_1"].optimizer.learning_rate == 5e-5
        assert fields.describe(cell["triples_1"]) == fields.describe(roads["none"]["triples_1"])
        if name not in ("none", "listwise"):
            assert (cell["encoder"].init, cell["encoder"].schedule.steps) == ("shipped:minilm", 100)
    learned = roads["listwise"]
    assert learned["distilled"].schedule.steps == 100
    assert learned["encoder"].model == "stage:distilled"
    settings = roads["contrastive"]["encoder"].reading.settings
    assert settings["strategies"] == {"text2query": 1.0} and settings["whole_documents"]
    curves = toy_recipes.cells("claim_curves")
    drawn = toy_recipes.grid_of("claim_curves").curves
    assert {s for curve in drawn.values() for of in curve.lines.values() for s in of} == {*curves}
    assert toy_recipes.different(curves["queries"], curves["queries-75-steps"]).keys() == {
        "encoder"
    }
    few = toy_recipes.different(curves["queries"], curves["queries-0.25"])
    assert few.keys() == {"read", "pairs", "encoder"}
    assert curves["queries-0.25"]["read"].settings.share == 0.25
    reading = [curves[name]["encoder"].reading for name in ("queries", "queries-0.25")]
    assert [of.separate_documents for of in reading] == [True, False]
    for share in (0.5, 2.0):
        with pytest.raises(UserError, match=f"read={share} is neither 1 nor at most 0.25"):
            toy_recipes.stages("claim_cell", read=share)
    with pytest.raises(UserError, match="rounds=3 is not a number of rounds"):
        toy_recipes.stages("claim_cell", rounds=3)
    with pytest.raises(UserError, match="objective=cotmae needs contexts"):
        toy_recipes.stages("claim_cell", contexts="mlm")


def test_a_claim_from_an_encoder_that_knows_language() -> None:
    cell = toy_recipes.stages("claim_cell", start="shipped:minilm", rate=5e-5, top_p=0.95)
    assert "base" not in cell and cell["contexts"].decoding.top_p == 0.95
    assert cell["encoder"].init == "shipped:minilm" and cell["retriever_1"].init == "stage:encoder"
    read = ("words", "pairs", "triples_1", "triples_2")
    assert {cell[name].tokenizer for name in read} == {"shipped:minilm"}
    for name in ("encoder", "retriever_1", "retriever_2"):
        assert cell[name].optimizer.learning_rate == 5e-5
