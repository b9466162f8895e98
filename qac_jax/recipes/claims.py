"""The claim of query-as-context pre-training at small size, on a CPU."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from qac_jax.errors import UserError
from qac_jax.pipeline.grid import Curve, Grid
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.queries.splitting import MOST
from qac_jax.recipes.augtriever import WARMUP
from qac_jax.recipes.finetuning import (
    ASKING,
    EXACT,
    RATE,
    SMALL,
    WORDS,
    Finetuning,
    Task,
    judged,
    two_rounds,
)
from qac_jax.stages.analyse import Relate
from qac_jax.stages.choose import Average
from qac_jax.stages.evaluate import Evaluate
from qac_jax.stages.extract import Extract
from qac_jax.stages.generate import Generate
from qac_jax.stages.index import Bm25, Hybrid
from qac_jax.stages.mine import Group
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.questions import Collect, Split
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


MEASURES = ("mrr@10", "ndcg@10", "hit@1", "recall@100")
_TOKENS = 80  # of a passage
_ROWS = {"run_1": "retriever 1", "run_0": "before fine-tuning"}
_BASELINES = {"run_bm25": "BM25", "run_expanded": "BM25 + generated queries"}
# Systems of the grids: coCondenser, its baseline, CoT-MAE's baseline, RetroMAE.
_COCONDENSER: Mapping[str, Any] = {"objective": "cocondenser"}
_SPANS: Mapping[str, Any] = {**_COCONDENSER, "gin": ["overlays/two_spans.gin"]}
_PAIRS: Mapping[str, Any] = {"gin": ["overlays/passage_pairs.gin"]}
_RETROMAE: Mapping[str, Any] = {"objective": "retromae"}
# An encoder's own vectors, of texts as pre-training read them.
_READ: Mapping[str, Any] = {
    "title": "none",
    "max_length": _TOKENS,
    "pooling": "mean",
    "normalize": "yes",
}


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
    rounds: int = 2
    read: float = 1.0  # share of the passages
    relate: bool = False
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
    (RetroMAE's and DupMAE's); instead of pre-training --objective augtriever --contexts augtriever
    (contrastive, on the same queries) or --objective listwise (own_corpus's road); --pretraining
    False; --read (share of the passages that it reads: all, or at most .25); --generator spans
    (QExt-BM25's); --relate True (how related contexts are, by qac analyse); --rounds 1 (retriever 1
    alone).
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
    if p.generator == "spans":
        contexts = run(Extract, "contexts", passages=passages, keep=p.samples)
    else:
        contexts = asked(run, p, passages, max_input=192, max_tokens=32, top_p=p.top_p)
    if p.relate:
        run(Relate, "related", pairs=contexts, passages=passages)
    if p.pretraining:
        road = _distilled if p.objective == "listwise" else _pretrained
        encoder = road(run, p, task, encoder, contexts)
    schedule = {"epochs": 0.0, "steps": p.finetuning_steps, "batch_size": 32}
    # Each query is seen only a few times, and there are some thousand passages.
    negatives: dict[str, Any] = {"negatives_2": p.negatives_2, "mining": {"keep": 8, "depth": 30}}
    how = Finetuning(2, p.seed, [SMALL], {RATE: p.rate}, schedule, rounds=p.rounds, **negatives)
    two_rounds(run, task, encoder, how)
    task.searched(run, "{}_0", encoder, **_READ)
    expanded = {"passages": passages, "expand": contexts, "queries_each": p.queries}
    task.search(run, "run_expanded", run(Bm25, "bm25_expanded", **expanded))
    runs = [f"stage:run_{name}" for name in ("bm25", "expanded", "0", "1", "2")[: 3 + p.rounds]]
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
    if p.contexts == "mlm" and p.objective in ("cotmae", "cocondenser", "augtriever"):
        raise UserError(
            f"objective={p.objective} needs contexts; give --contexts passage_query, or "
            "--objective retromae or dupmae with --contexts mlm"
        )
    lengths, examples, read = {"tokens": _TOKENS}, "stage:words", task.passages
    if p.read != 1:
        if p.read > MOST:
            raise UserError(f"read={p.read} is neither 1 nor at most {MOST}; give such a share")
        part = {"part": "test", "share": p.read, "at_least": 1, "at_most": 10**9}
        read = run(Split, "read", passages=read, **part)
    if p.contexts != "mlm":  # whose passage is its own context, as RetroMAE and DupMAE have it
        context = 20 if p.contexts in ("passage_query", "augtriever") else _TOKENS
        lengths = {"passage": _TOKENS, "context": context}
        paired = {"passages": read, "contexts": contexts, "tokenizer": task.vocabulary}
        examples = run(Tokenize, "pairs", task=p.contexts, **paired)
    elif p.read != 1:
        reading = {"passages": read, "tokenizer": task.vocabulary}
        examples = run(Tokenize, "pairs", task="mlm", **reading)
    sorts = ("random", "nearby", "overlap")
    # Table 4: with the passages that each objective's paper has as contexts.
    mixture = {"query": 0.5, **dict.fromkeys(sorts, 0.1667)}
    if p.objective == "cocondenser":
        mixture = {"query": 0.5, "random": 0.5}
    origin = "qext_bm25" if p.generator == "spans" else "text2query"
    settings: dict[str, Mapping[str, Any]] = {
        "passage_query": {"queries": p.queries},
        "passage_passage": {"sorts": [*sorts]},
        "two_spans": {},
        "mixed": {"queries": p.queries, "probabilities": mixture},
        "augtriever": {"strategies": {origin: 1.0}, "whole_documents": True},
    }
    return run(
        Train,
        "encoder",
        f"objectives/{p.objective}.gin",
        SMALL,
        examples=examples,
        init=init,
        seed=p.seed,
        # Two spans are of a document as it is, and a part may have fewer documents than a batch.
        separate_documents=p.contexts != "two_spans" and p.read == 1,
        steps=p.pretraining_steps,
        kind=p.contexts,
        settings=settings.get(p.contexts),
        lengths=lengths,
        bind={RATE: p.pretraining_rate or p.rate, **WARMUP},
    )


def _distilled(run: Run, p: Cell, task: Task, init: Ref, contexts: Ref) -> Ref:
    """Own documents' road: the encoder learns how it and BM25 together rank, and which passage a
    query is of."""
    start = task.searched(run, "{}_start", init, index=EXACT, **_READ)
    teacher = run(Hybrid, "hybrid", index=start, bm25="stage:bm25")
    grouped = {"passages": task.passages, "contexts": contexts, "teacher": teacher}
    groups = run(Group, "groups", **grouped, seed=p.seed)
    trained = run(
        Train,
        "distilled",
        "objectives/listwise.gin",
        examples=run(Tokenize, "pairs", task="groups", pairs=groups, tokenizer=task.vocabulary),
        init=init,
        seed=p.seed,
        lengths={"query": 20, "passages": _TOKENS},
        crop="right",
        separate_documents=False,
        steps=p.pretraining_steps,
        bind={
            RATE: p.pretraining_rate or p.rate,
            "listwise.Listwise.labels": 0.5,
            "listwise.Listwise.alone": 0.3,
        },
    )
    return run(Average, "encoder", model=trained, start=init)


def claim_qac() -> Grid:
    """The first claim of query-as-context pre-training: what are queries as contexts worth?

    The same small BERT with no further pre-training, and with passages (each objective's own
    baseline: RetroMAE's and DupMAE's is the passage itself, beside it CoT-MAE's pairs for
    RetroMAE), queries, or both as contexts; the same numbers of examples and steps, three seeds;
    BM25 and BM25 with generated queries for comparison. How many queries: --queries 1 to 20 with
    --samples 20.

    Set: --data_dir (see claim_cell).
    """
    mixed = {"gin": ["overlays/mixed.gin"]}
    systems = {
        "none": {"pretraining": False},
        "passages-cotmae": _PAIRS,
        "queries-cotmae": {},
        "mixed-cotmae": mixed,
        "passages-cocondenser": _SPANS,
        "queries-cocondenser": _COCONDENSER,
        "mixed-cocondenser": {**mixed, **_COCONDENSER},
        "passages-retromae": {**_RETROMAE, "contexts": "mlm"},
        "pairs-retromae": {**_PAIRS, **_RETROMAE},
        "queries-retromae": _RETROMAE,
        "passages-dupmae": {"objective": "dupmae", "contexts": "mlm"},
        "queries-dupmae": {"objective": "dupmae"},
    }
    rows = {"run_1": "retriever 1", "run_2": "retriever 2", "run_0": "before fine-tuning"}
    return _grid("Queries as contexts: what further pre-training is worth", systems, rows)


def _grid(
    title: str,
    systems: Mapping[str, Mapping[str, Any]],
    rows: Mapping[str, str] = _ROWS,
    curves: Mapping[str, Curve] = MappingProxyType({}),
) -> Grid:
    """Systems of claim_cell with three seeds."""
    shown: dict[str, Any] = {"rows": rows, "baselines": _BASELINES, "measures": MEASURES}
    return Grid("claim_cell", systems, seeds=(0, 1, 2), title=title, curves=curves, **shown)


def claim_roads() -> Grid:
    """What does an hour buy from an encoder that knows language, before and after fine-tuning?

    Roads from MiniLM, equally many steps: further pre-training with passages or queries as
    contexts, contrastive training on the same queries, learning how the start and BM25 together
    rank (own_corpus's), or none; then the same fine-tuning. With the minutes of each.

    Set: --data_dir (see claim_cell).
    """
    middle = {"start": "shipped:minilm", "rate": 5e-5, "rounds": 1}
    steps = {"pretraining_steps": 100, "finetuning_steps": 60}
    systems: dict[str, Mapping[str, Any]] = {
        "none": {"pretraining": False},
        "passages-cocondenser": _SPANS,
        "queries-cocondenser": _COCONDENSER,
        "contrastive": {"objective": "augtriever", "contexts": "augtriever"},
        "listwise": {"objective": "listwise"},
        "passages-retromae": {**_RETROMAE, "contexts": "mlm"},
        "queries-retromae": _RETROMAE,
        "passages-cotmae": _PAIRS,
        "queries-cotmae": {},
    }
    systems = {name: {**middle, **steps, **of} for name, of in systems.items()}
    return _grid("Roads from an encoder that knows language", systems)


def claim_curves() -> Grid:
    """Where do queries as contexts begin to pay? Retriever 1 after coCondenser against the steps,
    the passages (of a part of them a batch may hold several of a document), the queries of a
    passage, and how much of them is copied from it.

    Set: --data_dir (see claim_cell).
    """
    systems: dict[str, Mapping[str, Any]] = {"none": {"pretraining": False}}
    steps: dict[str, dict[str, float | str]] = {}
    for name, of in (("passages", _SPANS), ("queries", _COCONDENSER)):
        systems[name] = of
        steps[name] = {"none": 0, name: 300}
        for n in (75, 1200):
            systems[f"{name}-{n}-steps"] = {**of, "pretraining_steps": n}
            steps[name][f"{name}-{n}-steps"] = n
    # Two spans are of a document, of which a share may be fewer than a batch.
    shares: dict[str, float | str] = {"none": 0, "queries": 1}
    for share in (0.0625, 0.25):
        systems[f"queries-{share}"] = {**_COCONDENSER, "read": share}
        shares[f"queries-{share}"] = share
    systems["queries-1-each"] = {**_COCONDENSER, "queries": 1}
    systems["queries-first"] = {**_COCONDENSER, "round_trip": 1}
    systems["queries-any"] = {**_COCONDENSER, "round_trip": 0}
    systems["queries-spans"] = {**_COCONDENSER, "generator": "spans"}
    sorts = ("queries", "queries-first", "queries-any", "queries-spans")
    copied: dict[str, float | str] = dict.fromkeys(sorts, "related/query/copied")
    curves = {
        "steps": Curve("steps of further pre-training", steps),
        "passages": Curve("share of the passages", {"queries": shares}),
        "each": Curve(
            "queries of a passage, at most",
            {"queries": {"none": 0, "queries-1-each": 1, "queries": 4}},
        ),
        "copied": Curve(
            "share of the query's words that stand in its passage", {"queries": copied}
        ),
    }
    systems = {name: {"rounds": 1, "relate": True, **of} for name, of in systems.items()}
    return _grid("Where queries as contexts begin to pay", systems, curves=curves)
