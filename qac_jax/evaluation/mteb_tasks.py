"""MTEB's tasks, evaluated by the package mteb itself with an encoder of ours.

model = Model(encoder, name, revision)
for task in tasks(["NanoNFCorpusRetrieval", "NanoBEIR", "data/mine"]): …
result = evaluate(model, task)

Texts are encoded as everywhere else here: queries and documents each with their side's prompt,
length limit and tower, and a document with its title as in training. Texts of tasks that have no
such sides (STS, classification, clustering) are encoded as passages.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax import extras
from qac_jax.errors import UserError, nearest
from qac_jax.evaluation import benchmarks as beir
from qac_jax.evaluation.results import Result


if TYPE_CHECKING:
    from qac_jax.inference.encoder import Encoder


EXTRA = "mteb"
SPLIT = "test"
MAIN = "main_score"
# What is kept of a retrieval task's many scores; all of them are in the task's own file.
_SHOWN = ("ndcg", "mrr", "map", "recall")
_CUTS = {"ndcg": (10,), "mrr": (10,), "map": (10,), "recall": (10, 100)}


class Model:
    """An encoder of ours as mteb's EncoderProtocol describes one."""

    def __init__(self, encoder: Encoder, name: str, revision: str):
        self.encoder = encoder
        self.queries = 0  # encoded so far
        self._name, self._revision = name, revision

    @property
    def mteb_model_meta(self) -> Any:
        models = extras.load("mteb.models.model_meta", EXTRA, "evaluating MTEB's tasks")
        config = self.encoder.module.config
        known = {
            "name": self._name,
            "revision": self._revision,
            "framework": ["JAX"],
            "embed_dim": self.encoder.width,
            "max_tokens": max(self.encoder.limits.values()),
            "similarity_fn_name": models.ScoringFunction("cosine" if config.normalize else "dot"),
        }
        return models.ModelMeta.create_empty(known)

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """float32 [texts, width]; `inputs` yields columns: text; of documents title and body."""
        del task_metadata, hf_split, hf_subset, kwargs
        part = getattr(prompt_type, "value", prompt_type)
        texts = [text for batch in inputs for text in self._texts(batch, part)]
        if part == "query":
            self.queries += len(texts)
        return self.encoder.encode(texts, "query" if part == "query" else "passage")

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """The dot product of all pairs, which is the cosine where vectors are normalised."""
        first, second = (
            np.atleast_2d(np.asarray(embeddings1)),
            np.atleast_2d(np.asarray(embeddings2)),
        )
        return first @ second.T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """The dot product of each row with the row of the same number."""
        return np.einsum("...d,...d->...", np.asarray(embeddings1), np.asarray(embeddings2))

    def _texts(self, batch: Mapping[str, Sequence[str]], part: str | None) -> list[str]:
        if part != "document" or "title" not in batch:
            return list(batch["text"])
        bodies = batch["body"] if "body" in batch else batch["text"]
        records = zip(batch["title"], bodies, strict=True)
        return [self.encoder.passage_text({"title": t, "text": b}) for t, b in records]


def check_installed() -> None:
    """Raises where the package mteb is missing."""
    if importlib.util.find_spec("mteb") is None:
        raise UserError(
            f"evaluating MTEB's tasks needs mteb, which is not installed; {extras.remedy(EXTRA)}"
        )


def tasks(names: Sequence[str]) -> list[Any]:
    """mteb's tasks by their names, those of benchmarks, and folders in BEIR's layout."""
    mteb = extras.load("mteb", EXTRA, "evaluating MTEB's tasks")
    chosen: dict[str, Any] = {}
    for name in names:
        for task in _named(mteb, name):
            chosen.setdefault(task.metadata.name, task)
    return list(chosen.values())


