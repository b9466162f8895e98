"""Our own generators, from documents to folders that ship, and what their questions are worth."""

import dataclasses
from typing import Any

from qac_jax.errors import UserError
from qac_jax.pipeline.grid import Grid
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes.finetuning import FINETUNE, MEANS, RATE, judged, searched
from qac_jax.stages.evaluate import Evaluate
from qac_jax.stages.extract import Extract
from qac_jax.stages.generate import Generate
from qac_jax.stages.index import Bm25
from qac_jax.stages.pairs import Pairs
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.questions import Unite
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


COLLECTIONS = "data:wikisquad,data:forum,data:tales"
# These and more questions of people, each with the passage that answers it; all of their splits
# train, but for the documents of dev and test.
QUESTIONS = (
    f"{COLLECTIONS},data:selqa,data:friendsqa,data:policyqa,data:subjqa,data:medical_forum,"
    "data:medquad,data:pubmedqa"
)
MEASURES = ("mrr@10", "hit@1", "recall@100")


def generators(
    run: Run,
    collections: str = COLLECTIONS,
    questions: str = QUESTIONS,
    packages: str = "numpy,scipy,jax,flax,optax,nltk,stdlib",
) -> None:
    """Our own generators, from documents to folders that ship: a summariser and one of questions.

    TQGen-small: a small T5 that starts by copying, with MiniLM's word vectors, learns to write
    title, topic and summaries of a text from label-free targets; it never sees a question. QGen: a
    pointer-generator that reads with MiniLM learns to ask from questions of people, of ten
    collections.

    Set: --data_dir, a folder with the collections of --collections in BEIR's layout: documents that
    are judged in their dev or test split are held out; and those of --questions, which only train.
    Training takes 23 and 35 minutes on two cores.
    Commonly overridden: --collections, --questions, --packages.
    """
    run.title = "A summariser and a query generator of our own"
    run.usual(Train, log_every=100, validation_batches=60)
    passages = run(Prepare, "passages", format="python_docs", packages=packages)
    free = {"passages": passages, "collections": collections, "targets": "label_free"}
    run(
        Train,
        "tqgen",
        "objectives/seq2seq.gin",
        "models/t5_micro.gin",
        words="shipped:minilm",
        **_examples(run, ("label_free", "label_free"), free, free, input_tokens=126),
        lengths={"inputs": 128, "targets": 32},
        steps=3000,
        batch_size=16,
        validate_every=1000,
        bind={
            "seq2seq.Seq2Seq.start": "copying",
            RATE: 1.5e-3,
            "optimizers.Optimizer.b2": 0.98,
            "optimizers.Optimizer.warmup_ratio": 0.04,
        },
    )
    # Balanced: one set is filled in by templates.
    training = {"collections": questions, "title": "space", "at_most": 2500}
    measured = {"collections": collections, "title": "space"}
    read = {"input_tokens": 158, "tokenizer": "shipped:minilm"}
    run(
        Train,
        "qgen",
        "objectives/seq2seq_pointer.gin",
        init="shipped:minilm",
        **_examples(run, ("questions", "question"), training, measured, **read),
        lengths={"inputs": 160, "targets": 24},
        steps=1200,
        batch_size=32,
        validate_every=300,
    )


def _examples(
    run: Run,
    names: tuple[str, str],
    training: dict[str, Any],
    held_out: dict[str, Any],
    **tokenizing: Any,
) -> dict[str, Ref]:
    """Examples for training, and of held-out documents to measure by."""
    pairs, examples = names
    seen = run(Pairs, pairs, **training)
    held_out = {**held_out, "part": "held_out", "at_most": 1000}
    unseen = run(Pairs, f"{pairs}_held_out", **held_out)
    made = {"examples": (f"{examples}_examples", seen), "validation": (f"{pairs}_measured", unseen)}
    return {
        role: run(Tokenize, name, task="seq2seq", pairs=of, **tokenizing)
        for role, (name, of) in made.items()
    }


@dataclasses.dataclass(frozen=True)
class Usefulness:
    init: str = dataclasses.field(kw_only=True)
    source: str = "generated"
    collections: str = COLLECTIONS
    generator: str = "shipped:qgen"
    queries: int = 5
    samples: int = 8
    round_trip: int = 10
    steps: int = 300
    seed: int = 0


def usefulness_cell(run: Run, p: Usefulness) -> None:
    """One cell of the test of a query generator: a small BERT learns to retrieve from its
    questions.

        qac run usefulness_cell --data_dir DATA --init out/mlm --out out/useful

    The passages are of documents that the generator never saw; the retriever is evaluated on true
    questions about the same documents.

    Set: --data_dir, --init (parameters of a BERT).
    Commonly overridden: --generator, --collections, --steps, --samples, --queries; --source spans
    (random spans), --source questions (true questions: half of them; the other half is the test
    set).
    """
    run.title = "What a generator's questions are worth"
    # Documents that no training or development question is about; the generator saw the others.
    united = run(Unite, "questions", collections=p.collections, documents="unseen")
    documents = f"{united}/corpus.jsonl"
    passages = run(Prepare, "passages", format="beir", documents=documents, cut="none")
    of: dict[str, Ref] = {}
    if p.source == "questions":
        of = judged(united, "judged")
    elif p.source == "spans":
        spans = {"method": "random", "keep": p.queries}
        of["contexts"] = run(Extract, "contexts", passages=passages, **spans)
    elif p.source == "generated":
        of["contexts"] = run(
            Generate,
            "contexts",
            passages=passages,
            generator=p.generator,
            max_input=160,
            title="space",
            index=run(Bm25, "bm25", passages=passages),
            round_trip=p.round_trip,  # through BM25
            samples=p.samples,
            max_tokens=32,
            top_p=0.8,
            no_repeat_ngram=2,  # a small T5 repeats itself otherwise
        )
    else:
        raise UserError(f"source={p.source!r}; expected generated, spans or questions")
    retriever = run(
        Train,
        "retriever",
        FINETUNE,
        "models/bert_mini.gin",
        examples=run(Tokenize, "triples", task="triples", passages=passages, **of),
        init=p.init,
        seed=p.seed,
        settings={"n_passages": 1},
        lengths={"query": 24, "passages": 96},
        batch_size=32,
        steps=p.steps,
        bind={**MEANS, RATE: 3e-4},
    )
    searched(run, "{}", retriever, passages, f"{united}/unjudged_queries.jsonl", 100)
    run(Evaluate, "metrics", runs="stage:run", qrels=f"{united}/unjudged.tsv", measures=MEASURES)


def usefulness() -> Grid:
    """How useful is the query generator?

        qac run usefulness --data_dir DATA --init out/mlm --out out/useful

    The same small dual encoder with the same passages and budget, trained on its questions, on
    random spans, on true questions; three seeds, evaluated on true questions.

    Set: --data_dir, --init (see usefulness_cell).
    Commonly overridden: --generator, what usefulness_cell lists, and grid.Grid.seeds.
    """
    return Grid(
        title="What a generator's questions are worth",
        recipe="usefulness_cell",
        seeds=(0, 1, 2),
        systems={name: {"source": name} for name in ("generated", "spans", "questions")},
        rows={"run": "retriever"},
        measures=MEASURES,
    )
