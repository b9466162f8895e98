"""PAIR: DPR's retriever, a teacher's labels of its candidates, two losses; full and small size."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from qac_jax.pipeline.grid import Grid
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes.finetuning import (
    EXACT,
    FINETUNE,
    MARCO_TEST,
    MARCO_TRAIN,
    RATE,
    SMALL,
    Paper,
    judged,
    masked,
    scann,
    searched,
)
from qac_jax.stages.analyse import Similarities
from qac_jax.stages.evaluate import Evaluate
from qac_jax.stages.index import Bm25
from qac_jax.stages.mine import Label
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.questions import Sample, Unite
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


# 1.8 million queries (section 4.1): Yahoo! Answers, SQuAD, TriviaQA, HotpotQA and ORCAS.
UNLABELLED = (
    "data:yahoo_answers.tsv,data:squad.jsonl,data:triviaqa.jsonl,data:hotpotqa.jsonl,data:orcas.tsv"
)
NQ_TRAIN, NQ_TEST = "data:biencoder-nq-train.json", "data:nq-test.qa.csv"
MARCO_JUDGED = {"qrels": MARCO_TEST["qrels"], "protocol": "msmarco"}
ADAM = "optimizers.Optimizer.name"
WARMUP = "optimizers.Optimizer.warmup_ratio"


@dataclasses.dataclass(frozen=True)
class Dpr(Paper):
    bert: str = "data:ernie-2.0-base-en"


def _dpr(
    run: Run, p: Dpr, train: Ref, test: Ref, depth: int, epochs: float, **examples: Any
) -> None:
    """A dual encoder with one hard negative per query and in-batch negatives, and its run."""
    read = {"tokenizer": p.bert, "title": "separate", "keep": 30}
    encoder = run(
        Train,
        "dpr",
        FINETUNE,
        examples=run(Tokenize, "dpr_examples", task="triples", **read, **examples),
        init=p.bert,
        seed=p.seed,
        settings={"n_passages": 2},
        lengths={"query": 32, "passages": 128},
        epochs=epochs,
        batch_size=128,
        bind={"encoders.DualEncoderConfig.tied": False, "optimizers.Optimizer.weight_decay": 0.0},
    )
    # PAIR's candidates are the first 50 (on Natural Questions 100) of the same index.
    found = scann(train, depth, mined=100 if depth > 100 else 0)
    searched(run, "dpr_{}", encoder, "stage:passages", test, depth, index=found)


def _dpr_msmarco(run: Run, p: Dpr) -> None:
    run.usual(skip_bad=p.skip_bad)
    documents = {"documents": "data:marco", "tokenizer": p.bert}
    passages = run(Prepare, "passages", format="msmarco_passages", **documents)
    negatives = "data:qidpidtriples.train.full.2.tsv.gz"
    examples = {"passages": passages, **MARCO_TRAIN, "negatives": negatives}
    _dpr(run, p, MARCO_TRAIN["queries"], MARCO_TEST["queries"], 1000, 10.0, **examples)


def dpr_msmarco(run: Run, p: Dpr) -> None:
    """The baseline on MS MARCO's passages: DPR with one BM25 negative (Karpukhin et al., 2020).

    It is also PAIR's retriever of candidates (pair_msmarco).

    Set: --data_dir, with RocketQA's folder marco (para.txt, para.title.txt, train.query.txt,
    dev.query.txt, qrels.train.tsv, qrels.dev.tsv), MS MARCO's qidpidtriples.train.full.2.tsv.gz and
    a BERT in ernie-2.0-base-en.
    """
    _dpr_msmarco(run, p)
    run(Evaluate, "metrics", runs="stage:dpr_run", **MARCO_JUDGED)


def _dpr_nq(run: Run, p: Dpr) -> dict[str, Ref]:
    """DPR and BM25 on Wikipedia's 21 million passages; what runs are judged by."""
    run.usual(skip_bad=p.skip_bad)
    documents = {"documents": "data:psgs_w100.tsv", "tokenizer": p.bert}
    passages = run(Prepare, "passages", format="dpr", **documents)
    words = run(Bm25, "bm25", passages=passages)
    run(Search, "bm25_run", index=words, queries=NQ_TEST, k=100)
    _dpr(run, p, NQ_TRAIN, NQ_TEST, 100, 40.0, training=NQ_TRAIN, training_format="dpr")
    return {"queries": NQ_TEST, "passages": passages}


