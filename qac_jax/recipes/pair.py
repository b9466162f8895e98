"""PAIR: DPR's retriever, a teacher's labels of its candidates, two losses; full and small size."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from qac_jax.pipeline.grid import Grid
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes.claims import MEANS, NO_DROPOUT, TINY
from qac_jax.recipes.frontier import LARGE
from qac_jax.stages.analyse import Similarities
from qac_jax.stages.embed import Embed
from qac_jax.stages.evaluate import Evaluate
from qac_jax.stages.index import Bm25, Index
from qac_jax.stages.mine import Label
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.questions import Sample, Unite
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


ERNIE, ERNIE_LARGE = "data:ernie-2.0-base-en", "data:ernie-2.0-large-en"
# 1.8 million queries (section 4.1): Yahoo! Answers, SQuAD, TriviaQA, HotpotQA and ORCAS.
UNLABELLED = (
    "data:yahoo_answers.tsv,data:squad.jsonl,data:triviaqa.jsonl,data:hotpotqa.jsonl,data:orcas.tsv"
)
MARCO_TRAIN: Mapping[str, Any] = {
    "queries": "data:marco/train.query.txt",
    "qrels": "data:marco/qrels.train.tsv",
}
MARCO_TEST = "data:marco/dev.query.txt"
NQ_TRAIN, NQ_TEST = "data:biencoder-nq-train.json", "data:nq-test.qa.csv"


def dpr(
    run: Run, bert: Ref, test: Ref, depth: int, seed: int, epochs: float = 10.0, **examples: Any
) -> None:
    """A dual encoder with one hard negative per query and in-batch negatives, and its run."""
    triples = run(
        Tokenize,
        "dpr_examples",
        task="triples",
        tokenizer=bert,
        keep=30,
        title="separate",
        **examples,
    )
    encoder = run(
        Train,
        "dpr",
        "objectives/finetune.gin",
        examples=triples,
        init=bert,
        seed=seed,
        settings={"n_passages": 2},
        lengths={"query": 32, "passages": 128},
        epochs=epochs,
        batch_size=128,
        bind={"encoders.DualEncoderConfig.tied": False, "optimizers.Optimizer.weight_decay": 0.0},
    )
    _searched(run, "dpr", encoder, test, depth)


def _searched(run: Run, name: str, encoder: Ref, queries: Ref, depth: int) -> Ref:
    vectors = run(Embed, f"{name}_vectors", encoder=encoder, passages="stage:passages")
    index = run(Index, f"{name}_index", vectors=vectors, method="exact")
    return run(Search, f"{name}_run", index=index, queries=queries, k=depth)


def _marco_passages(run: Run, bert: Ref) -> Ref:
    return run(
        Prepare, "passages", format="msmarco_passages", documents="data:marco", tokenizer=bert
    )


def _wikipedia(run: Run, bert: Ref, depth: int) -> Ref:
    """Wikipedia's 21 million passages, and BM25's run of the test questions."""
    passages = run(
        Prepare, "passages", format="dpr", documents="data:psgs_w100.tsv", tokenizer=bert
    )
    words = run(Bm25, "bm25", passages=passages)
    run(Search, "bm25_run", index=words, queries=NQ_TEST, k=depth)
    return passages


def dpr_msmarco(run: Run, bert: str = ERNIE, skip_bad: int = 1000, seed: int = 0) -> None:
    """The baseline on MS MARCO's passages: DPR with one BM25 negative (Karpukhin et al., 2020).

        qac run dpr_msmarco --data_dir DATA --out out/dpr_msmarco

    It is also PAIR's retriever of candidates (pair_msmarco).

    Set: --data_dir, with RocketQA's folder marco (para.txt, para.title.txt, train.query.txt,
    dev.query.txt, qrels.train.tsv, qrels.dev.tsv), MS MARCO's qidpidtriples.train.full.2.tsv.gz and
    a BERT in ernie-2.0-base-en.
    Commonly overridden: --bert, dpr/train.Schedule.epochs, .batch_size, .microbatch.
    """
    run.title = "DPR on MS MARCO's passages"
    run.defaults["skip_bad"] = skip_bad
    _dpr_msmarco(run, bert, seed)
    run(
        Evaluate,
        "metrics",
        runs="stage:dpr_run",
        qrels="data:marco/qrels.dev.tsv",
        protocol="msmarco",
    )


def _dpr_msmarco(run: Run, bert: Ref, seed: int) -> None:
    dpr(
        run,
        bert,
        MARCO_TEST,
        1000,
        seed,
        passages=_marco_passages(run, bert),
        **MARCO_TRAIN,
        negatives="data:qidpidtriples.train.full.2.tsv.gz",
    )


def dpr_nq(run: Run, bert: str = ERNIE, skip_bad: int = 1000, seed: int = 0) -> None:
    """The baseline on Natural Questions: DPR over Wikipedia's 21 million passages.

        qac run dpr_nq --data_dir DATA --out out/dpr_nq

    From DPR's own training file: its questions that have a positive passage (58,812), each with its
    positives and BM25's hard negatives, as text.

    Set: --data_dir, with DPR's psgs_w100.tsv, biencoder-nq-train.json and nq-test.qa.csv, and a
    BERT in ernie-2.0-base-en.
    Commonly overridden: --bert, dpr/train.Schedule.epochs, .batch_size,
    .microbatch.
    """
    run.title = "DPR on Natural Questions"
    run.defaults["skip_bad"] = skip_bad
    passages = _dpr_nq(run, bert, seed)
    run(
        Evaluate, "metrics", runs="stage:dpr_run,stage:bm25_run", queries=NQ_TEST, passages=passages
    )


def _dpr_nq(run: Run, bert: Ref, seed: int) -> Ref:
    passages = _wikipedia(run, bert, 100)
    dpr(run, bert, NQ_TEST, 100, seed, 40.0, training=NQ_TRAIN, training_format="dpr")
    return passages


@dataclasses.dataclass(frozen=True)
class Labels:
    """How a teacher labels a retriever's candidates, and what is trained on them."""

    alpha: float = 0.1  # the share of the passage-centric loss
    finetuning_alpha: float = 0.0
    tied: bool = True  # one encoder for queries and passages
    positive: float = 0.9
    negative: float = 0.1
    negatives: int = 4  # per positive
    candidates: int = 50  # of a query, scored by the teacher
    labelled: str = "all"  # candidates above `positive`; the released data have the "best" one
    extend: bool = True  # judged queries get positives that the teacher is sure of (section 3.3)
    fill: int = 0
    pseudo_labels: bool = True
    pretraining: bool = True


