"""The claim of query-as-context pre-training at small size, on a CPU, and why it may fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qac_jax.pipeline.grid import Grid
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes.finetuning import Finetuning, Task, indexed, two_rounds
from qac_jax.stages.evaluate import Evaluate, EvaluateBeir
from qac_jax.stages.generate import Generate
from qac_jax.stages.index import Bm25
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.questions import Collect
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


MEASURES = ("mrr@10", "ndcg@10", "hit@1", "recall@100")
TINY = "models/bert_tiny.gin"
# A few steps of a small model do not overfit.
NO_DROPOUT = {"bert.BertConfig.hidden_dropout": 0.0, "bert.BertConfig.attention_dropout": 0.0}
# Vectors are means of tokens, compared by cosine, in pre-training and fine-tuning: an untrained
# [CLS] learns next to nothing in these few steps (MRR@10 .04 instead of .24).
MEANS = {"encoders.DualEncoderConfig.pooling": "mean", "encoders.DualEncoderConfig.normalize": True}
_POOLED: Mapping[str, Mapping[str, Any]] = {
    "cotmae": {"cotmae.CotMae.pooling": "mean"},
    "cocondenser": {
        "cocondenser.CoCondenser.pooling": "mean",
        "cocondenser.CoCondenser.normalize": True,
        "cocondenser.CoCondenser.temperature": 0.05,
    },
    "retromae": {"retromae.RetroMae.pooling": "mean"},
    "dupmae": {"dupmae.DupMae.pooling": "mean"},
}


def context_settings(contexts: str, queries: int) -> Mapping[str, Any] | None:
    """How contexts of this kind are chosen (Table 4 of the paper: queries and passages mixed)."""
    chosen: dict[str, Mapping[str, Any]] = {
        "passage_query": {"queries": queries},
        "passage_passage": {"sorts": ["random", "nearby", "overlap"]},
        "two_spans": {},
        "mixed": {
            "queries": queries,
            "probabilities": {"query": 0.5, "random": 0.1667, "nearby": 0.1667, "overlap": 0.1667},
        },
    }
    return chosen.get(contexts)


def collection(run: Run) -> Task:
    """Passages and questions of the data folder."""
    passages = run(Prepare, "passages", format="beir", documents=run.data)
    questions = run(Collect, "questions", collection=run.data, passages=passages, train="judged")
    return Task(
        passages=passages,
        train_queries=f"{questions}/train_queries.jsonl",
        train_qrels=f"{questions}/train.tsv",
        test_queries=f"{questions}/test_queries.jsonl",
        test_qrels=f"{questions}/test.tsv",
        passage_length=80,
        depth=100,
    )


def base(run: Run, passages: Ref, steps: int, tokens: int) -> Ref:
    """A small BERT, trained by masked-language modelling on the passages."""
    words = run(Tokenize, "words", task="mlm", passages=passages)
    return run(
        Train,
        "base",
        "objectives/mlm.gin",
        TINY,
        examples=words,
        lengths={"tokens": tokens},
        steps=steps,
        batch_size=32,
        microbatch=0,
        bind={**NO_DROPOUT, "optimizers.Optimizer.learning_rate": 1e-3},
    )


def generated(run: Run, passages: Ref, generator: str, samples: int, round_trip: int) -> Ref:
    """Queries for all passages, those for which BM25 finds their passage."""
    return run(
        Generate,
        "contexts",
        passages=passages,
        generator=generator,
        max_input=192,
        title="space",
        index="stage:bm25",
        round_trip=round_trip,
        samples=samples,
        max_tokens=32,
        temperature=0.6,
        top_p=0.8,
        no_repeat_ngram=2,  # a small T5 repeats itself otherwise
    )


def pretrained(
    run: Run,
    objective: str,
    contexts: str,
    *,
    examples: Ref,
    init: Ref,
    steps: int,
    queries: int,
    passage_tokens: int,
    context_tokens: int,
    seed: int,
) -> Ref:
    """Further pre-training: the same examples, steps and rate whatever the context and objective.

    Contexts "mlm": a passage is its own context, as RetroMAE and DupMAE are published.
    """
    own = contexts == "mlm"
    of_context = context_tokens if contexts == "passage_query" else passage_tokens
    pair = {"passage": passage_tokens, "context": of_context}
    return run(
        Train,
        "encoder",
        f"objectives/{objective}.gin",
        TINY,
        examples=examples,
        init=init,
        seed=seed,
        kind=contexts,
        settings=context_settings(contexts, queries),
        lengths={"tokens": passage_tokens} if own else pair,
        separate_documents=contexts != "two_spans",  # where an example is a document
        steps=steps,
        batch_size=32,
        microbatch=0,
        bind={**NO_DROPOUT, **_POOLED[objective], "optimizers.Optimizer.learning_rate": 1e-3},
    )


def finetuning(steps: int, n_passages: int, seed: int) -> Finetuning:
    """Few steps of a small model."""
    return Finetuning(
        n_passages,
        seed,
        files=[TINY],
        schedule={"epochs": 0.0, "steps": steps, "batch_size": 32},
        bind={
            **NO_DROPOUT,
            **MEANS,
            "finetune.Finetune.temperature": 0.05,
            "optimizers.Optimizer.learning_rate": 1e-3,
        },
    )


# Each query is seen only a few times, and there are some thousand passages.
MINING = {"keep": 8, "depth": 30}


def before_finetuning(run: Run, task: Task, encoder: Ref) -> None:
    """The encoder's own vectors, of texts as pre-training read them."""
    index = indexed(
        run,
        "_0",
        encoder,
        task.passages,
        pooling="mean",
        normalize="yes",
        title="none",
        max_length=task.passage_length,
    )
    run(Search, "run_0", index=index, queries=task.test_queries, k=task.depth)


