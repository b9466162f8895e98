"""The three papers' ideas in one retriever, at full and at small size, and what each is worth."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from qac_jax.pipeline.grid import Grid
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes import claims, finetuning, msmarco
from qac_jax.recipes.finetuning import RATE, Finetuning, Task
from qac_jax.stages.mine import Label
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


# A BERT-large, as PAIR's teacher.
LARGE = {
    "bert.BertConfig.hidden_size": 1024,
    "bert.BertConfig.num_layers": 24,
    "bert.BertConfig.num_heads": 16,
    "bert.BertConfig.intermediate_size": 4096,
}
# The optimizer of objectives/finetune.gin.
LIKE_FINETUNING = {
    "optimizers.Optimizer.name": "adamw",
    "optimizers.Optimizer.weight_decay": 0.01,
    "optimizers.Optimizer.warmup_ratio": 0.1,
    "optimizers.Optimizer.warmup_steps": 0,
}


@dataclasses.dataclass(frozen=True)
class Distillation:
    """A cross-encoder and what a third retriever learns from it."""

    teacher: Ref
    negatives: Ref
    training: Mapping[str, Any]  # of the teacher
    passages: int  # of a query, that the teacher compares
    rate: float
    pair_length: int
    candidates_of: Ref
    candidates: int  # of a query, scored by the teacher
    student: str  # "finetune", or "pair": PAIR's two losses on the same labels
    n_passages: int
    schedule: Mapping[str, Any]  # of the student
    labelling: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the teacher


def contrastive(
    run: Run, init: Ref, how: Finetuning, rate: float, bind: Mapping[str, Any], **reading: Any
) -> Ref:
    """A dual encoder on passages and their generated queries."""
    return run(
        Train,
        "contrastive",
        "objectives/augtriever.gin",
        *how.files,
        examples="stage:pairs",
        init=init,
        seed=how.seed,
        **reading,
        bind={**LIKE_FINETUNING, RATE: rate, **bind},
    )


def distilled(run: Run, task: Task, init: Ref, how: Finetuning, by: Distillation) -> None:
    """A teacher, its scores of every candidate but the judged positives, and the third retriever.

    The teacher learns a positive against negatives in one softmax. Soft labels need no threshold.
    """
    examples = run(
        Tokenize,
        "teacher_examples",
        task="cross_encoder_group",
        **task.trained,
        negatives=by.negatives,
        tokenizer=by.teacher,
    )
    teacher = run(
        Train,
        "teacher",
        "objectives/cross_encoder_localized.gin",
        *how.files,
        examples=examples,
        init=by.teacher,
        settings={"n_passages": by.passages},
        lengths={"pairs": by.pair_length},
        **by.training,
        bind={**by.model, **LIKE_FINETUNING, RATE: by.rate},
    )
    found = run(
        Search, "train_run", index=by.candidates_of, queries=task.train["queries"], k=by.candidates
    )
    labels = run(
        Label,
        "labels",
        **task.trained,
        candidates=found,
        teacher=teacher,
        max_length=by.pair_length,
        positive=1.0,
        negative=0.999999,
        count=by.candidates,
        depth=by.candidates,
        **by.labelling,
    )
    triples = run(
        Tokenize,
        "triples_3",
        task="triples",
        passages=task.passages,
        negatives=labels,
        tokenizer=task.vocabulary,
        teacher=True,
    )
    if by.student == "pair":
        temperature = {} if how.files else {"pair.Pair.temperature": 1.0}
        bind: dict[str, Any] = {RATE: 2e-5, **LIKE_FINETUNING, **temperature}
        files = ["objectives/pair.gin", *how.files]
    else:
        bind = {"finetune.Finetune.distillation": "kl", "finetune.Finetune.contrastive_weight": 0.2}
        files = [*how.files]
    index = {} if how.files else finetuning.EXACT
    how = dataclasses.replace(how, files=files, bind={**bind, **how.bind}, schedule=by.schedule)
    settings = {"n_passages": by.n_passages, "teacher": True}
    retriever = how.train(run, "retriever_3", task, triples, init, settings=settings)
    task.searched(run, "{}_3", retriever, index=index)


@dataclasses.dataclass(frozen=True)
class Full(msmarco.Queries):
    pretraining_steps: int = 80000
    contrastive_steps: int = 20000
    distilled_steps: int = 47000  # 6 epochs
    teacher: str = "data:ernie-2.0-large-en"
    student: str = "finetune"


def frontier(run: Run, p: Full) -> None:
    """The best recipe for one GPU that published results suggest; nobody has published this sum.

    encoder: DupMAE, whose decoder reconstructs a generated query from its passage's [CLS] and whose
    other tokens predict the passage's words; contrastive: passages against generated queries, 2,048
    pairs a step by a gradient cache; retriever_1 and retriever_2: negatives of BM25, then mined;
    retriever_3 learns a cross-encoder's ranking of retriever 2's candidates. On MS MARCO dev the
    mark to beat is MRR@10 42.6, DupMAE's (Liu et al., 2023), whose vectors have a lexical half; of
    single vectors SimLM's 41.1, distilled (Wang et al., 2023), and query-as-context's own 40.2.

    Set: --data_dir, see msmarco_qac_cotmae; a BERT-large in ernie-2.0-large-en.
    Commonly overridden: --queries, the steps, --student pair (PAIR's two losses on the same
    labels), what objectives/dupmae.gin lists. frontier_small_grid asks which part is worth its
    cost.
    """
    run.title = "Frontier: DupMAE on queries as contexts, two rounds of negatives, distillation"
    run.usual(skip_bad=p.skip_bad)
    reading: dict[str, Any] = {
        "kind": "passage_query",
        "settings": {"queries": p.queries},
        "lengths": {"passage": 144, "context": 32},
        "separate_documents": True,
        "batch_size": 2048,
    }
    encoder = run(
        Train,
        "encoder",
        "objectives/dupmae.gin",
        examples=msmarco.pairs(run, p, "passage_query"),
        init=p.bert,
        seed=p.seed,
        **reading,
        steps=p.pretraining_steps,
        microbatch=128,
        bind={"dupmae.DupMae.visible_sets": 16},  # of a query's at most 32 tokens
    )
    finetuning.msmarco_passages(run)
    schedule = {"steps": 23500, "microbatch": 32}  # 3 epochs of 503,000 queries
    how = Finetuning(p.n_passages, p.seed, schedule=schedule)
    first = {"encoders.DualEncoderConfig.pooling": "cls", "augtriever.InBatch.temperature": 1.0}
    reading |= {"steps": p.contrastive_steps, "microbatch": 256}  # the others wait as vectors
    start = contrastive(run, encoder, how, 2e-5, first, **reading)
    task, *indexes = finetuning.on_msmarco(run, start, p.bert, how, p.negatives_2)
    by = Distillation(
        p.teacher,
        negatives="stage:negatives_2",
        # An epoch of MS MARCO's 503,000 judged queries is 15,700 steps.
        training={"seed": p.seed, "steps": 15000, "batch_size": 32, "microbatch": 16},
        passages=16,
        rate=1e-5,
        pair_length=160,
        candidates_of="stage:index_2",
        candidates=100,
        student=p.student,
        n_passages=24,
        schedule={"steps": p.distilled_steps, "microbatch": 32},
        model=LARGE,
    )
    distilled(run, task, start, how, by)
    names = ("run_1", "run_2", "run_3")
    finetuning.judged_on_msmarco(run, ["run_bm25", *names])
    finetuning.trec_dl(run, dict(zip(names, [*indexes, "stage:index_3"], strict=True)))


@dataclasses.dataclass(frozen=True)
class FrontierSmall(claims.Small):
    objective: str = "dupmae"
    contrast: bool = True
    distillation: bool = True
    student: str = "finetune"
    contrastive_steps: int = 300
    teacher_steps: int = 100
    candidates: int = 6


def frontier_small(run: Run, p: FrontierSmall) -> None:
    """frontier at small size on a CPU, with claim_cell's small BERT and collection.

    Pre-trained by DupMAE on generated queries, trained to retrieve them, fine-tuned with two rounds
    of negatives, and last by the scores of a MiniLM as cross-encoder. The teacher learns from
    BM25's negatives and scores BM25's candidates, of 11,700 questions in half an hour of a core, so
    that it and its scores are made once for all cells of the grid.

    Set: --data_dir (see claim_cell).
    Commonly overridden: what claim_cell lists; --contrast False, --distillation False, --student
    pair (PAIR's two losses), the steps, --candidates.
    """
    run.title = "The frontier recipe at small size"
    task = claims.collection(run)
    encoder, contexts = claims.start(run, p, task.passages)
    kind = "passage_query" if p.contexts == "mlm" else p.contexts
    if p.pretraining or p.contrast:
        run(Tokenize, "pairs", task=kind, passages=task.passages, contexts=contexts)
    if p.pretraining:
        examples = "stage:words" if p.contexts == "mlm" else "stage:pairs"
        encoder = claims.pretrained(run, p, encoder, examples)
    if p.contrast:
        reading = {"separate_documents": True, "batch_size": 64, **p.reading(kind)}
        reading["steps"] = p.contrastive_steps
        encoder = contrastive(run, encoder, p.finetuning, 1e-3, {}, **reading)
    names = claims.finished(run, p, task, encoder, contexts)
    if p.distillation:
        by = Distillation(
            "shipped:minilm",
            negatives="stage:negatives_1",
            training={"steps": p.teacher_steps, "batch_size": 16, "precision": "fast"},
            passages=4,
            rate=1e-4,
            pair_length=task.query_length + task.passage_length,
            candidates_of="stage:bm25",
            candidates=p.candidates,
            student=p.student,
            n_passages=4,
            schedule={"steps": p.finetuning_steps, "batch_size": 32},
            labelling={"precision": "fast"},
        )
        # In few steps better than from the encoder.
        distilled(run, task, "stage:retriever_2", p.finetuning, by)
        names.append("run_3")
    claims.evaluated(run, task, names)


def frontier_small_grid() -> Grid:
    """Which part of frontier is worth its cost, at small size?

    The whole recipe, the recipe without one part at a time, and rows of the three papers on the
    same collection, steps and examples. The second round of negatives and the distillation are rows
    of every cell.

    Set: --data_dir (see claim_cell).
    Commonly overridden: grid.Grid.seeds, .systems, and what frontier_small lists.
    """
    alone = {"contrast": False, "distillation": False}
    return Grid(
        title="The frontier recipe at small size: its parts and the papers' rows",
        recipe="frontier_small",
        seeds=(0, 1, 2),
        systems={
            "complete": {},
            "without_bag_of_words": {"dupmae.DupMae.bag_coefficient": 0.0},
            "bag_of_the_query": {"dupmae.DupMae.bag": "context"},
            # DupMAE as published; the examples are those of the first MLM.
            "passage_itself": {"contexts": "mlm"},
            "without_enhanced_decoder": {"dupmae.DupMae.enhanced": False},
            "without_contrastive": {"contrast": False},
            "without_pretraining": {"pretraining": False, "contrast": False},
            "qac_cotmae": {"objective": "cotmae", **alone},
            "qac_cocondenser": {"objective": "cocondenser", **alone},
            "augtriever": {"pretraining": False, "distillation": False},
            "pair": {"student": "pair", "pretraining": False, "contrast": False},
        },
        partial=True,  # the papers' rows are not distilled
        rows={"run_1": "retriever 1", "run_2": "retriever 2", "run_3": "distilled"},
        baselines={"run_bm25": "BM25", "run_expanded": "BM25 + generated queries"},
        measures=claims.MEASURES,
    )
