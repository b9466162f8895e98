"""`qac bm25`: passages → a BM25 index, expanded by generated queries if asked (docT5query)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax.artifacts import Writer
from qac_jax.formats.registry import DOCUMENTS
from qac_jax.pipeline import costs
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, option
from qac_jax.retrieval.bm25 import stemmers


if TYPE_CHECKING:
    from qac_jax.formats.records import Records
    from qac_jax.retrieval.bm25 import Scoring


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bm25(Stage):
    """Indexes passages for BM25 (Robertson and Zaragoza, 2009)."""

    VERB: ClassVar[str] = "bm25"
    KIND: ClassVar[str] = "bm25"
    VERSION: ClassVar[int] = 2
    EXAMPLE: ClassVar[str] = "qac bm25 --passages corpus.jsonl --out out/bm25"

    passages: Ref = input(
        "passages of qac prepare, a corpus file or a folder in BEIR's layout",
        kinds=("passages", FILE),
        aliases=("input",),
    )
    format: str = option(
        "auto",
        "format of a corpus file",
        choices=("auto", *DOCUMENTS.names()),
    )
    expand: Ref = input(
        "generated queries to append to the passages (docT5query)",
        kinds=("contexts",),
        default="",
    )
    queries_each: int = option(0, "generated queries appended per passage (0: all)")
    preset: str = option(
        "anserini",
        "parameters: anserini (k1 0.9, b 0.4) or lucene (k1 1.2, b 0.75)",
        choices=("anserini", "lucene"),
    )
    k1: float | None = option(None, "k1, instead of the preset's")
    b: float | None = option(None, "b, instead of the preset's")
    variant: str = option("lucene", "formula", choices=("lucene", "robertson", "atire"))
    stemmer: str = option("english", "Snowball stemmer (empty: none)", choices=stemmers)
    stop_words: bool = option(True, "remove Lucene's English stop words")
    titles: bool = option(True, "index a passage's title with its text")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        scoring, count = self.scoring(), costs.count_of(inputs, "passages")
        return {
            "passages": count,
            "count": count,
            "k1": scoring.k1,
            "b": scoring.b,
            **costs.on_cores("bm25", count),
        }

    def scoring(self) -> Scoring:
        """The preset with the settings that replace its own."""
        from qac_jax.retrieval.bm25 import PRESETS

        overrides = {"k1": self.k1, "b": self.b, "variant": self.variant}
        changes: dict[str, Any] = {name: x for name, x in overrides.items() if x is not None}
        return dataclasses.replace(PRESETS[self.preset], **changes)

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax import progress
        from qac_jax.formats.records import Records
        from qac_jax.retrieval import bm25, corpus

        analyzer = bm25.Analyzer(self.stemmer, self.stop_words)
        artifact = inputs.get_artifact("passages")
        source = artifact or corpus.keep(
            out, lambda: corpus.read_passages(self.passages, self.format)
        )
        passages = Records(source)
        contexts = inputs.get_artifact("expand")
        expansions = Records(contexts) if contexts is not None else None
        with progress.Bar("bm25", total=len(passages), unit="passages") as bar:
            out.count = bm25.write(
                out, self._texts(passages, expansions, bar), analyzer, self.scoring()
            )
        corpus.write_ids(out, passages.ids())
        where = {**corpus.location(source, out.path), "rows": len(passages)}
        out.info.update(texts=[where], words=len(analyzer.known))

    def _texts(self, passages: Records, expansions: Records | None, bar: Any) -> Iterator[str]:
        from qac_jax.retrieval.corpus import passage_text, with_contexts

        places = expansions.positions(passages.ids()) if expansions is not None else None
        for number, record in enumerate(passages):
            text = passage_text(record, self.titles)
            place = places[number] if places is not None else None
            if expansions is not None and place is not None:
                text = with_contexts(text, expansions[place], self.queries_each)
            bar.advance()
            yield text
