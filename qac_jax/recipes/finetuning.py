"""The second half of most recipes: from an encoder to two retrievers and their metrics."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from qac_jax.errors import UserError
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.stages.embed import Embed
from qac_jax.stages.evaluate import Evaluate
from qac_jax.stages.index import Bm25, Index
from qac_jax.stages.mine import Mine
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


SMALL = "small/bert_tiny.gin"
WORDS = "wordpiece-16k"  # our own vocabulary
FINETUNE = "objectives/finetune.gin"
RATE = "optimizers.Optimizer.learning_rate"
# How small dual encoders compare vectors (small/bert_tiny.gin says why).
MEANS: Mapping[str, Any] = {
    "encoders.DualEncoderConfig.pooling": "mean",
    "encoders.DualEncoderConfig.normalize": True,
    "finetune.Finetune.temperature": 0.05,
}
EXACT = {"method": "exact"}
# How a small generator asks, which repeats itself otherwise.
ASKING: Mapping[str, Any] = {
    "title": "space",
    "temperature": 0.6,
    "top_p": 0.8,
    "no_repeat_ngram": 2,
}


def judged(folder: Ref, part: str) -> dict[str, Ref]:
    """Queries and their judgements in the output of a stage."""
    return {"queries": f"{folder}/{part}_queries.jsonl", "qrels": f"{folder}/{part}.tsv"}


def masked(
    run: Run, name: str, texts: str, passages: Ref, *files: str, tokens: int = 128, **how: Any
) -> Ref:
    """A BERT by masked-language modelling; `texts`: the stage with the tokens of the passages."""
    examples = run(Tokenize, texts, task="mlm", passages=passages)
    read = {"examples": examples, "lengths": {"tokens": tokens}}
    return run(Train, name, "objectives/mlm.gin", *files, **read, **how)


@dataclasses.dataclass(frozen=True)
class Paper:
    """Parameters of every recipe at full size."""

    skip_bad: int = 1000
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Finetuned(Paper):
    """Parameters of recipes that end with two retrievers."""

    n_passages: int = 16  # of a query: its positive and negatives
    negatives_2: str = "mined+bm25"


@dataclasses.dataclass(frozen=True)
class Task:
    """The data that retrievers are trained and judged on, and the lengths of texts."""

    passages: Ref
    train: Mapping[str, Ref]  # queries and their qrels
    test: Mapping[str, Ref]
    vocabulary: Ref = WORDS
    query_length: int = 32
    passage_length: int = 144
    depth: int = 1000  # passages that are found for a query

    @property
    def trained(self) -> dict[str, Ref]:
        """The training questions as inputs of a stage."""
        return {"passages": self.passages, **self.train}

    def search(self, run: Run, name: str, index: Ref) -> Ref:
        """The run of the test questions."""
        return run(Search, name, index=index, queries=self.test["queries"], k=self.depth)

    def searched(self, run: Run, names: str, encoder: Ref, **how: Any) -> Ref:
        """Embeds the passages and searches them; returns the index."""
        return searched(run, names, encoder, self.passages, self.test["queries"], self.depth, **how)


@dataclasses.dataclass(frozen=True)
class Finetuning:
    """How retrievers are trained; the defaults are those of coCondenser, CoT-MAE and QAC."""

    n_passages: int = 16
    seed: int = 0
    files: Sequence[str] = ()  # gin files after objectives/finetune.gin, such as a model's
    bind: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    schedule: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"epochs": 3.0})
    negatives_2: str = "mined+bm25"
    mining: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    index: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # how both are searched
    last: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # how the second one is
    rounds: int = 2

    def train(self, run: Run, name: str, task: Task, examples: Ref, init: Ref) -> Ref:
        """Trains one retriever on triples."""
        given = {
            "settings": {"n_passages": self.n_passages},
            "lengths": {"query": task.query_length, "passages": task.passage_length},
            "crop": "right",
            "separate_documents": False,
            "batch_size": 64,
            **self.schedule,
        }
        files = (FINETUNE, *self.files)
        read = {"examples": examples, "init": init, "seed": self.seed}
        return run(Train, name, *files, **read, **given, bind=self.bind)


def searched(
    run: Run,
    names: str,
    encoder: Ref,
    passages: Ref,
    queries: Ref,
    k: int,
    *,
    index: Mapping[str, Any] | None = None,
    **embedding: Any,
) -> Ref:
    """Embeds the passages and searches them; returns the index.

    `names` are those of the three stages, such as "{}_1" for vectors_1, index_1 and run_1.
    """
    vectors = run(Embed, names.format("vectors"), passages=passages, encoder=encoder, **embedding)
    found = run(Index, names.format("index"), vectors=vectors, **(index or {}))
    run(Search, names.format("run"), index=found, queries=queries, k=k, vectors=vectors)
    return found


def scann(queries: Ref, k: int, mined: int = 0) -> dict[str, Any]:
    """How vectors are indexed where figures are the papers': by ScaNN from 20,000 passages on,
    tuned on these queries for the top k, and for mining from the top `mined`."""
    tuned = {**({mined: 0.99} if mined else {}), k: 0.999}
    return {"queries": queries, "recall_at": (*tuned,), "target_recall": (*tuned.values(),)}


def two_rounds(
    run: Run, task: Task, encoder: Ref, how: Finetuning, negatives_1: Ref = "", **bm25: Any
) -> tuple[Ref, Ref]:
    """Trains two retrievers and searches with both; returns their indexes.

    retriever_1 learns from in-batch negatives and `negatives_1` (none given: BM25's), retriever_2
    from those that retriever_1 mines, and BM25's. Both start from the encoder.
    """
    task.search(run, "run_bm25", run(Bm25, "bm25", passages=task.passages, **bm25))
    if not negatives_1:
        negatives_1 = _mined(run, "negatives_1", task, how, "bm25")
    return retrievers(run, task, encoder, how, _tokenized(run, "triples_1", task, negatives_1))


def retrievers(
    run: Run,
    task: Task,
    encoder: Ref,
    how: Finetuning,
    triples: Ref,
    named: tuple[str, str] = ("retriever", ""),
) -> tuple[Ref, Ref]:
    """Retrievers 1 and 2; `named`: what they are called, and what stands before the names of other
    stages."""
    if how.rounds not in (1, 2):
        raise UserError(f"rounds={how.rounds} is not a number of rounds; give 1 or 2")
    retriever, before = named
    first = how.train(run, f"{retriever}_1", task, triples, encoder)
    first = task.searched(run, f"{before}{{}}_1", first, index=how.index)
    if how.rounds == 1:
        return first, first
    mined = _mined(run, f"{before}negatives_2", task, how, how.negatives_2, index=first)
    triples = _tokenized(run, f"{before}triples_2", task, mined)
    second = how.train(run, f"{retriever}_2", task, triples, encoder)
    return first, task.searched(run, f"{before}{{}}_2", second, index=how.last or how.index)


def _mined(run: Run, name: str, task: Task, how: Finetuning, kind: str, **index: Ref) -> Ref:
    """Negatives of the training questions: 128 of the first 200, as in the released data."""
    given = {**task.trained, **index, "depth": 200, "keep": 128, **how.mining}
    return run(Mine, name, bm25="stage:bm25", negatives=kind, **given)


def _tokenized(run: Run, name: str, task: Task, negatives: Ref) -> Ref:
    """Training questions with their positives and negatives."""
    words = {"tokenizer": task.vocabulary}
    return run(Tokenize, name, task="triples", **task.trained, negatives=negatives, **words)


# The papers' R@50 and R@1k are hit-rates.
MEASURES = ("mrr@10", "hit@50", "hit@1000", "ndcg@10")
MARCO_TRAIN = {"queries": "data:marco/train.query.txt", "qrels": "data:marco/qrels.train.tsv"}
MARCO_TEST = {"queries": "data:marco/dev.query.txt", "qrels": "data:marco/qrels.dev.tsv"}
# Anserini's values for these passages, tuned on MS MARCO's judgements. The official collection has
# no titles.
MARCO_BM25: Mapping[str, Any] = {"k1": 0.82, "b": 0.68, "titles": False}


def msmarco_passages(run: Run) -> Ref:
    """The passages that are searched."""
    return run(Prepare, "passages", format="msmarco_passages", documents="data:marco", cut="none")


def finetuned_on_msmarco(run: Run, encoder: Ref, vocabulary: Ref, by: Finetuned) -> None:
    """Both retrievers on MS MARCO's passages with RocketQA's titles (other copies have none, so
    that figures differ), and their metrics on dev and on TREC DL.

    The data folder holds marco/ (RocketQA's marco.tar.gz: para.txt, para.title.txt,
    train.query.txt, dev.query.txt, qrels.train.tsv, qrels.dev.tsv; and
    qidpidtriples.train.full.2.tsv.gz, whose lines are grouped by query) and trec_dl/
    (msmarco-test2019-queries.tsv, msmarco-test2020-queries.tsv, 2019qrels-pass.txt,
    2020qrels-pass.txt).

    Differences between the papers' systems are tenths of a point: what ScaNN loses is measured with
    each run, and overlays/exact.gin searches exactly.
    """
    task = Task("stage:passages", MARCO_TRAIN, MARCO_TEST, vocabulary)
    # Mining asks for some more than 200, since positives are among them.
    first, last = (scann(MARCO_TRAIN["queries"], task.depth, mined) for mined in (256, 0))
    tuned: dict[str, Any] = {"index": first, "last": last}
    how = Finetuning(by.n_passages, by.seed, negatives_2=by.negatives_2, **tuned)
    negatives = "data:marco/qidpidtriples.train.full.2.tsv.gz"
    indexes = two_rounds(run, task, encoder, how, negatives, **MARCO_BM25)
    runs = [f"stage:run_{name}" for name in ("bm25", "1", "2")]
    dev = {"qrels": MARCO_TEST["qrels"], "protocol": "msmarco"}
    run(Evaluate, "metrics", runs=runs, **dev, measures=MEASURES)
    for year in ("2019", "2020"):
        short = f"dl{year[2:]}"
        asked = {"queries": f"data:trec_dl/msmarco-test{year}-queries.tsv", "k": 1000}
        runs = [
            run(Search, f"run_{n}_{short}", index=index, vectors=f"stage:vectors_{n}", **asked)
            for n, index in enumerate(indexes, 1)
        ]
        qrels = f"data:trec_dl/{year}qrels-pass.txt"
        run(Evaluate, short, runs=runs, qrels=qrels, protocol="trec_dl", measures=MEASURES)
