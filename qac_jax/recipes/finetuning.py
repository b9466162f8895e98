"""The second half of most recipes: from an encoder to two retrievers and their metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

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


EXACT = {"method": "exact"}
# The papers' R@50 and R@1k are hit-rates.
MEASURES = ("mrr@10", "hit@50", "hit@1000", "ndcg@10")


@dataclasses.dataclass(frozen=True)
class Task:
    """What retrievers are trained and judged on, and how long texts are."""

    passages: Ref
    train_queries: Ref
    train_qrels: Ref
    test_queries: Ref
    test_qrels: Ref
    vocabulary: Ref = "wordpiece-16k"
    query_length: int = 32
    passage_length: int = 144
    depth: int = 1000  # passages that are found for a query

    @property
    def trained(self) -> dict[str, Ref]:
        """The training questions as inputs of a stage."""
        return {"passages": self.passages, "queries": self.train_queries, "qrels": self.train_qrels}


@dataclasses.dataclass(frozen=True)
class Finetuning:
    """How retrievers are trained; the defaults are those of coCondenser, CoT-MAE and QAC."""

    n_passages: int = 16  # of a query: its positive and negatives
    seed: int = 0
    files: Sequence[str] = ()  # gin files after objectives/finetune.gin, such as a model's
    bind: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    schedule: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def train(self, run: Run, name: str, task: Task, examples: Ref, init: Ref, **more: Any) -> Ref:
        """Trains one retriever on triples."""
        return run(
            Train,
            name,
            "objectives/finetune.gin",
            *self.files,
            **{
                "examples": examples,
                "init": init,
                "seed": self.seed,
                "settings": {"n_passages": self.n_passages},
                "lengths": {"query": task.query_length, "passages": task.passage_length},
                "crop": "right",
                "separate_documents": False,
                "epochs": 3.0,
                "batch_size": 64,
                **self.schedule,
                **more,
            },
            bind=self.bind,
        )


def indexed(
    run: Run,
    end: str,
    encoder: Ref,
    passages: Ref,
    *,
    names: tuple[str, str] = ("vectors", "index"),
    how: Mapping[str, Any] | None = None,
    **options: Any,
) -> Ref:
    """Vectors of all passages and their index; `end` ends both names, `how` is the index's."""
    vectors = run(Embed, f"{names[0]}{end}", passages=passages, encoder=encoder, **options)
    return run(Index, f"{names[1]}{end}", vectors=vectors, **(how or {}))


def two_rounds(
    run: Run,
    task: Task,
    encoder: Ref,
    how: Finetuning,
    *,
    negatives_1: Ref = "",
    negatives_2: str = "mined+bm25",
    mining: Mapping[str, Any] | None = None,
    bm25: Mapping[str, Any] | None = None,
    index: Mapping[str, Any] | None = None,
    last: Mapping[str, Any] | None = None,
) -> tuple[Ref, Ref]:
    """Trains two retrievers and searches with both; returns their indexes.

    retriever_1 learns from in-batch negatives and `negatives_1` (none given: BM25's), retriever_2
    from those that retriever_1 mines, and BM25's. `index` is how both are searched, `last` how the
    second. Both start from the encoder. Mined are 128 of the
    first 200 passages, as in the released data.
    """
    mined = {"depth": 200, "keep": 128, **(mining or {})}
    words = run(Bm25, "bm25", passages=task.passages, **(bm25 or {}))
    if not negatives_1:
        negatives_1 = run(
            Mine, "negatives_1", **task.trained, bm25=words, negatives="bm25", **mined
        )
    searched = {"queries": task.test_queries, "k": task.depth}
    run(Search, "run_bm25", index=words, **searched)
    indexes = []
    negatives = negatives_1
    for number in (1, 2):
        triples = run(
            Tokenize,
            f"triples_{number}",
            task="triples",
            **task.trained,
            negatives=negatives,
            tokenizer=task.vocabulary,
        )
        retriever = how.train(run, f"retriever_{number}", task, triples, encoder)
        made = (last or index) if number == 2 else index
        found = indexed(run, f"_{number}", retriever, task.passages, how=made)
        run(Search, f"run_{number}", index=found, **searched)
        indexes.append(found)
        if number == 1:
            negatives = run(
                Mine,
                "negatives_2",
                **task.trained,
                index=found,
                bm25=words,
                negatives=negatives_2,
                **mined,
            )
    return indexes[0], indexes[1]


def msmarco(vocabulary: Ref) -> Task:
    """MS MARCO's passages with RocketQA's titles; other copies have none, so that figures differ.

    The data folder holds marco/ (RocketQA's marco.tar.gz: para.txt, para.title.txt,
    train.query.txt, dev.query.txt, qrels.train.tsv, qrels.dev.tsv; and
    qidpidtriples.train.full.2.tsv.gz, whose lines are grouped by query) and trec_dl/
    (msmarco-test2019-queries.tsv, msmarco-test2020-queries.tsv, 2019qrels-pass.txt,
    2020qrels-pass.txt).
    """
    return Task(
        passages="stage:passages",
        train_queries="data:marco/train.query.txt",
        train_qrels="data:marco/qrels.train.tsv",
        test_queries="data:marco/dev.query.txt",
        test_qrels="data:marco/qrels.dev.tsv",
        vocabulary=vocabulary,
    )


MARCO_NEGATIVES = "data:marco/qidpidtriples.train.full.2.tsv.gz"
# Anserini's values for these passages, tuned on MS MARCO's judgements. The official collection,
# which it and docT5query index, has no titles.
MARCO_BM25 = {"k1": 0.82, "b": 0.68, "titles": False}


def msmarco_passages(run: Run) -> Ref:
    """The passages that are searched."""
    return run(Prepare, "passages", format="msmarco_passages", documents="data:marco", cut="none")


def judged_on_msmarco(run: Run, names: Sequence[str]) -> Ref:
    """Metrics on dev of the runs with these names."""
    return run(
        Evaluate,
        "metrics",
        runs=",".join(f"stage:{name}" for name in names),
        qrels="data:marco/qrels.dev.tsv",
        protocol="msmarco",
        measures=MEASURES,
    )


def trec_dl(run: Run, indexes: Mapping[str, Ref], depth: int = 1000) -> None:
    """The same retrievers on TREC DL 2019 and 2020; names of runs on dev -> their indexes."""
    for year in ("2019", "2020"):
        short = f"dl{year[2:]}"
        runs = [
            run(
                Search,
                f"{name}_{short}",
                index=index,
                queries=f"data:trec_dl/msmarco-test{year}-queries.tsv",
                k=depth,
            )
            for name, index in indexes.items()
        ]
        run(
            Evaluate,
            short,
            runs=",".join(runs),
            qrels=f"data:trec_dl/{year}qrels-pass.txt",
            protocol="trec_dl",
            measures=MEASURES,
        )


def finetuned_on_msmarco(
    run: Run,
    encoder: Ref,
    vocabulary: Ref,
    seed: int,
    *,
    n_passages: int = 16,
    negatives_2: str = "mined+bm25",
) -> None:
    """Both retrievers on MS MARCO, on dev and on TREC DL.

    No approximate search: differences between the papers' systems are tenths of a point.
    """
    first, second = two_rounds(
        run,
        msmarco(vocabulary),
        encoder,
        Finetuning(n_passages, seed),
        negatives_1=MARCO_NEGATIVES,
        negatives_2=negatives_2,
        bm25=MARCO_BM25,
        index=EXACT,
    )
    judged_on_msmarco(run, ["run_bm25", "run_1", "run_2"])
    trec_dl(run, {"run_1": first, "run_2": second})
