"""Our own query generator, from documents to a folder that ships."""

from qac_jax.pipeline.recipe import Run
from qac_jax.stages.generate import Pairs
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


COLLECTIONS = "data:wikisquad,data:forum,data:tales"
# These and more questions of people, each with the passage that answers it; all of their splits
# train, but for the documents of dev and test.
QUESTIONS = (
    f"{COLLECTIONS},data:selqa,data:friendsqa,data:policyqa,data:subjqa,data:medical_forum,"
    "data:medquad,data:pubmedqa"
)


def generators(run: Run, collections: str = COLLECTIONS, questions: str = QUESTIONS) -> None:
    """Our own query generator, from questions of people to a folder that ships.

    QGen: a pointer-generator that reads with MiniLM learns to ask from questions of people, of ten
    collections.

    Set: --data_dir, a folder with the collections of --collections in BEIR's layout: documents that
    are judged in their dev or test split are held out; and those of --questions, which only train.
    Training takes 35 minutes on two cores.
    """
    run.usual(Train, log_every=100, validation_batches=60)
    # Balanced: one set is filled in by templates.
    training = {"collections": questions, "title": "space", "at_most": 2500}
    measured = {"collections": collections, "title": "space"}
    unseen = {**measured, "part": "held_out", "at_most": 1000}
    read = {"task": "seq2seq", "input_tokens": 158, "tokenizer": "shipped:minilm"}
    pairs = run(Pairs, "questions", **training)
    examples = run(Tokenize, "question_examples", pairs=pairs, **read)
    pairs = run(Pairs, "questions_held_out", **unseen)
    validation = run(Tokenize, "questions_measured", pairs=pairs, **read)
    run(
        Train,
        "qgen",
        "objectives/seq2seq_pointer.gin",
        init="shipped:minilm",
        examples=examples,
        validation=validation,
        lengths={"inputs": 160, "targets": 24},
        steps=1200,
        batch_size=32,
        validate_every=300,
    )