def teacher(
    run: Run, name: str, examples: Ref, init: Ref, seed: int, *files: str, **more: Any
) -> Ref:
    """A cross-encoder that classifies pairs."""
    return run(
        Train,
        name,
        "objectives/cross_encoder.gin",
        *files,
        **{
            "examples": examples,
            "init": init,
            "seed": seed,
            "settings": None,
            "lengths": {"pair": 160},
            "epochs": 2.0,
            "batch_size": 256,
            **more,
        },
    )


def teacher_examples(
    run: Run, name: str, trained: Mapping[str, Ref], negatives: Ref, bert: Ref, **more: Any
) -> Ref:
    """1 positive to 4 negatives of the first 1,000 candidates."""
    given = {
        **trained,
        "negatives": negatives,
        "seed": 111,
        "depth": 1000,
        "negatives_per_query": 4,
        **more,
    }
    return run(
        Tokenize, name, task="cross_encoder", passages="stage:passages", tokenizer=bert, **given
    )


def labelled(
    run: Run,
    how: Labels,
    *,
    start: Ref,
    bert: Ref,
    judged: Ref,  # the judged queries
    queries: Ref,  # these and unlabelled ones
    unlabelled: Ref,
    scored: Ref,  # "": negatives that no teacher has scored
    test: Ref,
    depth: int,
    seed: int,
    labels: Mapping[str, Any],
    files: tuple[str, ...] = (),
    bind: Mapping[str, Any] | None = None,
    schedule: Mapping[str, Any] | None = None,
    rates: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
) -> Ref:
    """Labels of all queries for pre-training and of the judged ones for fine-tuning; both
    trainings.
    """
    pretrained_on = unlabelled  # in the paper (section 3.4)
    if not how.pseudo_labels:
        pretrained_on, scored = judged, ""
    if not how.pretraining:  # fine-tuning alone, on all labels
        pretrained_on = queries
    examples = []
    for name, made, asked in (
        ("labels", "pair_examples", pretrained_on),
        ("judged_labels", "judged_examples", judged),
    ):
        given = {
            "candidates": "stage:candidates",
            "scored": scored,
            "lines": "pair",  # 1:4 is one positive on four lines
            "positive": how.positive,
            "negative": how.negative,
            "positives": how.labelled,
            "extend": how.extend,
            "order": "ranked",
            "count": how.negatives,
            "depth": how.candidates,
            "fill": how.fill,
            **labels,
        }
        found = run(Label, name, passages="stage:passages", queries=asked, **given)
        examples.append(
            run(
                Tokenize,
                made,
                task="triples",
                passages="stage:passages",
                negatives=found,
                tokenizer=bert,
                title="separate",
            )
        )

    def trained(name: str, of: Ref, init: Ref, alpha: float, rate: Mapping[str, Any]) -> Ref:
        return run(
            Train,
            name,
            "objectives/pair.gin",
            *files,
            **{"examples": of, "init": init, "seed": seed, "epochs": 10.0, **(schedule or {})},
            bind={
                **(bind or {}),
                **rate,
                "pair.Pair.alpha": alpha,
                "encoders.DualEncoderConfig.tied": how.tied,
            },
        )

    all_labels, of_judged = examples
    if how.pretraining:
        start = trained("pretrained", all_labels, start, how.alpha, rates[0])
        encoder = trained("pair", of_judged, start, how.finetuning_alpha, rates[1])
    else:
        encoder = trained("pair", all_labels, start, how.finetuning_alpha, rates[1])
    return _searched(run, "pair", encoder, test, depth)


