"""AugTriever's recipes against the paper (Meng et al., 2022): its own numbers.

What the paper leaves open and the released code says is marked "code".
"""

from typing import Any

import pytest
import toy_recipes
from toy_recipes import says

from qac_jax.errors import UserError
from qac_jax.evaluation import benchmarks
from qac_jax.objectives.augtriever import InBatch, MoCo


# Table 1: the strategies of each corpus.
SINGLE = ("random_crop", "doc_title", "qext_plm", "tqgen_topic", "tqgen_absum", "tqgen_exsum")
HYBRIDS = ("hybrid_all", "hybrid_tqgen", "hybrid_tqgen_plus")
STRATEGIES = {
    "cc": (*SINGLE, "qgen_d2q", *HYBRIDS),
    "wiki": (*SINGLE, "qgen_d2q", "doc_anchor", "qext_self", "qext_bm25", "paq"),
}
# On CC with texts of a generator; 1,024 otherwise.
LARGE = ("qgen_d2q", "tqgen_topic", "tqgen_absum", "tqgen_exsum", *HYBRIDS)


def built(corpus: str, strategy: str, loss: str) -> dict[str, Any]:
    return toy_recipes.stages(f"augtriever_{corpus}", strategy=strategy, loss=loss)


@pytest.mark.parametrize(
    "name, wrong",
    [("row", {"on": "wikis"}), ("small", {"strategy": "qext"}), ("small", {"loss": "moc"})],
)
def test_what_does_not_exist_is_refused(name: str, wrong: dict[str, str]) -> None:
    with pytest.raises(UserError, match="is not known; did you mean"):
        toy_recipes.stages(f"augtriever_{name}", **wrong)


@pytest.mark.parametrize("loss", ["inbatch", "moco"])
@pytest.mark.parametrize("corpus", STRATEGIES)
def test_training(corpus: str, loss: str) -> None:
    """Experimental settings: 100k steps (Hybrid-TQGen+ 200k), 5e-5, 10k steps of warm-up;
    windows of 256 words, a tenth of the document's words deleted (code)."""
    for strategy in STRATEGIES[corpus]:
        train = built(corpus, strategy, loss)["encoder"]
        says(train, steps=200_000 if strategy == "hybrid_tqgen_plus" else 100_000)
        says(train, batch_size=2048 if corpus == "cc" and strategy in LARGE else 1024)
        says(train, learning_rate=5e-5, warmup_steps=10_000, schedule_name="linear")
        objective = train.objective
        assert objective.temperature == 0.05
        says(objective.model.config, tied=True, pooling="mean", normalize=False)
        assert objective.model.config.backbone.num_layers == 12
        share = train.reading.settings["random_crop_share"]
        if loss == "inbatch":
            assert isinstance(objective, InBatch) and share == 0  # pseudo-queries alone
        else:
            assert isinstance(objective, MoCo)
            says(objective, queue_size=16_384, momentum=0.9995)
            assert share == (0 if strategy.startswith("hybrid") else 0.5)  # half crops
        settings = train.reading.settings
        assert (settings["context_words"], settings["delete"]) == (256, 0.1)
        assert settings["whole_documents"]  # section 1: "with the original document"


def test_hybrids() -> None:
    """Hybrid-TQGen: a fifth each; Hybrid-All: crops 20 %, QExt-PLM 10 %, titles and TQGen 70 %."""
    of = built("cc", "hybrid_tqgen", "moco")["encoder"].reading.settings["strategies"]
    assert set(of.values()) == {0.2} and len(of) == 5 and "random_crop" in of
    every = built("cc", "hybrid_all", "moco")["encoder"].reading.settings["strategies"]
    assert (every["random_crop"], every["qext_plm"]) == (0.2, 0.1)
    rest = sum(share for name, share in every.items() if name.startswith(("tqgen", "doc_title")))
    assert rest == pytest.approx(0.7)


