"""Pre-training by the papers before PAIR and AugTriever, and fine-tuning on MS MARCO."""

import dataclasses
from typing import Any

from qac_jax.evaluation import benchmarks
from qac_jax.pipeline.grid import Grid
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes import finetuning
from qac_jax.recipes.finetuning import RATE, Finetuned, Paper
from qac_jax.stages.evaluate import EvaluateBeir
from qac_jax.stages.generate import Generate
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


BERT = "data:bert-base-uncased"
DOC2QUERY = "data:doc2query-all-with_prefix-t5-base-v1"


@dataclasses.dataclass(frozen=True)
class Qac(Finetuned):
    seed: int = 42  # section 4.2
    queries: int = 5  # a passage, that are used
    generated: int = 20
    corpus: str = "data:msmarco-docs.tsv"
    bert: str = BERT
    generator: str = DOC2QUERY
    objective: str = "cotmae"
    contexts: str = "passage_query"
    init: str = ""
    beir: bool = False  # fine-tuned for BEIR instead (Table 2)


def _pairs(run: Run, p: Qac) -> Ref:
    """Spans of MS MARCO's documents, queries for them where contexts are queries, and pairs."""
    read = {"tokenizer": p.bert, "seed": p.seed}
    documents = {"documents": p.corpus, "short_span_probability": 0.15}
    spans = run(Prepare, "spans", format="msmarco_docs", **documents, **read)
    queries = ""
    if p.contexts in ("passage_query", "mixed"):
        queries = run(
            Generate,
            "queries",
            passages=spans,
            generator=p.generator,
            seed=p.seed,
            drop_repeats=False,
            samples=p.generated,
            top_k=25,
            top_p=0.95,
        )
    return run(Tokenize, "pairs", task=p.contexts, passages=spans, contexts=queries, **read)


def msmarco_qac(run: Run, p: Qac) -> None:
    """Query-as-context pre-training on MS MARCO (Wu et al., 2023); its numbers are in gin files:
    msmarco_qac_cotmae, msmarco_qac_cocondenser.

    Queries are generated once (`generated` a passage), of which training takes the first.

    Set: --data_dir, with msmarco-docs.tsv, a BERT in bert-base-uncased, a query generator in
    doc2query-all-with_prefix-t5-base-v1, and what recipes/finetuning.py lists for MS MARCO.
    Commonly overridden: --queries 1 to 20, encoder/train.Schedule.microbatch; overlays/mixed.gin,
    overlays/released.gin, and the baselines overlays/passage_pairs.gin (CoT-MAE) and
    overlays/two_spans.gin (coCondenser).
    """
    run.usual(skip_bad=p.skip_bad)
    encoder = run(
        Train,
        "encoder",
        f"objectives/{p.objective}.gin",
        examples=_pairs(run, p),
        init=p.init or p.bert,
        seed=p.seed,
        separate_documents=True,
        pack=True,  # half of the tokens would be padding
        bind={"CONTEXTS": p.contexts, "QUERIES": p.queries},
    )
    if p.beir:
        _for_beir(run, encoder, p.bert, p.seed)
        return
    finetuning.msmarco_passages(run)
    finetuning.finetuned_on_msmarco(run, encoder, p.bert, p)


