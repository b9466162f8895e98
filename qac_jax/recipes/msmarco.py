"""Pre-training by the papers before PAIR and AugTriever, and fine-tuning on MS MARCO."""

from __future__ import annotations

from qac_jax.pipeline.grid import Grid
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes import finetuning
from qac_jax.stages.evaluate import EvaluateBeir
from qac_jax.stages.generate import Generate
from qac_jax.stages.index import Bm25
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


BERT = "data:bert-base-uncased"


def pairs(
    run: Run, contexts: str, *, corpus: Ref, bert: Ref, generator: Ref, generated: int, seed: int
) -> Ref:
    """Spans of MS MARCO's documents, queries for them where contexts are queries, and pairs."""
    spans = run(
        Prepare,
        "spans",
        format="msmarco_docs",
        documents=corpus,
        tokenizer=bert,
        seed=seed,
        max_tokens=144,
        short_span_probability=0.15,
    )
    queries = ""
    if contexts in ("passage_query", "mixed"):
        queries = run(
            Generate,
            "queries",
            passages=spans,
            generator=generator,
            prefix="text2query: ",
            seed=seed,
            drop_repeats=False,
            samples=generated,
            max_tokens=64,
            top_k=25,
            top_p=0.95,
        )
    return run(
        Tokenize,
        "pairs",
        task=contexts,
        passages=spans,
        contexts=queries,
        tokenizer=bert,
        seed=seed,
    )


def msmarco_qac(
    run: Run,
    objective: str = "cotmae",
    contexts: str = "passage_query",
    queries: int = 5,
    generated: int = 20,
    corpus: str = "data:msmarco-docs.tsv",
    bert: str = BERT,
    init: str = "",
    generator: str = "data:doc2query-all-with_prefix-t5-base-v1",
    n_passages: int = 16,
    negatives_2: str = "mined+bm25",
    skip_bad: int = 1000,
    seed: int = 0,
) -> None:
    """Query-as-context pre-training on MS MARCO (Wu et al., 2023); its numbers are in gin files.

        qac run msmarco_qac_cotmae --data_dir DATA --out out/msmarco_qac_cotmae
        qac run msmarco_qac_cocondenser --data_dir DATA --out out/msmarco_qac_cocondenser

    Queries are generated once (`generated` a passage), of which training takes the first.

    Set: --data_dir, with msmarco-docs.tsv, a BERT in bert-base-uncased, a query generator in
    doc2query-all-with_prefix-t5-base-v1, and what recipes/finetuning.py lists for MS MARCO.
    Commonly overridden: --queries 1 to 20, encoder/train.Schedule.microbatch, in a gin file
    train.Devices.mesh; overlays/mixed.gin, overlays/released.gin, and the baselines
    overlays/passage_pairs.gin (CoT-MAE) and overlays/two_spans.gin (coCondenser).
    """
    run.title = {
        "cotmae": "Query-as-context pre-training: CoT-MAE on MS MARCO",
        "cocondenser": "Query-as-context pre-training: coCondenser on MS MARCO",
    }.get(objective, "Query-as-context pre-training on MS MARCO")
    run.defaults["skip_bad"] = skip_bad
    examples = pairs(
        run, contexts, corpus=corpus, bert=bert, generator=generator, generated=generated, seed=seed
    )
    encoder = run(
        Train,
        "encoder",
        f"objectives/{objective}.gin",
        examples=examples,
        init=init or bert,
        seed=seed,
        separate_documents=True,
        pack=True,  # half of the tokens would be padding
        bind={"CONTEXTS": contexts, "QUERIES": queries},
    )
    finetuning.msmarco_passages(run)
    finetuning.finetuned_on_msmarco(
        run, encoder, bert, seed, n_passages=n_passages, negatives_2=negatives_2
    )


def _tables(name: str, title: str, passages: str) -> Grid:
    return Grid(
        title=f"Query-as-context pre-training of {title}: Tables 1, 3 and 4",
        recipe=name,
        systems={
            "passages": {"gin": [f"overlays/{passages}.gin"]},
            "queries_1": {"queries": 1},
            "queries_5": {},
            "queries_10": {"queries": 10},
            "queries_20": {"queries": 20},
            "mixed": {"gin": ["overlays/mixed.gin"]},
        },
        metrics="metrics,dl19,dl20",
        rows={
            f"run_{n}{end}": f"retriever {n}{of}"
            for end, of in (("", ""), ("_dl19", ", DL 19"), ("_dl20", ", DL 20"))
            for n in (1, 2)
        },
        baselines={"run_bm25": "BM25"},
        measures=finetuning.MEASURES,
    )


