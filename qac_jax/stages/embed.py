"""`qac embed`: texts (or their tokens) into vectors, shard by shard."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from etils import epath

from qac_jax import processes, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.formats.registry import DOCUMENTS
from qac_jax.pipeline.stage import Inputs, Stage, artifact_input, option, source
from qac_jax.processes import Place


if TYPE_CHECKING:
    from qac_jax.inference.embed import Encoder, Settings


# What other processes than the first leave for it; the dot keeps it through a restart.
_STATE = ".embed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embed(Stage):
    """Encodes passages or queries with a dual encoder, on all devices of all processes."""

    VERB: ClassVar[str] = "embed"
    KIND: ClassVar[str] = "vectors"
    SHARED: ClassVar[bool] = True
    EXAMPLE: ClassVar[str] = (
        "qac embed --model out/retriever --input corpus.jsonl --out out/vectors"
    )

    model: str = source("the encoder: a Hugging Face or sentence-transformers folder", "")
    encoder: str = artifact_input("or an encoder trained here", kind="parameters", default="")
    input: str = source("corpus: a file or a BEIR folder; or files of token ids", "")
    passages: str = artifact_input("or passages made by qac prepare", kind="passages", default="")
    queries: str = source("or queries, which are encoded as such", "")
    format: str = option(
        "auto",
        "the form of --input",
        choices=("auto", *DOCUMENTS.names(), "tokens"),
    )
    side: str = option(
        "", "which tower and prompt (default: by the input)", choices=("", "query", "passage")
    )
    titles: bool = option(True, "put a passage's title before its text, as in training")
    title: str = option(
        "",
        "how a title joins its text (default: as in training): marked is title TEXT: text",
        choices=("", "none", "space", "separate", "segments", "marked"),
    )
    pooling: str = option("", "instead of what the folder says", choices=("", "cls", "mean"))
    normalize: str = option(
        "", "vectors of length 1 (default: as the folder says)", choices=("", "yes", "no")
    )
    max_length: int = option(0, "tokens of a text (0: what the folder says)")
    prompt: str | None = option(None, "put before each text (default: what the folder says)")
    precision: str = option("auto", "of matrix products: auto, float32 or bfloat16")
    dtype: str = option("float32", "vectors are stored so", choices=("float32", "float16"))
    shard_rows: int = option(65536, "texts a file: what an interruption loses at most")
    batch_tokens: int = option(0, "tokens a batch and device (0: by device)", affects_result=False)

    coordinator: str = option("", "HOST:PORT of process 0 of several", affects_result=False)
    processes: int = option(0, "how many processes there are", affects_result=False)
    process: int = option(-1, "which of them this is", affects_result=False)

    def place(self) -> Place:
        return processes.place(self.coordinator, self.processes, self.process)

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        self._check()
        return {"texts": inputs.get("passages", {}).get("count"), "stored as": self.dtype}

    def run(self, inputs: Inputs, out: Writer) -> None:
        import jax

        from qac_jax import artifacts
        from qac_jax.inference.embed import Encoder
        from qac_jax.training import distributed

        self._check()
        distributed.start(self.place())
        first = distributed.is_first()
        if first:
            (out.path / _STATE).mkdir(exist_ok=True)
            self._texts(inputs, out)
        distributed.barrier("texts")
        if not first:
            out = Writer(out.path, {})  # with what process 0 knows by now
        found = artifacts.load(self._texts_folder(inputs, out), "passages")
        model = _path(inputs, "encoder", "model")
        encoder = Encoder.load(model, self.settings())
        work = _Work(found, encoder, self._side(), self.titles, self.shard_rows)
        mine = range(jax.process_index(), work.shards, jax.process_count())
        self._encode(work, mine, out, first)
        distributed.barrier("encoded")
        if first:
            self._finish(work, out, model)

    def settings(self) -> Settings:
        """How the encoder's folder is used; searching must use it in the same way."""
        from qac_jax.inference.embed import Settings

        return Settings(
            title=self.title,
            pooling=self.pooling,
            normalize={"yes": True, "no": False}.get(self.normalize),
            max_length=self.max_length,
            query_prompt=self.prompt if self._side() == "query" else None,
            passage_prompt=self.prompt if self._side() == "passage" else None,
            precision=self.precision,
            batch_tokens=self.batch_tokens,
        )

    def _check(self) -> None:
        for names in (("model", "encoder"), ("input", "passages", "queries")):
            given = [name for name in names if getattr(self, name)]
            if len(given) != 1:
                said = " and ".join(f"--{name}" for name in given) or "none of them"
                flags = ", ".join(f"--{name}" for name in names)
                raise UserError(f"embed needs one of {flags}, and {said} is given; give one")
        if self.shard_rows < 1:
            raise UserError(f"shard_rows={self.shard_rows}; expected 1 or more")

    def _side(self) -> str:
        return self.side or ("query" if self.queries else "passage")

    def _texts(self, inputs: Inputs, out: Writer) -> None:
        """Copies the texts of a raw file beside the vectors: `search` prints them from there."""
        from qac_jax import artifacts
        from qac_jax.retrieval import texts, vectors

        folder = out.path / vectors.TEXTS
        if self._texts_folder(inputs, out) != folder:
            return
        if not (folder / artifacts.COMMIT).exists():
            records = (
                texts.read_question_records(self.queries)
                if self.queries
                else texts.read_passages(self.input, self.format)
            )
            texts.store(folder, records)
        out.adopt(vectors.TEXTS, identity=artifacts.load(folder).identity)

    def _texts_folder(self, inputs: Inputs, out: Writer) -> epath.Path:
        from qac_jax import artifacts
        from qac_jax.retrieval import vectors

        if "passages" in inputs:
            return _path(inputs, "passages")
        given = epath.Path(self.input)
        if self.input and (given / artifacts.COMMIT).exists():
            return given
        return out.path / vectors.TEXTS

    def _encode(self, work: _Work, mine: Sequence[int], out: Writer, first: bool) -> None:
        """The shards of this process; the next one is tokenised while one is encoded."""
        from qac_jax.retrieval import vectors

        def is_there(index: int) -> bool:
            name = vectors.shard_name(index, work.shards)
            return name in out.done or (out.path / _STATE / name).exists()

        left = [index for index in mine if not is_there(index)]
        with (
            concurrent.futures.ThreadPoolExecutor(1) as reader,
            progress.Bar("embed", total=sum(map(work.size, mine)), unit="texts") as bar,
        ):
            bar.skip(sum(work.size(index) for index in mine if index not in left))
            upcoming = [reader.submit(work.tokens, index) for index in left[:1]]
            for place, index in enumerate(left):
                tokens = upcoming.pop().result()
                upcoming = [reader.submit(work.tokens, i) for i in left[place + 1 : place + 2]]
                found = work.encoder.encode_tokens(tokens, work.side, advance=bar.advance)
                lengths = np.array([len(row) for row in tokens], np.int32)
                # The vectors come last: where they are, all of the shard is.
                _save(out, vectors.lengths_name(index, work.shards), lengths, first)
                _save(out, vectors.shard_name(index, work.shards), found.astype(self.dtype), first)

    def _finish(self, work: _Work, out: Writer, model: epath.Path) -> None:
        from qac_jax.retrieval import ids, texts, vectors

        for index in range(work.shards):
            for naming in (vectors.lengths_name, vectors.shard_name):
                name = naming(index, work.shards)
                if name not in out.done:
                    (out.path / _STATE / name).replace(out.part(name))
                    out.keep(name)
        if ids.OFFSETS not in out.done:
            ids.write(out, work.texts.ids())
        out.count = len(work.texts)
        out.info.update(
            dimension=work.encoder.width,
            side=work.side,
            encoder={
                "path": os.path.abspath(model),
                "settings": dataclasses.asdict(self.settings()),
            },
            texts=texts.location(work.artifact, out.path),
        )
        (out.path / _STATE).rmtree()


