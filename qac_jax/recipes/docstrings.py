"""All steps of query-as-context pre-training at small size, on docstrings, without any download."""

import dataclasses

from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes import finetuning
from qac_jax.recipes.claims import MEASURES, asked
from qac_jax.recipes.finetuning import EXACT, MEANS, RATE, Finetuning, Task, judged, searched
from qac_jax.stages.evaluate import Evaluate
from qac_jax.stages.index import Bm25
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
    "run_expanded": "BM25 + generated queries",
    "run_encoder": "MiniLM, QAC pre-trained",
    "fused": "retriever 2 + BM25",
    **dict.fromkeys(("run_bm25", "known_run_bm25"), "BM25"),
    **dict.fromkeys(("run_start", "known_run_start"), "MiniLM as it is"),
    **dict.fromkeys(("retriever_1", "run_1"), "retriever 1"),
    **dict.fromkeys(("retriever_2", "run_2", "known_run_2"), "retriever 2"),
    **dict.fromkeys(("plain_1", "plain_run_1"), "retriever 1 without QAC"),
    **dict.fromkeys(("plain_2", "plain_run_2"), "retriever 2 without QAC"),
}


@dataclasses.dataclass(frozen=True)
class Docstrings:
    packages: str = "numpy,scipy,stdlib"
    passages_of: str = "kinds=function sections=first"
    known_of: str = "kinds=function sections=first held_out=only summary=drop"
    generator: str = "shipped:qgen"
    samples: int = 3
    round_trip: int = 10
    start: str = "shipped:minilm"
    qac_steps: int = 40
    fine_steps: int = 24
    n_passages: int = 2
    query_length: int = 24
    passage_length: int = 96
    negatives_2: str = "mined+bm25"
    depth: int = 100
    seed: int = 0


def docstrings(run: Run, p: Docstrings) -> None:
    """From the docstrings of installed Python libraries to a retriever, by every step of QAC.

        qac run docstrings --out out/docstrings

    One function is one passage; questions are those that programmers ask ("glue two arrays together
    side by side along columns"), written by us. Rows of the table: BM25, BM25 with the queries of
    the passages, the encoder it starts from (MiniLM), the same after query-as-context pre-training
    (coCondenser), retrievers 1 and 2 with and without that pre-training, and retriever 2 combined
    with BM25. Training data: queries for functions outside a fixed fifth of all modules, and their
    summary lines. Test data: the questions, and as known items the summary lines of that fifth,
    removed from its passages. The test questions are not used in training.

    Queries are those of the small generator that ships, filtered by a round trip: BM25 must return
    their passage.

    Set: nothing.
    Commonly overridden: --packages, --passages_of (which docstrings), --generator (another T5),
    --qac_steps, --fine_steps. docstrings_full takes all docstrings and more steps.
    """
    prepared = {
        "format": "python_docs",
        "packages": p.packages,
        "tokenizer": p.start,
        "seed": p.seed,
        "max_tokens": 200,
    }
    passages = run(Prepare, "passages", options=p.passages_of, **prepared)
    queries = asked(run, p, passages, max_input=160, max_tokens=24, seed=p.seed)
    natural = run(Judge, "natural", questions="shipped:demo/questions.jsonl", passages=passages)
    questions = run(Collect, "questions", passages=passages, contexts=queries, summaries=True)
    known = judged(questions, "train"), judged(natural, "test")
    task = Task(passages, *known, p.start, p.query_length, p.passage_length, p.depth)
    read = {"tokenizer": p.start, "part": "train", "title": "separate"}
    # From MiniLM's BERT, with a new head for masked tokens.
    encoder = run(
        Train,
        "encoder",
        "objectives/cocondenser.gin",
        examples=run(Tokenize, "pairs", passages=passages, contexts=queries, **read),
        init=p.start,
        seed=p.seed,
        steps=p.qac_steps,
        batch_size=32,
        log_every=10,
        bind={
            "PASSAGE_TOKENS": p.passage_length,
            "CONTEXT_TOKENS": p.query_length,
            "QUERIES": p.samples,
            "cocondenser.CoCondenser.mlm_scale": 0.1,  # few steps: not the new head's loss alone
            RATE: 2e-5,
        },
    )
    schedule = {"epochs": 0.0, "steps": p.fine_steps, "batch_size": 16, "log_every": 10}
    # The index that users search afterwards: ScaNN, tuned to this recall.
    last = {"method": "scann", "target_recall": (0.99,)}
    how = Finetuning(p.n_passages, p.seed, (), MEANS, schedule, p.negatives_2, last=last)
    finetuning.two_rounds(run, task, encoder, how)
    words = run(Bm25, "bm25_expanded", passages=passages, expand=queries)
    task.search(run, "run_expanded", words)
    task.searched(run, "{}_start", p.start)
    of_encoder = {"pooling": "mean", "normalize": "yes", "max_length": p.passage_length}
    task.searched(run, "{}_encoder", encoder, title="separate", **of_encoder)
    # The same without query-as-context pre-training.
    how = dataclasses.replace(how, last=EXACT)
    finetuning.retrievers(run, task, p.start, how, "stage:triples_1", ("plain", "plain_"))
    runs = ("bm25", "expanded", "start", "encoder")
    names = [f"run_{n}" for n in runs] + ["plain_run_1", "plain_run_2", "run_1", "run_2"]
    found = [f"stage:{name}" for name in names]
    found.append(run(Fuse, "fused", runs="stage:run_bm25,stage:run_2"))
    metrics = run(Evaluate, "metrics", runs=found, qrels=task.test["qrels"], measures=MEASURES)
    items = _known_items(run, p, run(Prepare, "known", options=p.known_of, **prepared))
    run(Report, "report", metrics=[metrics, items], title=TITLE, names=NAMES)


def _known_items(run: Run, p: Docstrings, known: Ref) -> Ref:
    """The same systems on the passages without their summary lines, which are the questions."""
    items = run(Collect, "known_items", passages=known, train="none", summaries=True)
    asked = judged(items, "test")["queries"]
    words = run(Bm25, "known_bm25", passages=known)
    runs = [run(Search, "known_run_bm25", index=words, queries=asked, k=p.depth)]
    for name, encoder in (("start", p.start), ("2", "stage:retriever_2")):
        searched(run, f"known_{{}}_{name}", encoder, known, asked, p.depth)
        runs.append(f"stage:known_run_{name}")
    qrels = f"{items}/test.tsv"
    return run(Evaluate, "known_metrics", runs=runs, qrels=qrels, measures=MEASURES)
