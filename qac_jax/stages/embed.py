"""`qac embed`: passages or queries → vectors of a dual encoder."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath

from qac_jax import artifacts, progress
from qac_jax.artifacts import Artifact, Writer, arrays
from qac_jax.errors import UserError
from qac_jax.formats.records import Records
from qac_jax.formats.registry import DOCUMENTS
from qac_jax.inference.settings import EncoderOptions, Inference
from qac_jax.pipeline import costs, hosts
from qac_jax.pipeline.hosts import Hosts
from qac_jax.pipeline.inputs import one_of
from qac_jax.pipeline.sharding import ShardFile, sharded
from qac_jax.pipeline.stage import FILE, Inputs, Plans, Ref, Stage, input, model_input, option, part
from qac_jax.retrieval import corpus, vectors
from qac_jax.retrieval.corpus import text_alone


if TYPE_CHECKING:
    from qac_jax.inference.encoder import Encoder


# Windows of a text, about: where they are kept, a file has fewer texts by this factor.
_WINDOWS = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embed(Stage):
    """Encodes passages or queries with a dual encoder, on all devices of all hosts."""

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
    side: str = option(
        "",
        "encode as queries or as passages (default: by the input)",
        choices=("", "query", "passage"),
    )
    titles: bool = option(True, "put a passage's title before its text, as in training")
    prompt: str | None = option(None, "text before each input (default: the model's)")
    window: int = option(
        0,
        "also keep the vectors of windows of this many tokens, each half over the next: qac fuse "
        "then ranks a passage by its best one too (0: none; mean pooling only)",
        at_least=0,
    )
    dtype: str = option("float32", "type of the stored vectors", choices=("float32", "float16"))
    shard_rows: int = option(
        65536, "texts per file; an interruption loses at most one file", at_least=1
    )
    options: EncoderOptions = part(EncoderOptions)
    inference: Inference = part(Inference)
    hosts: Hosts = part(Hosts)

    def check(self) -> None:
        super().check()
        if self.window == 1:
            raise UserError(f"window={self.window}; expected 2 tokens or more, or 0 for none")

    def plan(self, inputs: Plans) -> dict[str, Any]:
        count = costs.count_of(inputs, "passages", "queries")
        width = inputs.get("encoder", {}).get("dimension") or costs.WIDTH
        tokens = costs.QUERY_TOKENS if self._side() == "query" else costs.PASSAGE_TOKENS
        each = width * np.dtype(self.dtype).itemsize
        plan = {"texts": count, "count": count, "stored as": self.dtype}
        cost = costs.of_model(inputs, "encoder", count and count * tokens, count and count * each)
        return {**plan, **cost}

    def run(self, inputs: Inputs, out: Writer) -> None:
        hosts.once("texts", lambda: self._texts(inputs, out))
        texts = artifacts.load(self._texts_folder(inputs, out), "passages")
        encoder = self.load(inputs.path("encoder"))
        rows = self.shard_rows if not self.window else max(self.shard_rows // _WINDOWS, 1)
        work = _Work(texts, encoder, self._side(), self.titles, rows)
        self._encode(work, out)
        if out.joins:
            self._finish(work, out, inputs.path("encoder"))

    def load(self, place: epath.PathLike) -> Encoder:
        """The encoder with this stage's settings, which search must use too."""
        from qac_jax.inference.encoder import Encoder

        return Encoder.load(place, self.options, self.inference, self._prompts())

    def _prompts(self) -> dict[str, str]:
        return {} if self.prompt is None else {self._side(): self.prompt}

    def _side(self) -> str:
        return self.side or ("query" if self.queries else "passage")

    def _texts(self, inputs: Inputs, out: Writer) -> None:
        """Copies the texts of a corpus file beside the vectors, where `search` reads them."""
        if self._texts_folder(inputs, out) != out.path / corpus.TEXTS:
            return
        if self.queries:
            corpus.keep(out, lambda: corpus.read_question_records(self.queries))
        else:
            corpus.keep(out, lambda: corpus.read_passages(self.passages, self.format))

    def _texts_folder(self, inputs: Inputs, out: Writer) -> epath.Path:
        for name in ("passages", "queries"):
            if (artifact := inputs.get_artifact(name)) is not None:
                return artifact.path
        return out.path / corpus.TEXTS

    def _encode(self, work: _Work, out: Writer) -> None:
        shards = [
            ShardFile(vectors.shard_name(index, work.shards), work.size(index), index)
            for index in range(work.shards)
        ]
        window = self._window(work.encoder)

        def encode(shard: ShardFile, tokens: list[list[int]]) -> None:
            encoder, side = work.encoder, work.side
            if window:
                encoded, parts = encoder.encode_windows(tokens, window, side, advance=bar.advance)
                counts = np.array([len(part) for part in parts], np.int32)
                every = np.concatenate([np.empty((0, encoder.width), np.float16), *parts])
                files = vectors.windows_names(shard.job, work.shards)
                for name, array in zip(files, (every, counts), strict=True):
                    with out.temporary(name) as path:
                        arrays.save(path, array)
            else:
                encoded = encoder.encode_tokens(tokens, side, advance=bar.advance)
            # The vectors come last, so that a shard with vectors is complete.
            with out.temporary(vectors.lengths_name(shard.job, work.shards)) as path:
                arrays.save(path, np.array([len(row) for row in tokens], np.int32))
            with out.part(shard.name).open("wb") as file:
                arrays.write(file, encoded.astype(self.dtype))

        with progress.Bar("embed", total=len(work.texts), unit="texts") as bar:
            sharded(out, shards, encode, bar, ahead=lambda shard: work.tokens(shard.job))

    def _window(self, encoder: Encoder) -> int:
        pooling = encoder.module.config.pooling
        if self.window and pooling != "mean":
            progress.say(f"embed: no windows, which are means: the encoder's pooling is {pooling}")
            return 0
        return self.window

    def _finish(self, work: _Work, out: Writer, model: epath.Path) -> None:
        from qac_jax.inference.encoder import memory

        if corpus.IDS_OFFSETS not in out.done:
            corpus.write_ids(out, work.texts.ids())
        out.count = len(work.texts)
        out.info.update(
            dimension=work.encoder.width,
            side=work.side,
            encoder=memory(model, self.options, self.inference, self._prompts()),
            texts=corpus.location(work.artifact, out.path),
        )


class _Work:
    """The texts to encode, cut into shards."""

    def __init__(self, artifact: Artifact, encoder: Encoder, side: str, titles: bool, rows: int):
        self.artifact, self.texts = artifact, Records(artifact)
        self.encoder, self.side = encoder, side
        self._titles, self._rows = titles, rows
        self.shards = max(1, -(-len(self.texts) // rows))

    def size(self, index: int) -> int:
        return min(self._rows, len(self.texts) - index * self._rows)

    def tokens(self, index: int) -> list[list[int]]:
        """The ids of a shard's texts, special tokens included."""
        start = index * self._rows
        records = list(self.texts.range(start, start + self.size(index)))
        if records and "tokens" in records[0]:
            return [self.encoder.framed(record["tokens"], self.side) for record in records]
        titled = self.encoder.passage_text if self._titles else text_alone
        texts = [titled(record) for record in records]
        return self.encoder.tokenize(texts, self.side)
