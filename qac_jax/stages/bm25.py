"""`qac bm25`: passages into a BM25 index, with generated queries behind them if asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from etils import epath

from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.formats.registry import DOCUMENTS
from qac_jax.pipeline.stage import Inputs, Stage, artifact_input, option, source


if TYPE_CHECKING:
    from qac_jax.formats.records import Records
    from qac_jax.retrieval.bm25 import Scoring


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bm25(Stage):
    """Makes passages searchable by their words."""

    VERB: ClassVar[str] = "bm25"
    KIND: ClassVar[str] = "bm25"
    EXAMPLE: ClassVar[str] = "qac bm25 --input corpus.jsonl --out out/bm25"

    input: str = source("corpus: a file or a BEIR folder", "")
    passages: str = artifact_input("or passages made by qac prepare", kind="passages", default="")
    format: str = option(
        "auto",
        "the form of --input",
        choices=("auto", *DOCUMENTS.names()),
    )
    expand: str = artifact_input(
        "queries generated for the passages, put behind them (docT5query)",
        kind="contexts",
        default="",
    )
    queries_each: int = option(0, "so many of them a passage (0: all)")
    preset: str = option(
        "anserini",
        "k1 0.9 and b 0.4, or Lucene's 1.2 and 0.75",
        choices=("anserini", "lucene"),
    )
    k1: float | None = option(None, "instead of the preset's")
    b: float | None = option(None, "instead of the preset's")
    variant: str = option("lucene", "of the formula", choices=("lucene", "robertson", "atire"))
    stemmer: str = option("english", "a Snowball stemmer (empty: none)")
    stop_words: bool = option(True, "leave out Lucene's English stop words")
    titles: bool = option(True, "put a passage's title before its text")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        scoring = self.scoring()
        return {
            "passages": inputs.get("passages", {}).get("count"),
            "k1": scoring.k1,
            "b": scoring.b,
        }

    def scoring(self) -> Scoring:
        """The preset with what was changed of it."""
        from qac_jax.retrieval.bm25 import PRESETS

        given = {"k1": self.k1, "b": self.b, "variant": self.variant}
        changes: dict[str, Any] = {name: x for name, x in given.items() if x is not None}
        return dataclasses.replace(PRESETS[self.preset], **changes)

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax import artifacts, progress
        from qac_jax.formats.records import Records
        from qac_jax.retrieval import bm25, ids, texts, vectors

        if bool(self.input) == bool(self.passages):
            raise UserError("bm25 needs passages; give one of --input and --passages")
        analyzer = bm25.Analyzer(self.stemmer, self.stop_words)
        given = epath.Path(self.input)
        if "passages" in inputs:
            found = inputs["passages"]
            assert isinstance(found, Artifact)
        elif (given / artifacts.COMMIT).exists():
            found = artifacts.load(given, "passages")
        else:
            folder = out.path / vectors.TEXTS
            if not (folder / artifacts.COMMIT).exists():
                texts.store(folder, texts.read_passages(self.input, self.format))
            found = artifacts.load(folder)
            out.adopt(vectors.TEXTS, identity=found.identity)
        passages = Records(found)
        contexts = inputs.get("expand")
        expansions = Records(contexts) if isinstance(contexts, Artifact) else None
        with progress.Bar("bm25", total=len(passages), unit="passages") as bar:
            out.count = bm25.write(
                out, self._texts(passages, expansions, bar), analyzer, self.scoring()
            )
        ids.write(out, passages.ids())
        where = {**texts.location(found, out.path), "rows": len(passages)}
        out.info.update(texts=[where], words=len(analyzer.known))

    def _texts(self, passages: Records, expansions: Records | None, bar: Any) -> Iterator[str]:
        from qac_jax.retrieval.texts import passage_text, with_contexts

        places = expansions.positions(passages.ids()) if expansions is not None else None
        for number, record in enumerate(passages):
            text = passage_text(record, self.titles)
            place = places[number] if places is not None else None
            if expansions is not None and place is not None:
                text = with_contexts(text, expansions[place], self.queries_each)
            bar.advance()
            yield text
