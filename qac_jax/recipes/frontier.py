"""The three papers' ideas in one retriever, at full and at small size, and what each is worth."""

from __future__ import annotations

import dataclasses
from typing import Any

from qac_jax.pipeline.grid import Grid
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes import claims, finetuning, msmarco
from qac_jax.recipes.finetuning import Finetuning, Task
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
class Contrast:
    """How passages are trained to be near their generated queries."""

    steps: int = 20000
    rate: float = 2e-5
    pairs: int = 2048  # a step
    at_a_time: int = 256  # the gradient cache's: the others wait as vectors
    temperature: float = 1.0


@dataclasses.dataclass(frozen=True)
class Distillation:
    """A cross-encoder and what a third retriever learns from it."""

    teacher: Ref
    negatives: Ref = "stage:negatives_2"
    teacher_seed: int = 0
    teacher_steps: int = 15000  # an epoch of MS MARCO's 503,000 judged queries is 15,700 of them
    teacher_passages: int = 16
    teacher_batch: int = 32
    teacher_rate: float = 1e-5
    teacher_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    teacher_bind: dict[str, Any] = dataclasses.field(default_factory=dict)
    pair_length: int = 160
    candidates_of: Ref = "stage:index_2"
    candidates: int = 100  # of a query, scored by the teacher
    label_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    student: str = "finetune"  # "pair": PAIR's two losses on the same labels
    n_passages: int = 24
    schedule: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {"steps": 47000, "batch_size": 64, "microbatch": 32}  # 6 epochs
    )


def contrastive(run: Run, init: Ref, how: Finetuning, contrast: Contrast, **reading: Any) -> Ref:
    """A dual encoder on passages and their generated queries."""
    return run(
        Train,
        "contrastive",
        "objectives/augtriever.gin",
        *how.files,
        examples="stage:pairs",
        init=init,
        seed=how.seed,
        epochs=0.0,
        steps=contrast.steps,
        batch_size=contrast.pairs,
        microbatch=contrast.at_a_time,
        **reading,
        bind={
            "encoders.DualEncoderConfig.pooling": "cls",
            **how.bind,
            "augtriever.InBatch.temperature": contrast.temperature,
            **LIKE_FINETUNING,
            "optimizers.Optimizer.learning_rate": contrast.rate,
        },
    )