def _systems(**variants: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The baseline of each objective, and variants of its run with queries."""
    systems = {}
    for name, passages in (("cotmae", "passage_pairs"), ("cocondenser", "two_spans")):
        gin = [f"recipes/msmarco_qac_{name}.gin"]
        systems[f"{name}_passages"] = {"gin": [*gin, f"overlays/{passages}.gin"]}
        for variant, of in variants.items():
            systems[f"{name}_{variant}"] = {**of, "gin": [*gin, *of.get("gin", ())]}
    return systems


def qac_tables() -> Grid:
    """Query-as-context pre-training's Tables 1, 3 and 4 at full size, CoT-MAE and coCondenser.

    The baseline (CoT-MAE's pairs of passages, coCondenser's two spans), 1, 5, 10 and 20 queries per
    passage, and queries mixed with passages; both retrievers on MS MARCO's dev queries and on TREC
    DL 2019 and 2020. Queries are generated once.

    Set: --data_dir, see msmarco_qac, and a Condenser in condenser.
    """
    counts = {f"queries_{n}": {"queries": n} for n in (1, 5, 10, 20)}
    return Grid(
        title="Query-as-context pre-training: Tables 1, 3 and 4",
        recipe="msmarco_qac",
        systems=_systems(**counts, mixed={"gin": ["overlays/mixed.gin"]}),
        metrics="metrics,dl19,dl20",
        rows={
            f"run_{n}{end}": f"retriever {n}{of}"
            for end, of in (("", ""), ("_dl19", ", DL 19"), ("_dl20", ", DL 20"))
            for n in (1, 2)
        },
        baselines={"run_bm25": "BM25"},
        measures=finetuning.MEASURES,
        seeds=(42,),
    )


def qac_beir() -> Grid:
    """Query-as-context pre-training's Table 2 at full size: BEIR, zero-shot, without and with it.

    Set: --data_dir, see qac_tables and msmarco_beir.
    """
    systems = {name: {**of, "beir": True} for name, of in _systems(queries={}).items()}
    return Grid(
        title="Query-as-context pre-training: Table 2",
        recipe="msmarco_qac",
        systems=systems,
        metrics="beir",
        rows=benchmarks.BEIR14,
        measures=("ndcg@10",),
        seeds=(42,),
    )


@dataclasses.dataclass(frozen=True)
class Blocks(Finetuned):
    corpus: str = "data:wikibook"
    bert: str = BERT

    def examples(self, run: Run, tokens: int, **cutting: Any) -> Ref:
        """Wikipedia and BookCorpus in blocks of whole sentences, with room for [CLS] and [SEP]."""
        read = {"tokenizer": self.bert, "seed": self.seed}
        cutting |= {"cut": "sentences", "max_tokens": tokens - 2}
        blocks = run(Prepare, "blocks", format="folder", documents=self.corpus, **read, **cutting)
        return run(Tokenize, "examples", task="mlm", passages=blocks, **read)


def msmarco_condenser(run: Run, p: Blocks) -> None:
    """Condenser (Gao and Callan, 2021): 8 epochs of Wikipedia and BookCorpus from BERT, then MS
    MARCO.

    Its encoder is also what coCondenser starts from. A block is closed before the sentence that
    would not fit; a tenth are shorter.

    Set: --data_dir, with the corpus in wikibook (text files of at most 256 MB), a BERT in
    bert-base-uncased, and what recipes/finetuning.py lists for MS MARCO.
    Commonly overridden: what objectives/condenser.gin lists, which has the batch size.
    """
    run.usual(skip_bad=p.skip_bad)
    encoder = run(
        Train,
        "encoder",
        "objectives/condenser.gin",
        examples=p.examples(run, 128, short_span_probability=0.1),
        init=p.bert,
        seed=p.seed,
        epochs=8.0,
        lengths={"tokens": 128},
    )
    finetuning.msmarco_passages(run)
    finetuning.finetuned_on_msmarco(run, encoder, p.bert, p)


@dataclasses.dataclass(frozen=True)
class RetroMae(Blocks):
    encoder: str = "stage:encoder"


def msmarco_retromae(run: Run, p: RetroMae) -> None:
    """RetroMAE (Liu and Shao, 2022), the model with the published figures on MS MARCO.

    8 epochs of Wikipedia and BookCorpus from BERT, 20 epochs of MS MARCO's passages from there,
    then both retrievers. Sizes are those of the released code's README. A block ends with the
    sentence that fills it; what is too much is cut off.

    Set: --data_dir, see msmarco_condenser.
    Commonly overridden: --encoder stage:general (fine-tunes the model of Wikipedia and BookCorpus
    alone); what objectives/retromae.gin lists, which has the optimizer.
    """
    run.usual(skip_bad=p.skip_bad)
    run.usual(Train, crop="right")
    passages = finetuning.msmarco_passages(run)
    blocks = p.examples(run, 512, overshoot=True, short_span_probability=0.0)
    read = {"tokenizer": p.bert, "seed": p.seed, "title": "space"}
    short = run(Tokenize, "passage_examples", task="mlm", passages=passages, **read)
    init = p.bert
    for name, examples, tokens, epochs, batch in (
        ("general", blocks, 512, 8.0, 256),
        ("encoder", short, 150, 20.0, 1024),
    ):
        init = run(
            Train,
            name,
            "objectives/retromae.gin",
            examples=examples,
            init=init,
            seed=p.seed,
            lengths={"tokens": tokens},
            epochs=epochs,
            batch_size=batch,
        )
    finetuning.finetuned_on_msmarco(run, p.encoder, p.bert, p)


@dataclasses.dataclass(frozen=True)
class Beir(Paper):
    encoder: str = dataclasses.field(kw_only=True)
    vocabulary: str = BERT


def msmarco_beir(run: Run, p: Beir) -> None:
    """Fine-tuning before BEIR: MS MARCO's hard negatives of many systems, as train_msmarco_v3 does.

    One negative per query and epoch, at most 5 per system, without those that a cross-encoder
    scores within 3 of the lowest positive; batch 75, 350 tokens, 10 epochs. The paper does not
    state its pooling; the script that it names has means of tokens and cosine times 20, as here.

    Set: --encoder (a finished `qac pretrain`), --vocabulary where it is not bert-base-uncased in
    DATA; --data_dir, with msmarco/ (BEIR's: corpus.jsonl, queries.jsonl, qrels/train.tsv),
    msmarco-hard-negatives.jsonl.gz (sentence-transformers') and beir/ (the sets to judge on).
    """
    run.usual(skip_bad=p.skip_bad)
    _for_beir(run, p.encoder, p.vocabulary, p.seed)


def _for_beir(run: Run, encoder: Ref, vocabulary: Ref, seed: int) -> None:
    passages = run(Prepare, "passages", format="beir", documents="data:msmarco", cut="none")
    triples = run(
        Tokenize,
        "triples",
        task="triples",
        passages=passages,
        queries="data:msmarco/queries.jsonl",
        qrels="data:msmarco/qrels/train.tsv",
        negatives="data:msmarco-hard-negatives.jsonl.gz",
        tokenizer=vocabulary,
        title="space",
    )
    retriever = run(
        Train,
        "retriever",
        finetuning.FINETUNE,
        examples=triples,
        init=encoder,
        seed=seed,
        epochs=10.0,
        batch_size=75,
        bind={
            **finetuning.MEANS,
            "N_PASSAGES": 2,
            "QUERY_LENGTH": 350,
            "PASSAGE_LENGTH": 350,
            RATE: 2e-5,
            "optimizers.Optimizer.warmup_ratio": 0.0,
            "optimizers.Optimizer.warmup_steps": 1000,
        },
    )
    run(EvaluateBeir, "beir", beir="data:beir", encoder=retriever, method="auto")