def pair_msmarco(
    run: Run,
    alpha: float = 0.1,
    finetuning_alpha: float = 0.0,
    tied: bool = True,
    positive: float = 0.9,
    negative: float = 0.1,
    negatives: int = 4,
    candidates: int = 50,
    labelled_as: str = "all",
    extend: bool = True,
    fill: int = 0,
    pseudo_labels: bool = True,
    pretraining: bool = True,
    unlabelled_sources: str = UNLABELLED,
    unlabelled_count: int = 1_800_000,
    bert: str = ERNIE,
    teacher_bert: str = ERNIE_LARGE,
    skip_bad: int = 1000,
    seed: int = 0,
) -> None:
    """PAIR on MS MARCO's passages (Ren et al., 2021).

        qac run pair_msmarco --data_dir DATA --out out/pair_msmarco

    A teacher labels a retriever's candidates for judged and unjudged queries; a dual encoder is
    pre-trained with both losses, then fine-tuned with the query-centric one. 8 x 512 examples per
    step, 10 epochs, LAMB 3e-5. The ablations of the paper's Table 3: w/o PSR --alpha 0.0; w/ PSR FT
    --finetuning_alpha 0.1; w/o KD --pseudo_labels False; w/o SP --tied False; w/o PT --pretraining
    False.

    Set: --data_dir, with what dpr_msmarco lists, marco/qrels.train.addition.tsv, the unlabelled
    queries (yahoo_answers.tsv, squad.jsonl, triviaqa.jsonl, hotpotqa.jsonl, orcas.tsv; any format
    of query files), and a BERT-large in ernie-2.0-large-en.
    Commonly overridden: --unlabelled_sources, --alpha 0.3, --positive 0.8 --negative 0.2,
    train.Schedule.microbatch,
    pair.Pair.denominator, overlays/released.gin.
    """
    run.title = "PAIR on MS MARCO's passages"
    run.defaults["skip_bad"] = skip_bad
    _dpr_msmarco(run, bert, seed)
    unlabelled = run(Sample, "unlabelled", queries=unlabelled_sources, count=unlabelled_count)
    judged, found = MARCO_TRAIN["queries"], f"{unlabelled}/queries.jsonl"
    queries = f"{judged},{found}"
    of_judged = run(Search, "train_run", index="stage:dpr_index", queries=judged, k=1000)
    near = run(Search, "candidates", index="stage:dpr_index", queries=queries, k=50)
    examples = teacher_examples(run, "teacher_examples", MARCO_TRAIN, of_judged, teacher_bert)
    by = teacher(run, "teacher", examples, teacher_bert, seed, bind=LARGE)
    scored = _scored(run, near, by, queries, candidates)
    labelled(
        run,
        Labels(
            alpha,
            finetuning_alpha,
            tied,
            positive,
            negative,
            negatives,
            candidates,
            labelled_as,
            extend,
            fill,
            pseudo_labels,
            pretraining,
        ),
        start=bert,
        bert=bert,
        judged=judged,
        queries=queries,
        unlabelled=found,
        scored=scored,
        test=MARCO_TEST,
        depth=1000,
        seed=seed,
        labels={
            "qrels": MARCO_TRAIN["qrels"],
            "more": "data:marco/qrels.train.addition.tsv",
            "exclude": MARCO_TEST,
        },
    )
    run(
        Evaluate,
        "metrics",
        runs="stage:pair_run,stage:dpr_run",
        qrels="data:marco/qrels.dev.tsv",
        protocol="msmarco",
    )