def distilled(run: Run, task: Task, init: Ref, how: Finetuning, by: Distillation) -> Ref:
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
        **{
            "examples": examples,
            "init": by.teacher,
            "seed": by.teacher_seed,
            "settings": {"n_passages": by.teacher_passages},
            "lengths": {"pairs": by.pair_length},
            "separate_documents": False,
            "epochs": 0.0,
            "steps": by.teacher_steps,
            "batch_size": by.teacher_batch,
            "microbatch": 0,
            **by.teacher_options,
        },
        bind={
            **{name: value for name, value in how.bind.items() if name.startswith("bert.")},
            **by.teacher_bind,
            **LIKE_FINETUNING,
            "optimizers.Optimizer.learning_rate": by.teacher_rate,
        },
    )
    found = run(
        Search, "train_run", index=by.candidates_of, queries=task.train_queries, k=by.candidates
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
        **by.label_options,
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
    bind = {"finetune.Finetune.distillation": "kl", "finetune.Finetune.contrastive_weight": 0.2}
    files = [*how.files]
    if by.student == "pair":
        temperature = how.bind.get("finetune.Finetune.temperature", 1.0)
        rate = {"optimizers.Optimizer.learning_rate": 2e-5}
        bind = {**rate, **LIKE_FINETUNING, "pair.Pair.temperature": temperature}
        files.insert(0, "objectives/pair.gin")
    return dataclasses.replace(how, files=files, bind={**bind, **how.bind}).train(
        run,
        "retriever_3",
        task,
        triples,
        init,
        settings={"n_passages": by.n_passages, "teacher": True},
        epochs=0.0,
        **by.schedule,
    )


def frontier(
    run: Run,
    queries: int = 5,
    pretraining_steps: int = 80000,
    contrastive_steps: int = 20000,
    distilled_steps: int = 47000,
    generated: int = 20,
    corpus: str = "data:msmarco-docs.tsv",
    bert: str = msmarco.BERT,
    generator: str = "data:doc2query-all-with_prefix-t5-base-v1",
    teacher: str = "data:ernie-2.0-large-en",
    student: str = "finetune",
    n_passages: int = 16,
    negatives_2: str = "mined+bm25",
    skip_bad: int = 1000,
    seed: int = 0,
) -> None:
    """The best recipe for one GPU that published results suggest; nobody has published this sum.

        qac run frontier --data_dir DATA --out out/frontier

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
    run.defaults["skip_bad"] = skip_bad
    task = finetuning.msmarco(bert)
    how = Finetuning(
        n_passages,
        seed,
        schedule={"epochs": 0.0, "steps": 23500, "microbatch": 32},  # 3 epochs of 503,000 queries
    )
    reading = {
        "kind": "passage_query",
        "settings": {"queries": queries},
        "lengths": {"passage": 144, "context": 32},
        "separate_documents": True,
    }
    examples = msmarco.pairs(
        run,
        "passage_query",
        corpus=corpus,
        bert=bert,
        generator=generator,
        generated=generated,
        seed=seed,
    )
    encoder = run(
        Train,
        "encoder",
        "objectives/dupmae.gin",
        examples=examples,
        init=bert,
        seed=seed,
        **reading,
        steps=pretraining_steps,
        batch_size=2048,
        microbatch=128,
        bind={"dupmae.DupMae.visible_sets": 16},  # of a query's at most 32 tokens
    )
    finetuning.msmarco_passages(run)
    start = contrastive(run, encoder, how, Contrast(contrastive_steps), **reading)
    first, second = finetuning.two_rounds(
        run,
        task,
        start,
        how,
        negatives_1=finetuning.MARCO_NEGATIVES,
        negatives_2=negatives_2,
        bm25=finetuning.MARCO_BM25,
        index=finetuning.EXACT,
    )
    by = Distillation(
        teacher,
        teacher_seed=seed,
        teacher_options={"microbatch": 16},
        teacher_bind=LARGE,
        student=student,
        schedule={"steps": distilled_steps, "batch_size": 64, "microbatch": 32},
    )
    retriever = distilled(run, task, start, how, by)
    third = finetuning.indexed(run, "_3", retriever, task.passages, how=finetuning.EXACT)
    run(Search, "run_3", index=third, queries=task.test_queries, k=task.depth)
    finetuning.judged_on_msmarco(run, ["run_bm25", "run_1", "run_2", "run_3"])
    finetuning.trec_dl(run, {"run_1": first, "run_2": second, "run_3": third})


def frontier_small(
    run: Run,
    objective: str = "dupmae",
    contexts: str = "passage_query",
    pretraining: bool = True,
    contrast: bool = True,
    distillation: bool = True,
    student: str = "finetune",
    init: str = "",
    contexts_of: str = "",
    generator: str = "shipped:qgen",
    queries: int = 5,
    samples: int = 4,
    round_trip: int = 10,
    mlm_steps: int = 1000,
    pretraining_steps: int = 300,
    contrastive_steps: int = 300,
    finetuning_steps: int = 300,
    teacher_steps: int = 100,
    candidates: int = 6,
    passage_tokens: int = 80,
    context_tokens: int = 20,
    n_passages: int = 2,
    negatives_2: str = "mined+bm25",
    seed: int = 0,
) -> None:
    """frontier at small size on a CPU, with claim_cell's small BERT and collection.

        qac run frontier_small --data_dir DATA --out out/frontier_small

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
    how = claims.finetuning(finetuning_steps, n_passages, seed)
    if not init:
        init = claims.base(run, task.passages, mlm_steps, passage_tokens)
    if not contexts_of:
        contexts_of = claims.generated(run, task.passages, generator, samples, round_trip)
    encoder = init
    kind = "passage_query" if contexts == "mlm" else contexts
    if pretraining or contrast:
        run(Tokenize, "pairs", task=kind, passages=task.passages, contexts=contexts_of)
    if pretraining:
        encoder = claims.pretrained(
            run,
            objective,
            contexts,
            examples="stage:words" if contexts == "mlm" else "stage:pairs",
            init=init,
            steps=pretraining_steps,
            queries=queries,
            passage_tokens=passage_tokens,
            context_tokens=context_tokens,
            seed=seed,
        )
    if contrast:
        many = Contrast(contrastive_steps, rate=1e-3, pairs=64, at_a_time=0, temperature=0.05)
        of_context = context_tokens if kind == "passage_query" else passage_tokens
        encoder = contrastive(
            run,
            encoder,
            how,
            many,
            separate_documents=True,
            kind=kind,
            settings=claims.context_settings(kind, queries),
            lengths={"passage": passage_tokens, "context": of_context},
        )
    finetuning.two_rounds(run, task, encoder, how, negatives_2=negatives_2, mining=claims.MINING)
    claims.before_finetuning(run, task, encoder)
    claims.expanded(run, task, contexts_of, queries)
    names = ["run_bm25", "run_expanded", "run_0", "run_1", "run_2"]
    if distillation:
        by = Distillation(
            "shipped:minilm",
            negatives="stage:negatives_1",
            teacher_steps=teacher_steps,
            teacher_passages=4,
            teacher_batch=16,
            teacher_rate=1e-4,
            teacher_options={"precision": "fast"},
            pair_length=task.query_length + task.passage_length,
            candidates_of="stage:bm25",
            candidates=candidates,
            label_options={"precision": "fast"},
            student=student,
            n_passages=4,
            schedule={"steps": finetuning_steps, "batch_size": 32, "microbatch": 0},
        )
        # In few steps better than from the encoder.
        retriever = distilled(run, task, "stage:retriever_2", how, by)
        index = finetuning.indexed(run, "_3", retriever, task.passages)
        run(Search, "run_3", index=index, queries=task.test_queries, k=task.depth)
        names.append("run_3")
    claims.judged(run, task, names)


def frontier_small_grid() -> Grid:
    """Which part of frontier is worth its cost, at small size?

        qac run frontier_small_grid --data_dir DATA --out out/frontier_grid

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