def _named(mteb: Any, name: str) -> list[Any]:
    if os.path.isdir(name):
        return [local(collection) for collection in beir.collections(name, SPLIT)]
    benchmarks = {alias: b for b in mteb.get_benchmarks() for alias in (b.name, *b.aliases)}
    for known, benchmark in benchmarks.items():
        if known.lower() == name.lower():
            return list(benchmark.tasks)
    all_tasks = [task.metadata.name for task in mteb.get_tasks()]
    lower = {known.lower(): known for known in all_tasks}
    for form in (name, f"{name}Retrieval"):
        if form.lower() in lower:
            return [mteb.get_task(lower[form.lower()])]
    raise UserError(
        f"MTEB has no task or benchmark {name!r}, and it is not a folder in BEIR's layout; "
        f"{nearest(name, [*all_tasks, *benchmarks])}"
    )


def local(collection: beir.Collection) -> Any:
    """A retrieval task of mteb from a folder in BEIR's layout."""
    from qac_jax.retrieval import corpus

    retrieval = extras.load("mteb.abstasks.retrieval", EXTRA, "evaluating MTEB's tasks")
    described = extras.load("mteb.abstasks.task_metadata", EXTRA, "evaluating MTEB's tasks")
    name = "".join(c if c.isalnum() else "_" for c in collection.name)

    def load_data(self: Any, **_: Any) -> None:
        if self.data_loaded:
            return
        judged = collection.judgements()
        passages = corpus.read_passages(collection.path)
        self.relevant_docs = {SPLIT: judged}
        self.queries = {SPLIT: {q.id: q.text for q in collection.queries(judged)}}
        self.corpus = {
            SPLIT: {
                str(p["_id"]): {"text": p["text"], "title": p.get("title") or ""} for p in passages
            }
        }
        self.data_loaded = True

    metadata = described.TaskMetadata(
        name=name,
        description=f"The judged queries of a folder called {collection.name}.",
        dataset={"path": name, "revision": "local"},
        type="Retrieval",
        category="t2t",
        modalities=["text"],
        eval_splits=[SPLIT],
        eval_langs=["und-Zyyy"],
        main_score="ndcg_at_10",
    )
    base = retrieval.AbsTaskRetrieval
    return type(name, (base,), {"metadata": metadata, "load_data": load_data})()


def evaluate(model: Model, task: Any) -> tuple[Result, dict[str, Any]]:
    """One task: what is kept of its scores, and mteb's own record of all of them."""
    mteb = extras.load("mteb", EXTRA, "evaluating MTEB's tasks")
    name, before = task.metadata.name, model.queries
    try:
        done = mteb.evaluate(
            model, task, cache=None, co2_tracker=False, show_progress_bar=False
        ).task_results[0]
    except (OSError, ValueError) as error:
        # What mteb and datasets raise where a data set cannot be fetched is one of these.
        if not _about_data(error):
            raise
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"the data set of MTEB's task {name} cannot be had ({said}); check the network, or "
            "fill the cache of datasets (HF_HOME) on a machine that has one"
        ) from error
    record = done.to_dict()
    mean = dict(_means(record, task.metadata.main_score))
    return Result(name, mean, {}, model.queries - before), record


def _about_data(error: Exception) -> bool:
    module = type(error).__module__.split(".")[0]
    return isinstance(error, OSError) or module in ("datasets", "huggingface_hub")


def _means(record: Mapping[str, Any], main: str) -> Iterator[tuple[str, float]]:
    """The task's main score and the usual retrieval measures, over splits and languages."""
    entries = [entry for split in record["scores"].values() for entry in split]
    wanted = {MAIN: MAIN, ours(main): main}
    if main.startswith(tuple(f"{name}_at_" for name in _SHOWN)):
        wanted |= {f"{m}@{k}": f"{m}_at_{k}" for m, cuts in _CUTS.items() for k in cuts}
    for shown, theirs in wanted.items():
        values = [float(entry[theirs]) for entry in entries if theirs in entry]
        if values:
            yield shown, sum(values) / len(values)


def ours(measure: str) -> str:
    """`ndcg_at_10` is ndcg@10 here; other scores keep mteb's names."""
    return measure.replace("_at_", "@")
