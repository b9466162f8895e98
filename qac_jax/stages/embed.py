"""`qac embed`: passages or queries → vectors of a dual encoder."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from qac_jax import artifacts, progress
from qac_jax.artifacts import Writer, arrays
from qac_jax.errors import UserError
from qac_jax.fields import option, part
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.formats.registry import DOCUMENTS
from qac_jax.inference.settings import EncoderOptions, Inference
from qac_jax.pipeline import costs
from qac_jax.pipeline.engines import Loaded
from qac_jax.pipeline.inputs import one_of
from qac_jax.pipeline.sharding import Facts, ShardFile, cut, sharded
from qac_jax.pipeline.stage import FILE, Inputs, Plan, Plans, Ref, Stage, input, model_input
from qac_jax.retrieval import corpus, vectors


if TYPE_CHECKING:
    from qac_jax.inference.encoder import Encoder


# Windows of a text, about: where they are kept, a file has fewer texts by this factor.
_WINDOWS = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embed(Stage):
    """Encodes passages or queries with a dual encoder."""

    VERB = "embed"
    KIND = "vectors"
    VERSION = 2
    DIVIDED = True
    EXAMPLE = "qac embed --encoder out/retriever --passages corpus.jsonl --out out/vectors"

    GROUPS = (one_of("passages", "queries"),)

    encoder: Ref = model_input("dual encoder")
    passages: Ref = input(
        "passages of qac prepare, a corpus file, a folder in BEIR's layout, or token ids",
        "passages",
        FILE,
        default="",
    )
    queries: Ref = input("or queries", FILE, default="")
    format: str = option(
        "auto", "format of a corpus file", choices=("auto", *DOCUMENTS.names(), "tokens")
    )
    titles: bool = option(True, "put a passage's title before its text, as in training")
    prompt: str | None = option(None, "text before each input (default: the model's)")
    window: int = option(
        0,
        "also keep the vectors of windows of N tokens for qac fuse (0: none; mean pooling only)",
        at_least=0,
    )
    dtype: str = option("float32", "type of the stored vectors", choices=("float32", "float16"))
    shard_rows: int = option(65536, "texts per file: what an interruption may lose", at_least=1)
    options: EncoderOptions = part(EncoderOptions)
    inference: Inference = part(Inference)

    def check(self) -> None:
        super().check()
        if self.window == 1:
            raise UserError(f"window={self.window}; expected 2 tokens or more, or 0 for none")

    def plan(self, inputs: Plans) -> Plan:
        count = costs.count_of(inputs, "passages", "queries") or 0
        each = costs.tokens_each(inputs, self.options.max_length)
        each = costs.QUERY_TOKENS if self._side() == "query" else each
        return {"count": count or None, **costs.of_model(inputs, "encoder", count * each)}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.inference.encoder import Encoder, memory

        made = [inputs.get_artifact(name) for name in ("passages", "queries")]
        source = next(filter(None, made), None)
        if source is None:
            self._keep_texts(out)
            source = artifacts.load(out.path / corpus.TEXTS, "passages")
        prompts = {} if self.prompt is None else {self._side(): self.prompt}
        texts, how = Records(source), (self.options, self.inference, prompts)
        load = functools.partial(Encoder.load, inputs.path("encoder"), *how)
        facts = self._encode(texts, load, out)
        if corpus.IDS_OFFSETS not in out.done:
            corpus.write_ids(out, texts.ids())
        out.count = len(texts)
        out.info.update(
            dimension=facts["dimension"],
            side=self._side(),
            encoder=memory(inputs.path("encoder"), *how),
            texts=corpus.location(source, out.path),
        )

    def _side(self) -> str:
        return "query" if self.queries else "passage"

    def _keep_texts(self, out: Writer) -> None:
        """Copies the texts of a corpus file beside the vectors, where `search` reads them."""
        if self.queries:
            asked = read_queries(self.queries)
            corpus.keep(out, lambda: ({"_id": q.id, "text": q.text} for q in asked))
        else:
            corpus.keep(out, lambda: corpus.read_passages(self.passages, self.format))

    def _encode(self, texts: Records, load: Callable[[], Encoder], out: Writer) -> Facts:
        """Writes all shards; returns the facts of one of them."""
        pieces = cut(
            len(texts), max(self.shard_rows // _WINDOWS, 1) if self.window else self.shard_rows
        )
        shards = [
            ShardFile(vectors.shard_name(number, len(pieces)), stop - start, (number, start, stop))
            for number, (start, stop) in enumerate(pieces)
        ]

        def loaded() -> Loaded:
            encoder, side, window = load(), self._side(), self.window
            pooling = encoder.module.config.pooling
            if window and pooling != "mean":
                progress.say(f"embed: no windows, which are means: the pooling is {pooling}")
                window = 0

            def tokenized(job: tuple[int, int, int]) -> tuple[int, list[list[int]]]:
                """The ids of a shard's texts, special tokens included."""
                number, start, stop = job
                records = list(texts.range(start, stop))
                if records and "tokens" in records[0]:
                    return number, [encoder.framed(record["tokens"], side) for record in records]
                text = encoder.passage_text if self.titles else operator.itemgetter("text")
                return number, encoder.tokenize([text(record) for record in records], side)

            def encode(shard: ShardFile, bar: progress.Bar) -> Facts:
                number, tokens = shard.job
                beside = {}
                if window:
                    encoded, parts = encoder.encode_windows(
                        tokens, window, side, advance=bar.advance
                    )
                    every, counts = vectors.windows_names(number, len(pieces))
                    none = np.empty((0, encoder.width), np.float16)
                    beside[every] = np.concatenate([none, *parts])
                    beside[counts] = np.array([len(part) for part in parts], np.int32)
                else:
                    encoded = encoder.encode_tokens(tokens, side, advance=bar.advance)
                lengths = vectors.shard_name(number, len(pieces), "lengths")
                beside[lengths] = np.array([len(row) for row in tokens], np.int32)
                with np.errstate(over="ignore"):
                    stored = encoded.astype(self.dtype)
                for name, array in {**beside, "vectors": stored}.items():
                    if not np.isfinite(array).all():
                        remedy = "give --dtype float32 and no --window"
                        raise UserError(f"{name} exceed float16; {remedy}")
                for name, array in beside.items():
                    out.write_array(name, array)
                # The vectors come last, so that a shard with vectors is complete.
                with out.part(shard.name).open("wb") as file:
                    arrays.write(file, stored)
                return {"dimension": encoder.width}

            return Loaded(encode, tokenized)

        return sharded(out, shards, loaded, "embed", "texts")[0]