def dpr_nq(run: Run, p: Dpr) -> None:
    """The baseline on Natural Questions: DPR over Wikipedia's 21 million passages.

    From DPR's own training file: its questions that have a positive passage (58,812), each with its
    positives and BM25's hard negatives, as text.

    Set: --data_dir, with DPR's psgs_w100.tsv, biencoder-nq-train.json and nq-test.qa.csv, and a
    BERT in ernie-2.0-base-en.
    """
    judging = _dpr_nq(run, p)
    run(Evaluate, "metrics", runs="stage:dpr_run,stage:bm25_run", **judging)


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
    labelled_as: str = "all"  # candidates above `positive`; the released data have the "best" one
    extend: bool = True  # judged queries get positives that the teacher is sure of (section 3.3)
    fill: int = 0
    pseudo_labels: bool = True
    pretraining: bool = True
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Pair(Labels, Dpr):
    unlabelled_sources: str = UNLABELLED
    unlabelled_count: int = 1_800_000
    teacher_bert: str = "data:ernie-2.0-large-en"


def _teacher(
    run: Run,
    name: str,
    bert: Ref,
    init: Ref,
    negatives: Ref,
    *files: str,
    of: Mapping[str, Any],
    **training: Any,
) -> Ref:
    """A cross-encoder that classifies pairs: 1 positive to 4 negatives of the first 1,000."""
    read = {"passages": "stage:passages", "negatives": negatives, "tokenizer": bert}
    pairs = {"seed": 111, "depth": 1000, "negatives_per_query": 4, **of}
    examples = run(Tokenize, f"{name}_examples", task="cross_encoder", **read, **pairs)
    files = ("objectives/cross_encoder.gin", *files)
    return run(Train, name, *files, examples=examples, init=init, **{"epochs": 2.0, **training})


def _labelled(
    run: Run,
    p: Labels,
    teacher: Ref,
    judged: Ref,
    unjudged: Ref,
    labels: Mapping[str, Any],  # what is known of both
    init: Ref,
    bert: Ref,
    *files: str,
    epochs: float = 10.0,
    bind: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
    **reading: Any,
) -> Ref:
    """A teacher's scores of the candidates, labels of all queries for pre-training and of the
    judged ones for fine-tuning; both trainings, with what is bound for each. Of the teacher
    `reading`.

    Pre-training is on the unjudged questions (section 3.4).
    """
    candidates = {"candidates": "stage:candidates", "passages": "stage:passages"}
    of = {"reranker": teacher, "queries": f"{judged},{unjudged}", "k": p.candidates, **reading}
    scored, pretrained_on = run(Search, "scored", **candidates, **of), unjudged
    if not p.pseudo_labels:  # negatives that no teacher has scored
        scored, pretrained_on = "", judged
    labels = {
        "positive": p.positive,
        "negative": p.negative,
        "positives": p.labelled_as,
        "extend": p.extend,
        "count": p.negatives,
        "depth": p.candidates,
        "fill": p.fill,
        "lines": "pair",  # 1:4 is one positive on four lines
        **labels,
    }
    stages = (
        ("pretrained", "labels", "pair_examples", pretrained_on, p.alpha, bind[0]),
        ("pair", "judged_labels", "judged_examples", judged, p.finetuning_alpha, bind[1]),
    )
    # Without pre-training fine-tuning remains: ground truth and pseudo-labels of the labelled
    # corpus (section 3.4).
    for name, made, tokenized, asked, alpha, bound in stages if p.pretraining else stages[1:]:
        found = run(Label, made, queries=asked, scored=scored, **candidates, **labels)
        read = {"passages": "stage:passages", "tokenizer": bert, "title": "separate"}
        triples = run(Tokenize, tokenized, task="triples", negatives=found, **read)
        init = run(
            Train,
            name,
            "objectives/pair.gin",
            *files,
            examples=triples,
            init=init,
            seed=p.seed,
            epochs=epochs,
            bind={**bound, "pair.Pair.alpha": alpha, "encoders.DualEncoderConfig.tied": p.tied},
        )
    return init


