"""The claim of query-as-context pre-training at small size, on a CPU."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from qac_jax.pipeline.grid import Grid
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes.finetuning import ASKING, RATE, SMALL, Finetuning, Task, judged, two_rounds
from qac_jax.stages.evaluate import Evaluate, EvaluateBeir
from qac_jax.stages.generate import Generate
from qac_jax.stages.index import Bm25
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.questions import Collect
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


MEASURES = ("mrr@10", "ndcg@10", "hit@1", "recall@100")


@dataclasses.dataclass(frozen=True)
class Cell:
    objective: str = "cotmae"
    contexts: str = "passage_query"
    pretraining: bool = True
    init: str = ""
    contexts_of: str = ""
    generator: str = "shipped:qgen"
    queries: int = 5
    samples: int = 4
    round_trip: int = 10
    mlm_steps: int = 1000
    pretraining_steps: int = 300
    finetuning_steps: int = 300
    passage_tokens: int = 80
    context_tokens: int = 20
    n_passages: int = 2
    negatives_2: str = "mined+bm25"
    seed: int = 0
    elsewhere: str = ""


def claim_cell(run: Run, p: Cell) -> None:
    """One cell of the first claim: does an encoder that was pre-trained with queries retrieve
    better?

    A small BERT, with or without further pre-training on the collection's passages, is fine-tuned
    to retrievers 1 and 2 on the training questions; both are judged on the test questions.

    Set: --data_dir, a folder in BEIR's layout with documents.jsonl, qrels/train.tsv,
    qrels/test.tsv.
    Commonly overridden: --mlm_steps, or --init (parameters of a BERT that was trained on these
    passages; otherwise no pre-training is not a fair baseline); --generator, or --contexts_of
    (contexts from `qac generate`); --objective cocondenser, retromae, dupmae; --contexts
    passage_passage (CoT-MAE's own), two_spans (coCondenser's), mixed, mlm (RetroMAE's and
    DupMAE's); --pretraining False; --elsewhere data:.. (a folder of other collections, on which
    retriever 1 is judged too).
    """
    run.title = "One cell of the claim"
    passages = run(Prepare, "passages", format="beir", documents=run.data)
    questions = run(Collect, "questions", collection=run.data, passages=passages, train="judged")
    train, test = judged(questions, "train"), judged(questions, "test")
    task = Task(passages, train, test, passage_length=80, depth=100)
    encoder = p.init or _words(run, p, passages)
    contexts = p.contexts_of or asked(run, p, passages, max_input=192, max_tokens=32)
    if p.pretraining:
        encoder = _pretrained(run, p, passages, encoder, contexts)
    schedule = {"epochs": 0.0, "steps": p.finetuning_steps, "batch_size": 32}
    # Each query is seen only a few times, and there are some thousand passages.
    negatives: dict[str, Any] = {"negatives_2": p.negatives_2, "mining": {"keep": 8, "depth": 30}}
    how = Finetuning(p.n_passages, p.seed, [SMALL], {RATE: 1e-3}, schedule, **negatives)
    two_rounds(run, task, encoder, how)
    # The encoder's own vectors, of texts as pre-training read them.
    read = {"title": "none", "max_length": task.passage_length}
    task.searched(run, "{}_0", encoder, pooling="mean", normalize="yes", **read)
    words = {"passages": passages, "expand": contexts, "queries_each": p.queries}
    task.search(run, "run_expanded", run(Bm25, "bm25_expanded", **words))
    runs = [f"stage:run_{name}" for name in ("bm25", "expanded", "0", "1", "2")]
    judging = {"qrels": test["qrels"], "permutations": 1000, "measures": MEASURES}
    run(Evaluate, "metrics", runs=runs, **judging)
    if p.elsewhere:
        run(
            EvaluateBeir,
            "elsewhere",
            beir=p.elsewhere,
            encoder="stage:retriever_1",
            max_length=task.passage_length,
            measures=MEASURES,
            depth=100,
        )


def _words(run: Run, p: Cell, passages: Ref) -> Ref:
    """A small BERT, trained by masked-language modelling on the passages."""
    return run(
        Train,
        "base",
        "objectives/mlm.gin",
        SMALL,
        examples=run(Tokenize, "words", task="mlm", passages=passages),
        lengths={"tokens": p.passage_tokens},
        steps=p.mlm_steps,
    )


def asked(run: Run, p: Any, passages: Ref, **lengths: int) -> Ref:
    """Queries for all passages, those for which BM25 finds their passage."""
    return run(
        Generate,
        "contexts",
        passages=passages,
        generator=p.generator,
        index="stage:bm25",
        round_trip=p.round_trip,
        samples=p.samples,
        **lengths,
        **ASKING,
    )


def _pretrained(run: Run, p: Cell, passages: Ref, init: Ref, contexts: Ref) -> Ref:
    """Further pre-training, as long and as fast whatever the context and objective."""
    lengths, examples = {"tokens": p.passage_tokens}, "stage:words"
    if p.contexts != "mlm":  # whose passage is its own context, as RetroMAE and DupMAE have it
        short = p.contexts == "passage_query"
        context = p.context_tokens if short else p.passage_tokens
        lengths = {"passage": p.passage_tokens, "context": context}
        paired = {"passages": passages, "contexts": contexts}
        examples = run(Tokenize, "pairs", task=p.contexts, **paired)
    sorts = ("random", "nearby", "overlap")
    settings: dict[str, Mapping[str, Any]] = {
        "passage_query": {"queries": p.queries},
        "passage_passage": {"sorts": [*sorts]},
        "two_spans": {},
        "mixed": {
            "queries": p.queries,
            "probabilities": {"query": 0.5, **dict.fromkeys(sorts, 0.1667)},  # Table 4
        },
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
    )


_NONE = {"pretraining": False}
_PASSAGES: Mapping[str, Any] = {"gin": ["overlays/passage_pairs.gin"]}
_TWO_SPANS = {"gin": ["overlays/two_spans.gin"]}
_MIXED = {"gin": ["overlays/mixed.gin"]}
_COCONDENSER = {"objective": "cocondenser"}
_ROWS = {"run_1": "retriever 1", "run_2": "retriever 2", "run_0": "before fine-tuning"}


def claim_qac() -> Grid:
    """The first claim of query-as-context pre-training: what are queries as contexts worth?

    The same small BERT with no further pre-training, and with passages (each objective's own
    baseline: RetroMAE's and DupMAE's is the passage itself, beside it CoT-MAE's pairs for
    RetroMAE), queries, or both as contexts; the same numbers of examples and steps, three seeds;
    BM25 and BM25 with generated queries for comparison.

    Set: --data_dir (see claim_cell).
    """
    return Grid(
        title="Queries as contexts: what further pre-training is worth",
        recipe="claim_cell",
        systems={
            "none": _NONE,
            "passages-cotmae": _PASSAGES,
            "queries-cotmae": {},
            "mixed-cotmae": _MIXED,
            "passages-cocondenser": {**_TWO_SPANS, **_COCONDENSER},
            "queries-cocondenser": _COCONDENSER,
            "mixed-cocondenser": {**_MIXED, **_COCONDENSER},
            "passages-retromae": {"objective": "retromae", "contexts": "mlm"},
            "pairs-retromae": {**_PASSAGES, "objective": "retromae"},
            "queries-retromae": {"objective": "retromae"},
            "passages-dupmae": {"objective": "dupmae", "contexts": "mlm"},
            "queries-dupmae": {"objective": "dupmae"},
        },
        seeds=(0, 1, 2),
        rows=_ROWS,
        baselines={"run_bm25": "BM25", "run_expanded": "BM25 + generated queries"},
        measures=MEASURES,
    )


def claim_queries() -> Grid:
    """How many queries a passage: 1, 5, 10, 20 (Table 3 of query-as-context pre-training)?

    As contexts of coCondenser, whose queries help in claim_qac; beside no further pre-training and
    its baseline. Each is fine-tuned on the collection, and judged on it and on others. All are
    chosen from the same 20 of a passage, before the round trip.

    Set: --data_dir (see claim_cell), a folder beside the other collections.
    """
    both = {**_COCONDENSER, "samples": 20, "elsewhere": "data:.."}
    others = ("tales", "forum", "scifact", "npl", "cisi")
    return Grid(
        title="How many queries a passage",
        recipe="claim_cell",
        systems={
            "none": {**both, **_NONE},
            "passages": {**both, **_TWO_SPANS},
            **{f"queries_{n}": {**both, "queries": n} for n in (1, 5, 10, 20)},
        },
        seeds=(0, 1, 2),
        metrics="metrics,elsewhere",
        rows={**_ROWS, **{name: f"retriever 1 on {name}" for name in others}},
        baselines={"run_bm25": "BM25"},
        measures=MEASURES,
    )
