"""`qac generate`: passages → queries for each, by a T5, a language model, or from a file.

`qac step pairs`: collections with judged queries → texts that train a query generator.
"""

import dataclasses
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qac_jax import artifacts, fields, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.formats import documents
from qac_jax.formats.judgements import read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records, write_lines, write_offsets, write_records
from qac_jax.inference import asking, endpoint
from qac_jax.inference.asking import Asking
from qac_jax.inference.endpoint import Calls
from qac_jax.inference.settings import Inference
from qac_jax.models.decoding.settings import Decoding
from qac_jax.pipeline import costs
from qac_jax.pipeline.engines import Loaded
from qac_jax.pipeline.inputs import one_of, skip_bad_option, together
from qac_jax.pipeline.sharding import Facts, ShardFile, cut, record_files, sharded
from qac_jax.pipeline.stage import FILE, Inputs, Plan, Plans, Ref, Stage, input, model_input, option
from qac_jax.queries import filtering, prompts
from qac_jax.queries.filtering import Filter
from qac_jax.queries.prompts import Prompt


_FILES = "contexts"
# Passages per file: an interruption loses at most one file. Large corpora have larger files.
_FEW, _MANY, _MILLION = 1024, 8192, 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(Stage):
    """Generates queries for every passage with a T5, and their mean log-likelihood per token.

    The texts of a passage depend on the model, the settings, the seed and the passage alone;
    --specific compares them with other passages of the same file. A language model behind an
    address writes --samples queries of each kind in one call; it gets seed, temperature and top_p.
    """

    VERB = "generate"
    KIND = "contexts"
    VERSION = 2
    DIVIDED = True
    EXAMPLE = "qac generate --passages out/passages --generator shipped:qgen --out out/contexts"

    GROUPS = (one_of("generator", "imported"), together("round_trip", "index"))

    passages: Ref = input("passages to generate queries for", "passages")
    generator: Ref = model_input(
        "T5 or pointer-generator, such as shipped:qgen; or openai:BASE_URL#MODEL", default=""
    )
    imported: Ref = input("or a file of queries generated elsewhere", FILE, default="")
    skip_bad: int = skip_bad_option("lines of --imported")

    prefix: str = option("text2query: ", "prompt text before each passage")
    title: str = option(
        "none", "how the title is put before it", choices=("none", "separate", "space")
    )
    prompts: Mapping[str, Any] | None = option(None, "named Prompts of gin, instead of the prefix")
    origin: str = option("", "origin recorded with the texts (default: of prefix or prompt)")
    max_input: int = option(512, "maximum input length in tokens, with special ones", at_least=8)
    decoding: Decoding = fields.part(Decoding)
    asking: Asking = fields.part(Asking)
    calls: Calls = fields.part(Calls)

    filter: Filter = fields.part(Filter)
    index: Ref = input("index of the round-trip filter", "index", "bm25", "hybrid", default="")
    encoder: Ref = model_input("encoder of --index, if it was moved", default="")

    shard_passages: int = option(0, "passages per file (0: 1024, or 8192 of millions)", at_least=0)
    inference: Inference = fields.part(Inference)
    partitions: int = option(
        1, "devices that share one copy of a large generator", at_least=1, affects_result=False
    )

    def plan(self, inputs: Plans) -> Plan:
        count = costs.count_of(inputs, "passages")
        if self.imported:
            return {}
        if endpoint.is_named(self.generator):
            known, length = _lengths(self.passages)
            count, each = count or known or 0, self.decoding.samples
            texts = count * each * len(self.asking.named())
            read = count * round(endpoint.tokens(self.asking.prompt(each)) + length)
            cost = {"tokens_read": read, "tokens_written": texts * asking.USUAL}
            return {"count": count or None, "texts": texts or None, **cost}
        asked, each = self._prompts(), (count or 0) * self.decoding.samples
        read = (count or 0) * len(asked) * costs.tokens_each(inputs, self.max_input)
        # A question is short whatever the limit; titles and summaries go halfway to it or further.
        lengths = (p.max_tokens / 2 if self.prompts else costs.QUERY_TOKENS for p in asked.values())
        cost = costs.of_model(inputs, "generator", read, each * sum(lengths))
        return {"count": count, "texts": each * len(asked) or None, **cost}

    def check(self) -> None:
        super().check()
        self._prompts()
        wrong = self.prompts or self.decoding.method == "beam"
        if endpoint.is_named(self.generator) and wrong:
            raise UserError(
                "a language model has no beam search, and its prompt is asking.Asking.instruction "
                "in gin; leave --method beam and generate.Generate.prompts out"
            )

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.queries import generation
        from qac_jax.retrieval import search

        called = endpoint.is_named(self.generator)
        passages, asked = inputs.records("passages"), 1 if called else len(self._prompts())
        size = self.shard_passages or (_FEW if len(passages) < _MILLION else _MANY)
        pieces = cut(len(passages), size)
        shards = record_files(_FILES, pieces, lambda start, stop: (start, stop), each=asked)
        source = self._given(inputs, out, passages, size)

        def load() -> Loaded:
            encoder = inputs.text("encoder")
            index = search.open_index(inputs.path("index"), encoder) if self.index else None
            texts, began, tokens = source or self._generation(inputs), time.monotonic(), 0

            def write(shard: ShardFile, bar: progress.Bar) -> Facts:
                def report(requests: int, more: int) -> None:
                    nonlocal tokens
                    tokens += more
                    rate = {"tokens/s": tokens / (time.monotonic() - began)} if tokens else {}
                    bar.advance(requests, **rate)

                how = self.filter, index, *shard.job, report
                records, facts = generation.shard(texts, passages, *how)
                return {**write_lines(out.part(shard.name), records), **facts}

            return Loaded(write)

        made = sharded(out, shards, load, "generate", "texts", here=source is not None)
        info = generation.summed(made)
        out.info.update(info)
        left = "".join(f"; {count:,} {reason}" for reason, count in info["dropped"].items())
        progress.say(f"generate: {info['kept']:,} of {info['texts']:,} texts kept{left}")
        if called:
            out.info["language_model"] = source.endpoint.record()
            facts = ", ".join(f"{k} {v}" for k, v in out.info["language_model"].items())
            progress.say(f"generate: {facts}")
        write_offsets(out, _FILES, len(shards))

    def summary(self, artifact: Artifact) -> str:
        return filtering.shown(artifact)

    def _prompts(self) -> dict[str, Prompt]:
        """Origin -> prompt."""
        most = self.decoding.max_tokens
        return prompts.named(self.prompts, prefix=self.prefix, origin=self.origin, max_tokens=most)

    def _given(self, inputs: Inputs, out: Writer, passages: Records, size: int) -> Any:
        """The source of a shard's texts where that is no model of ours."""
        from qac_jax.queries import generation

        if self.filter.specific and (self.imported or endpoint.is_named(self.generator)):
            progress.say("generate: specific is not applied; it needs a T5 that wrote the queries")
        if endpoint.is_named(self.generator):
            how, longest = self.decoding, endpoint.CHARACTERS * self.max_input
            body = {"seed": self.seed, "temperature": how.temperature, "top_p": how.top_p}
            body |= {"temperature": 0} if how.method == "greedy" else {}
            model = endpoint.Endpoint(self.generator, self.calls, out.scratch("answers"), body)
            return asking.Asked(model, self.asking, how.samples, longest, self.origin)
        if self.imported:
            made = generation.Import(passages, out.scratch("imports"), size)
            made.fill(inputs.text("imported"), self.origin or "imported", self.skip_bad)
            return made
        return None

    def _generation(self, inputs: Inputs) -> Any:
        from qac_jax.inference.generator import Generator
        from qac_jax.queries import generation

        asked = self._prompts()
        longest = max(prompt.max_tokens for prompt in asked.values())
        generator = Generator.load(
            inputs.path("generator"),
            dataclasses.replace(self.decoding, max_tokens=longest),
            self.inference,
            seed=self.seed,
            max_input=self.max_input,
            partitions=self.partitions,
        )
        return generation.Generation(generator, asked, self.title)