def _unlabelled(run: Run, p: Pair) -> Ref:
    queries, count = p.unlabelled_sources, p.unlabelled_count
    return f"{run(Sample, 'unlabelled', queries=queries, count=count)}/queries.jsonl"


def _large(run: Run, p: Pair, negatives: Ref, **more: Any) -> Ref:
    """The paper's teacher, a BERT-large."""
    shape = {"hidden_size": 1024, "num_layers": 24, "num_heads": 16, "intermediate_size": 4096}
    bind = {f"bert.BertConfig.{name}": size for name, size in shape.items()}
    start = p.teacher_bert
    return _teacher(run, "teacher", start, start, negatives, **more, seed=p.seed, bind=bind)


def pair_msmarco(run: Run, p: Pair) -> None:
    """PAIR on MS MARCO's passages (Ren et al., 2021).

    A teacher labels a retriever's candidates for judged and unjudged queries; a dual encoder is
    pre-trained with both losses, then fine-tuned with the query-centric one. 8 x 512 examples per
    step, 10 epochs, LAMB 3e-5. The ablations of the paper's Table 3: w/o PSR --alpha 0.0; w/ PSR FT
    --finetuning_alpha 0.1; w/o KD --pseudo_labels False; w/o SP --tied False; w/o PT --pretraining
    False.

    Set: --data_dir, with what dpr_msmarco lists, marco/qrels.train.addition.tsv, the unlabelled
    queries (yahoo_answers.tsv, squad.jsonl, triviaqa.jsonl, hotpotqa.jsonl, orcas.tsv; any format
    of query files), and a BERT-large in ernie-2.0-large-en.
    Commonly overridden: --alpha 0.3, --positive 0.8 --negative 0.2, overlays/released.gin.
    """
    _dpr_msmarco(run, p)
    unlabelled = _unlabelled(run, p)
    asked, test = MARCO_TRAIN["queries"], MARCO_TEST["queries"]
    queries = f"{asked},{unlabelled}"
    of_judged = run(Search, "train_run", index="stage:dpr_index", queries=asked)
    run(Search, "candidates", index="stage:dpr_index", queries=queries, k=50)
    teacher = _large(run, p, of_judged, of=MARCO_TRAIN)
    labels = {
        "qrels": MARCO_TRAIN["qrels"],
        "more": "data:marco/qrels.train.addition.tsv",
        "exclude": test,
    }
    pair = _labelled(run, p, teacher, asked, unlabelled, labels, p.bert, p.bert)
    searched(run, "pair_{}", pair, "stage:passages", test, 1000, index=scann(asked, 1000))
    run(Evaluate, "metrics", runs="stage:pair_run,stage:dpr_run", **MARCO_JUDGED)


@dataclasses.dataclass(frozen=True)
class PairNq(Pair):
    candidates: int = 100
    gold: bool = True  # a judged question's positive; else the first passage that holds an answer


def pair_nq(run: Run, p: PairNq) -> None:
    """PAIR on Natural Questions (Ren et al., 2021), over Wikipedia's 21 million passages.

    As on MS MARCO, but trained with Adam, negatives come from an example's group of 512 instead of
    the whole batch, and the 58,812 judged questions have DPR's positives (--gold False: the first
    passage that holds an answer, as released). figure_4 is the paper's Figure 4: of the complete
    model, and with --alpha 0.0 of the one without the passage-centric loss.

    Set: --data_dir, with what dpr_nq lists, nq-dev.qa.csv, the unlabelled queries (see
    pair_msmarco), and a BERT-large in ernie-2.0-large-en.
    """
    judging = _dpr_nq(run, p)
    unlabelled = _unlabelled(run, p)
    queries = f"{NQ_TRAIN},{unlabelled}"
    near = run(Search, "candidates", index="stage:dpr_index", queries=queries, k=100)
    # The teacher's positive is the first passage that holds an answer, its negative one without.
    of_teacher = run(
        Label,
        "teacher_labels",
        passages=judging["passages"],
        candidates=near,
        answers=NQ_TRAIN,
        queries=NQ_TRAIN,
        depth=100,
        order="sampled",
        count=1,
    )
    # One GPU with 64 pairs; on MS MARCO there are four (RocketQA).
    teacher = _large(run, p, of_teacher, of={"negatives_per_query": 1}, batch_size=64)
    # The paper has LAMB on MS MARCO only.
    bind: dict[str, Any] = {"pair.Pair.negatives_group": 512, ADAM: "adamw"}
    labels = {"answers": NQ_TRAIN, "exclude": f"data:nq-dev.qa.csv,{NQ_TEST}"}
    labels |= {"qrels": NQ_TRAIN} if p.gold else {}
    how: dict[str, Any] = {"bind": (bind, {**bind, "train.Schedule.batch_size": 512})}
    pair = _labelled(run, p, teacher, NQ_TRAIN, unlabelled, labels, p.bert, p.bert, **how)
    searched(run, "pair_{}", pair, "stage:passages", NQ_TEST, 100, index=scann(NQ_TRAIN, 100))
    run(Evaluate, "metrics", runs="stage:pair_run,stage:dpr_run,stage:bm25_run", **judging)
    run(
        Similarities, "figure_4", encoders="stage:pair", runs="stage:pair_run", **judging, at_most=0
    )


