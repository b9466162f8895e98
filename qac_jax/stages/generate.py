"""`qac generate`: passages into queries, by a T5 or from a file made elsewhere, shard by shard."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import fields, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.inference.settings import Inference
from qac_jax.models.decoding.settings import Decoding
from qac_jax.pipeline.sharding import Facts, ShardFile, cut, sharded
from qac_jax.pipeline.stage import FILE, MODEL, Inputs, Ref, Stage, input, one_of, option, together
from qac_jax.queries import contexts, prompts
from qac_jax.queries.filtering import Filter
from qac_jax.queries.prompts import Prompt


if TYPE_CHECKING:
    from qac_jax.queries.writing import Sources


_FILES = "contexts"
# Passages of one file: what an interruption loses at most. Few files for many passages.
_FEW, _MANY, _MILLION = 1024, 8192, 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(Stage):
    """Writes what a T5 asks or says about every passage, with its mean log-likelihood a token.

    The texts of a passage depend on the model, the settings, the seed and the passage alone.
    """

    VERB: ClassVar[str] = "generate"
    KIND: ClassVar[str] = "contexts"
    VERSION: ClassVar[int] = 2
    EXAMPLE: ClassVar[str] = (
        "qac generate --passages out/passages --generator models/doc2query-t5-base --samples 5 "
        "--out out/contexts"
    )

    GROUPS = (one_of("generator", "imported"), together("round_trip", "index"))

    passages: Ref = input("what is asked about", kinds=("passages",))
    part: str = option(
        "all",
        "which passages: all, those that prepare marked as held out, or the others",
        choices=contexts.PARTS,
    )
    generator: Ref = input(
        "a T5 that writes the texts",
        kinds=("parameters", MODEL),
        default="",
        aliases=("model",),
    )
    imported: Ref = input(
        "or a file of texts that were made elsewhere",
        kinds=(FILE,),
        default="",
        aliases=("import",),
    )
    skip_bad: int = option(0, "leave out and list up to this many bad lines of --imported")

    prefix: str = option("text2query: ", "put before each passage")
    title: str = option(
        "none", "before the passage: nothing, or its title", choices=("none", "separate", "space")
    )
    prompts: Mapping[str, Any] | None = option(
        None, "instead of the prefix: names and Prompts bound in gin, all asked of each passage"
    )
    origin: str = option("", "of the texts (default: the prefix's word, or the prompt's name)")
    max_input: int = option(512, "tokens that are read, special tokens included")
    decoding: Decoding = fields.part(Decoding)

    filter: Filter = fields.part(Filter)
    index: Ref = input("the round trip's index", kinds=("index", "bm25"), default="")
    encoder: Ref = input(
        "where the index's encoder is, if it was moved", kinds=("parameters", MODEL), default=""
    )
    cross_encoder: Ref = input(
        "a cross-encoder that judges each text with its passage",
        kinds=("parameters", MODEL),
        default="",
    )

    shard_passages: int = option(0, "passages a file (0: 1024, or 8192 of a million)")
    inference: Inference = fields.part(Inference)

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        count = inputs.get("passages", {}).get("count")
        if self.imported:
            return {"passages": count, "queries": "imported"}
        samples, asked = self.decoding.samples, self._prompts()
        longest = samples * sum(prompt.max_tokens for prompt in asked.values())
        return {
            "passages": count,
            "texts a passage": samples * len(asked),
            "texts": count and count * samples * len(asked),
            "tokens to say, at most": count and count * longest,
        }

    def check(self) -> None:
        super().check()
        if self.shard_passages < 0 or self.max_input < 8:
            raise UserError(
                f"shard_passages={self.shard_passages}, max_input={self.max_input}; expected 0 or "
                "more, and 8 or more"
            )
        self._prompts()

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats.records import Records, shard_name, write_lines, write_offsets
        from qac_jax.queries import writing

        passages = Records(inputs.artifact("passages"))
        size = self.shard_passages or (_FEW if len(passages) < _MILLION else _MANY)
        pieces, asked = cut(len(passages), size), len(self._prompts())
        shards = [
            ShardFile(
                shard_name(_FILES, number, len(pieces)), (stop - start) * asked, (start, stop)
            )
            for number, (start, stop) in enumerate(pieces)
        ]
        sources = self._sources(inputs, out, passages, size)
        began, tokens = time.monotonic(), 0
        with progress.Bar("generate", total=len(passages) * asked, unit="texts") as bar:

            def report(requests: int, more: int) -> None:
                nonlocal tokens
                tokens += more
                rate = {"tokens/s": tokens / (time.monotonic() - began)} if tokens else {}
                bar.advance(requests, **rate)

            def write(shard: ShardFile, _: None) -> Facts:
                start, stop = shard.job
                records, facts = sources.shard(start, stop, report)
                return {**write_lines(out.part(shard.name), records), **facts}

            made = sharded(out, shards, write, bar)
        info, sentence = writing.summed(made)
        out.info.update(info)
        progress.say(f"generate: {sentence}")
        write_offsets(out, _FILES, len(shards))

    def summary(self, artifact: Artifact) -> str:
        return contexts.shown(artifact)

    def _prompts(self) -> dict[str, Prompt]:
        """Origin -> prompt."""
        return prompts.named(
            self.prompts,
            prefix=self.prefix,
            origin=self.origin,
            max_tokens=self.decoding.max_tokens,
        )

    def _sources(self, inputs: Inputs, out: Writer, passages: Any, size: int) -> Sources:
        """Where the texts of a shard come from, and what is kept of them."""
        from qac_jax.queries import filtering, writing
        from qac_jax.retrieval import search

        encoder = inputs.text("encoder")
        selection = writing.Selection(
            part=self.part,
            filter=self.filter,
            index=search.open_index(inputs.path("index"), encoder) if self.index else None,
            judge=filtering.judge(inputs.path("cross_encoder")) if self.cross_encoder else None,
        )
        if self.imported:
            spool = writing.Spool(out.scratch("imports"), size)
            spool.fill(inputs.text("imported"), passages, self.origin or "imported", self.skip_bad)
            return writing.Import(passages, selection, spool)
        from qac_jax.inference.generator import Generator

        asked = self._prompts()
        longest = max(prompt.max_tokens for prompt in asked.values())
        generator = Generator.load(
            inputs.path("generator"),
            dataclasses.replace(self.decoding, max_tokens=longest),
            self.inference,
            seed=self.seed,
            max_input=self.max_input,
        )
        return writing.Generation(passages, selection, generator, asked, self.title)