def expanded(run: Run, task: Task, contexts: Ref, queries: int) -> None:
    """BM25 over passages with their generated queries."""
    index = run(
        Bm25, "bm25_expanded", passages=task.passages, expand=contexts, queries_each=queries
    )
    run(Search, "run_expanded", index=index, queries=task.test_queries, k=task.depth)


def judged(run: Run, task: Task, names: Sequence[str]) -> None:
    """The metrics of these runs."""
    run(
        Evaluate,
        "metrics",
        runs=",".join(f"stage:{name}" for name in names),
        qrels=task.test_qrels,
        permutations=1000,
        measures=MEASURES,
    )


def claim_cell(
    run: Run,
    objective: str = "cotmae",
    contexts: str = "passage_query",
    pretraining: bool = True,
    init: str = "",
    contexts_of: str = "",
    generator: str = "shipped:qgen",
    queries: int = 5,
    samples: int = 4,
    round_trip: int = 10,
    elsewhere: str = "",
    mlm_steps: int = 1000,
    pretraining_steps: int = 300,
    finetuning_steps: int = 300,
    passage_tokens: int = 80,
    context_tokens: int = 20,
    n_passages: int = 2,
    negatives_2: str = "mined+bm25",
    seed: int = 0,
) -> None:
    """One cell of the first claim: does an encoder that was pre-trained with queries retrieve
    better?

        qac run claim_cell --data_dir DATA --out out/cell

    A small BERT, with or without further pre-training on the collection's passages, is fine-tuned
    to retrievers 1 and 2 on the training questions; both are judged on the test questions.

    Set: --data_dir, a folder in BEIR's layout with documents.jsonl, qrels/train.tsv,
    qrels/test.tsv.
    Commonly overridden: --mlm_steps, or --init (parameters of a BERT that was
    trained on these passages; otherwise no pre-training is not a fair baseline); --generator, or
    --contexts_of (contexts from `qac generate`); --pretraining_steps (a decoder needs some hundreds
    before it uses the vector), --finetuning_steps; --objective cocondenser, retromae, dupmae;
    --contexts passage_passage (CoT-MAE's own), two_spans (coCondenser's), mixed, mlm (RetroMAE's
    and DupMAE's); --pretraining False; --elsewhere data:.. (a folder of other collections, on which
    retriever 1 is judged too).
    """
    run.title = "One cell of the claim"
    task = collection(run)
    if not init:
        init = base(run, task.passages, mlm_steps, passage_tokens)
    if not contexts_of:
        contexts_of = generated(run, task.passages, generator, samples, round_trip)
    encoder = init
    if pretraining:
        examples = "stage:words"
        if contexts != "mlm":
            examples = run(
                Tokenize, "pairs", task=contexts, passages=task.passages, contexts=contexts_of
            )
        encoder = pretrained(
            run,
            objective,
            contexts,
            examples=examples,
            init=init,
            steps=pretraining_steps,
            queries=queries,
            passage_tokens=passage_tokens,
            context_tokens=context_tokens,
            seed=seed,
        )
    how = finetuning(finetuning_steps, n_passages, seed)
    two_rounds(run, task, encoder, how, negatives_2=negatives_2, mining=MINING)
    before_finetuning(run, task, encoder)
    expanded(run, task, contexts_of, queries)
    judged(run, task, ["run_bm25", "run_expanded", "run_0", "run_1", "run_2"])
    if elsewhere:
        run(
            EvaluateBeir,
            "elsewhere",
            beir=elsewhere,
            encoder="stage:retriever_1",
            max_length=task.passage_length,
            measures=MEASURES,
            depth=100,
        )


