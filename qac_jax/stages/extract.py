"""`qac extract`: passages → pseudo-queries taken from their text: spans, titles, anchors."""

import dataclasses
import functools
import os
from collections.abc import Sequence

from qac_jax import fields, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.formats.records import write_offsets
from qac_jax.inference.settings import Inference, LikelihoodOptions
from qac_jax.pipeline import costs
from qac_jax.pipeline.engines import Loaded
from qac_jax.pipeline.sharding import Facts, ShardFile, Workers, cut, pooled, record_files, sharded
from qac_jax.pipeline.stage import Inputs, Plan, Plans, Ref, Stage, input, model_input, option
from qac_jax.queries import extraction
from qac_jax.queries.extraction import Extraction, Job, Salience, SpanSampling, Statistics
from qac_jax.queries.filtering import shown
from qac_jax.queries.structure import TitleRule


_FILES = "contexts"
_STATISTICS = "statistics.json"
# Passages per file: an interruption loses at most one file. A small corpus has eight files.
_FEW, _SHARD = 512, 8192
# Methods that rank spans by a model.
_BY_MODEL = ("plm", "self")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extract(Stage):
    """Extracts each passage's top spans by BM25, a T5's likelihood or an encoder, or its title, or
    its anchors. They are appended to the contexts of --contexts.
    """

    VERB = "extract"
    KIND = "contexts"
    VERSION = 2
    DIVIDED = True
    EXAMPLE = "qac extract --passages out/passages --method bm25 --keep 16 --out out/contexts"

    passages: Ref = input("passages to extract from", "passages")
    contexts: Ref = input("contexts to append to", "contexts", default="")
    method: str = option(
        "bm25",
        "how spans are ranked, or which other text is taken",
        choices=("bm25", "plm", "self", "random", "title", "anchor", "keywords"),
    )
    scorer: Ref = model_input("model of plm (a T5) or self (a dual encoder)", default="")
    keep: int = option(1, "top spans kept for each passage", at_least=1)
    draws: int = option(
        1, "times that spans are drawn; a training epoch uses one draw", at_least=1, at_most=10_000
    )
    origin: str = option("", "origin recorded with the texts (default: qext_bm25 …)")
    sampling: SpanSampling = fields.part(SpanSampling)
    scoring: LikelihoodOptions = fields.part(LikelihoodOptions)
    title: TitleRule = fields.part(TitleRule)

    shard_passages: int = option(0, "passages per file (0: at most 8192)", at_least=0)
    inference: Inference = fields.part(Inference)
    pool: Workers = fields.part(Workers)

    def plan(self, inputs: Plans) -> Plan:
        count = costs.count_of(inputs, "passages")
        cost = costs.on_cores("extract", count, work=self.draws)
        if self.method in _BY_MODEL:
            each = costs.tokens_each(inputs, self.scoring.document_tokens)
            each += self.sampling.spans * costs.QUERY_TOKENS
            # Of a T5 the document has one half of the parameters, the spans the other.
            half = 2 if self.method == "plm" else 1
            cost = costs.of_model(inputs, "scorer", count and count * self.draws * each / half)
        return {"count": count, **cost}

    def check(self) -> None:
        super().check()
        if (self.method in _BY_MODEL) != bool(self.scorer):
            wanted = "takes a model; give --scorer" if not self.scorer else "takes no model"
            raise UserError(f"--method {self.method} {wanted}")

    def run(self, inputs: Inputs, out: Writer) -> None:
        passages, contexts = inputs.records("passages"), inputs.get_records("contexts")
        size = self.shard_passages or min(_SHARD, max(_FEW, -(-len(passages) // 8)))
        pieces = cut(len(passages), size) if len(passages) else []
        what = Extraction(
            self.method,
            self.sampling,
            self.keep,
            self.draws,
            self.title,
            self.origin,
            self.seed,
            os.path.abspath(out.path / _STATISTICS),
        )

        def jobs(base: str) -> list[ShardFile]:
            return record_files(
                base, pieces, lambda start, stop: Job(passages, start, stop, what, contexts)
            )

        if self.method == "bm25" and _STATISTICS not in out.done:
            self._count(jobs("counts"), out)
        shards = jobs(_FILES)

        def load() -> Loaded:
            salience = self._salience(inputs)

            def write(shard: ShardFile, bar: progress.Bar) -> Facts:
                path = os.fspath(out.part(shard.name))
                return extraction.write_shard(shard.job, path, salience, bar.advance)

            return Loaded(write)

        if self.method in _BY_MODEL:
            made = sharded(out, shards, load, "extract", "passages")
        else:
            made = pooled(out, shards, extraction.write_shard, self.pool, "extract", "passages")
        write_offsets(out, _FILES, len(shards))
        sums = {name: sum(facts[name] for facts in made) for name in ("extracted", "without")}
        out.info.update(method=self.method, origin=self.origin or None, **sums)
        progress.say(
            f"extract: {sums['extracted']:,} texts; {sums['without']:,} passages have none"
        )

    def summary(self, artifact: Artifact) -> str:
        return shown(artifact)

    def _salience(self, inputs: Inputs) -> Salience:
        """The model that ranks spans, loaded once, on all devices of this process."""
        if self.method == "self":
            from qac_jax.inference.encoder import Encoder

            encoder = Encoder.load(inputs.path("scorer"), inference=self.inference)
            return functools.partial(extraction.encoder_salience, encoder)
        from qac_jax.inference.likelihood import Likelihood

        return Likelihood.load(inputs.path("scorer"), self.scoring, self.inference)

    def _count(self, shards: Sequence[ShardFile], out: Writer) -> None:
        """The file with the corpus's word counts, summed over shards."""
        counts = out.inner("counts")
        pooled(counts, shards, extraction.count_words, self.pool, "count words", "passages")
        target, total = out.begin(_STATISTICS), Statistics()
        for shard in shards:
            total.add(Statistics.load(os.fspath(counts.path / shard.name)))
        total.save(target)
        out.adopt(_STATISTICS)
