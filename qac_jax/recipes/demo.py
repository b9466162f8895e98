"""The demo: all steps of query-as-context pre-training at small size, without any download."""

from __future__ import annotations

from qac_jax.errors import UserError
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes.claims import MEANS, MEASURES
from qac_jax.recipes.finetuning import EXACT, Finetuning, Task, indexed, two_rounds
from qac_jax.stages.evaluate import Evaluate
from qac_jax.stages.extract import Extract
from qac_jax.stages.generate import Generate
from qac_jax.stages.index import Bm25
from qac_jax.stages.mine import Mine
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.questions import Collect, Judge
from qac_jax.stages.report import Report
from qac_jax.stages.search import Fuse, Search
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


TITLE = "From docstrings to a retriever"
NAMES = {
    "metrics": "Questions that programmers ask",
    "known_metrics": "Known items: summary lines of modules that trained nothing",
    "encoder": "query-as-context pre-training",
    "retriever_1": "retriever 1",
    "retriever_2": "retriever 2",
    "plain_1": "retriever 1 without QAC",
    "plain_2": "retriever 2 without QAC",
    "run_bm25": "BM25",
    "run_expanded": "BM25 + generated queries",
    "run_start": "MiniLM as it is",
    "run_encoder": "MiniLM, QAC pre-trained",
    "plain_run_1": "retriever 1 without QAC",
    "plain_run_2": "retriever 2 without QAC",
    "run_1": "retriever 1",
    "run_2": "retriever 2",
    "fused": "retriever 2 + BM25",
    "known_run_bm25": "BM25",
    "known_run_start": "MiniLM as it is",
    "known_run_2": "retriever 2",
}


def demo(
    run: Run,
    packages: str = "numpy,scipy,stdlib",
    passages_of: str = "kinds=function sections=first",
    known_of: str = "kinds=function sections=first held_out=only summary=drop",
    contexts: str = "generated",
    generator: str = "shipped:qgen",
    samples: int = 3,
    round_trip: int = 10,
    start: str = "shipped:minilm",
    qac_steps: int = 40,
    fine_steps: int = 24,
    n_passages: int = 2,
    query_length: int = 24,
    passage_length: int = 96,
    negatives_2: str = "mined+bm25",
    depth: int = 100,
    seed: int = 0,
) -> None:
    """The demo: from the docstrings of installed Python libraries to a retriever, in ten minutes.

        launch/demo.sh          or          qac run demo --out out/demo

    One function is one passage; questions are those that programmers ask ("glue two arrays together
    side by side along columns"), written by us. Rows of the table: BM25, BM25 with the queries of
    the passages, the encoder it starts from (MiniLM), the same after query-as-context pre-training
    (coCondenser), retrievers 1 and 2 with and without that pre-training, and retriever 2 combined
    with BM25. Training data: queries for functions outside a fixed fifth of all modules, and their
    summary lines. Test data: the questions, and as known items the summary lines of that fifth,
    removed from its passages. The test questions are not used in training.

    Queries are those of the small generator that ships, filtered by a round trip: BM25 must return
    their passage. --contexts spans: spans of the passages instead (AugTriever's QExt-BM25).

    Set: nothing.
    Commonly overridden: --packages, --passages_of (which docstrings), --generator (another T5),
    --contexts, --qac_steps, --fine_steps. demo_full takes all docstrings and more steps.
    """
    run.title = TITLE
    prepared = {
        "format": "python_docs",
        "packages": packages,
        "tokenizer": start,
        "seed": seed,
        "max_tokens": 200,
    }
    passages = run(Prepare, "passages", options=passages_of, **prepared)
    queries = _contexts(run, passages, contexts, generator, samples, round_trip, seed)
    natural = run(Judge, "natural", questions="shipped:demo/questions.jsonl", passages=passages)
    questions = run(
        Collect, "questions", passages=passages, contexts=queries, each=1, summaries=True
    )
    task = Task(
        passages,
        f"{questions}/train_queries.jsonl",
        f"{questions}/train.tsv",
        f"{natural}/test_queries.jsonl",
        f"{natural}/test.tsv",
        start,
        query_length,
        passage_length,
        depth,
    )
    pairs = run(
        Tokenize,
        "pairs",
        task="passage_query",
        passages=passages,
        contexts=queries,
        tokenizer=start,
        part="train",
        title="separate",
    )
    # From MiniLM's BERT, with a new head for masked tokens.
    encoder = run(
        Train,
        "encoder",
        "objectives/cocondenser.gin",
        examples=pairs,
        init=start,
        seed=seed,
        steps=qac_steps,
        batch_size=32,
        microbatch=0,
        log_every=10,
        bind={
            "PASSAGE_TOKENS": passage_length,
            "CONTEXT_TOKENS": query_length,
            "QUERIES": samples,
            "cocondenser.CoCondenser.mlm_scale": 0.1,  # few steps: not the new head's loss alone
            "optimizers.Optimizer.learning_rate": 2e-5,
        },
    )
    how = Finetuning(
        n_passages,
        seed,
        bind={**MEANS, "finetune.Finetune.temperature": 0.05},
        schedule={"epochs": 0.0, "steps": fine_steps, "batch_size": 16, "log_every": 10},
    )
    searched = {"queries": task.test_queries, "k": depth}
    two_rounds(
        run,
        task,
        encoder,
        how,
        negatives_2=negatives_2,
        # The index that users search afterwards: ScaNN, tuned to this recall.
        last={"method": "scann", "target_recall": 0.99},
    )
    expanded = run(Bm25, "bm25_expanded", passages=passages, expand=queries)
    run(Search, "run_expanded", index=expanded, **searched)
    run(Search, "run_start", index=indexed(run, "_start", start, passages), **searched)
    of_encoder = indexed(
        run,
        "_encoder",
        encoder,
        passages,
        pooling="mean",
        normalize="yes",
        title="separate",
        max_length=passage_length,
    )
    run(Search, "run_encoder", index=of_encoder, **searched)
    _without_pretraining(run, task, how, start, negatives_2)
    fused = run(Fuse, "fused", runs="stage:run_bm25,stage:run_2")
    runs = ("bm25", "expanded", "start", "encoder")
    names = [f"run_{n}" for n in runs] + ["plain_run_1", "plain_run_2", "run_1", "run_2"]
    metrics = run(
        Evaluate,
        "metrics",
        runs=",".join([*(f"stage:{name}" for name in names), fused]),
        qrels=task.test_qrels,
        measures=MEASURES,
    )
    known = run(Prepare, "known", options=known_of, **prepared)
    known_metrics = _known_items(run, known, start, depth)
    run(Report, "report", metrics=f"{metrics},{known_metrics}", title=TITLE, names=NAMES)