NONE = {"pretraining": False}
PASSAGES: Mapping[str, Any] = {"gin": ["overlays/passage_pairs.gin"]}
TWO_SPANS = {"gin": ["overlays/two_spans.gin"]}
MIXED = {"gin": ["overlays/mixed.gin"]}
COCONDENSER = {"objective": "cocondenser"}
CAUSAL: Mapping[str, Any] = {"cotmae.CotMae.decoder": "causal"}
ONE_WAY = {"cotmae.CotMae.symmetric": False}


def _grid(title: str, systems: Mapping[str, Mapping[str, Any]], **more: Any) -> Grid:
    described = {
        "title": title,
        "recipe": "claim_cell",
        "systems": systems,
        "seeds": (0, 1, 2),
        "rows": {"run_1": "retriever 1", "run_2": "retriever 2", "run_0": "before fine-tuning"},
        "baselines": {"run_bm25": "BM25", "run_expanded": "BM25 + generated queries"},
        "measures": MEASURES,
    }
    return Grid(**{**described, **more})


def claim_qac() -> Grid:
    """The first claim of query-as-context pre-training: what are queries as contexts worth?

        qac run claim_qac --data_dir DATA --out out/claim

    The same small BERT with no further pre-training, and with passages (each objective's own
    baseline: RetroMAE's and DupMAE's is the passage itself, beside it CoT-MAE's pairs for
    RetroMAE), queries, or both as contexts; the same numbers of examples and steps, three seeds;
    BM25 and BM25 with generated queries for comparison.

    Set: --data_dir (see claim_cell).
    Commonly overridden: what claim_cell lists, and grid.Grid.seeds.
    """
    return _grid(
        "Queries as contexts: what further pre-training is worth",
        {
            "none": NONE,
            "passages-cotmae": PASSAGES,
            "queries-cotmae": {},
            "mixed-cotmae": MIXED,
            "passages-cocondenser": {**TWO_SPANS, **COCONDENSER},
            "queries-cocondenser": COCONDENSER,
            "mixed-cocondenser": {**MIXED, **COCONDENSER},
            "passages-retromae": {"objective": "retromae", "contexts": "mlm"},
            "pairs-retromae": {**PASSAGES, "objective": "retromae"},
            "queries-retromae": {"objective": "retromae"},
            "passages-dupmae": {"objective": "dupmae", "contexts": "mlm"},
            "queries-dupmae": {"objective": "dupmae"},
        },
    )