class _Work:
    """What is encoded, cut into shards."""

    def __init__(self, artifact: Artifact, encoder: Encoder, side: str, titles: bool, rows: int):
        from qac_jax.formats.records import Records

        self.artifact, self.texts = artifact, Records(artifact)
        self.encoder, self.side = encoder, side
        self._titles, self._rows = titles, rows
        self.shards = max(1, -(-len(self.texts) // rows))

    def size(self, index: int) -> int:
        return min(self._rows, len(self.texts) - index * self._rows)

    def tokens(self, index: int) -> list[list[int]]:
        """The ids of a shard's texts, special tokens included."""
        from qac_jax.retrieval.texts import text_alone

        start = index * self._rows
        records = list(self.texts.range(start, start + self.size(index)))
        if records and "tokens" in records[0]:
            return [self.encoder.framed(record["tokens"], self.side) for record in records]
        titled = self.encoder.passage_text if self._titles else text_alone
        texts = [titled(record) for record in records]
        return self.encoder.tokenize(texts, self.side)


def _save(out: Writer, name: str, array: np.ndarray, first: bool) -> None:
    """Process 0 publishes what it made; the others lay it down whole for process 0 to publish."""
    if first:
        with out.temporary(name) as path:
            np.save(os.fspath(path), array)
        return
    part = out.path / _STATE / f"part-{name}"
    np.save(os.fspath(part), array)
    part.replace(out.path / _STATE / name)


def _path(inputs: Inputs, *names: str) -> epath.Path:
    """The folder of whichever of these inputs is there."""
    found = next(inputs[name] for name in names if name in inputs)
    return found.path if isinstance(found, Artifact) else found
