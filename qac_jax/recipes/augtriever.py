"""AugTriever: unsupervised retrievers from pseudo-queries, at full and small size; its tables."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from qac_jax.data.form import check_name
from qac_jax.data.kinds.augtriever import STRATEGIES, TOPICS, TQGEN
from qac_jax.evaluation import benchmarks
from qac_jax.pipeline.grid import Grid
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.queries import prompts
from qac_jax.recipes.finetuning import RATE, SMALL, Paper, masked, scann
from qac_jax.recipes.msmarco import BERT, DOC2QUERY
from qac_jax.stages.embed import Embed
from qac_jax.stages.evaluate import Evaluate, EvaluateBeir, Suite
from qac_jax.stages.extract import Extract
from qac_jax.stages.generate import Generate
from qac_jax.stages.index import Bm25, Index
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.questions import Unite
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


WRITTEN = (*TQGEN, "qgen_d2q", "hybrid_tqgen", "hybrid_tqgen_plus", "hybrid_all")
T0 = "data:T0_3B"
INBATCH, MOCO = "objectives/augtriever.gin", "objectives/augtriever_moco.gin"


@dataclasses.dataclass(frozen=True)
class Writing:
    """The models and options that write and score pseudo-queries."""

    generator: Ref = ""  # "": the paper's
    scorer: Ref = "data:t5-small-lm-adapt"
    published: Ref = ""  # texts of the generator that are read instead
    draws: int = 1  # of spans
    likelihood: str = "padded"  # of spans
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of Generate
    all_prompts: bool = False  # so that strategies that use some of them share one stage


def pseudo_queries(run: Run, strategy: str, documents: Ref, by: Writing) -> Ref:
    """The stages that make a strategy's pseudo-queries; "" where training makes them itself."""
    check_name("strategy", strategy, tuple(STRATEGIES))
    of = {"passages": documents}
    spans: dict[str, Any] = {"draws": by.draws}
    likely = {**spans, "method": "plm", "scorer": by.scorer, "likelihood": by.likelihood}
    if strategy in ("random_crop", "qext_self"):
        return ""
    extracted = {
        "doc_title": ("titles", {"method": "title"}),
        "doc_anchor": ("anchors", {"method": "anchor"}),
        "qext_bm25": ("extracted", spans),
        "qext_plm": ("extracted", likely),
    }
    if strategy in extracted:
        name, how = extracted[strategy]
        return run(Extract, name, **of, **how)
    generated = _generated(run, strategy, documents, by)
    if strategy == "hybrid_all":  # each stage keeps the contexts of the one before it
        generated = run(Extract, "extracted", **of, **likely, contexts=generated)
        generated = run(Extract, "titles", **of, contexts=generated, method="title")
    return generated


def _generated(run: Run, strategy: str, documents: Ref, by: Writing) -> Ref:
    given: dict[str, Any] = {"samples": 1}
    if strategy == "paq":
        given = {"imported": "data:PAQ.metadata.jsonl", "origin": "paq"}
    elif strategy == "qgen_d2q":
        given |= {"generator": by.generator or DOC2QUERY, "origin": "qgen_d2q"}
    else:
        one = strategy.removeprefix("tqgen_")
        given |= {
            "generator": by.generator or T0,
            "prompts": prompts.tqgen([one] if one in TOPICS and not by.all_prompts else TOPICS),
            "origin": "tqgen_",
            # A title equal to the topic is still the answer to its own prompt.
            "drop_repeats": False,
            "top_k": 0,
            "top_p": 0.9,
        }
    if by.published:
        given |= {"generator": "", "prompts": None, "imported": by.published}
    return run(Generate, "generated", passages=documents, **{**given, **by.options})


