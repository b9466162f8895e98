"""`qac generate`: passages into queries, by a T5 or from a file made elsewhere, shard by shard."""

from __future__ import annotations

import collections
import dataclasses
import shutil
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from etils import epath

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import Inputs, Stage, artifact_input, option, source


if TYPE_CHECKING:
    from qac_jax.models.decoding.decode import Decoding
    from qac_jax.queries.prompts import Prompt
    from qac_jax.queries.writing import Sources


# The stage's own folder in an unfinished artefact: imported queries, sorted by output file.
_STATE = ".generate"
_FILES = "contexts"
# Passages of one file: what an interruption loses at most. Few files for many passages.
_FEW, _MANY, _MILLION = 1024, 8192, 1_000_000
_SHOWN = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(Stage):
    """Writes what a T5 asks or says about every passage, with its mean log-likelihood a token.

    The texts of a passage depend on the model, the settings, the seed and the passage alone.
    """

    VERB: ClassVar[str] = "generate"
    KIND: ClassVar[str] = "contexts"
    EXAMPLE: ClassVar[str] = (
        "qac generate --passages out/passages --model models/doc2query-t5-base --samples 5 "
        "--out out/contexts"
    )

    passages: str = artifact_input("what is asked about", kind="passages")
    part: str = option(
        "all",
        "which passages: all, those that prepare marked as held out, or the others",
        choices=("all", "train", "held_out"),
    )
    model: str = source("the generator: a T5's folder, Hugging Face's or one trained here", "")
    generator: str = artifact_input(
        "or the same as an input of a recipe", kind="parameters", default=""
    )
    imported: str = source("or a file of queries that were made elsewhere", "", flag="import")

    prefix: str = option("text2query: ", "put before each passage")
    title: str = option(
        "none", "before the passage: nothing, or its title", choices=("none", "separate", "space")
    )
    prompts: Mapping[str, Any] | None = option(
        None, "instead of the prefix: names and Prompts bound in gin, all asked of each passage"
    )
    origin: str = option("", "of the texts (default: the prefix's word, or the prompt's name)")
    samples: int = option(5, "texts for each passage (and prompt)")
    max_tokens: int = option(64, "of each text, its end included")
    max_input: int = option(512, "tokens that are read, special tokens included")
    method: str = option("sample", "how tokens are chosen", choices=("sample", "greedy", "beam"))
    temperature: float = option(1.0, "of sampling")
    top_k: int = option(25, "draw from so many tokens (0: all)")
    top_p: float = option(0.95, "and of those from the most probable of this mass (1: all)")
    beams: int = option(4, "of beam search")
    length_penalty: float = option(1.0, "beam search: power of the length that scores are over")
    early_stopping: str = option(
        "no", "beam search: stop at the first full set of beams", choices=("no", "yes", "never")
    )
    min_tokens: int = option(0, "no end before so many tokens")
    no_repeat_ngram: int = option(0, "say no run of so many tokens twice (0: may)")

    drop_empty: bool = option(True, "leave out texts without a word")
    drop_repeats: bool = option(True, "leave out texts that a passage has already")
    drop_copies: int = option(
        0, "leave out texts of so many words or more that stand in the passage (0: keep)"
    )
    round_trip: int = option(
        0, "leave out texts for which --index ranks the passage below this place (0: keep)"
    )
    index: str = artifact_input("the round trip's index", kind=("index", "bm25"), default="")
    encoder: str = source("where the index's encoder is, if it was moved", "")
    cross_encoder: str = source("a cross-encoder that judges each text with its passage", "")
    min_probability: float = option(0.5, "leave out texts that it finds less probable")
    skip_bad: int = option(0, "leave out and list up to so many bad lines of --import")

    precision: str = option("auto", "of matrix products: auto, float32 or bfloat16")
    shard_passages: int = option(0, "passages a file (0: 1024, or 8192 of a million)")
    batch_texts: int = option(0, "texts a batch and device (0: by device)", affects_result=False)

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        self._check()
        count = inputs.get("passages", {}).get("count")
        if self.imported:
            return {"passages": count, "queries": "imported"}
        texts = self.samples * len(self._prompts())
        longest = self.samples * sum(p.max_tokens for p in self._prompts().values())
        return {
            "passages": count,
            "texts a passage": texts,
            "texts": count and count * texts,
            "tokens to say, at most": count and count * longest,
        }

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats.records import Records, shard_name, write_lines, write_offsets

        self._check()
        passages = Records(_artifact(inputs, "passages"))
        size = self.shard_passages or (_FEW if len(passages) < _MILLION else _MANY)
        shards = max(1, -(-len(passages) // size))
        made = self._sources(inputs, out, passages, size)
        prompts = len(self._prompts())
        began, said = time.monotonic(), 0
        with progress.Bar("generate", total=len(passages) * prompts, unit="texts") as bar:

            def report(requests: int, tokens: int) -> None:
                nonlocal said
                said += tokens
                figures = {"tokens/s": said / (time.monotonic() - began)} if said else {}
                bar.advance(requests, **figures)

            for number in range(shards):
                name = shard_name(_FILES, number, shards)
                start, stop = number * size, min((number + 1) * size, len(passages))
                if name in out.done:
                    bar.skip((stop - start) * prompts)
                    continue
                before = bar.count
                records, facts = made.shard(start, stop, report)
                bar.skip((stop - start) * prompts - (bar.count - before))
                told = write_lines(out.part(name), records)
                out.keep(name, sha256=told["sha256"], facts={"records": told["records"], **facts})
        self._finish(out, [out.facts(shard_name(_FILES, n, shards)) for n in range(shards)])
        write_offsets(out, _FILES, shards)
        shutil.rmtree(out.path / _STATE, ignore_errors=True)

    def summary(self, artifact: Artifact) -> str:
        """Some of the texts, so that one sees what was made."""
        from qac_jax.formats.records import Records

        records = Records(artifact)
        lines = []
        for place in range(min(_SHOWN, len(records))):
            record = records[place * len(records) // _SHOWN]
            lines.append(record["_id"])
            lines += [f"  {c['text']}" for c in record["contexts"]]
        return "\n".join(lines)

    def decoding(self) -> Decoding:
        """How texts are continued."""
        from qac_jax.models.decoding.decode import Decoding
        from qac_jax.models.decoding.sampling import Sampling

        return Decoding(
            method=self.method,
            max_tokens=max(prompt.max_tokens for prompt in self._prompts().values()),
            samples=self.samples,
            sampling=Sampling(self.temperature, self.top_k, self.top_p),
            beams=self.beams,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
            min_tokens=self.min_tokens,
            no_repeat_ngram=self.no_repeat_ngram,
        )

    def _check(self) -> None:
        ways = {"model": self.model, "generator": self.generator, "import": self.imported}
        given = [name for name, value in ways.items() if value]
        if len(given) != 1:
            said = " and ".join(f"--{name}" for name in given) or "none of them"
            raise UserError(
                f"generate needs one of --model, --generator, --import, and {said} is given; "
                "give one"
            )
        if bool(self.round_trip) != bool(self.index) or self.round_trip < 0:
            raise UserError(
                f"round_trip={self.round_trip} and index={self.index!r} belong together; give "
                "both, or none"
            )
        if not 0.0 <= self.min_probability <= 1.0:
            raise UserError(
                f"min_probability={self.min_probability} is no probability; expected 0 to 1"
            )
        if self.shard_passages < 0 or self.max_input < 8:
            raise UserError(
                f"shard_passages={self.shard_passages}, max_input={self.max_input}; expected 0 or "
                "more, and 8 or more"
            )
        self._prompts()
        self.decoding()

    def _prompts(self) -> dict[str, Prompt]:
        """Origin -> prompt."""
        from qac_jax.queries.prompts import Prompt

        if self.prompts is None:
            origin = self.origin or self.prefix.strip(" :") or "generated"
            return {origin: Prompt(before=self.prefix, max_tokens=self.max_tokens)}
        for name, prompt in self.prompts.items():
            if not isinstance(prompt, Prompt):
                raise UserError(
                    f"prompts[{name!r}] = {prompt!r} is no Prompt; bind it to @{name}/Prompt()"
                )
        if not self.prompts:
            raise UserError("prompts names no prompt; bind at least one, or leave it out")
        return {self.origin + name: prompt for name, prompt in self.prompts.items()}

    def _sources(self, inputs: Inputs, out: Writer, passages: Any, size: int) -> Sources:
        """Where the texts of a shard come from, and what is kept of them."""
        from qac_jax.queries import filtering, writing
        from qac_jax.retrieval import search

        rules = writing.Rules(
            part=self.part,
            filter=filtering.Filter(self.drop_empty, self.drop_repeats, self.drop_copies),
            index=search.open_index(_path(inputs, "index"), self.encoder) if self.index else None,
            depth=self.round_trip,
            judge=filtering.judge(_path(inputs, "cross_encoder")) if self.cross_encoder else None,
            least=self.min_probability,
        )
        if self.imported:
            spool = writing.Spool(out.path / _STATE, size)
            spool.fill(self.imported, passages, self.origin or "imported", self.skip_bad)
            return writing.Import(passages, rules, spool)
        from qac_jax.inference.generator import Generator

        generator = Generator.load(
            _path(inputs, "generator" if self.generator else "model"),
            self.decoding(),
            seed=self.seed,
            max_input=self.max_input,
            precision=self.precision,
            texts=self.batch_texts,
        )
        return writing.Generation(passages, rules, generator, self._prompts(), self.title)

    def _finish(self, out: Writer, shards: list[dict[str, Any]]) -> None:
        total: collections.Counter[str] = collections.Counter()
        dropped: collections.Counter[str] = collections.Counter()
        for facts in shards:
            total.update({name: facts.get(name, 0) for name in ("texts", "tokens", "kept")})
            dropped.update(facts.get("dropped", {}))
        out.info.update(
            texts=total["texts"],
            kept=total["kept"],
            dropped=dict(sorted(dropped.items())),
            score="mean log-likelihood of a token under the model, the end included",
        )
        if total["tokens"]:
            out.info["tokens"] = total["tokens"]
        left = ", ".join(f"{count:,} {reason}" for reason, count in sorted(dropped.items()))
        progress.say(
            f"generate: {total['kept']:,} of {total['texts']:,} texts kept"
            + (f" (left out: {left})" if left else "")
        )


def _artifact(inputs: Inputs, name: str) -> Artifact:
    found = inputs[name]
    assert isinstance(found, Artifact)
    return found


def _path(inputs: Inputs, name: str) -> epath.Path:
    found = inputs[name]
    return found.path if isinstance(found, Artifact) else found