def test_texts_of_strategies() -> None:
    """16 random spans of 4 to 16 words, drawn again every time: an epoch has its own draw.
    Section 3.2: T0-3B, four prompts after the text, top-p 0.9, one text each."""
    for method in ("plm", "bm25"):
        extract = built("wiki", f"qext_{method}", "inbatch")["extracted"]
        says(extract, spans=16, shortest=4, longest=16, keep=1)
        assert extract.draws >= 4
        assert extract.scoring.likelihood == "padded"  # Table 4: the shortest span is least likely
    generate = built("cc", "hybrid_tqgen", "moco")["generated"]
    asked = {name: prompt.after.strip() for name, prompt in generate.prompts.items()}
    assert asked == {
        "topic": "What is the main topic of the above text?",
        "title": "Please write a title of the text above.",
        "absum": "Please write a short summary of the text above.",
        "exsum": "Please use a sentence in the above text to summarize its content.",
    }
    says(generate, samples=1, top_p=0.9, top_k=0, drop_repeats=False)
    paq = built("wiki", "paq", "moco")
    assert paq["documents"].format == "dpr" and "PAQ" in paq["generated"].imported
    published = {"strategy": "hybrid_all", "published": "data:augq.jsonl"}
    found = toy_recipes.stages("augtriever_cc", **published)
    assert found["generated"].imported == found["documents"].documents == "data:augq.jsonl"
    assert found["documents"].cutting.cut == "none" and not found["generated"].generator


def test_table_1() -> None:
    """BEIR's 14 sets and MS MARCO by nDCG@10; QA4 and SQ&EQ by R@20, over DPR's passages."""
    found = built("cc", "random_crop", "moco")
    assert len(benchmarks.BEIR14) == 14 and len(benchmarks.BEIR11) == 11
    assert len(benchmarks.FORUMS) == 12
    assert found["wikipedia"].format == "dpr" and found["beir"].method == "auto"
    says(found["index"], method="auto", recall_at=(100,), target_recall=(0.999,))
    assert (found["beir"].options.max_length, found["vectors"].options.max_length) == (512, 512)
    sets = found["table"].metrics.replace("stage:", "").split(",")
    assert sets == ["beir", "nq", "triviaqa", "webq", "curatedtrec", "squad", "entityquestions"]
    assert found["curatedtrec"].answers == "regex"
    assert found["nq_run"].k == 100
    row = toy_recipes.stages("augtriever_row", encoder="data:contriever", pooling="mean")
    assert "encoder" not in row and row["beir"].encoder == row["vectors"].encoder
    says(row["vectors"], title="space", pooling="mean")


def test_table_2() -> None:
    """Domain adaptation: topics of the target by InBatch, 5k steps, 1e-5, batches of 1,024."""
    found = toy_recipes.stages("augtriever_adaptation")
    train = found["encoder"]
    assert isinstance(train.objective, InBatch)
    says(train, steps=5000, batch_size=1024, learning_rate=1e-5)
    assert train.reading.settings["strategies"] == {"tqgen_topic": 1.0}


def test_table_3() -> None:
    """Fine-tuning on MS MARCO: InBatch, 20k steps, 1e-5, batches of 1,024, one random negative;
    evaluated on all sets of Table 1."""
    found = toy_recipes.stages("augtriever_row", strategy="tqgen_topic", finetuned=True)
    train = found["retriever"]
    assert isinstance(train.objective, InBatch)
    says(train, steps=20_000, batch_size=1024, learning_rate=1e-5)
    assert train.reading.settings["n_passages"] == 2
    assert found["triples"].kept_negatives.random_negatives and not found["triples"].negatives
    assert found["vectors"].encoder == found["beir"].encoder == "stage:retriever"
    assert "stage:squad" in found["table"].metrics and "stage:beir" in found["table"].metrics
    assert train.init == "stage:encoder"
    says(train.objective.model.config, tied=True, pooling="mean")
    other = {"pooling": "cls", "finetuned": True}  # others' models keep how their vectors are made
    spider = toy_recipes.stages("augtriever_row", encoder="data:spider", **other)["retriever"]
    says(spider.objective.model.config, tied=True, pooling="cls")
    spar = toy_recipes.stages("augtriever_row", encoder="data:spar", tied=False, **other)
    assert not spar["retriever"].objective.model.config.tied


def test_as_released() -> None:
    found = toy_recipes.stages("augtriever_cc", "overlays/released.gin", strategy="qext_plm")
    train = found["encoder"]
    assert not train.objective.remote_key_grad and train.objective.device_group == 128
    assert train.reading.settings["random_crop_share"] == 0.5
    assert not train.reading.settings["whole_documents"]