def _trained(
    run: Run,
    weights: Mapping[str, float],
    texts: Ref,
    contexts: Ref,
    *files: str,
    loss: str = "inbatch",
    crops: float = 0.0,
    whole: bool = False,
    read: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> Ref:
    """An encoder on texts and pseudo-queries: strategies by weight, and a share of crops; `whole`:
    a pseudo-query is of the whole document, not of a crop."""
    check_name("loss", loss, ("inbatch", "moco"))
    of = {"passages": texts, "contexts": contexts, **read}
    rest = {"context_words": 256, "max_phrases": 3, "delete": 0.1, "whole_documents": whole}
    return run(
        Train,
        "encoder",
        MOCO if loss == "moco" else INBATCH,
        *files,
        examples=run(Tokenize, "pairs", task="augtriever", **of),
        settings={"strategies": dict(weights), "random_crop_share": crops, **rest},
        **more,
    )


# The papers' question sets (QA4 and SQ&EQ).
QUESTIONS = {
    "nq": "nq-test.csv",
    "triviaqa": "trivia-test.csv",
    "webq": "webq-test.csv",
    "curatedtrec": "curatedtrec-test.csv",
    "squad": "squad1-test.csv",
    "entityquestions": "entityquestions/test",
}


def judged(
    run: Run,
    encoder: Ref,
    *,
    title: str = "marked",
    pooling: str = "",
    beir: bool = True,
    questions: bool = True,
    bm25: str = "",
) -> None:
    """Metrics on BEIR and on six question sets over DPR's passages of Wikipedia, and their table.

    `bm25`: BM25 with these parameters instead of an encoder. BEIR's texts are title, " TEXT: " and
    text (the released code).
    """
    tables = []
    read = {"pooling": pooling, "max_length": 512}
    if beir:
        of = {"bm25": bm25} if bm25 else {"encoder": encoder, "method": "auto"}
        tables = [run(EvaluateBeir, "beir", beir="data:beir", title=title, **read, **of)]
    if not questions:
        return
    wikipedia = run(Prepare, "wikipedia", format="dpr", documents="data:psgs_w100.tsv", cut="none")
    if bm25:
        searched = {"index": run(Bm25, "index", passages=wikipedia)}
    else:
        stored = {"passages": wikipedia, "encoder": encoder, "dtype": "float16"}
        vectors = run(Embed, "vectors", title="space", **stored, **read)
        tuned = scann("data:questions/nq-test.csv", 100)
        index = run(Index, "index", vectors=vectors, **tuned)
        searched = {"index": index, "vectors": vectors}
    for name, file in QUESTIONS.items():
        asked = f"data:questions/{file}"
        found = run(Search, f"{name}_run", queries=asked, k=100, **searched)
        rule = {"answers": "regex"} if name == "curatedtrec" else {}
        tables.append(run(Evaluate, name, passages=wikipedia, queries=asked, runs=found, **rule))
    run(Suite, "table", metrics=tables)


@dataclasses.dataclass(frozen=True)
class AugTriever(Paper):
    beir: bool = True
    questions: bool = True
    strategy: str = "random_crop"
    loss: str = "inbatch"
    published: str = ""
    random_crop_share: float | None = None
    inbatch_mix: float = 0.0
    # Section 1 pairs queries "with the original document"; the released code always with a crop.
    whole_documents: bool = True
    all_prompts: bool = False  # one stage writes the texts of all four, for a grid
    corpus: str = "data:enwiki-pages-articles.xml.bz2"
    bert: str = BERT
    steps: int = 100_000
    batch_size: int = 1024


def _encoder(run: Run, p: AugTriever, **documents: Any) -> Ref:
    """Documents, their pseudo-queries and an encoder."""
    run.usual(skip_bad=p.skip_bad)
    if p.strategy == "paq":  # published documents that pseudo-queries belong to
        documents = {"format": "dpr", "documents": "data:PAQ_passages.tsv", "cut": "none"}
    if p.published:
        documents = {"format": "jsonl", "documents": p.published, "cut": "none"}
    read = {"tokenizer": p.bert, "seed": p.seed}
    texts = run(Prepare, "documents", **{"documents": p.corpus, **documents}, **read)
    # The paper draws spans anew at every access; here epochs (2 to 8) take turns with five.
    contexts = pseudo_queries(
        run, p.strategy, texts, Writing(published=p.published, draws=5, all_prompts=p.all_prompts)
    )
    crops = p.random_crop_share
    if crops is None:
        crops = 0.5 if p.loss == "moco" else p.inbatch_mix  # MoCo's pairs are half crops
        if p.strategy.startswith("hybrid"):
            crops = 0.0  # the mixture has its own share
    plus = p.strategy == "hybrid_tqgen_plus"
    return _trained(
        run,
        STRATEGIES[p.strategy],
        texts,
        contexts,
        loss=p.loss,
        crops=crops,
        whole=p.whole_documents,
        read=read,
        init=p.bert,
        seed=p.seed,
        steps=2 * p.steps if plus else p.steps,
        batch_size=2048 if plus else p.batch_size,
    )


def augtriever_wiki(run: Run, p: AugTriever) -> None:
    """AugTriever on the paragraphs of Wikipedia, trained by InBatch or MoCo (Meng et al., 2022).

    Strategies: random_crop, qext_self, qext_bm25, qext_plm, doc_title, doc_anchor, tqgen_topic,
    tqgen_title, tqgen_absum, tqgen_exsum, qgen_d2q, paq, hybrid_tqgen, hybrid_tqgen_plus,
    hybrid_all. A paragraph is a document: it ends with the line that makes it longer than a
    heading.

    Set: --data_dir, with the corpus, a BERT in bert-base-uncased, BEIR's sets in beir/,
    psgs_w100.tsv and the six question sets of DPR and EntityQuestions in questions/; for strategies
    with a model T0_3B, t5-small-lm-adapt or doc2query-all-with_prefix-t5-base-v1.
    Commonly overridden: --strategy, --loss moco (with half crops), --random_crop_share 0.5 (as the
    one released script), --published data:augq.jsonl (the documents that AugTriever published, with
    their outputs of T0-3B and doc2query), --whole_documents False (crops of them, as released),
    --beir False, --questions False, overlays/released.gin.
    """
    judged(run, _of_wikipedia(run, p), beir=p.beir, questions=p.questions)


def _of_wikipedia(run: Run, p: AugTriever) -> Ref:
    lines = {"cut": "lines", "overshoot": True, "max_tokens": 8, "short_span_probability": 0.0}
    return _encoder(run, p, format="wikipedia", **lines)


@dataclasses.dataclass(frozen=True)
class CommonCrawl(AugTriever):
    corpus: str = "data:pile"
    batch_size: int = 0


def augtriever_cc(run: Run, p: CommonCrawl) -> None:
    """AugTriever on Common Crawl (the Pile's CC part), trained by InBatch or MoCo.

    The corpus is JSON lines with meta.pile_set_name, of which Pile-CC is read. Documents are not
    cut; every epoch draws a window of 256 words of each. QGen, TQGen and hybrid strategies train
    with twice the batch.

    Set: --data_dir, see augtriever_wiki; the corpus is pile.
    """
    judged(run, _of_common_crawl(run, p), beir=p.beir, questions=p.questions)


def _of_common_crawl(run: Run, p: AugTriever) -> Ref:
    batch = p.batch_size or (2048 if p.strategy in WRITTEN else 1024)
    p = dataclasses.replace(p, batch_size=batch)
    return _encoder(run, p, format="jsonl", options="source=Pile-CC", cut="none")


# Training further: a small rate. The paper does not state a warm-up; here a tenth of the steps.
WARMUP = {"optimizers.Optimizer.warmup_steps": 0, "optimizers.Optimizer.warmup_ratio": 0.1}
FURTHER = {RATE: 1e-5, **WARMUP}


@dataclasses.dataclass(frozen=True)
class Adaptation(Paper):
    encoder: str = dataclasses.field(kw_only=True)
    target: str = "data:beir/scifact"
    strategy: str = "tqgen_topic"
    generator: str = T0
    vocabulary: str = BERT
    steps: int = 5000
    whole_documents: bool = True


def augtriever_adaptation(run: Run, p: Adaptation) -> None:
    """AugTriever's domain adaptation: topics of a target corpus train an encoder further.

    5,000 steps of InBatch, 1e-5, batches of 1,024. The paper starts from what is "pre-trained with
    AugQ-CC and TQGen-Topic" (section 4.4.2): augtriever_cc --strategy tqgen_topic.

    Set: --encoder (a finished one), --target (a folder in BEIR's layout), --data_dir with T0_3B.
    """
    run.usual(skip_bad=p.skip_bad)
    _adapted(run, p)


def augtriever_adaptations(run: Run, p: CommonCrawl) -> None:
    """AugTriever's Table 2: augtriever_adaptation to MS MARCO and to every set of BEIR.

    It starts from Common Crawl's topics by InBatch, which are evaluated too. CQADupStack is adapted
    to forum by forum.

    Set: --data_dir, see augtriever_cc, and msmarco among the sets in beir/.
    """
    p = dataclasses.replace(p, strategy="tqgen_topic", loss="inbatch")
    start = _of_common_crawl(run, p)
    judged(run, start, questions=False)
    forums = [f"{benchmarks.CQADUPSTACK}/{name}" for name in benchmarks.FORUMS]
    sets = [name for name in benchmarks.BEIR14 if name != benchmarks.CQADUPSTACK]

    def of_set(cls: Any, stage: str, /, *files: str, **settings: Any) -> Ref:
        return run(cls, f"{stage}_{name.replace('/', '_')}", *files, **settings)

    for name in (benchmarks.MSMARCO, *sets, *forums):
        _adapted(of_set, Adaptation(encoder=start, target=f"data:beir/{name}", seed=p.seed))


def _adapted(run: Any, p: Adaptation) -> None:
    documents = run(Prepare, "documents", format="beir", documents=p.target, cut="none")
    contexts = pseudo_queries(run, p.strategy, documents, Writing(p.generator))
    adapted = _trained(
        run,
        STRATEGIES[p.strategy],
        documents,
        contexts,
        whole=p.whole_documents,
        read={"tokenizer": p.vocabulary},
        init=p.encoder,
        seed=p.seed,
        steps=p.steps,
        bind=FURTHER,
    )
    read = {"title": "marked", "max_length": 512}
    run(EvaluateBeir, "figures", beir=p.target, encoder=adapted, method="auto", **read)


@dataclasses.dataclass(frozen=True)
class Row(AugTriever):
    on: str = "cc"  # or wiki
    corpus: str = ""
    batch_size: int = 0
    encoder: str = ""  # a finished one, instead of training one
    pooling: str = ""
    bm25: str = ""
    finetuned: bool = False
    tied: bool = True  # False: --encoder has two towers


def augtriever_row(run: Run, p: Row) -> None:
    """A row of AugTriever's Tables 1, 3 and 6: an encoder of Common Crawl (--on wiki: of Wikipedia)
    or a finished one (--encoder), fine-tuned on MS MARCO where wanted, and its metrics.

    Fine-tuning (--finetuned True) is 20,000 steps of InBatch, 1e-5, batches of 1,024: each query
    with its passage and one random passage; each epoch draws one of those stored for it.

    Set: --data_dir, see augtriever_cc and augtriever_wiki; for fine-tuning msmarco/ in BEIR's
    layout (titles in it, as RocketQA's corpus has them) with qrels/train.tsv.
    """
    run.usual(skip_bad=p.skip_bad)
    check_name("corpus --on", p.on, ("cc", "wiki"))
    encoder = p.encoder
    if not (encoder or p.bm25):
        usual = AugTriever if p.on == "wiki" else CommonCrawl
        corpus, batch_size = p.corpus or usual.corpus, p.batch_size or usual.batch_size
        of = dataclasses.replace(p, corpus=corpus, batch_size=batch_size)
        encoder = (_of_wikipedia if p.on == "wiki" else _of_common_crawl)(run, of)
    title = "space" if p.encoder and not p.finetuned else "marked"
    if p.finetuned:
        encoder = _on_marco(run, p, encoder)
    how = {"pooling": "" if p.finetuned else p.pooling, "bm25": p.bm25}
    judged(run, encoder, title=title, beir=p.beir, questions=p.questions, **how)


def _on_marco(run: Run, p: Row, init: Ref) -> Ref:
    of = "data:msmarco"
    examples = run(
        Tokenize,
        "triples",
        task="triples",
        passages=run(Prepare, "passages", format="beir", documents=of, cut="none"),
        queries=f"{of}/queries.jsonl",
        qrels=f"{of}/qrels/train.tsv",
        tokenizer=p.bert,
        title="separate",
        random_negatives=40,
    )
    own = {"tied": p.tied, "pooling": p.pooling or "mean"}
    return run(
        Train,
        "retriever",
        INBATCH,
        examples=examples,
        init=init,
        seed=p.seed,
        kind="triples",
        settings={"n_passages": 2},
        lengths={"query": 192, "passages": 192},
        steps=20_000,
        bind={**FURTHER, **{f"encoders.DualEncoderConfig.{name}": own[name] for name in own}},
    )


# Table 6: which rows a corpus has; by InBatch with pseudo-queries alone, by MoCo with half crops,
# on Wikipedia also the other way round.
_ROWS = ("qgen_d2q", "doc_title", "qext_bm25", "qext_plm", *TQGEN)
_WIKI_ROWS = (*_ROWS, "paq", "doc_anchor", "qext_self")
# Table 3: these by both losses, and Hybrid-TQGen+ by MoCo.
_FINETUNED = (
    *("random_crop", "qgen_d2q", "doc_title", "qext_plm"),
    *("tqgen_topic", "tqgen_title", "tqgen_exsum"),
)


def augtriever_tables() -> Grid:
    """AugTriever's Tables 1, 3 and 6 at full size: every strategy by InBatch and MoCo on Common
    Crawl and Wikipedia, fine-tuned on MS MARCO too, and BM25, Contriever, Spider, SPAR, Condenser
    and coCondenser from folders.

    The summary has BEIR's sets and a heat map; the stage `beir` of a system has the groups of A.5,
    its stage `table` all columns. T0-3B and doc2query write once for a corpus.

    Set: --data_dir, with contriever (facebook/contriever), spider (tau/spider), spar (qac export
    --pooling cls of a folder with the query and context encoders of
    facebook/spar-wiki-bm25-lexmodel as query and passage), condenser, cocondenser, and what
    augtriever_row lists.
    """
    losses = ("inbatch", "moco")
    systems: dict[str, dict[str, Any]] = {"bm25": {"bm25": "anserini"}}
    for name in ("contriever", "spider", "spar", "condenser", "cocondenser"):
        pooling = "mean" if name == "contriever" else "cls"
        systems[name] = {"encoder": f"data:{name}", "pooling": pooling}
    for on, names in (("cc", _ROWS), ("wiki", _WIKI_ROWS)):
        for loss in losses:
            for name in ("random_crop", *names):
                of = {"on": on, "strategy": name, "loss": loss, "all_prompts": True}
                systems[f"{on}_{name}_{loss}"] = of
                if on == "wiki" and name != "random_crop":
                    other = {"random_crop_share": 0.5 if loss == "inbatch" else 0.0}
                    kind = "half" if loss == "inbatch" else "alone"
                    systems[f"{on}_{name}_{kind}_{loss}"] = {**of, **other}
    for name in ("hybrid_all", "hybrid_tqgen", "hybrid_tqgen_plus"):
        systems[f"cc_{name}_moco"] = {"strategy": name, "loss": "moco", "all_prompts": True}
    tuned = ["contriever", "spider", "spar", "cc_hybrid_tqgen_plus_moco"]
    tuned += [f"cc_{name}_{loss}" for name in _FINETUNED for loss in losses]
    for name in tuned:
        systems[f"{name}_finetuned"] = {**systems[name], "finetuned": True, "tied": name != "spar"}
    return Grid(
        title="AugTriever: Tables 1, 3 and 6",
        recipe="augtriever_row",
        systems=systems,
        metrics="beir",
        measures=("ndcg@10",),
        rows={benchmarks.MSMARCO: "MS MARCO", **benchmarks.BEIR14},
        heatmap=True,
    )


@dataclasses.dataclass(frozen=True)
class Small:
    strategy: str = "random_crop"
    loss: str = "inbatch"
    weights: Mapping[str, float] | None = None
    random_crop_share: float = 0.0
    bm25: bool = False
    summariser: str = "shipped:tqgen"
    packages: str = "numpy,optax,flax,nltk"
    folders: str = "data:wikisquad,data:tales,data:scifact"
    steps: int = 100
    start_steps: int = 300
    batch_size: int = 64
    seed: int = 0

    @property
    def writing(self) -> Writing:
        """Our generators: the tail of a small model's distribution is noise, and it repeats itself;
        max_input is the length that they were trained with. Spans by the plain sum, and crops as
        documents: so the figures were measured."""
        options: dict[str, Any] = {"max_input": 128, "no_repeat_ngram": 2}
        generator = self.summariser
        if self.strategy == "qgen_d2q":
            generator = "shipped:qgen"
            options |= {"title": "space", "max_tokens": 24, "precision": "fast"}
            options |= {"top_p": 0.8, "temperature": 0.6}
        else:
            options |= {"top_k": 25, "temperature": 0.3}
        return Writing(
            generator, self.summariser, likelihood="sum", options=options, all_prompts=True
        )


def augtriever_small(run: Run, p: Small) -> None:
    """AugTriever at small size, on two cores.

    An encoder is trained on docstrings and the passages of three collections, without their
    questions, and evaluated on all collections of the data folder. Strategies with a model use the
    summariser that ships, for all four prompts at once, so that they share one stage; qgen_d2q asks
    the questions of `shipped:qgen`, which has learnt from questions of people, as the paper's has.

    Set: --data_dir, with collections in BEIR's layout, wikisquad, tales and scifact among them.
    Commonly overridden: --strategy, --random_crop_share, --loss, --bm25 True (BM25 instead of an
    encoder), the model (--gin_file models/bert_mini.gin). What it makes is trained further by
    augtriever_adaptation.
    """
    docstrings = run(Prepare, "docstrings", format="python_docs", packages=p.packages, shards=1)
    # Only the corpus of each collection is used: two collections share ids, and the questions must
    # not be seen. Passages are documents, not cut further.
    union = run(Unite, "union", collections=p.folders)
    texts = [f"{docstrings}/passages-00000-of-00001.jsonl", f"{union}/corpus.jsonl"]
    documents = run(Prepare, "documents", format="jsonl", documents=texts, shards=4, cut="none")
    contexts = pseudo_queries(run, p.strategy, documents, p.writing)
    of: dict[str, Any] = {"bm25": "anserini"}
    if not p.bm25:
        how: dict[str, Any] = {"seed": p.seed, "settings": {}, "steps": p.start_steps}
        start = masked(run, "start", "texts", documents, SMALL, **how)
        encoder = _trained(
            run,
            p.weights or STRATEGIES[p.strategy],
            documents,
            contexts,
            SMALL,
            loss=p.loss,
            crops=p.random_crop_share,
            init=start,
            seed=p.seed,
            lengths={"passage": 96, "context": 48},
            steps=p.steps,
            batch_size=p.batch_size,
            bind={
                **WARMUP,
                RATE: 1e-3,
                # A queue of 16,384 keys would hold most of this corpus.
                "augtriever.MoCo.queue_size": 2048,
                "augtriever.MoCo.momentum": 0.99,
            },
        )
        of = {"encoder": encoder, "max_length": 96}
    run(EvaluateBeir, "figures", beir=run.data, depth=100, **of)


def augtriever_small_grid() -> Grid:
    """AugTriever's Table 1 at small size: augtriever_small with every strategy, by InBatch and
    MoCo.

    Alone and with half of the pairs crops ("half"); BM25 for comparison. Documents, the MLM start
    and pseudo-queries are made once for all cells that use them. Only docstrings have anchors: for
    other documents doc_anchor falls back on titles. qext_plm is hybrid_all with all its weight on
    one strategy, so that spans are scored once.

    Set: --data_dir, see augtriever_small.
    """
    names = ("qext_self", "qext_bm25", "doc_title", "doc_anchor", *TQGEN)
    alone: dict[str, dict[str, Any]] = {name: {"strategy": name} for name in names}
    alone["qext_plm"] = {"strategy": "hybrid_all", "weights": {"qext_plm": 1.0}}
    alone["qgen"] = {"strategy": "qgen_d2q"}
    whole = ("random_crop", "hybrid_tqgen", "hybrid_all")
    systems: dict[str, Any] = {"bm25": {"bm25": True}}
    for loss in ("inbatch", "moco"):
        by = {"loss": loss}
        for name, of in alone.items():
            systems[f"{name}_{loss}"] = {**of, "random_crop_share": 0.0, **by}
            systems[f"{name}_half_{loss}"] = {**of, "random_crop_share": 0.5, **by}
        systems |= {f"{name}_{loss}": {"strategy": name, **by} for name in whole}
    collections = ("wikisquad", "forum", "tales", "scifact", "npl", "cisi")
    return Grid(
        title="AugTriever at small size: strategies, InBatch and MoCo, shares of crops",
        recipe="augtriever_small",
        metrics="figures",
        measures=("ndcg@10", "mrr@10", "recall@100"),
        rows={name: name for name in collections},
        heatmap=True,
        permutations=2000,
        systems=systems,
    )
