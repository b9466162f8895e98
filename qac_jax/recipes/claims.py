"""The claim of query-as-context pre-training at small size, on a CPU, and why it may fail."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from qac_jax.pipeline.grid import Grid
from qac_jax.pipeline.inputs import Ref
from qac_jax.pipeline.recipe import Run
from qac_jax.recipes.finetuning import RATE, SMALL, Finetuning, Task, judged, two_rounds
from qac_jax.stages.evaluate import Evaluate, EvaluateBeir
from qac_jax.stages.generate import Generate
from qac_jax.stages.index import Bm25
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.questions import Collect
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


MEASURES = ("mrr@10", "ndcg@10", "hit@1", "recall@100")
# Each query is seen only a few times, and there are some thousand passages.
MINING = {"keep": 8, "depth": 30}


@dataclasses.dataclass(frozen=True)
class Small:
    """Parameters of a small BERT on one collection."""

    objective: str = "cotmae"
    contexts: str = "passage_query"
    pretraining: bool = True
    init: str = ""
    contexts_of: str = ""
    generator: str = "shipped:qgen"
    queries: int = 5
    samples: int = 4
    round_trip: int = 10
    mlm_steps: int = 1000
    pretraining_steps: int = 300
    finetuning_steps: int = 300
    passage_tokens: int = 80
    context_tokens: int = 20
    n_passages: int = 2
    negatives_2: str = "mined+bm25"
    seed: int = 0

    @property
    def finetuning(self) -> Finetuning:
        schedule = {"epochs": 0.0, "steps": self.finetuning_steps, "batch_size": 32}
        return Finetuning(self.n_passages, self.seed, [SMALL], {RATE: 1e-3}, schedule)

    def reading(self, contexts: str) -> dict[str, Any]:
        """How contexts of this kind are chosen (Table 4 of the paper: queries and passages mixed).

        Contexts "mlm": a passage is its own context, as RetroMAE and DupMAE are published.
        """
        if contexts == "mlm":
            lengths = {"tokens": self.passage_tokens}
            return {"kind": contexts, "settings": None, "lengths": lengths}
        sorts = ("random", "nearby", "overlap")
        mixed = {"query": 0.5, **dict.fromkeys(sorts, 0.1667)}
        settings: dict[str, Mapping[str, Any]] = {
            "passage_query": {"queries": self.queries},
            "passage_passage": {"sorts": [*sorts]},
            "two_spans": {},
            "mixed": {"queries": self.queries, "probabilities": mixed},
        }
        of_query = contexts == "passage_query"
        length = self.context_tokens if of_query else self.passage_tokens
        return {
            "kind": contexts,
            "settings": settings.get(contexts),
            "lengths": {"passage": self.passage_tokens, "context": length},
        }


def collection(run: Run) -> Task:
    """Passages and questions of the data folder."""
    passages = run(Prepare, "passages", format="beir", documents=run.data)
    questions = run(Collect, "questions", collection=run.data, passages=passages, train="judged")
    train, test = judged(questions, "train"), judged(questions, "test")
    return Task(passages, train, test, passage_length=80, depth=100)


def start(run: Run, p: Small, passages: Ref) -> tuple[Ref, Ref]:
    """A small BERT, trained by masked-language modelling on the passages, and queries for all of
    them, those for which BM25 finds their passage; as far as neither is given."""
    init, contexts = p.init, p.contexts_of
    if not init:
        init = run(
            Train,
            "base",
            "objectives/mlm.gin",
            SMALL,
            examples=run(Tokenize, "words", task="mlm", passages=passages),
            lengths={"tokens": p.passage_tokens},
            steps=p.mlm_steps,
        )
    if not contexts:
        contexts = run(
            Generate,
            "contexts",
            passages=passages,
            generator=p.generator,
            max_input=192,
            title="space",
            index="stage:bm25",
            round_trip=p.round_trip,
            samples=p.samples,
            **ASKING,
        )
    return init, contexts


# Queries of a small generator, which repeats itself otherwise.
ASKING = {"max_tokens": 32, "temperature": 0.6, "top_p": 0.8, "no_repeat_ngram": 2}


def pretrained(run: Run, p: Small, init: Ref, examples: Ref) -> Ref:
    """Further pre-training, as long and as fast whatever the context and objective."""
    return run(
        Train,
        "encoder",
        f"objectives/{p.objective}.gin",
        SMALL,
        examples=examples,
        init=init,
        seed=p.seed,
        separate_documents=p.contexts != "two_spans",  # where an example is a document
        steps=p.pretraining_steps,
        **p.reading(p.contexts),
    )


def finished(run: Run, p: Small, task: Task, encoder: Ref, contexts: Ref) -> list[str]:
    """Both retrievers, BM25 with generated queries, and the encoder's own vectors, of texts as
    pre-training read them; the names of the runs."""
    two_rounds(run, task, encoder, p.finetuning, p.negatives_2, mining=MINING)
    read = {"title": "none", "max_length": task.passage_length}
    task.searched(run, "{}_0", encoder, pooling="mean", normalize="yes", **read)
    words = {"passages": task.passages, "expand": contexts, "queries_each": p.queries}
    task.search(run, "run_expanded", run(Bm25, "bm25_expanded", **words))
    return ["run_bm25", "run_expanded", "run_0", "run_1", "run_2"]


def evaluated(run: Run, task: Task, names: Sequence[str]) -> None:
    """The metrics of these runs."""
    runs = [f"stage:{name}" for name in names]
    judging = {"qrels": task.test["qrels"], "permutations": 1000, "measures": MEASURES}
    run(Evaluate, "metrics", runs=runs, **judging)


@dataclasses.dataclass(frozen=True)
class Cell(Small):
    elsewhere: str = ""


def claim_cell(run: Run, p: Cell) -> None:
    """One cell of the first claim: does an encoder that was pre-trained with queries retrieve
    better?

    A small BERT, with or without further pre-training on the collection's passages, is fine-tuned
    to retrievers 1 and 2 on the training questions; both are judged on the test questions.

    Set: --data_dir, a folder in BEIR's layout with documents.jsonl, qrels/train.tsv,
    qrels/test.tsv.
    Commonly overridden: --mlm_steps, or --init (parameters of a BERT that was
    trained on these passages; otherwise no pre-training is not a fair baseline); --generator, or
    --contexts_of (contexts from `qac generate`); --pretraining_steps (a decoder needs some hundreds
    before it uses the vector), --finetuning_steps; --objective cocondenser, retromae, dupmae;
    --contexts passage_passage (CoT-MAE's own), two_spans (coCondenser's), mixed, mlm (RetroMAE's
    and DupMAE's); --pretraining False; --elsewhere data:.. (a folder of other collections, on which
    retriever 1 is judged too).
    """
    run.title = "One cell of the claim"
    task = collection(run)
    encoder, contexts = start(run, p, task.passages)
    if p.pretraining:
        examples = "stage:words"
        if p.contexts != "mlm":
            paired = {"passages": task.passages, "contexts": contexts}
            examples = run(Tokenize, "pairs", task=p.contexts, **paired)
        encoder = pretrained(run, p, encoder, examples)
    evaluated(run, task, finished(run, p, task, encoder, contexts))
    if p.elsewhere:
        run(
            EvaluateBeir,
            "elsewhere",
            beir=p.elsewhere,
            encoder="stage:retriever_1",
            max_length=task.passage_length,
            measures=MEASURES,
            depth=100,
        )


NONE = {"pretraining": False}
PASSAGES: Mapping[str, Any] = {"gin": ["overlays/passage_pairs.gin"]}
TWO_SPANS = {"gin": ["overlays/two_spans.gin"]}
MIXED = {"gin": ["overlays/mixed.gin"]}
COCONDENSER = {"objective": "cocondenser"}
CAUSAL: Mapping[str, Any] = {"cotmae.CotMae.decoder": "causal"}
ONE_WAY = {"cotmae.CotMae.symmetric": False}


def _grid(title: str, systems: Mapping[str, Mapping[str, Any]], **more: Any) -> Grid:
    described = {
        "title": title,
        "recipe": "claim_cell",
        "systems": systems,
        "seeds": (0, 1, 2),
        "rows": {"run_1": "retriever 1", "run_2": "retriever 2", "run_0": "before fine-tuning"},
        "baselines": {"run_bm25": "BM25", "run_expanded": "BM25 + generated queries"},
        "measures": MEASURES,
    }
    return Grid(**{**described, **more})


def claim_qac() -> Grid:
    """The first claim of query-as-context pre-training: what are queries as contexts worth?

    The same small BERT with no further pre-training, and with passages (each objective's own
    baseline: RetroMAE's and DupMAE's is the passage itself, beside it CoT-MAE's pairs for
    RetroMAE), queries, or both as contexts; the same numbers of examples and steps, three seeds;
    BM25 and BM25 with generated queries for comparison.

    Set: --data_dir (see claim_cell).
    Commonly overridden: what claim_cell lists, and grid.Grid.seeds.
    """
    return _grid(
        "Queries as contexts: what further pre-training is worth",
        {
            "none": NONE,
            "passages-cotmae": PASSAGES,
            "queries-cotmae": {},
            "mixed-cotmae": MIXED,
            "passages-cocondenser": {**TWO_SPANS, **COCONDENSER},
            "queries-cocondenser": COCONDENSER,
            "mixed-cocondenser": {**MIXED, **COCONDENSER},
            "passages-retromae": {"objective": "retromae", "contexts": "mlm"},
            "pairs-retromae": {**PASSAGES, "objective": "retromae"},
            "queries-retromae": {"objective": "retromae"},
            "passages-dupmae": {"objective": "dupmae", "contexts": "mlm"},
            "queries-dupmae": {"objective": "dupmae"},
        },
    )


def claim_qac_decoders() -> Grid:
    """claim_qac with CoT-MAE's causal decoder (the released recipe's) beside the masked one.

    In the folder of claim_qac it takes over what is finished.

    Set: --data_dir (see claim_cell).
    Commonly overridden: what claim_cell lists, and grid.Grid.seeds.
    """
    decoders: dict[str, Mapping[str, Any]] = {
        "passages-cotmae-causal": {**PASSAGES, **CAUSAL},
        "queries-cotmae-causal": CAUSAL,
    }
    return _grid(
        "Queries as contexts, by both decoders of CoT-MAE", {**claim_qac().systems, **decoders}
    )


def claim_qac_causes() -> Grid:
    """Why are queries no better contexts than passages for CoT-MAE in claim_qac?

    Likely causes: an encoder that does not know words yet (--init), too few steps ("long"), a
    baseline that is encoded both ways and so reads twice the text ("one-way"), a decoder that
    guesses a context without the vector ("causal" sees only three tokens and the vector), steps so
    large that the encoder forgets what it knew ("gentle": a tenth of the learning rate).

    Set: --data_dir (see claim_cell).
    Commonly overridden: --init (an encoder that has read much more text than claim_cell's;
    docs/results/query-as-context.md says how ours was made), grid.Grid.seeds, .systems.
    """
    long = {"pretraining_steps": 1200}
    gentle = {"encoder/optimizers.Optimizer.learning_rate": 1e-4}
    return _grid(
        "Queries as contexts of CoT-MAE: likely causes",
        {
            "none": NONE,
            "passages": PASSAGES,
            "queries": {},
            "passages-one-way": {**PASSAGES, **ONE_WAY},
            "passages-one-way-long": {**PASSAGES, **ONE_WAY, **long},
            "queries-long": long,
            "passages-causal": {**PASSAGES, **CAUSAL},
            "passages-one-way-causal": {**PASSAGES, **ONE_WAY, **CAUSAL},
            "queries-causal": CAUSAL,
            "passages-gentle": {**PASSAGES, **ONE_WAY, **gentle},
            "queries-gentle": gentle,
        },
        seeds=(0,),
    )


def claim_queries() -> Grid:
    """How many queries a passage: 1, 5, 10, 20 (Table 3 of query-as-context pre-training)?

    As contexts of coCondenser, whose queries help in claim_qac; beside no further pre-training and
    its baseline. Each is fine-tuned on the collection, and judged on it and on others. All are
    chosen from the same 20 of a passage, before the round trip.

    Set: --data_dir (see claim_cell), a folder beside the other collections.
    Commonly overridden: grid.Grid.seeds, .systems, --elsewhere, and what claim_cell lists.
    """
    both = {**COCONDENSER, "samples": 20, "elsewhere": "data:.."}
    others = ("tales", "forum", "scifact", "npl", "cisi")
    return _grid(
        "How many queries a passage",
        {
            "none": {**both, **NONE},
            "passages": {**both, **TWO_SPANS},
            **{f"queries_{n}": {**both, "queries": n} for n in (1, 5, 10, 20)},
        },
        metrics="metrics,elsewhere",
        rows={
            "run_1": "retriever 1",
            "run_2": "retriever 2",
            "run_0": "before fine-tuning",
            **{name: f"retriever 1 on {name}" for name in others},
        },
        baselines={"run_bm25": "BM25"},
    )