def _scored(run: Run, candidates: Ref, by: Ref, queries: Ref, k: int, **more: Any) -> Ref:
    return run(
        Search,
        "scored",
        candidates=candidates,
        reranker=by,
        passages="stage:passages",
        queries=queries,
        k=k,
        **more,
    )


def pair_nq(
    run: Run,
    alpha: float = 0.1,
    finetuning_alpha: float = 0.0,
    tied: bool = True,
    positive: float = 0.9,
    negative: float = 0.1,
    negatives: int = 4,
    candidates: int = 100,
    labelled_as: str = "all",
    extend: bool = True,
    fill: int = 0,
    pseudo_labels: bool = True,
    pretraining: bool = True,
    unlabelled_sources: str = UNLABELLED,
    unlabelled_count: int = 1_800_000,
    bert: str = ERNIE,
    teacher_bert: str = ERNIE_LARGE,
    skip_bad: int = 1000,
    seed: int = 0,
) -> None:
    """PAIR on Natural Questions (Ren et al., 2021), over Wikipedia's 21 million passages.

        qac run pair_nq --data_dir DATA --out out/pair_nq

    As on MS MARCO, but trained with Adam, negatives come from an example's group of 512 instead of
    the whole batch, and positives of judged questions are the first passages that hold an answer.
    figure_4 is the paper's Figure 4: of the complete model, and with --alpha 0.0 of the one without
    the passage-centric loss.

    Set: --data_dir, with what dpr_nq lists, nq-dev.qa.csv, the unlabelled queries (see
    pair_msmarco), and a BERT-large in ernie-2.0-large-en.
    Commonly overridden: see pair_msmarco.
    """
    run.title = "PAIR on Natural Questions"
    run.defaults["skip_bad"] = skip_bad
    passages = _dpr_nq(run, bert, seed)
    unlabelled = run(Sample, "unlabelled", queries=unlabelled_sources, count=unlabelled_count)
    found = f"{unlabelled}/queries.jsonl"
    queries = f"{NQ_TRAIN},{found}"
    near = run(Search, "candidates", index="stage:dpr_index", queries=queries, k=100)
    # The teacher's positive is the first passage that holds an answer, its negative one without.
    of_teacher = run(
        Label,
        "teacher_labels",
        passages=passages,
        candidates=near,
        answers=NQ_TRAIN,
        queries=NQ_TRAIN,
        depth=100,
        order="sampled",
        count=1,
    )
    none = {"queries": "", "qrels": ""}
    examples = teacher_examples(
        run, "teacher_examples", none, of_teacher, teacher_bert, negatives_per_query=1
    )
    # One GPU with 64 pairs; on MS MARCO there are four (RocketQA).
    by = teacher(run, "teacher", examples, teacher_bert, seed, batch_size=64, bind=LARGE)
    scored = _scored(run, near, by, queries, candidates)
    adam = {"optimizers.Optimizer.name": "adamw"}  # the paper has LAMB on MS MARCO only
    labelled(
        run,
        Labels(
            alpha,
            finetuning_alpha,
            tied,
            positive,
            negative,
            negatives,
            candidates,
            labelled_as,
            extend,
            fill,
            pseudo_labels,
            pretraining,
        ),
        start=bert,
        bert=bert,
        judged=NQ_TRAIN,
        queries=queries,
        unlabelled=found,
        scored=scored,
        test=NQ_TEST,
        depth=100,
        seed=seed,
        labels={"answers": NQ_TRAIN, "exclude": f"data:nq-dev.qa.csv,{NQ_TEST}"},
        bind={"pair.Pair.negatives_group": 512, **adam},
        rates=({}, {"train.Schedule.batch_size": 512}),
    )
    run(
        Evaluate,
        "metrics",
        runs="stage:pair_run,stage:dpr_run,stage:bm25_run",
        queries=NQ_TEST,
        passages=passages,
    )
    run(
        Similarities,
        "figure_4",
        encoders="stage:pair",
        runs="stage:pair_run",
        queries=NQ_TEST,
        passages=passages,
    )