@dataclasses.dataclass(frozen=True)
class PairSmall(Labels):
    candidates: int = 8
    folders: str = "data:wikisquad,data:forum,data:tales"
    train: int = 1600
    test: int = 160
    mlm_steps: int = 1000
    reader_epochs: float = 1.0
    teacher_epochs: float = 0.5
    crop_steps: int = 300
    pair_epochs: float = 2.0
    teacher_bert: str = "shipped:minilm"


def pair_small(run: Run, p: PairSmall) -> None:
    """PAIR at small size on a CPU: three judged collections as one, half of whose judgements are
    hidden.

    The teacher is the larger model, as in the paper (ERNIE-large and base there): MiniLM as a
    cross-encoder, trained on texts alone, then with BM25's scores, which reranks BM25. A small BERT
    is pre-trained on the corpus and becomes a dual encoder by the teacher's labels; metrics of
    BM25, of the teacher and of PAIR on the test questions.

    Set: --data_dir, with the folders wikisquad, forum and tales in BEIR's layout (or --folders).
    Commonly overridden: see pair_msmarco; the student (--gin_file models/bert_mini.gin).
    """
    union = run(Unite, "union", collections=p.folders, train=p.train, test=p.test)
    documents = {"documents": f"{union}/corpus.jsonl", "format": "beir", "cut": "none"}
    passages = run(Prepare, "passages", **documents)
    known = judged(union, "judged")
    asked, tested = known["queries"], f"{union}/test_queries.jsonl"
    unjudged = f"{union}/unjudged_queries.jsonl"
    queries = f"{asked},{unjudged}"
    words = run(Bm25, "bm25", passages=passages)
    run(Search, "candidates", index=words, queries=queries, k=50)
    bm25_run = run(Search, "bm25_run", index=words, queries=tested, k=100)
    reader = _small_teacher(run, p, known)
    reranked = {"candidates": bm25_run, "reranker": reader, "rerank_depth": 50}
    read = {"passages": passages, "queries": tested, "max_length": 256}
    runs = ["stage:pair_run", bm25_run, run(Search, "teacher_run", k=100, **reranked, **read)]
    truth = f"{union}/unjudged.tsv"
    labels = {"qrels": known["qrels"], "exclude": tested, "lines": "query", "truth": truth}
    how: dict[str, Any] = {"max_length": 256, "epochs": p.pair_epochs}
    how["bind"] = {RATE: 5e-4}, {RATE: 3e-4}
    start = _student(run, p), "wordpiece-16k"
    pair = _labelled(run, p, reader, asked, unjudged, labels, *start, SMALL, **how)
    searched(run, "pair_{}", pair, passages, tested, 100, index=EXACT)
    run(Evaluate, "metrics", runs=runs, qrels=f"{union}/test.tsv", measures=SMALL_MEASURES)


