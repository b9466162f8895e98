"""A retriever for documents of one's own, measured honestly."""

from __future__ import annotations

import dataclasses
from typing import Any

from qac_jax.errors import UserError, nearest
from qac_jax.exporting.export import Export
from qac_jax.inference import endpoint
from qac_jax.pipeline.grid import Grid
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes.finetuning import ASKING, EXACT, RATE, judged, masked
from qac_jax.retrieval.bm25 import QUESTIONS
from qac_jax.stages.choose import Average, Choose, Conclude
from qac_jax.stages.embed import Embed
from qac_jax.stages.evaluate import Evaluate
from qac_jax.stages.extract import Extract
from qac_jax.stages.generate import Generate
from qac_jax.stages.index import Bm25, Hybrid, Index
from qac_jax.stages.mine import Group
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.questions import Ask, Collect, Leaks, Split
from qac_jax.stages.report import Report
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


_OF_BUDGET = -1


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a budget; a parameter may set each of them."""

    rounds: int = _OF_BUDGET
    fine_steps: int = _OF_BUDGET  # of one group each
    n_passages: int = _OF_BUDGET  # of a group
    n_queries: int = _OF_BUDGET
    turns: int = _OF_BUDGET  # how often the passages are grouped anew
    samples: int = _OF_BUDGET  # queries generated per passage
    spans: int = _OF_BUDGET  # of a passage
    keywords: int = _OF_BUDGET
    train_queries: int = _OF_BUDGET  # 0: all
    window: int = _OF_BUDGET
    # From scratch, or with query-as-context pre-training: the encoder and its training.
    batch: int = _OF_BUDGET
    mlm_steps: int = _OF_BUDGET
    qac_steps: int = _OF_BUDGET
    width: int = _OF_BUDGET
    layers: int = _OF_BUDGET
    heads: int = _OF_BUDGET


BUDGETS = {
    "tiny": Sizes(2, 8, 8, 16, 1, 1, 1, 2, 500, 8, 8, 30, 8, 128, 2, 2),
    "small": Sizes(1, 100, 32, 128, 1, 1, 1, 6, 50_000, 8, 32, 2000, 200, 256, 4, 4),
    "medium": Sizes(2, 600, 32, 128, 4, 4, 4, 8, 200_000, 16, 64, 20_000, 10_000, 512, 8, 8),
    "large": Sizes(2, 3000, 64, 256, 8, 8, 8, 16, 0, 16, 128, 200_000, 50_000, 768, 12, 12),
}
MEASURES = ("mrr@10", "ndcg@10", "hit@1", "recall@100")
ASKED_MEASURES = ("mrr@10", "hit@1", "hit@10", "hit@100")  # any passage of a file is the answer
TITLE = "A retriever for one's own documents"
MINILM = "shipped:minilm"
PASSAGE_TOKENS, CONTEXT_TOKENS = 144, 32  # in pre-training


@dataclasses.dataclass(frozen=True)
class OwnCorpus(Sizes):
    budget: str = "small"
    start: str = MINILM
    generator: str = "shipped:qgen"
    teacher: str = ""
    questions: str = ""
    questions_choose: bool = True
    format: str = "auto"
    cut: str = "auto"
    qac: bool | None = None
    trained_share: float = 0.5
    rate: float = 1e-4
    labels: float = 0.5
    alone: float = 0.3
    frozen: str = ""
    groups: int = 1
    query_length: int = 24
    passage_length: int = 144
    precision: str = "fast"
    depth: int = 100
    seed: int = 0

    def sized(self) -> OwnCorpus:
        """With what the budget sets."""
        if self.budget not in BUDGETS:
            near = nearest(self.budget, BUDGETS)
            raise UserError(f"budget={self.budget!r} is not a budget; {near}")
        sizes = dataclasses.asdict(BUDGETS[self.budget])
        sizes = {name: n for name, n in sizes.items() if getattr(self, name) == _OF_BUDGET}
        sized = dataclasses.replace(self, **sizes)
        if sized.rounds not in (1, 2):
            raise UserError(f"rounds={sized.rounds} is not a number of rounds; give 1 or 2")
        return sized

    @property
    def scratch(self) -> bool:
        return self.start == "none"

    @property
    def vocabulary(self) -> Ref:
        return "wordpiece-16k" if self.scratch else self.start

    @property
    def shape(self) -> dict[str, Any]:
        """The shape of a BERT from scratch; that of a start replaces it."""
        return {
            "bert.BertConfig.vocab_size": 16384,
            "bert.BertConfig.hidden_size": self.width,
            "bert.BertConfig.num_layers": self.layers,
            "bert.BertConfig.num_heads": self.heads,
            "bert.BertConfig.intermediate_size": 4 * self.width,
        }


def own_corpus(run: Run, p: OwnCorpus) -> None:
    """A retriever for documents of your own, measured honestly: a folder with or without queries.

        qac run own_corpus --data_dir DATA --out out/mine --budget small

    DATA is a folder of documents (Markdown, HTML, text, tables, PDF …), or holds corpus.jsonl or
    documents.jsonl, and queries.jsonl and qrels/{train,dev,test}.tsv where they exist.
    queries.jsonl without qrels/ is a query log: its queries train, and measure nothing.

    Left in OUT: summary.json (figures, where questions come from, the verdict), best (the
    retriever: the start where training does not help), index (what `qac search --index OUT/index`
    searches), report/report.html; stages (all else; --keep none removes it at the end).

      split        by document, before anything is generated: test and validation passages
      questions    test and validation: judged ones, or generated about those passages, filtered by
                   rules and by their generator, never by a retriever; training: generated queries,
                   spans (QExt-BM25), titles and keywords of the others
      groups_1     similar passages with their queries, scored by the fusion of the start and BM25
      retriever_1  the start, which learns these scores and which passage a query is of, alone and
                   beside BM25 (listwise), its weights averaged with the start's
      groups_2, retriever_2  with two rounds: the same from retriever_1 and its fusion with BM25
      choice       by the validation questions: the start, retriever 1 or 2

    Set: --data_dir.
    With --questions FILE (`qac step ask`) people's own questions are the test, instead of those in
    DATA. At the end they choose too, unless --questions_choose False: the model with the generated
    ones, the weight of BM25 in index alone.
    Commonly overridden: --questions, --start (any encoder; none: from scratch), --budget (tiny,
    small, medium, large), --generator, --teacher (a cross-encoder whose log-odds are learned of the
    8 best passages of a query's group, or a larger encoder, whose fusion with BM25 then scores the
    groups of both rounds), --format and --cut (see `qac prepare --help`), --qac True
    (query-as-context pre-training from the start), --rounds 1 or 2, what else a budget sets,
    listwise.Listwise.temperature (1.0 for a start whose vectors are not normalised), --alone (share
    of the loss without BM25 beside the retriever), --labels (share of a query's own passage in what
    is learned; the teacher has the rest), --frozen (pattern of the parameters that are kept: with
    'embeddings|/layers/[0-3]/' MiniLM trains in two thirds of the time), --trained_share (of the
    trained weights in an average with the start's), --groups (a step; as many as devices),
    --precision float32, --window (tokens of the windows by the best of which a passage is ranked
    too; 0: none).
    """
    p = p.sized()
    run.usual(precision=p.precision)
    run.usual(Split, Extract, Generate, Collect, Group, Tokenize, Train, seed=p.seed)
    documents = {"format": p.format, "documents": run.data, "tokenizer": p.vocabulary}
    passages = run(Prepare, "passages", cut=p.cut, **documents)
    asked = run.data
    if p.questions:
        asked = run(Ask, "asked", questions=p.questions, passages=passages)
    questions = _questions(run, p, passages, asked)
    trained = judged(questions, "train")
    model = _from_scratch(run, p, passages) if p.scratch else p.start
    qac = p.scratch if p.qac is None else p.qac
    init = _pretrained(run, p, model, trained) if qac else model
    systems = _Systems(run, p, passages, questions)
    # The model whose reading and weights retrievers keep.
    kept, pooling = ("", "mean") if p.scratch else (p.start, "")
    hybrid = systems.add("start", model, pooling=pooling)
    fixed, scored, learned = _teacher(p, systems)
    frozen = {"optimizers.Optimizer.frozen": (p.frozen,)} if p.frozen else {}
    retrievers, grouped = list[Ref](), list[Ref]()
    for number in range(1, p.rounds + 1):
        sizes = {"size": p.n_passages, "turns": p.turns, "teacher": fixed or hybrid, **scored}
        grouped.append(run(Group, f"groups_{number}", passages=passages, **trained, **sizes))
        read = {"pairs": grouped[-1], "tokenizer": p.vocabulary, "like": kept}
        model_of_round = run(
            Train,
            f"trained_{number}",
            "objectives/listwise.gin",
            examples=run(Tokenize, f"examples_{number}", task="groups", **read),
            init=retrievers[-1] if retrievers else init,
            settings={"n_passages": p.n_passages, "n_queries": p.n_queries},
            lengths={"query": p.query_length, "passages": p.passage_length},
            crop="right",
            separate_documents=False,
            steps=p.fine_steps,
            batch_size=p.groups,
            log_every=10,
            bind={**p.shape, RATE: p.rate, **learned, **frozen},
        )
        averaged = {"model": model_of_round, "start": kept, "share": p.trained_share}
        retrievers.append(run(Average, f"retriever_{number}", **averaged))
        hybrid = systems.add(str(number), retrievers[-1])
    _concluded(run, systems, model, pooling, retrievers, grouped)


def _teacher(p: OwnCorpus, systems: _Systems) -> tuple[Ref, dict[str, Any], dict[str, Any]]:
    """An encoder's index with BM25 ("": that of each round); the settings of grouping and of the
    loss."""
    learned = {"listwise.Listwise.labels": p.labels, "listwise.Listwise.alone": p.alone}
    if not p.teacher:
        return "", {}, learned
    from qac_jax.hub import huggingface

    if not huggingface.is_cross_encoder(p.teacher):
        return systems.hybrid("hybrid_teacher", systems.index_of("teacher", p.teacher)), {}, learned
    # As many pairs as the steps see: a cross-encoder is the dearest part of the recipe.
    sizes = {"per_passage": max(1, p.n_queries // p.n_passages), "at_most": p.fine_steps * p.groups}
    # Given that just one passage answers, which one is as likely as its odds: the softmax of
    # log-odds at temperature 1. Fused scores lie between 0 and 1, so theirs is much lower.
    return "", {"reranker": p.teacher, **sizes}, {"listwise.Listwise.teacher_temperature": 1.0}


class _Systems:
    """Retrievers, their indexes, and runs of the validation and test questions by each."""

    def __init__(self, run: Run, p: OwnCorpus, passages: Ref, questions: Ref):
        self._run, self._p, self._passages = run, p, passages
        self.questions = questions
        self.asked = bool(p.questions)
        self.own = self.asked and p.questions_choose
        self.choosing = ("validation", "test") if self.own else ("validation",)
        self.names: list[str] = []
        self.indexes: list[Ref] = []
        words = run(Bm25, "bm25", passages=passages, preset=QUESTIONS)
        self._search("valid_bm25", "run_bm25", words)

    def add(self, name: str, encoder: Ref, **options: Any) -> Ref:
        """Searches with a retriever, then with BM25 beside it; returns the index of both."""
        index = self.index_of(name, encoder, **options)
        self._search(f"valid_{name}", f"run_{name}", index)
        hybrid = self.hybrid(f"hybrid_{name}", index)
        self._search(f"valid_fused_{name}", f"fused_{name}", hybrid)
        self.names.append(name)
        self.indexes.append(index)
        return hybrid

    def index_of(self, name: str, encoder: Ref, **options: Any) -> Ref:
        """The index is exact: a teacher and windows need the vectors themselves."""
        embedding = {"encoder": encoder, "window": self._p.window, **options}
        vectors = self._run(Embed, f"vectors_{name}", passages=self._passages, **embedding)
        return self._run(Index, f"index_{name}", vectors=vectors, **EXACT)

    def hybrid(self, name: str, index: Ref, by: str = "validation", **more: Ref) -> Ref:
        """The index with BM25 beside it, whose weight is chosen on these questions."""
        known = judged(self.questions, by)
        return self._run(Hybrid, name, index=index, bm25="stage:bm25", **known, **more)

    def search(self, name: str, index: Ref, *parts: str) -> None:
        asked = [f"{self.questions}/{part}_queries.jsonl" for part in parts]
        self._run(Search, name, index=index, queries=asked, k=self._p.depth)

    def _search(self, validation: str, test: str, index: Ref) -> None:
        self.search(validation, index, *self.choosing)
        self.search(test, index, "test")

    def judged(self, name: str, alone: str, fused: str, part: str) -> Ref:
        """The metrics of all runs whose names begin with these."""
        runs = [f"stage:{alone}_{n}" for n in ("bm25", *self.names)]
        runs += [f"stage:{fused}_{n}" for n in self.names]
        runs += ["stage:run_index"] if self.asked and part == "test" else []
        judging = {"qrels": f"{self.questions}/{part}.tsv", "permutations": 10_000}
        measures = ASKED_MEASURES if self.asked else MEASURES
        return self._run(Evaluate, name, runs=runs, measures=measures, **judging)


def _questions(run: Run, p: OwnCorpus, passages: Ref, asked: Ref) -> Ref:
    """Questions for training, validation and test, split by document before any is generated."""
    of_corpus = {"passages": passages, "collection": asked}
    training, validation, test = (
        run(Split, name, part=part, **of_corpus)
        for name, part in (("training", "train"), ("validation", "validation"), ("test", "test"))
    )

    def generated(name: str, of: Ref, samples: int, **more: Any) -> Ref:
        return run(
            Generate,
            name,
            passages=of,
            generator=p.generator,
            max_input=192,
            max_tokens=24,
            # A language model writes more kinds than questions, in any language.
            well_formed=not endpoint.is_named(p.generator),
            samples=samples,
            **ASKING,
            **more,
        )

    contexts = [
        generated("contexts", training, p.samples),
        run(Extract, "spans", passages=training, keep=p.spans),
        run(Extract, "titles", passages=training, method="title"),
        run(Extract, "keywords", passages=training, method="keywords", keep=p.keywords),
    ]
    return run(
        Collect,
        "questions",
        **of_corpus,
        contexts=contexts,
        validation_contexts=generated("validation_contexts", validation, 4, specific=1.0),
        test_contexts="" if p.questions else generated("test_contexts", test, 4, specific=1.0),
        each=32,  # of each source: all
        at_most=p.train_queries,
    )


def _from_scratch(run: Run, p: OwnCorpus, passages: Ref) -> Ref:
    bind = {**p.shape, "masking.Masking.rate": 0.30, RATE: 1e-3}
    how = {"steps": p.mlm_steps, "batch_size": p.batch, "bind": bind}
    return masked(run, "base", "words", passages, tokens=PASSAGE_TOKENS, **how)


def _pretrained(run: Run, p: OwnCorpus, model: Ref, trained: dict[str, Ref]) -> Ref:
    """Query-as-context pre-training from a model's weights (CoT-MAE).

    On the training questions, from which those with the text of a test question were removed.
    """
    read = {"passages": "stage:training", "tokenizer": p.vocabulary}
    return run(
        Train,
        "encoder",
        "objectives/cotmae.gin",
        examples=run(Tokenize, "pairs", **read, **trained),
        init=model,
        lengths={"passage": PASSAGE_TOKENS, "context": CONTEXT_TOKENS},
        steps=p.qac_steps,
        batch_size=p.batch,
        microbatch=0,
        bind={**p.shape, RATE: 4e-4 if p.scratch else 2e-5},
    )


def _concluded(
    run: Run, systems: _Systems, start: Ref, pooling: str, retrievers: list[Ref], grouped: list[Ref]
) -> None:
    """The choice by the validation questions, the figures on the test questions, the report."""
    questions = systems.questions
    aside = ["stage:validation", "stage:test"]
    leaks = run(Leaks, "leaks", questions=questions, aside=aside, training=grouped)
    validated = systems.judged("validated", "valid", "valid_fused", "validation")
    choice = run(
        Choose,
        "choice",
        start=start,
        models=retrievers,
        runs=[f"stage:valid_{name}" for name in systems.names],
        indexes=systems.indexes,
        qrels=[f"{questions}/{part}.tsv" for part in systems.choosing],
        questions=questions,
    )
    form = {"form": "sentence_transformers", "pooling": pooling}
    best = run(Export, "best", model=f"{choice}/model", **form)
    by = systems.choosing[-1]
    index = systems.hybrid("index", f"{choice}/index", by, encoder=best)
    if systems.asked:
        systems.search("run_index", index, "test")
    metrics = systems.judged("metrics", "run", "fused", "test")
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
        alone=tuple(f"run_{name}" for name in systems.names),
        fused=tuple(f"fused_{name}" for name in systems.names),
        index=index,
        asked="stage:asked" if systems.asked else "",
        own="run_index" if systems.own else "",
        names=names,
    )
    run.published["summary.json"] = f"{summary}/summary.json"
    shown = {"metrics": [metrics, validated], "after": index, "title": TITLE, "names": names}
    run(Report, "report", verdict=summary, **shown)


def _names() -> dict[str, str]:
    """Stages and runs by the words of the report."""
    names = {
        "metrics": "Test questions",
        "validated": "Validation questions, by which the retriever is chosen",
        **{f"trained_{n}": f"retriever {n}" for n in (1, 2)},
        **dict.fromkeys(("run_bm25", "valid_bm25"), "BM25"),
        "run_index": "the index",
    }
    for name, system in (("start", "the start"), ("1", "retriever 1"), ("2", "retriever 2")):
        names |= dict.fromkeys((f"run_{name}", f"valid_{name}"), system)
        names |= dict.fromkeys((f"fused_{name}", f"valid_fused_{name}"), f"{system} + BM25")
    return names


def own_corpus_grid() -> Grid:
    """Is a retriever of own_corpus better than its start, on questions that people asked?

    They measure, and neither train nor choose; three seeds.

    Set: --data_dir (see own_corpus), --questions (see qac step ask).
    """
    return Grid(
        title="Own documents: what training and BM25 add",
        recipe="own_corpus",
        systems={"own_corpus": {"questions_choose": False}},
        seeds=(0, 1, 2),
        rows={
            "run_start": "start",
            "run_1": "retriever 1",
            "fused_start": "start + BM25",
            "fused_1": "retriever 1 + BM25",
            "run_index": "the index",
        },
        baselines={"run_bm25": "BM25"},
        measures=ASKED_MEASURES,
    )