def pair_small(
    run: Run,
    alpha: float = 0.1,
    finetuning_alpha: float = 0.0,
    tied: bool = True,
    positive: float = 0.9,
    negative: float = 0.1,
    negatives: int = 4,
    candidates: int = 8,
    labelled_as: str = "all",
    extend: bool = False,  # as its figures were measured
    fill: int = 0,
    pseudo_labels: bool = True,
    pretraining: bool = True,
    true_labels: bool = False,
    folders: str = "data:wikisquad,data:forum,data:tales",
    train: int = 1600,
    test: int = 160,
    mlm_steps: int = 1000,
    reader_epochs: float = 1.0,
    teacher_epochs: float = 0.5,
    crop_steps: int = 300,
    pair_epochs: float = 2.0,
    teacher_bert: str = "shipped:minilm",
    seed: int = 0,
) -> None:
    """PAIR at small size on a CPU: three judged collections as one, half of whose judgements are
    hidden.

        qac run pair_small --data_dir DATA --out out/pair_small
        qac run pair_small_grid --data_dir DATA --out out/pair_small_grid

    The teacher is the larger model, as in the paper (ERNIE-large and base there): MiniLM as a
    cross-encoder, trained on texts alone, then with BM25's scores, which reranks BM25. A small BERT
    is pre-trained on the corpus and becomes a dual encoder by the teacher's labels; metrics of
    BM25, of the teacher and of PAIR on the test questions. --true_labels True: no teacher; all but
    one in a thousand training questions keep their judgements, so that the positives of
    pre-training are right, as many as a teacher labels or more; negatives are BM25's other
    candidates.

    Set: --data_dir, with the folders wikisquad, forum and tales in BEIR's layout (or --folders).
    Commonly overridden: --folders, --train and --test (questions of a folder), --candidates,
    --mlm_steps, --reader_epochs, --teacher_epochs, --crop_steps, --pair_epochs, --alpha,
    --positive, --negative, the student (--gin_file models/bert_mini.gin).
    """
    run.title = "PAIR at small size"
    union = run(
        Unite,
        "union",
        collections=folders,
        train=train,
        test=test,
        **({"judged": 0.999} if true_labels else {}),  # less than 1: the others need a file
    )
    passages = run(
        Prepare, "passages", documents=f"{union}/corpus.jsonl", format="beir", cut="none"
    )
    start = _student(run, passages, mlm_steps, crop_steps)
    trained = {"queries": f"{union}/judged_queries.jsonl", "qrels": f"{union}/judged.tsv"}
    judged, tested = trained["queries"], f"{union}/test_queries.jsonl"
    queries = judged if true_labels else f"{judged},{union}/unjudged_queries.jsonl"
    words = run(Bm25, "bm25", passages=passages)
    near = run(Search, "candidates", index=words, queries=queries, k=50)
    bm25_run = run(Search, "bm25_run", index=words, queries=tested, k=100)
    runs, scored = ["stage:pair_run", bm25_run], ""
    if not true_labels:
        by = _small_teacher(run, trained, near, teacher_bert, reader_epochs, teacher_epochs)
        scored = _scored(run, near, by, queries, candidates, max_length=256)
        runs.append(
            run(
                Search,
                "teacher_run",
                candidates=bm25_run,
                reranker=by,
                passages=passages,
                queries=tested,
                k=100,
                rerank_depth=50,
                max_length=256,
            )
        )
    rate = "optimizers.Optimizer.learning_rate"
    labelled(
        run,
        Labels(
            alpha,
            finetuning_alpha,
            tied,
            positive,
            negative,
            negatives,
            candidates,
            labelled_as,
            extend,
            fill,
            pseudo_labels,
            pretraining,
        ),
        start=start,
        bert="wordpiece-16k",
        judged=judged,
        queries=queries,
        unlabelled=queries,
        scored=scored,
        test=tested,
        depth=100,
        seed=seed,
        labels={
            "qrels": trained["qrels"],
            "exclude": tested,
            "truth": "" if true_labels else f"{union}/unjudged.tsv",
            "lines": "query",
        },
        files=(TINY,),
        bind={
            **NO_DROPOUT,
            **MEANS,
            "pair.Pair.temperature": 0.05,
            "optimizers.Optimizer.name": "adamw",
        },
        schedule={"epochs": pair_epochs, "batch_size": 32},
        rates=({rate: 5e-4}, {rate: 3e-4}),
    )
    run(
        Evaluate,
        "metrics",
        runs=",".join(runs),
        qrels=f"{union}/test.tsv",
        measures=("mrr@10", "recall@50", "ndcg@10"),
    )


