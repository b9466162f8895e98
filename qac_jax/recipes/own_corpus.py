"""A retriever for documents of one's own, measured honestly."""

from __future__ import annotations

import dataclasses
from typing import Any

from qac_jax.errors import UserError, nearest
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.stages.choose import Average, Choose, Conclude
from qac_jax.stages.embed import Embed
from qac_jax.stages.evaluate import Evaluate
from qac_jax.stages.export import Export
from qac_jax.stages.extract import Extract
from qac_jax.stages.generate import Generate
from qac_jax.stages.index import Bm25, Hybrid, Index
from qac_jax.stages.mine import Group
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.questions import Collect, Leaks, Split
from qac_jax.stages.report import Report
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a budget sets."""

    rounds: int
    fine_steps: int  # of one group each
    n_passages: int  # of a group
    n_queries: int
    turns: int  # how often the passages are grouped anew
    samples: int  # queries generated per passage
    spans: int  # of a passage
    keywords: int
    train_queries: int  # 0: all
    window: int
    # From scratch, or with query-as-context pre-training: the encoder and its training.
    batch: int
    mlm_steps: int
    qac_steps: int
    width: int
    layers: int
    heads: int


BUDGETS = {
    "tiny": Budget(2, 8, 8, 16, 1, 1, 1, 2, 500, 8, 8, 30, 8, 128, 2, 2),
    "small": Budget(1, 100, 32, 128, 1, 1, 1, 6, 50_000, 8, 32, 2000, 200, 256, 4, 4),
    "medium": Budget(2, 600, 32, 128, 4, 4, 4, 8, 200_000, 16, 64, 20_000, 10_000, 512, 8, 8),
    "large": Budget(2, 3000, 64, 256, 8, 8, 8, 16, 0, 16, 128, 200_000, 50_000, 768, 12, 12),
}
MEASURES = ("mrr@10", "ndcg@10", "hit@1", "recall@100")
TITLE = "A retriever for one's own documents"
PASSAGE_TOKENS, CONTEXT_TOKENS = 144, 32  # in pre-training


def own_corpus(
    run: Run,
    budget: str = "small",
    start: str = "shipped:minilm",
    generator: str = "shipped:qgen",
    format: str = "auto",
    cut: str = "auto",
    qac: bool | None = None,
    share: float = 0.5,
    rate: float = 7e-5,
    temperature: float = 0.05,
    teacher_temperature: float = 0.02,
    groups: int = 1,
    query_length: int = 24,
    passage_length: int = 144,
    precision: str = "fast",
    depth: int = 100,
    rounds: int | None = None,
    fine_steps: int | None = None,
    n_passages: int | None = None,
    n_queries: int | None = None,
    turns: int | None = None,
    samples: int | None = None,
    spans: int | None = None,
    keywords: int | None = None,
    train_queries: int | None = None,
    window: int | None = None,
    batch: int | None = None,
    mlm_steps: int | None = None,
    qac_steps: int | None = None,
    width: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    seed: int = 0,
) -> None:
    """A retriever for documents of your own, measured honestly: a folder with or without queries.

        qac run own_corpus --data_dir DATA --out out/mine --budget small

    DATA is a folder of documents (Markdown, HTML, text, tables, PDF …), or holds corpus.jsonl
    ({_id, title, text}) or documents.jsonl ({_id, title, passages: [{_id, text}, …]}), or both;
    queries.jsonl and qrels/{train,dev,test}.tsv where they exist. queries.jsonl without qrels/ is a
    query log: its queries train, and measure nothing.

    Left in OUT: summary.json (figures, where questions come from, the verdict), best (the
    retriever: the start where training does not help), index (what `qac search --index OUT/index`
    searches), report/report.html.

      split        by document, before anything is generated: test and validation passages
      questions    test and validation: judged ones, or generated about those passages, filtered by
                   rules and by their generator (could they be asked of any passage?), never by a
                   retriever; training: generated queries, spans (QExt-BM25), titles and keywords of
                   the others
      groups_1     similar passages with their queries, scored by the fusion of the start and BM25
      retriever_1  the start, trained on these scores (listwise), its weights averaged with the
                   start's
      groups_2     with two rounds: the same, grouped and scored by retriever_1 and its fusion with
                   BM25
      retriever_2  retriever_1, trained on them
      choice       by the validation questions: the start, retriever 1 or 2

    Set: --data_dir.
    Commonly overridden: --start (any encoder; none: from scratch), --budget (tiny, small, medium,
    large), --generator, --format and --cut (other documents, see `qac prepare --help`; --cut
    sentences cuts long ones), --qac True (query-as-context pre-training from the start), --rounds 1
    or 2, what else a budget sets (see Budget), --temperature (1.0 for a start whose vectors are not
    normalised), --share (of the trained weights in their average with the start's; 1: no average),
    --groups (a step; as many as devices), --precision (fast: products of bfloat16 numbers where the
    machine has instructions for them; float32), --window (tokens of the windows by the best of
    which a passage is ranked too; an index of 144 tokens a passage has 35 of 8, 27 kB in all; 0:
    none).
    """
    if budget not in BUDGETS:
        raise UserError(f"budget={budget!r} is not a budget; {nearest(budget, BUDGETS)}")
    given = locals()
    changed = {f.name: given[f.name] for f in dataclasses.fields(Budget)}
    sizes = dataclasses.replace(
        BUDGETS[budget], **{name: value for name, value in changed.items() if value is not None}
    )
    if sizes.rounds not in (1, 2):
        raise UserError(f"rounds={sizes.rounds} is not a number of rounds; give 1 or 2")
    scratch, window = start == "none", sizes.window
    run.title = TITLE
    run.defaults["precision"] = precision
    vocabulary = "wordpiece-16k" if scratch else start
    passages = run(
        Prepare,
        "passages",
        format=format,
        documents=run.data,
        tokenizer=vocabulary,
        seed=seed,
        cut=cut,
    )
    questions = _questions(run, passages, generator, sizes, seed)
    searched = _Searched(run, questions, depth)
    trained = {"queries": f"{questions}/train_queries.jsonl", "qrels": f"{questions}/train.tsv"}

    model = _from_scratch(run, passages, sizes, seed) if scratch else start
    init = model
    if scratch if qac is None else qac:
        init = _pretrained(run, model, vocabulary, trained, sizes, 4e-4 if scratch else 2e-5, seed)

    # Whose reading and weights retrievers keep.
    kept = "" if scratch else start
    pooling = "mean" if scratch else ""
    bm25 = run(Bm25, "bm25", passages=passages)
    searched.add("bm25", bm25)
    index = _index(run, "_start", model, passages, window, pooling=pooling)
    searched.add("start", index)
    hybrid = searched.fused("start", index, bm25, "_start")
    indexes, retrievers, grouped = [index], list[Ref](), list[Ref]()
    for number in range(1, sizes.rounds + 1):
        similar = run(
            Group,
            f"groups_{number}",
            passages=passages,
            queries=trained["queries"],
            qrels=trained["qrels"],
            size=sizes.n_passages,
            turns=sizes.turns,
            teacher=hybrid,
            seed=seed,
        )
        examples = run(
            Tokenize,
            f"examples_{number}",
            task="groups",
            pairs=similar,
            tokenizer=vocabulary,
            like=kept,
            seed=seed,
        )
        model_of_round = run(
            Train,
            f"trained_{number}",
            "objectives/listwise.gin",
            examples=examples,
            init=init if number == 1 else retrievers[-1],
            seed=seed,
            settings={"n_passages": sizes.n_passages, "n_queries": sizes.n_queries},
            lengths={"query": query_length, "passages": passage_length},
            crop="right",
            separate_documents=False,
            epochs=0.0,
            steps=sizes.fine_steps,
            batch_size=groups,
            microbatch=0,
            log_every=10,
            bind={
                **_shape(sizes),
                "listwise.Listwise.temperature": temperature,
                "listwise.Listwise.teacher_temperature": teacher_temperature,
                "optimizers.Optimizer.learning_rate": rate,
            },
        )
        retriever = run(
            Average, f"retriever_{number}", model=model_of_round, start=kept, share=share
        )
        index = _index(run, f"_{number}", retriever, passages, window)
        searched.add(str(number), index)
        hybrid = searched.fused(str(number), index, bm25, f"_{number}")
        retrievers.append(retriever)
        indexes.append(index)
        grouped.append(similar)
    _concluded(run, searched, questions, model, pooling, retrievers, indexes, grouped, bm25)


def _index(run: Run, end: str, encoder: Ref, passages: Ref, window: int, **options: Any) -> Ref:
    """An exact index: a teacher and windows need the vectors themselves."""
    vectors = run(
        Embed, f"vectors{end}", passages=passages, encoder=encoder, window=window, **options
    )
    return run(Index, f"index{end}", vectors=vectors, method="exact")


class _Searched:
    """Runs of the validation and test questions by every system."""

    def __init__(self, run: Run, questions: Ref, depth: int):
        self._run, self._questions, self._depth = run, questions, depth
        self.alone: list[str] = []  # systems by themselves, then fused with BM25
        self.both: list[str] = []

    def add(self, name: str, index: Ref) -> None:
        """Searches an index by itself."""
        self._search(f"valid_{name}", "validation", index)
        self._search(f"run_{name}", "test", index)
        self.alone.append(name)

    def fused(self, name: str, index: Ref, bm25: Ref, end: str) -> Ref:
        """The index with BM25 beside it, whose weight is chosen on the validation questions."""
        hybrid = self.hybrid(f"hybrid{end}", index, bm25)
        self._search(f"valid_fused_{name}", "validation", hybrid)
        self._search(f"fused_{name}", "test", hybrid)
        self.both.append(name)
        return hybrid

    def hybrid(self, name: str, index: Ref, bm25: Ref, **more: Ref) -> Ref:
        questions = self._questions
        return self._run(
            Hybrid,
            name,
            index=index,
            bm25=bm25,
            queries=f"{questions}/validation_queries.jsonl",
            qrels=f"{questions}/validation.tsv",
            **more,
        )

    def _search(self, name: str, part: str, index: Ref) -> None:
        asked = f"{self._questions}/{part}_queries.jsonl"
        self._run(Search, name, index=index, queries=asked, k=self._depth)

    def runs(self, alone: str, both: str) -> Ref:
        """All runs whose names begin with these."""
        names = [f"{alone}_{n}" for n in self.alone] + [f"{both}_{n}" for n in self.both]
        return ",".join(f"stage:{name}" for name in names)


def _questions(run: Run, passages: Ref, generator: Ref, sizes: Budget, seed: int) -> Ref:
    """Questions for training, validation and test, split by document before any is generated."""
    parts = {
        part: run(
            Split, part, passages=passages, collection=run.data, part=name, share=0.1, seed=seed
        )
        for part, name in (("training", "train"), ("validation", "validation"), ("test", "test"))
    }

    def generated(name: str, of: Ref, **more: Any) -> Ref:
        return run(
            Generate,
            name,
            **{
                "passages": of,
                "generator": generator,
                "max_input": 192,
                "title": "space",
                "seed": seed,
                "well_formed": True,
                "samples": sizes.samples,
                "max_tokens": 24,
                "temperature": 0.6,
                "top_p": 0.8,
                "no_repeat_ngram": 2,  # a small generator repeats itself otherwise
                **more,
            },
        )

    training = parts["training"]
    of_passages = {"passages": training, "seed": seed}
    contexts = [
        generated("contexts", training),
        run(Extract, "spans", **of_passages, keep=sizes.spans),
        run(Extract, "titles", **of_passages, method="title"),
        run(Extract, "keywords", **of_passages, method="keywords", keep=sizes.keywords),
    ]
    aside = {"samples": 4, "specific": 1.0}
    return run(
        Collect,
        "questions",
        collection=run.data,
        passages=passages,
        contexts=",".join(contexts),
        validation_contexts=generated("validation_contexts", parts["validation"], **aside),
        test_contexts=generated("test_contexts", parts["test"], **aside),
        each=32,  # of each source: all
        at_most=sizes.train_queries,
        seed=seed,
    )


def _shape(sizes: Budget) -> dict[str, Any]:
    """The shape of a BERT from scratch; that of a start replaces it."""
    return {
        "bert.BertConfig.vocab_size": 16384,
        "bert.BertConfig.hidden_size": sizes.width,
        "bert.BertConfig.num_layers": sizes.layers,
        "bert.BertConfig.num_heads": sizes.heads,
        "bert.BertConfig.intermediate_size": 4 * sizes.width,
    }


def _from_scratch(run: Run, passages: Ref, sizes: Budget, seed: int) -> Ref:
    """A BERT by masked-language modelling on the passages."""
    words = run(Tokenize, "words", task="mlm", passages=passages, seed=seed)
    return run(
        Train,
        "base",
        "objectives/mlm.gin",
        examples=words,
        seed=seed,
        lengths={"tokens": PASSAGE_TOKENS},
        steps=sizes.mlm_steps,
        batch_size=sizes.batch,
        microbatch=0,
        bind={
            **_shape(sizes),
            "masking.Masking.rate": 0.30,
            "optimizers.Optimizer.learning_rate": 1e-3,
        },
    )


def _pretrained(
    run: Run,
    model: Ref,
    vocabulary: Ref,
    trained: dict[str, Ref],
    sizes: Budget,
    rate: float,
    seed: int,
) -> Ref:
    """Query-as-context pre-training from a model's weights (CoT-MAE).

    On the training questions, from which those with the text of a test question were removed.
    """
    pairs = run(
        Tokenize,
        "pairs",
        task="passage_query",
        passages="stage:training",
        tokenizer=vocabulary,
        seed=seed,
        **trained,
    )
    return run(
        Train,
        "encoder",
        "objectives/cotmae.gin",
        examples=pairs,
        init=model,
        seed=seed,
        lengths={"passage": PASSAGE_TOKENS, "context": CONTEXT_TOKENS},
        steps=sizes.qac_steps,
        batch_size=sizes.batch,
        microbatch=0,
        bind={**_shape(sizes), "optimizers.Optimizer.learning_rate": rate},
    )


def _concluded(
    run: Run,
    searched: _Searched,
    questions: Ref,
    start: Ref,
    pooling: str,
    retrievers: list[Ref],
    indexes: list[Ref],
    grouped: list[Ref],
    bm25: Ref,
) -> None:
    """The choice by the validation questions, the figures on the test questions, the report."""
    validation = f"{questions}/validation.tsv"
    leaks = run(
        Leaks,
        "leaks",
        questions=questions,
        aside="stage:validation,stage:test",
        training=",".join(grouped),
    )
    judged = {"permutations": 10_000, "measures": MEASURES}
    validated = run(
        Evaluate,
        "validated",
        runs=searched.runs("valid", "valid_fused"),
        qrels=validation,
        **judged,
    )
    choice = run(
        Choose,
        "choice",
        start=start,
        models=",".join(retrievers),
        runs=",".join(f"stage:valid_{name}" for name in searched.both),
        indexes=",".join(indexes),
        qrels=validation,
    )
    best = run(
        Export,
        "best",
        model=f"{choice}/model",
        form="sentence_transformers",
        pooling=pooling,
        peers=False,
    )
    index = searched.hybrid("index", f"{choice}/index", bm25, encoder=best)
    metrics = run(
        Evaluate,
        "metrics",
        runs=searched.runs("run", "fused"),
        qrels=f"{questions}/test.tsv",
        **judged,
    )
    names = _names()
    summary = run(
        Conclude,
        "summary",
        metrics=metrics,
        validation=validated,
        choice=choice,
        questions=questions,
        leaks=leaks,
        bm25="run_bm25",
        alone=tuple(f"run_{name}" for name in searched.both),
        fused=tuple(f"fused_{name}" for name in searched.both),
        index=index,
        names=names,
    )
    run.published["summary.json"] = f"{summary}/summary.json"
    run(
        Report,
        "report",
        verdict=summary,
        metrics=f"{metrics},{validated}",
        after=index,
        title=TITLE,
        names=names,
    )


def _names() -> dict[str, str]:
    """Stages and runs by the words of the report."""
    systems = {"start": "the start", "1": "retriever 1", "2": "retriever 2"}
    names = {
        "metrics": "Test questions",
        "validated": "Validation questions, by which the retriever is chosen",
        "trained_1": "retriever 1",
        "trained_2": "retriever 2",
        "run_bm25": "BM25",
        "valid_bm25": "BM25",
    }
    for name, system in systems.items():
        names |= {f"run_{name}": system, f"valid_{name}": system}
        names |= dict.fromkeys((f"fused_{name}", f"valid_fused_{name}"), f"{system} + BM25")
    return names