def qac_cotmae_tables() -> Grid:
    """Query-as-context pre-training's Tables 1, 3 and 4 at full size, CoT-MAE.

        qac run qac_cotmae_tables --data_dir DATA --out out/qac_cotmae

    The baseline, 1, 5, 10 and 20 queries per passage, and queries mixed with passages; both
    retrievers on MS MARCO's dev queries and on TREC DL 2019 and 2020. Queries are generated once.

    Set: --data_dir, see msmarco_qac.
    Commonly overridden: grid.Grid.systems, .seeds.
    """
    return _tables("msmarco_qac_cotmae", "CoT-MAE", "passage_pairs")


def qac_cocondenser_tables() -> Grid:
    """Query-as-context pre-training's Tables 1, 3 and 4 at full size, coCondenser.

        qac run qac_cocondenser_tables --data_dir DATA --out out/qac_cocondenser

    As qac_cotmae_tables; the baseline is coCondenser's own, two spans of a document.

    Set: --data_dir, see msmarco_qac.
    Commonly overridden: grid.Grid.systems, .seeds.
    """
    return _tables("msmarco_qac_cocondenser", "coCondenser", "two_spans")


def _blocks(run: Run, corpus: Ref, bert: Ref, seed: int, tokens: int, **cutting: object) -> Ref:
    """Wikipedia and BookCorpus in blocks of whole sentences, with room for [CLS] and [SEP]."""
    blocks = run(
        Prepare,
        "blocks",
        format="text",
        documents=corpus,
        tokenizer=bert,
        seed=seed,
        cut="sentences",
        max_tokens=tokens - 2,
        **cutting,
    )
    return run(Tokenize, "examples", task="mlm", passages=blocks, tokenizer=bert, seed=seed)


def msmarco_condenser(
    run: Run,
    corpus: str = "data:wikibook",
    bert: str = BERT,
    n_passages: int = 16,
    negatives_2: str = "mined+bm25",
    skip_bad: int = 1000,
    seed: int = 0,
) -> None:
    """Condenser (Gao and Callan, 2021): 8 epochs of Wikipedia and BookCorpus from BERT, then MS
    MARCO.

        qac run msmarco_condenser --data_dir DATA --out out/msmarco_condenser

    Its encoder is also what coCondenser starts from. A block is closed before the sentence that
    would not fit; a tenth are shorter.

    Set: --data_dir, with the corpus in wikibook (text files, a paragraph a line), a BERT in
    bert-base-uncased, and what recipes/finetuning.py lists for MS MARCO.
    Commonly overridden: --corpus, --bert, encoder/train.Schedule.microbatch, in a gin file
    train.Devices.mesh; what objectives/condenser.gin lists, which has the batch size.
    """
    run.title = "Condenser on Wikipedia and BookCorpus, then MS MARCO"
    run.defaults["skip_bad"] = skip_bad
    encoder = run(
        Train,
        "encoder",
        "objectives/condenser.gin",
        examples=_blocks(run, corpus, bert, seed, 128, short_span_probability=0.1),
        init=bert,
        seed=seed,
        epochs=8.0,
        lengths={"tokens": 128},
    )
    finetuning.msmarco_passages(run)
    finetuning.finetuned_on_msmarco(
        run, encoder, bert, seed, n_passages=n_passages, negatives_2=negatives_2
    )


def msmarco_retromae(
    run: Run,
    corpus: str = "data:wikibook",
    bert: str = BERT,
    encoder: str = "stage:encoder",
    n_passages: int = 16,
    negatives_2: str = "mined+bm25",
    skip_bad: int = 1000,
    seed: int = 0,
) -> None:
    """RetroMAE (Liu and Shao, 2022), the model with the published figures on MS MARCO.

        qac run msmarco_retromae --data_dir DATA --out out/msmarco_retromae

    8 epochs of Wikipedia and BookCorpus from BERT, 20 epochs of MS MARCO's passages from there,
    then both retrievers. Sizes are those of the released code's README. A block ends with the
    sentence that fills it; what is too much is cut off.

    Set: --data_dir, see msmarco_condenser.
    Commonly overridden: --corpus, --bert, --encoder stage:general (fine-tunes the model of
    Wikipedia and BookCorpus alone), general/train.Schedule.microbatch,
    encoder/train.Schedule.microbatch, in a gin file train.Devices.mesh; what
    objectives/retromae.gin lists, which has the optimizer.
    """
    run.title = "RetroMAE on Wikipedia, BookCorpus and MS MARCO's passages"
    run.defaults["skip_bad"] = skip_bad
    passages = finetuning.msmarco_passages(run)
    general = run(
        Train,
        "general",
        "objectives/retromae.gin",
        examples=_blocks(run, corpus, bert, seed, 512, overshoot=True, short_span_probability=0.0),
        init=bert,
        seed=seed,
        lengths={"tokens": 512},
        crop="right",
        epochs=8.0,
        batch_size=256,
    )
    run(
        Train,
        "encoder",
        "objectives/retromae.gin",
        examples=run(
            Tokenize,
            "passage_examples",
            task="mlm",
            passages=passages,
            tokenizer=bert,
            seed=seed,
            title="space",
        ),
        init=general,
        seed=seed,
        lengths={"tokens": 150},
        crop="right",
        epochs=20.0,
        batch_size=1024,
    )
    finetuning.finetuned_on_msmarco(
        run, encoder, bert, seed, n_passages=n_passages, negatives_2=negatives_2
    )