def _student(run: Run, passages: Ref, mlm_steps: int, crop_steps: int) -> Ref:
    """A small BERT that can search a little.

    The paper's students start from ERNIE. After this little MLM alone a student has not learned to
    search when training ends (alpha 0.3 and more: MRR@10 below .02), so it is first trained on
    random crops of the passages, as AugTriever's baseline.
    """
    rate = {
        "optimizers.Optimizer.name": "adamw",
        "optimizers.Optimizer.learning_rate": 1e-3,
        "optimizers.Optimizer.weight_decay": 0.0,
    }
    encoder = run(
        Train,
        "encoder",
        "objectives/mlm.gin",
        TINY,
        examples=run(Tokenize, "texts", task="mlm", passages=passages),
        lengths={"tokens": 128},
        steps=mlm_steps,
        batch_size=16,
        bind={**NO_DROPOUT, **rate, "optimizers.Optimizer.warmup_ratio": 0.05},
    )
    return run(
        Train,
        "start",
        "objectives/augtriever.gin",
        TINY,
        examples=run(Tokenize, "crops", task="augtriever", passages=passages),
        init=encoder,
        settings={"strategies": {"random_crop": 1.0}},
        lengths={"passage": 96, "context": 48},
        steps=crop_steps,
        batch_size=64,
        bind={
            **NO_DROPOUT,
            **MEANS,
            **rate,
            "optimizers.Optimizer.warmup_ratio": 0.1,
            "optimizers.Optimizer.warmup_steps": 0,
        },
    )


def _small_teacher(
    run: Run,
    trained: Mapping[str, Ref],
    candidates: Ref,
    bert: Ref,
    reader_epochs: float,
    teacher_epochs: float,
) -> Ref:
    """A teacher that reads a passage and BM25's score of it.

    Few pairs: smaller batches and higher learning rates than the paper's. From these few a teacher
    does not become better than BM25, so its input includes the ratio of BM25's score of the passage
    to the best other passage's. With the ratio from the start it relies on it and uses the text
    little; so it is trained on text alone first (as in the paper), then with the ratio and other
    negatives of the same questions. Passages of these collections are long (tales: 194 words): at
    the paper's 160 tokens a teacher lost a fifth of its MRR on tales. The first stage reads 160
    tokens, which is cheaper. It has one seed: one teacher for the students of all seeds.
    """
    bind = {
        **NO_DROPOUT,
        "optimizers.Optimizer.learning_rate": 1e-4,
        "optimizers.Optimizer.warmup_ratio": 0.1,
    }
    examples = teacher_examples(
        run, "reader_examples", trained, candidates, bert, seed=112, scores=False
    )
    reader = teacher(
        run, "reader", examples, bert, 0, TINY, epochs=reader_epochs, batch_size=16, bind=bind
    )
    examples = teacher_examples(run, "teacher_examples", trained, candidates, bert, scores=True)
    return teacher(
        run,
        "teacher",
        examples,
        reader,
        0,
        TINY,
        lengths={"pair": 256},
        epochs=teacher_epochs,
        batch_size=16,
        bind=bind,
    )


