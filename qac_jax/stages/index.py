"""`qac index`, `qac bm25` and `qac fuse --index`: vectors, words, or both → an index."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.fields import option, part
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.formats.registry import DOCUMENTS
from qac_jax.pipeline import costs
from qac_jax.pipeline.inputs import together
from qac_jax.pipeline.stage import FILE, Inputs, Plan, Plans, Ref, Stage, input, model_input
from qac_jax.retrieval import bm25, corpus, fusion
from qac_jax.retrieval.bm25 import PRESETS, STOP_WORDS, Scoring, stemmers
from qac_jax.retrieval.fusion import MIN_MAX, Fusion
from qac_jax.retrieval.vectors import Vectors


if TYPE_CHECKING:
    from qac_jax.retrieval.approximate import Approximate


_say_once = functools.cache(progress.say)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Index(Stage):
    """Indexes vectors."""

    VERB = "index"
    KIND = "index"
    VERSION = 3
    EXAMPLE = (
        "qac index --vectors out/vectors --target_recall 0.99 --out out/index\n"
        "living indexes: qac index FOLDER --add DOCS; `qac index --help --add` lists their flags"
    )

    vectors: Ref = input("passage vectors of qac embed", "vectors")
    method: str = option(
        "auto",
        "auto: exact below --exact_below, from there on ScaNN, FAISS or exact as installed",
        choices=("auto", "exact", "scann", "faiss"),
    )
    exact_below: int = option(20_000, "auto: vectors from which on ScaNN is used", at_least=1)
    target_recall: tuple[float, ...] = option(
        (), "ScaNN, FAISS: tune the search to this recall, one for each k (default: the preset)"
    )
    recall_at: tuple[int, ...] = option((100,), "k of each recall@k that is tuned")
    queries: Ref = input("queries to tune on, or their vectors", "vectors", FILE, default="")
    sample: int = option(1000, "tune on N queries, or on vectors without --queries", at_least=2)
    leaves: int = option(
        -1, "leaves, or FAISS's lists (-1: about 2 sqrt(vectors); 0: none)", at_least=-1
    )
    dims_per_block: int = option(2, "dimensions per block of the product quantisation", at_least=1)
    reordering: str = option(
        "float32",
        "type of the vectors that candidates are rescored with",
        choices=("float32", "bfloat16", "int8"),
    )
    part_rows: int = option(0, "build in parts of N vectors (0: at most 5 million)", at_least=0)
    soar: float = option(0.0, "ScaNN: SOAR's lambda for a second leaf (0: off)", at_least=0)

    def plan(self, inputs: Plans) -> Plan:
        from qac_jax.retrieval import approximate

        count = costs.count_of(inputs, "vectors")
        if not count or self._method(count) == "exact":  # which links vectors' files
            return {"count": count, "exact": True, **({"core_hours": 0.0} if count else {})}
        parts = len(approximate.part_rows(count, self.part_rows))
        return {"count": count, "parts": parts, **costs.on_cores("index", count)}

    def check(self) -> None:
        super().check()
        wanted = self.target_recall
        if wanted and len(wanted) != len(self.recall_at) or not all(0 < r < 1 for r in wanted):
            given = f"target_recall={wanted} with recall_at={self.recall_at}"
            raise UserError(f"{given}; give a number between 0 and 1 for each k")
        from qac_jax.retrieval import approximate

        if self.method == approximate.FAISS:
            approximate.faiss_library("--method faiss")
        if self.method == approximate.SCANN:
            approximate.scann_library()

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.retrieval import approximate, index

        added = inputs.artifact("vectors")
        if added.info["side"] != "passage":
            raise UserError(f"{added.path} holds vectors of queries; give vectors of passages")
        vectors = Vectors.of(added)
        vectors.check_finite()
        method = self._method(len(vectors))
        few = len(vectors) < self.exact_below
        if few and self.method == "auto" and self.target_recall:
            _say_once(f"index: fewer than {self.exact_below:,} vectors are searched exactly")
        rows = [(0, len(vectors))]
        if method == index.EXACT:
            index.link_vectors(added, "part-00000", out)
        else:
            rows = approximate.part_rows(len(vectors), self.part_rows)
            if any(name.startswith(index.WINDOWS) for name in added.files):
                library = approximate.ENGINES[method].NAME
                progress.say(f"index: {library}'s index keeps no windows; --method exact does")
        parts: dict[str, dict[str, Any]] = {}
        for number, (start, stop) in enumerate(rows):
            name = f"part-{number:05d}"
            parts[name] = {"rows": stop - start}
            if method != index.EXACT:
                preset = approximate.preset(
                    method,
                    stop - start,
                    leaves=None if self.leaves < 0 else self.leaves,
                    soar=self.soar,
                    dims_per_block=self.dims_per_block,
                    reordering=self.reordering,
                )
                parts[name]["preset"] = dataclasses.asdict(preset)
                index.build_part(method, vectors, (start, stop), preset, added.identity, name, out)
        description = {"method": method, "dimension": vectors.width, "parts": parts}
        out.write_json(index.DESCRIPTION, description)
        if corpus.IDS_OFFSETS not in out.done:
            corpus.write_ids(out, corpus.Ids(added))
        out.count = len(vectors)
        texts = {**added.info["texts"], "rows": len(vectors)}
        out.info.update(
            method=method,
            dimension=vectors.width,
            encoder=corpus.seen_from(index.encoder_of(added), added.path, out.path),
            texts=[corpus.seen_from(texts, added.path, out.path)],
        )
        if method != index.EXACT and self.target_recall:
            searcher = approximate.opened(method, out.path, vectors.width, parts)
            self._tune(inputs, out, vectors, searcher)

    def _method(self, count: int) -> str:
        if self.method != "auto":
            return self.method
        from qac_jax.retrieval.approximate import best_installed

        return "exact" if count < self.exact_below else best_installed()

    def _tune(self, inputs: Inputs, out: Writer, vectors: Vectors, searcher: Approximate) -> None:
        """Tunes the search effort on a sample of queries, or of vectors of the index."""
        from qac_jax.retrieval import tuning

        queries = None
        if "queries" in inputs:
            given = inputs.get_artifact("queries") or inputs.path("queries")
            queries = tuning.queries_of(given, inputs.artifact("vectors"), self.sample, self.seed)
        targets = dict(zip(self.recall_at, self.target_recall, strict=True))
        how: dict[str, Any] = {"sample": self.sample, "targets": targets, "seed": self.seed}
        found = tuning.tune_on_sample(searcher, vectors, queries, **how)
        out.info["tunings"] = [dataclasses.asdict(tuned) for tuned in found]
        own = "" if queries is not None else "; of vectors of the index, give --queries for others"
        for tuned in found:
            progress.say(f"index: {tuned}{own}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bm25(Stage):
    """Indexes passages for BM25 (Robertson and Zaragoza, 2009)."""

    VERB = "bm25"
    KIND = "bm25"
    VERSION = 2
    EXAMPLE = "qac bm25 --passages corpus.jsonl --out out/bm25"

    passages: Ref = input("passages, a corpus file or a folder in BEIR's layout", "passages", FILE)
    format: str = option("auto", "format of a corpus file", choices=("auto", *DOCUMENTS.names()))
    expand: Ref = input("queries to append to the passages (docT5query)", "contexts", default="")
    queries_each: int = option(0, "generated queries appended per passage (0: all)", at_least=0)
    preset: str = option(
        "anserini",
        "k1 and b: 0.9, 0.4; lucene: 1.2, 0.75; questions: 0.6, 0.75, and Snowball's stop words",
        choices=(*PRESETS,),
    )
    k1: float | None = option(None, "k1, instead of the preset's")
    b: float | None = option(None, "b, instead of the preset's")
    variant: str = option("lucene", "formula", choices=("lucene", "robertson", "atire"))
    stemmer: str = option("english", "Snowball stemmer (empty: none)", choices=stemmers)
    stop_words: str = option(
        "", "English stop words that are removed (default: the preset's)", choices=("", *STOP_WORDS)
    )
    titles: bool = option(True, "index a passage's title with its text")

    def plan(self, inputs: Plans) -> Plan:
        count = costs.count_of(inputs, "passages")
        return {"count": count, "k1": self.scoring().k1, **costs.on_cores("bm25", count)}

    def scoring(self) -> Scoring:
        """The preset with the settings that replace its own."""
        own: dict[str, Any] = {"k1": self.k1, "b": self.b, "variant": self.variant}
        given = {name: value for name, value in own.items() if value is not None}
        return dataclasses.replace(PRESETS[self.preset], **given)

    def run(self, inputs: Inputs, out: Writer) -> None:
        usual = "snowball" if self.preset == bm25.QUESTIONS else "lucene"
        analyzer = bm25.Analyzer(self.stemmer, self.stop_words or usual)
        source = inputs.get_artifact("passages") or corpus.keep(
            out, lambda: corpus.read_passages(self.passages, self.format)
        )
        passages, expansions = Records(source), inputs.get_records("expand")
        with progress.Bar("bm25", total=len(passages), unit="passages") as bar:

            def texts() -> Iterator[str]:
                for record in passages:
                    text = [corpus.passage_text(record, self.titles)]
                    if expansions is not None:  # docT5query
                        (place,) = expansions.positions([record["_id"]])
                        contexts = expansions[place]["contexts"] if place is not None else []
                        text += [c["text"] for c in contexts[: self.queries_each or None]]
                    bar.advance()
                    yield " ".join(text)

            out.count = bm25.write(out, texts(), analyzer, self.scoring())
        corpus.write_ids(out, passages.ids())
        where = {**corpus.location(source, out.path), "rows": len(passages)}
        out.info.update(texts=[where], words=len(analyzer.known))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hybrid(Stage):
    """Joins two indexes of the same passages by convex fusion (Bruch et al., 2023).

    The score of a passage is (1 - weight) x dense + weight x BM25, both brought to one scale for
    each query. With --queries and --qrels the weight is chosen: the one nearest to --weight whose
    MRR@10 is within two standard errors of the best.
    """

    VERB = "hybrid"
    KIND = "hybrid"
    EXAMPLE = "qac fuse --index out/index --bm25 out/bm25 --out out/hybrid"

    GROUPS = (together("queries", "qrels"),)

    index: Ref = input("dense index", "index")
    bm25: Ref = input("BM25 index of the same passages", "bm25")
    encoder: Ref = model_input("encoder of the index, if it was moved", default="")
    queries: Ref = input("queries to choose the weight on", FILE, default="")
    qrels: Ref = input("relevance judgements of --queries", FILE, default="")
    fusion: Fusion = part(Fusion)

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.retrieval import hybrid, index

        dense = index.Index(inputs.artifact("index"), encoder=inputs.text("encoder"))
        lexical = bm25.Bm25(inputs.artifact("bm25"))
        order, settings = hybrid.order_of(dense, lexical), self.fusion
        # Only this scale depends on what the dense scores are.
        cosine = settings.normalization != MIN_MAX and dense.encoder.module.config.normalize
        if self.queries:
            judged = by_query(read_judgements(self.qrels))
            texts = {query.id: query.text for query in read_queries(self.queries)}
            both = hybrid.Parts(dense, lexical, settings, cosine, order)
            choice = hybrid.choose_weight(both, dense.encoder, texts, judged)
            settings = dataclasses.replace(settings, weight=choice.weight)
            out.info["choice"] = dataclasses.asdict(choice)
            progress.say(f"hybrid: {choice}")
        index.link_whole(dense.artifact, hybrid.DENSE, out)
        index.link_whole(lexical.artifact, hybrid.BM25, out)
        if len(order):
            out.write_array(hybrid.ROWS, order)
        out.write_json(hybrid.DESCRIPTION, dataclasses.asdict(settings))
        if corpus.IDS_OFFSETS not in out.done:
            corpus.write_ids(out, dense.ids)
        known = dense.artifact
        made_by = dict(known.info["encoder"])
        if self.encoder:  # where it is now
            made_by.pop("relative", None)
            made_by["path"] = os.path.abspath(inputs.text("encoder"))
        out.count = len(dense)
        out.info.update(
            weight=settings.weight,
            windows=settings.windows if dense.windows else 0.0,
            cosine=cosine,
            encoder=corpus.seen_from(made_by, known.path, out.path),
            texts=[corpus.seen_from(text, known.path, out.path) for text in known.info["texts"]],
        )

    def summary(self, artifact: Artifact) -> str:
        if choice := artifact.info.get("choice"):
            return str(fusion.Choice(**choice))
        return f"weight of BM25: {artifact.info['weight']:g}"