def _contexts(
    run: Run, passages: Ref, contexts: str, generator: Ref, samples: int, round_trip: int, seed: int
) -> Ref:
    if contexts == "spans":
        return run(Extract, "contexts", passages=passages, method="bm25", keep=samples, seed=seed)
    if contexts != "generated":
        raise UserError(f"contexts={contexts!r}; expected generated or spans")
    return run(
        Generate,
        "contexts",
        passages=passages,
        generator=generator,
        max_input=160,
        title="space",
        index="stage:bm25",
        seed=seed,
        round_trip=round_trip,
        samples=samples,
        max_tokens=24,
        temperature=0.6,
        top_p=0.8,
        no_repeat_ngram=2,  # a small generator repeats itself otherwise
    )


def _without_pretraining(
    run: Run, task: Task, how: Finetuning, start: Ref, negatives_2: str
) -> None:
    """Retrievers 1 and 2 again, without query-as-context pre-training."""
    searched = {"queries": task.test_queries, "k": task.depth}
    triples = "stage:triples_1"
    for number in (1, 2):
        retriever = how.train(run, f"plain_{number}", task, triples, start)
        vectors, index = f"plain_vectors_{number}", f"plain_index_{number}"
        found = indexed(
            run,
            "",
            retriever,
            task.passages,
            names=(vectors, index),
            how=EXACT if number == 2 else None,
        )
        run(Search, f"plain_run_{number}", index=found, **searched)
        if number == 1:
            mined = run(
                Mine,
                "plain_negatives_2",
                **task.trained,
                index=found,
                bm25="stage:bm25",
                negatives=negatives_2,
                depth=200,
                keep=128,
            )
            triples = run(
                Tokenize,
                "plain_triples_2",
                task="triples",
                **task.trained,
                negatives=mined,
                tokenizer=task.vocabulary,
            )


def _known_items(run: Run, known: Ref, start: Ref, depth: int) -> Ref:
    """The same systems on the passages without their summary lines, which are the questions."""
    items = run(Collect, "known_items", passages=known, train="none", summaries=True)
    indexes = {
        "bm25": run(Bm25, "known_bm25", passages=known),
        **{
            name: indexed(
                run, "", encoder, known, names=(f"known_vectors_{name}", f"known_index_{name}")
            )
            for name, encoder in (("start", start), ("2", "stage:retriever_2"))
        },
    }
    runs = [
        run(
            Search, f"known_run_{name}", index=index, queries=f"{items}/test_queries.jsonl", k=depth
        )
        for name, index in indexes.items()
    ]
    return run(
        Evaluate, "known_metrics", runs=",".join(runs), qrels=f"{items}/test.tsv", measures=MEASURES
    )