def _ablations() -> dict[str, dict[str, Any]]:
    """The paper's Tables 3 and 5 and its sweep of alpha."""
    return {
        "complete": {},
        "without_passage_centric": {"alpha": 0.0},
        "without_pseudo_labels": {"pseudo_labels": False},
        "passage_centric_finetuning": {"finetuning_alpha": 0.1},
        "without_shared_parameters": {"tied": False},
        "without_pretraining": {"pretraining": False},
        **{
            f"thresholds_{p}_{n}": {"positive": p / 10, "negative": n / 10}
            for p, n in ((8, 2), (7, 3), (6, 4))
        },
        **{f"alpha_{round(10 * a):02}": {"alpha": a} for a in (0.3, 0.5, 0.7, 1.0)},
    }


def pair_nq_tables() -> Grid:
    """PAIR's Tables 3 and 5, its sweep of alpha and Figure 4 on Natural Questions at full size.

        qac run pair_nq_tables --data_dir DATA --out out/pair_nq_tables

    pair_nq with one or two parameters per system. BM25, DPR, the teacher and its scores are made
    once for all systems; every system has its own stage figure_4.

    Set: --data_dir, see pair_nq.
    Commonly overridden: grid.Grid.seeds, .systems.
    """
    return Grid(
        title="PAIR on Natural Questions: ablations, thresholds, alpha",
        recipe="pair_nq",
        systems=_ablations(),
        measures=("hit@5", "hit@20", "hit@100"),
        rows={"pair_run": "PAIR"},
        baselines={"bm25_run": "BM25", "dpr_run": "DPR"},
    )


def pair_small_grid() -> Grid:
    """PAIR's Tables 3 and 5 and its sweep of alpha, at small size.

        qac run pair_small_grid --data_dir DATA --out out/pair_small_grid

    pair_small with one or two parameters per system. BERT, BM25, the teacher and its scores are
    made once for all systems and seeds; more seeds, such as --gin.grid.Grid.seeds='(0, 1, 2)', are
    more students.

    Set: --data_dir, see pair_small.
    Commonly overridden: grid.Grid.seeds, .systems.
    """
    return Grid(
        title="PAIR at small size: ablations, thresholds, alpha",
        recipe="pair_small",
        systems=_ablations(),
        measures=("mrr@10", "recall@50", "ndcg@10"),
        rows={"pair_run": "PAIR"},
        baselines={"bm25_run": "BM25", "teacher_run": "teacher on BM25's top 50"},
    )


def pair_causes_grid() -> Grid:
    """Why does PAIR's passage-centric loss not help in pair_small_grid?

        qac run pair_causes_grid --data_dir DATA --out out/pair_causes

    Likely causes beside its weight and the fine-tuning without it, which are rows there: labels of
    a teacher that is often wrong ("true labels": judgements instead), and a student that cannot
    search yet ("longer start": ten times as many steps of random crops). Each with the loss and
    without it. No teacher is trained.

    Set: --data_dir, see pair_small.
    Commonly overridden: grid.Grid.seeds, .systems, --crop_steps.
    """
    true, longer = {"true_labels": True}, {"crop_steps": 3000}
    without = {"alpha": 0.0}
    return Grid(
        title="PAIR's passage-centric loss: likely causes",
        recipe="pair_small",
        systems={
            "true_labels": true,
            "true_labels_without_passage_centric": {**true, **without},
            "longer_start": {**true, **longer},
            "longer_start_without_passage_centric": {**true, **longer, **without},
        },
        measures=("mrr@10", "recall@50", "ndcg@10"),
        rows={"pair_run": "PAIR"},
        baselines={"bm25_run": "BM25"},
        seeds=(0, 1, 2),
    )
