"""The three papers' ideas in one retriever."""

import dataclasses
from typing import Any

from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes import finetuning, msmarco
from qac_jax.recipes.finetuning import EXACT, RATE, Finetuning, Task
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
_LIKE_FINETUNING = {
    "optimizers.Optimizer.name": "adamw",
    "optimizers.Optimizer.weight_decay": 0.01,
    "optimizers.Optimizer.warmup_ratio": 0.1,
    "optimizers.Optimizer.warmup_steps": 0,
}
_CANDIDATES = 100  # of a query, scored by the teacher
_PAIR_LENGTH = 160


@dataclasses.dataclass(frozen=True)
class Frontier(msmarco.Queries):
    pretraining_steps: int = 80000
    contrastive_steps: int = 20000
    distilled_steps: int = 47000  # 6 epochs
    teacher: str = "data:ernie-2.0-large-en"
    student: str = "finetune"


def frontier(run: Run, p: Frontier) -> None:
    """The best recipe for one GPU that published results suggest; nobody has published this sum.

    encoder: DupMAE, whose decoder reconstructs a generated query from its passage's [CLS] and whose
    other tokens predict the passage's words; contrastive: passages against generated queries, 2,048
    pairs a step by a gradient cache; retriever_1 and retriever_2: negatives of BM25, then mined;
    retriever_3 learns a cross-encoder's ranking of retriever 2's candidates. On MS MARCO dev the
    mark to beat is MRR@10 42.6, DupMAE's (Liu et al., 2023), whose vectors have a lexical half; of
    single vectors SimLM's 41.1, distilled (Wang et al., 2023), and query-as-context's own 40.2.

    Set: --data_dir, see msmarco_qac_cotmae; a BERT-large in ernie-2.0-large-en.
    Commonly overridden: --queries, the steps, --student pair (PAIR's two losses on the same
    labels), what objectives/dupmae.gin lists.
    """
    run.title = "Frontier: DupMAE on queries as contexts, two rounds of negatives, distillation"
    run.usual(skip_bad=p.skip_bad)
    reading: dict[str, Any] = {
        "examples": msmarco.pairs(run, p, "passage_query"),
        "seed": p.seed,
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
        init=p.bert,
        **reading,
        steps=p.pretraining_steps,
        microbatch=128,
        bind={"dupmae.DupMae.visible_sets": 16},  # of a query's at most 32 tokens
    )
    finetuning.msmarco_passages(run)
    first = {"encoders.DualEncoderConfig.pooling": "cls", "augtriever.InBatch.temperature": 1.0}
    start = run(
        Train,
        "contrastive",
        "objectives/augtriever.gin",
        init=encoder,
        **reading,
        steps=p.contrastive_steps,
        microbatch=256,  # the others wait as vectors
        bind={**_LIKE_FINETUNING, RATE: 2e-5, **first},
    )
    schedule = {"steps": 23500, "microbatch": 32}  # 3 epochs of 503,000 queries
    how = Finetuning(p.n_passages, p.seed, schedule=schedule, negatives_2=p.negatives_2)
    task, indexes = finetuning.on_msmarco(run, start, p.bert, how)
    indexes["run_3"] = _distilled(run, p, task, start)
    finetuning.judged_on_msmarco(run, indexes, "run_bm25")


def _distilled(run: Run, p: Frontier, task: Task, init: Ref) -> Ref:
    """A teacher, its scores of every candidate but the judged positives, the third retriever and
    its index.

    The teacher learns a positive against negatives in one softmax. Soft labels need no threshold.
    """
    examples = run(
        Tokenize,
        "teacher_examples",
        task="cross_encoder_group",
        **task.trained,
        negatives="stage:negatives_2",
        tokenizer=p.teacher,
    )
    teacher = run(
        Train,
        "teacher",
        "objectives/cross_encoder_localized.gin",
        examples=examples,
        init=p.teacher,
        seed=p.seed,
        settings={"n_passages": 16},
        lengths={"pairs": _PAIR_LENGTH},
        steps=15000,  # an epoch of MS MARCO's 503,000 judged queries is 15,700 steps
        batch_size=32,
        microbatch=16,
        bind={**LARGE, **_LIKE_FINETUNING, RATE: 1e-5},
    )
    queries = task.train["queries"]
    labels = run(
        Label,
        "labels",
        **task.trained,
        candidates=run(Search, "train_run", index="stage:index_2", queries=queries, k=_CANDIDATES),
        teacher=teacher,
        max_length=_PAIR_LENGTH,
        positive=1.0,
        negative=0.999999,
        count=_CANDIDATES,
        depth=_CANDIDATES,
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
    files: list[str] = []
    bind: dict[str, Any] = {
        "finetune.Finetune.distillation": "kl",
        "finetune.Finetune.contrastive_weight": 0.2,
    }
    if p.student == "pair":
        files = ["objectives/pair.gin"]
        bind = {RATE: 2e-5, **_LIKE_FINETUNING, "pair.Pair.temperature": 1.0}
    schedule = {"steps": p.distilled_steps, "microbatch": 32}
    how = Finetuning(24, p.seed, files, bind, schedule)
    settings = {"n_passages": how.n_passages, "teacher": True}
    retriever = how.train(run, "retriever_3", task, triples, init, settings=settings)
    return task.searched(run, "{}_3", retriever, index=EXACT)