def _student(run: Run, p: PairSmall) -> Ref:
    """A small BERT that can search a little.

    The paper's students start from ERNIE. After this little MLM alone a student has not learned to
    search when training ends (alpha 0.3 and more: MRR@10 below .02), so it is first trained on
    random crops of the passages, as AugTriever's baseline.
    """
    passages, decay = "stage:passages", {"optimizers.Optimizer.weight_decay": 0.0}
    bind = {**decay, WARMUP: 0.05}
    encoder = masked(
        run, "encoder", "texts", passages, SMALL, steps=p.mlm_steps, batch_size=16, bind=bind
    )
    return run(
        Train,
        "start",
        "objectives/augtriever.gin",
        SMALL,
        examples=run(Tokenize, "crops", task="augtriever", passages=passages),
        init=encoder,
        settings={"strategies": {"random_crop": 1.0}},
        lengths={"passage": 96, "context": 48},
        steps=p.crop_steps,
        batch_size=64,
        bind={**decay, WARMUP: 0.1, "optimizers.Optimizer.warmup_steps": 0},
    )


def _small_teacher(run: Run, p: PairSmall, known: Mapping[str, Ref]) -> Ref:
    """A teacher that reads a passage and BM25's score of it.

    Few pairs: smaller batches and higher learning rates than the paper's. From these few a teacher
    does not become better than BM25, so its input includes the ratio of BM25's score of the passage
    to the best other passage's. With the ratio from the start it relies on it and uses the text
    little; so it is trained on text alone first (as in the paper), then with the ratio and other
    negatives of the same questions. Passages of these collections are long (tales: 194 words): at
    the paper's 160 tokens a teacher lost a fifth of its MRR on tales. The first stage reads 160
    tokens, which is cheaper. It has one seed: one teacher for the students of all seeds.
    """
    init = p.teacher_bert
    for name, seed, scores, length, epochs in (
        ("reader", 112, False, 160, p.reader_epochs),
        ("teacher", 111, True, 256, p.teacher_epochs),
    ):
        of = {"seed": seed, "scores": scores, **known}
        how = {"lengths": {"pair": length}, "epochs": epochs, "batch_size": 16}
        how["bind"] = {RATE: 1e-4, WARMUP: 0.1}
        init = _teacher(run, name, p.teacher_bert, init, "stage:candidates", SMALL, of=of, **how)
    return init


SMALL_MEASURES = ("mrr@10", "recall@50", "ndcg@10")


# The paper's Tables 3 and 5 and its sweep of alpha.
_ABLATIONS: dict[str, dict[str, Any]] = {
    "complete": {},
    "without_passage_centric": {"alpha": 0.0},
    "without_pseudo_labels": {"pseudo_labels": False},
    "passage_centric_finetuning": {"finetuning_alpha": 0.1},
    "without_shared_parameters": {"tied": False},
    "without_pretraining": {"pretraining": False},
    **{
        f"thresholds_{n}_{10 - n}": {"positive": n / 10, "negative": (10 - n) / 10}
        for n in (8, 7, 6)
    },
    **{f"alpha_{n:02}": {"alpha": n / 10} for n in (3, 5, 7, 10)},
}
_ALPHAS = {f"alpha_{n:02}": {"alpha": n / 10} for n in range(2, 11)}  # beside 0 and 0.1


def pair_nq_tables() -> Grid:
    """PAIR's Tables 2 to 5 and Figure 4 on Natural Questions at full size: eleven values of alpha.

    pair_nq with one or two parameters per system. BM25, DPR, the teacher and its scores are made
    once for all systems; every system has its own stage figure_4.

    Set: --data_dir, see pair_nq.
    """
    return Grid(
        title="PAIR on Natural Questions: ablations, thresholds, alpha",
        recipe="pair_nq",
        systems={**_ABLATIONS, **_ALPHAS},
        measures=("hit@5", "hit@20", "hit@100"),
        rows={"pair_run": "PAIR"},
        baselines={"bm25_run": "BM25", "dpr_run": "DPR"},
    )


def pair_small_grid() -> Grid:
    """PAIR's Tables 3 and 5 and its sweep of alpha, at small size.

    pair_small with one or two parameters per system. BERT, BM25, the teacher and its scores are
    made once for all systems and seeds; more seeds, such as --gin.grid.Grid.seeds='(0, 1, 2)', are
    more students.

    Set: --data_dir, see pair_small.
    """
    return Grid(
        title="PAIR at small size: ablations, thresholds, alpha",
        recipe="pair_small",
        systems=_ABLATIONS,
        measures=SMALL_MEASURES,
        rows={"pair_run": "PAIR"},
        baselines={"bm25_run": "BM25", "teacher_run": "teacher on BM25's top 50"},
    )