def msmarco_doct5query(
    run: Run,
    generator: str = "data:doc2query-t5-base-msmarco",
    samples: int = 40,
    skip_bad: int = 1000,
) -> None:
    """docT5query (Nogueira and Lin, 2019): BM25 over passages with 40 generated queries each.

        qac run msmarco_doct5query --data_dir DATA --out out/msmarco_doct5query

    Queries are sampled from the top 10 tokens; BM25 alone is beside it; dev queries, TREC DL 2019
    and 2020.

    Set: --data_dir, with what recipes/finetuning.py lists for MS MARCO, and castorini's generator
    in doc2query-t5-base-msmarco.
    Commonly overridden: --generator, --samples, or the stage
    `queries` by published ones (--gin.generate.Generate.imported=FILE
    --gin.generate.Generate.generator="").
    """
    run.title = "docT5query on MS MARCO's passages"
    run.defaults["skip_bad"] = skip_bad
    passages = finetuning.msmarco_passages(run)
    queries = run(
        Generate,
        "queries",
        passages=passages,
        generator=generator,
        prefix="",
        origin="doct5query",
        drop_repeats=False,  # a repeated term weighs more
        samples=samples,
        top_k=10,
        top_p=1.0,
    )
    plain = run(Bm25, "bm25", passages=passages, **finetuning.MARCO_BM25)
    expanded = run(
        Bm25, "bm25_expanded", passages=passages, expand=queries, **finetuning.MARCO_BM25
    )
    indexes = {"run_bm25": plain, "run_expanded": expanded}
    for name, index in indexes.items():
        run(Search, name, index=index, queries="data:marco/dev.query.txt", k=1000)
    finetuning.judged_on_msmarco(run, list(indexes))
    finetuning.trec_dl(run, indexes)


def msmarco_beir(
    run: Run, encoder: str, vocabulary: str = BERT, skip_bad: int = 1000, seed: int = 0
) -> None:
    """Fine-tuning before BEIR: MS MARCO's hard negatives of many systems, as train_msmarco_v3 does.

        qac run msmarco_beir --data_dir DATA --encoder out/msmarco_qac_cotmae/encoder \\
          --out out/msmarco_beir

    One negative per query and epoch, at most 5 per system, without those that a cross-encoder
    scores within 3 of the lowest positive; batch 75, 350 tokens, 10 epochs. The paper does not
    state its pooling; the script that it names has means of tokens and cosine times 20, as here.

    Set: --encoder (a finished `qac pretrain`), --vocabulary where it is not bert-base-uncased in
    DATA; --data_dir, with msmarco/ (BEIR's: corpus.jsonl, queries.jsonl, qrels/train.tsv),
    msmarco-hard-negatives.jsonl.gz (sentence-transformers') and beir/ (the sets to judge on).
    Commonly overridden: encoders.DualEncoderConfig.pooling ("cls") and .normalize (False) with
    finetune.Finetune.temperature = 1.0, as in the other recipes.
    """
    run.title = "Fine-tuning for BEIR"
    run.defaults["skip_bad"] = skip_bad
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
        "objectives/finetune.gin",
        examples=triples,
        init=encoder,
        seed=seed,
        epochs=10.0,
        batch_size=75,
        bind={
            "N_PASSAGES": 2,
            "QUERY_LENGTH": 350,
            "PASSAGE_LENGTH": 350,
            "encoders.DualEncoderConfig.pooling": "mean",
            "encoders.DualEncoderConfig.normalize": True,
            "finetune.Finetune.temperature": 0.05,
            "optimizers.Optimizer.learning_rate": 2e-5,
            "optimizers.Optimizer.warmup_ratio": 0.0,
            "optimizers.Optimizer.warmup_steps": 1000,
        },
    )
    run(EvaluateBeir, "beir", beir="data:beir", encoder=retriever)
