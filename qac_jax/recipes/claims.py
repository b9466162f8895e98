"""The claim of query-as-context pre-training at small size, on a CPU."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from qac_jax.pipeline.grid import Grid
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes.finetuning import (
    ASKING,
    RATE,
    SMALL,
    WORDS,
    Finetuning,
    Task,
    judged,
    two_rounds,
)
from qac_jax.stages.evaluate import Evaluate
from qac_jax.stages.generate import Generate
from qac_jax.stages.index import Bm25
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.questions import Collect
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


MEASURES = ("mrr@10", "ndcg@10", "hit@1", "recall@100")
_TOKENS = 80  # of a passage


@dataclasses.dataclass(frozen=True)
class Cell:
    objective: str = "cotmae"
    contexts: str = "passage_query"
    pretraining: bool = True
    start: str = ""
    generator: str = "shipped:qgen"
    queries: int = 5
    samples: int = 4
    top_p: float = 0.8
    round_trip: int = 10
    mlm_steps: int = 1000
    pretraining_steps: int = 300
    finetuning_steps: int = 300
    rate: float = 1e-3
    pretraining_rate: float = 0.0  # 0: rate
    negatives_2: str = "mined+bm25"
    seed: int = 0


def claim_cell(run: Run, p: Cell) -> None:
    """One cell of the first claim: does an encoder that was pre-trained with queries retrieve
    better?

    A small BERT, or --start, with or without further pre-training on the collection's passages, is
    fine-tuned to retrievers 1 and 2 on the training questions; both are judged on the test
    questions.

    Set: --data_dir, a folder in BEIR's layout with documents.jsonl, qrels/train.tsv,
    qrels/test.tsv.
    Commonly overridden: --mlm_steps, --generator, --queries; --start shipped:minilm --rate 5e-5
    --pretraining_rate 3e-4 (an encoder that knows language); --objective cocondenser, retromae,
    dupmae; --contexts passage_passage (CoT-MAE's own), two_spans (coCondenser's), mixed, mlm
    (RetroMAE's and DupMAE's); --pretraining False.
    """
    passages = run(Prepare, "passages", format="beir", documents=run.data)
    questions = run(Collect, "questions", collection=run.data, passages=passages, train="judged")
    train, test = judged(questions, "train"), judged(questions, "test")
    task = Task(passages, train, test, p.start or WORDS, passage_length=_TOKENS, depth=100)
    words = run(Tokenize, "words", task="mlm", passages=passages, tokenizer=task.vocabulary)
    reading = {"examples": words, "lengths": {"tokens": _TOKENS}}
    encoder = p.start
    if not p.start:
        encoder = run(Train, "base", "objectives/mlm.gin", SMALL, **reading, steps=p.mlm_steps)
    contexts = asked(run, p, passages, max_input=192, max_tokens=32, top_p=p.top_p)
    if p.pretraining:
        encoder = _pretrained(run, p, task, encoder, contexts)
    schedule = {"epochs": 0.0, "steps": p.finetuning_steps, "batch_size": 32}
    # Each query is seen only a few times, and there are some thousand passages.
    negatives: dict[str, Any] = {"negatives_2": p.negatives_2, "mining": {"keep": 8, "depth": 30}}
    how = Finetuning(2, p.seed, [SMALL], {RATE: p.rate}, schedule, **negatives)
    two_rounds(run, task, encoder, how)
    # The encoder's own vectors, of texts as pre-training read them.
    read = {"title": "none", "max_length": _TOKENS}
    task.searched(run, "{}_0", encoder, pooling="mean", normalize="yes", **read)
    expanded = {"passages": passages, "expand": contexts, "queries_each": p.queries}
    task.search(run, "run_expanded", run(Bm25, "bm25_expanded", **expanded))
    runs = [f"stage:run_{name}" for name in ("bm25", "expanded", "0", "1", "2")]
    judging = {"qrels": test["qrels"], "permutations": 1000, "measures": MEASURES}
    run(Evaluate, "metrics", runs=runs, **judging)


def asked(run: Run, p: Any, passages: Ref, **how: Any) -> Ref:
    """Queries for all passages; with a round trip, those for which BM25 finds their passage."""
    return run(
        Generate,
        "contexts",
        passages=passages,
        generator=p.generator,
        samples=p.samples,
        **({"index": "stage:bm25", "round_trip": p.round_trip} if p.round_trip else {}),
        **{**ASKING, **how},
    )


def _pretrained(run: Run, p: Cell, task: Task, init: Ref, contexts: Ref) -> Ref:
    """Further pre-training, as long and as fast whatever the context and objective."""
    lengths, examples = {"tokens": _TOKENS}, "stage:words"
    if p.contexts != "mlm":  # whose passage is its own context, as RetroMAE and DupMAE have it
        context = 20 if p.contexts == "passage_query" else _TOKENS
        lengths = {"passage": _TOKENS, "context": context}
        paired = {"passages": task.passages, "contexts": contexts, "tokenizer": task.vocabulary}
        examples = run(Tokenize, "pairs", task=p.contexts, **paired)
    sorts = ("random", "nearby", "overlap")
    # Table 4: with the passages that each objective's paper has as contexts.
    mixture = {"query": 0.5, **dict.fromkeys(sorts, 0.1667)}
    if p.objective == "cocondenser":
        mixture = {"query": 0.5, "random": 0.5}
    settings: dict[str, Mapping[str, Any]] = {
        "passage_query": {"queries": p.queries},
        "passage_passage": {"sorts": [*sorts]},
        "two_spans": {},
        "mixed": {"queries": p.queries, "probabilities": mixture},
    }
    return run(
        Train,
        "encoder",
        f"objectives/{p.objective}.gin",
        SMALL,
        examples=examples,
        init=init,
        seed=p.seed,
        separate_documents=p.contexts != "two_spans",  # where an example is a document
        steps=p.pretraining_steps,
        kind=p.contexts,
        settings=settings.get(p.contexts),
        lengths=lengths,
        bind={RATE: p.pretraining_rate or p.rate},
    )


def claim_qac() -> Grid:
    """The first claim of query-as-context pre-training: what are queries as contexts worth?

    The same small BERT with no further pre-training, and with passages (each objective's own
    baseline: RetroMAE's and DupMAE's is the passage itself, beside it CoT-MAE's pairs for
    RetroMAE), queries, or both as contexts; the same numbers of examples and steps, three seeds;
    BM25 and BM25 with generated queries for comparison. How many queries: --queries 1 to 20 with
    --samples 20.

    Set: --data_dir (see claim_cell).
    """
    pairs, spans, mixed = (
        {"gin": [f"overlays/{name}.gin"]} for name in ("passage_pairs", "two_spans", "mixed")
    )
    cocondenser, retromae = {"objective": "cocondenser"}, {"objective": "retromae"}
    return Grid(
        title="Queries as contexts: what further pre-training is worth",
        recipe="claim_cell",
        systems={
            "none": {"pretraining": False},
            "passages-cotmae": pairs,
            "queries-cotmae": {},
            "mixed-cotmae": mixed,
            "passages-cocondenser": {**spans, **cocondenser},
            "queries-cocondenser": cocondenser,
            "mixed-cocondenser": {**mixed, **cocondenser},
            "passages-retromae": {**retromae, "contexts": "mlm"},
            "pairs-retromae": {**pairs, **retromae},
            "queries-retromae": retromae,
            "passages-dupmae": {"objective": "dupmae", "contexts": "mlm"},
            "queries-dupmae": {"objective": "dupmae"},
        },
        seeds=(0, 1, 2),
        rows={"run_1": "retriever 1", "run_2": "retriever 2", "run_0": "before fine-tuning"},
        baselines={"run_bm25": "BM25", "run_expanded": "BM25 + generated queries"},
        measures=MEASURES,
    )
