"""The verbs of the command line, the steps of recipes and the benchmarks: one table each.

A verb is a stage or a function of `cli.py`. With one of its flags in `variants` it is another
stage. A step is a stage that only recipes need; `qac step NAME` runs it. Nothing is imported
before it is asked for.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Verb:
    """A name, a line about it, and the stage behind it ("" for functions of `cli.py`)."""

    name: str
    summary: str
    target: str = ""  # MODULE:CLASS
    group: str = ""
    front: bool = False  # listed by `qac --help`; the others by `qac help all`
    variants: Mapping[str, str] = dataclasses.field(default_factory=dict)  # flag -> MODULE:CLASS

    def load(self, target: str = "") -> Any:
        """The class of the stage (or of a variant, or of a benchmark)."""
        module, _, name = (target or self.target).partition(":")
        return getattr(importlib.import_module(module), name)


def _verb(
    group: str,
    name: str,
    summary: str,
    target: str = "",
    variants: Mapping[str, str] | None = None,
    front: bool = False,
) -> Verb:
    place = f"qac_jax.stages.{target}" if target else ""
    more = {flag: f"qac_jax.stages.{of}" for flag, of in (variants or {}).items()}
    return Verb(name, summary, place, group, front, more)


def use(*arguments: Any, **options: Any) -> Verb:
    return _verb("use", *arguments, **options)


def build(*arguments: Any, **options: Any) -> Verb:
    return _verb("build", *arguments, **options)


def measure(*arguments: Any, **options: Any) -> Verb:
    return _verb("measure", *arguments, **options)


def look(*arguments: Any, **options: Any) -> Verb:
    return _verb("look", *arguments, **options)


VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        use(
            "index",
            "vectors → an exact, ScaNN or FAISS index; FOLDER --add DOCS → a living one",
            "index:Index",
            front=True,
        ),
        use(
            "search",
            "a question → its hits; queries and an index → a TREC run",
            "search:Search",
            front=True,
        ),
        use("serve", "an index → an endpoint and a page that answer queries", front=True),
        use("run", "a recipe (or grid) → its artefacts; finished stages are skipped", front=True),
        use("report", "a folder of results → an HTML page and tables", "report:Report", front=True),
        build(
            "prepare",
            "documents in any format → passages that keep their documents' ids",
            "prepare:Prepare",
            front=True,
        ),
        build(
            "generate",
            "passages → queries for each, by a T5 or imported from a file",
            "generate:Generate",
            front=True,
        ),
        build(
            "extract",
            "passages → pseudo-queries taken from their text: spans, titles, anchors",
            "extract:Extract",
        ),
        build(
            "tokenize",
            "passages with contexts, or judged queries → training examples",
            "tokenize:Tokenize",
        ),
        build(
            "train",
            "training examples and an objective → model parameters",
            "train:Train",
            front=True,
        ),
        build("embed", "passages or queries → vectors of a dual encoder", "embed:Embed"),
        build(
            "bm25",
            "passages → a BM25 index, expanded by generated queries if asked (docT5query)",
            "index:Bm25",
        ),
        build(
            "fuse",
            "runs of the same queries → one run; --index with --bm25 → one index of both",
            "search:Fuse",
            variants={"--index": "index:Hybrid", "--bm25": "index:Hybrid"},
        ),
        build("mine", "queries and an index → hard negatives for each query", "mine:Mine"),
        build(
            "label",
            "a retriever's candidates, scored by a cross-encoder → positives and negatives",
            "mine:Label",
        ),
        build(
            "export",
            "parameters → a transformers or sentence-transformers folder; --faiss → FAISS's file",
            "export:Export",
            variants={"--faiss": "export:ExportFaiss"},
        ),
        measure(
            "evaluate",
            "runs and judgements, or an encoder and --beir folders → metrics",
            "evaluate:Evaluate",
            variants={"--beir": "evaluate:EvaluateBeir"},
            front=True,
        ),
        measure(
            "analyse",
            "contexts → how related they are; --sheets, --encoders: votes, similarities",
            "analyse:Relate",
            variants={"--sheets": "analyse:Votes", "--encoders": "analyse:Similarities"},
        ),
        measure("bench", "speed beside a peer library in the same run", front=True),
        look("recipes", "the recipes that come with the package, and what each needs", front=True),
        look("plan", "a recipe → its cost: steps, tokens, FLOPs, hours"),
        look("inspect", "an artefact → its kind, its origin, its first items"),
        look("doctor", "whether every part of this installation works", front=True),
        look("step", "a step that only recipes need, by its name"),
    )
}

ALIASES = {"pretrain": "train", "finetune": "train"}

STEPS: dict[str, Verb] = {
    name: Verb(name, summary, f"qac_jax.stages.{target}")
    for name, target, summary in (
        ("average", "choose:Average", "a model and the one it started from → their weighted mean"),
        (
            "choose",
            "choose:Choose",
            "models and their runs on validation questions → the model to use",
        ),
        (
            "collect",
            "questions:Collect",
            "a collection, judged or not → training and test queries with judgements",
        ),
        (
            "conclude",
            "choose:Conclude",
            "metrics, a choice and where questions come from → a verdict in words",
        ),
        (
            "group",
            "mine:Group",
            "passages, their queries and a hybrid index → groups with a teacher's scores",
        ),
        ("hybrid", "index:Hybrid", "a dense index and a BM25 index → one index that fuses both"),
        (
            "judge",
            "questions:Judge",
            "questions with the titles that answer them → queries and judgements",
        ),
        (
            "leaks",
            "questions:Leaks",
            "refuses training data that contain validation or test questions",
        ),
        ("pairs", "pairs:Pairs", "collections or passages → texts that train a query generator"),
        ("sample", "questions:Sample", "queries of several files → a random part of them"),
        (
            "split",
            "questions:Split",
            "passages → those for training, validation or the test, by document",
        ),
        ("suite", "evaluate:Suite", "metrics of many collections → the papers' averages"),
        (
            "unite",
            "questions:Unite",
            "several judged collections → one, with part of its judgements withheld",
        ),
    )
}

BENCHMARKS: dict[str, Verb] = {
    name: Verb(name, summary, f"qac_jax.bench.{target}")
    for name, target, summary in (
        ("all", "everything:All", "every benchmark with a peer, in one table"),
        ("encode", "encode:Encode", "passages to vectors, beside sentence-transformers"),
        ("generate", "generate:Generate", "new tokens a second of a T5, beside transformers"),
        ("pretrain", "train:Pretrain", "the same: steps of CoT-MAE or coCondenser"),
        ("search", "search:Search", "ScaNN and exact search, beside FAISS"),
        ("serve", "serve:Serve", "a server under load, with batches and without"),
        ("train", "train:Train", "steps of MLM, CoT-MAE or coCondenser, beside PyTorch"),
    )
}


def of_a_file(name: str) -> Verb | None:
    """The verb of a stage in `stages/NAME.py`, which needs no row in the tables."""
    module = f"qac_jax.stages.{name}"
    if not name.isidentifier() or importlib.util.find_spec(module) is None:
        return None
    for value in vars(importlib.import_module(module)).values():
        if getattr(value, "VERB", "") == name:
            return Verb(name, "", f"{module}:{value.__name__}")
    return None
