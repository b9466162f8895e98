"""Our own generators, from documents to folders that ship."""

from typing import Any

from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes.finetuning import RATE
from qac_jax.stages.pairs import Pairs
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


COLLECTIONS = "data:wikisquad,data:forum,data:tales"
# These and more questions of people, each with the passage that answers it; all of their splits
# train, but for the documents of dev and test.
QUESTIONS = (
    f"{COLLECTIONS},data:selqa,data:friendsqa,data:policyqa,data:subjqa,data:medical_forum,"
    "data:medquad,data:pubmedqa"
)


def generators(
    run: Run,
    collections: str = COLLECTIONS,
    questions: str = QUESTIONS,
    packages: str = "numpy,scipy,jax,flax,optax,nltk,stdlib",
) -> None:
    """Our own generators, from documents to folders that ship: a summariser and one of questions.

    TQGen-small: a small T5 that starts by copying learns to write title, topic and summaries of a
    text from label-free targets; it never sees a question. (The one that ships started with
    MiniLM's word vectors too.) QGen: a pointer-generator that reads with MiniLM learns to ask from
    questions of people, of ten collections.

    Set: --data_dir, a folder with the collections of --collections in BEIR's layout: documents that
    are judged in their dev or test split are held out; and those of --questions, which only train.
    Training takes 23 and 35 minutes on two cores.
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