def _lengths(folder: str) -> tuple[int | None, float]:
    """How many passages there are, and the tokens of one, as far as they are here."""
    if not os.path.isdir(folder) or not (artifacts.peek(folder) or {}).get("finished"):
        return None, costs.PASSAGE_TOKENS
    records = Records(artifacts.load(folder))
    some = [endpoint.tokens(r["text"]) for r in records[:: len(records) // 500 + 1]]
    return len(records), sum(some) / max(len(some), 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs(Stage):
    """Writes passages and the queries that they answer, as input and target texts.

    A record is {"_id", "before", "text", "after", "targets"}: where the whole is too long for the
    model only the text is truncated, so a prompt before or after it is never lost.
    """

    VERB = "pairs"
    KIND = "pairs"
    VERSION = 2
    EXAMPLE = "qac step pairs --collections data/squad,data/tales --out out/pairs"

    collections: Ref = input("folders in BEIR's layout", FILE, many=True)
    part: str = option(
        "train", "documents of training, or of dev and test", choices=("train", "held_out")
    )
    prefix: str = option("text2query: ", "text before every input of a query generator")
    title: str = option("none", "title before the text", choices=("none", "space"))
    at_most: int = option(0, "at most N drawn pairs of each collection (0: all)", at_least=0)

    def run(self, inputs: Inputs, out: Writer) -> None:
        counts: dict[str, int] = {}
        records: list[dict[str, Any]] = []
        for folder in map(os.fspath, inputs.paths("collections")):
            name = os.path.basename(os.path.normpath(folder))
            found = list(self._pairs(folder, name))
            if 0 < self.at_most < len(found):
                found = random.Random(f"{self.seed} {name}").sample(found, self.at_most)
            counts[name] = len(found)
            records += found
        if not records:
            raise UserError(
                f"{self.collections} gave no pairs for the part {self.part}; check the folders"
            )
        random.Random(f"{self.seed} pairs").shuffle(records)
        write_records(out, records, "pairs")
        out.info["from"] = counts
        progress.say("pairs: " + ", ".join(f"{count} of {name}" for name, count in counts.items()))

    def _pairs(self, folder: str, name: str) -> Iterator[dict[str, Any]]:
        """Of the documents with a dev or test question (held_out), or of all others (train)."""
        held_out = self.part == "held_out"
        unseen = _judged_queries(folder, ("dev", "test"))
        asked = _judged_queries(folder, ("test",) if held_out else ("train",))
        for document in documents.read("beir", folder):
            if any(p.id in unseen for p in document.passages) != held_out:
                continue
            for passage in document.passages:
                if passage.id in asked:
                    title = (passage.title or "").strip() if self.title == "space" else ""
                    yield {
                        "_id": f"{name}/{passage.id}",
                        "before": self.prefix,
                        "text": f"{title} {passage.text}" if title else passage.text,
                        "after": "",
                        "targets": asked[passage.id],
                    }


def _judged_queries(folder: str, splits: Sequence[str]) -> dict[str, list[str]]:
    """passage -> its questions in those of these splits that the folder has."""
    texts = {query.id: query.text for query in read_queries(os.path.join(folder, "queries.jsonl"))}
    questions_of: dict[str, list[str]] = defaultdict(list)
    for file in (os.path.join(folder, "qrels", f"{split}.tsv") for split in splits):
        for query, passage, grade in (
            read_judgements(file, queries=texts) if os.path.exists(file) else ()
        ):
            if grade > 0:
                questions_of[passage].append(texts[query])
    return questions_of