def claim_qac_decoders() -> Grid:
    """claim_qac with CoT-MAE's causal decoder (the released recipe's) beside the masked one.

        qac run claim_qac_decoders --data_dir DATA --out out/claim

    In the folder of claim_qac it takes over what is finished.

    Set: --data_dir (see claim_cell).
    Commonly overridden: what claim_cell lists, and grid.Grid.seeds.
    """
    decoders: dict[str, Mapping[str, Any]] = {
        "passages-cotmae-causal": {**PASSAGES, **CAUSAL},
        "queries-cotmae-causal": CAUSAL,
    }
    return _grid(
        "Queries as contexts, by both decoders of CoT-MAE", {**claim_qac().systems, **decoders}
    )


def claim_qac_causes() -> Grid:
    """Why are queries no better contexts than passages for CoT-MAE in claim_qac?

        qac run claim_qac_causes --data_dir DATA --init out/words --out out/causes

    Likely causes: an encoder that does not know words yet (--init), too few steps ("long"), a
    baseline that is encoded both ways and so reads twice the text ("one-way"), a decoder that
    guesses a context without the vector ("causal" sees only three tokens and the vector), steps so
    large that the encoder forgets what it knew ("gentle": a tenth of the learning rate).

    Set: --data_dir (see claim_cell).
    Commonly overridden: --init (an encoder that has read much more text than claim_cell's;
    docs/results/query-as-context.md says how ours was made), grid.Grid.seeds, .systems.
    """
    long = {"pretraining_steps": 1200}
    gentle = {"encoder/optimizers.Optimizer.learning_rate": 1e-4}
    return _grid(
        "Queries as contexts of CoT-MAE: likely causes",
        {
            "none": NONE,
            "passages": PASSAGES,
            "queries": {},
            "passages-one-way": {**PASSAGES, **ONE_WAY},
            "passages-one-way-long": {**PASSAGES, **ONE_WAY, **long},
            "queries-long": long,
            "passages-causal": {**PASSAGES, **CAUSAL},
            "passages-one-way-causal": {**PASSAGES, **ONE_WAY, **CAUSAL},
            "queries-causal": CAUSAL,
            "passages-gentle": {**PASSAGES, **ONE_WAY, **gentle},
            "queries-gentle": gentle,
        },
        seeds=(0,),
    )


def claim_queries() -> Grid:
    """How many queries a passage: 1, 5, 10, 20 (Table 3 of query-as-context pre-training)?

        qac run claim_queries --data_dir DATA/wikisquad --out out/claim_queries

    As contexts of coCondenser, whose queries help in claim_qac; beside no further pre-training and
    its baseline. Each is fine-tuned on the collection, and judged on it and on others. All are
    chosen from the same 20 of a passage, before the round trip.

    Set: --data_dir (see claim_cell), a folder beside the other collections.
    Commonly overridden: grid.Grid.seeds, .systems, --elsewhere, and what claim_cell lists.
    """
    both = {**COCONDENSER, "samples": 20, "elsewhere": "data:.."}
    others = ("tales", "forum", "scifact", "npl", "cisi")
    return _grid(
        "How many queries a passage",
        {
            "none": {**both, **NONE},
            "passages": {**both, **TWO_SPANS},
            **{f"queries_{n}": {**both, "queries": n} for n in (1, 5, 10, 20)},
        },
        metrics="metrics,elsewhere",
        rows={
            "run_1": "retriever 1",
            "run_2": "retriever 2",
            "run_0": "before fine-tuning",
            **{name: f"retriever 1 on {name}" for name in others},
        },
        baselines={"run_bm25": "BM25"},
    )
