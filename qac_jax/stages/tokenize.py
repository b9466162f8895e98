"""`qac tokenize`: passages with contexts, or judged queries → tokenised training examples."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.artifacts import Artifact, Writer, arrays
from qac_jax.data import examples, judged, shards
from qac_jax.data.form import form_of
from qac_jax.data.judged import Judged
from qac_jax.data.kind import Building, JudgedKind, Negatives, PassageSelection, Siblings, Texts
from qac_jax.data.kinds import KINDS
from qac_jax.data.shards import Job
from qac_jax.errors import UserError
from qac_jax.fields import option, part
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.records import Records
from qac_jax.formats.registry import TRAINING
from qac_jax.formats.training import read_training_lines
from qac_jax.pipeline import costs
from qac_jax.pipeline.inputs import TOKENIZER, skip_bad_option
from qac_jax.pipeline.sharding import ShardFile, Workers, pooled
from qac_jax.pipeline.stage import FILE, Inputs, Plan, Plans, Ref, Stage, input, model_input
from qac_jax.text import tokenizers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenize(Stage):
    """Tokenises examples of one kind; training pairs and crops them at random."""

    VERB = "tokenize"
    KIND = "examples"
    DIVIDED = True
    VERSION = 2
    EXAMPLE = "qac tokenize --passages out/passages --contexts out/contexts --out out/examples"

    passages: Ref = input("passages", "passages", default="")
    contexts: Ref = input("contexts (queries) of the passages", "contexts", default="")
    queries: Ref = input("queries of --qrels", FILE, default="")
    qrels: Ref = input("relevance judgements", FILE, default="")
    negatives: Ref = input(
        "hard negatives: of qac mine, a run, MS MARCO's triples or a file",
        "negatives",
        "run",
        FILE,
        default="",
    )
    pairs: Ref = input("pairs (seq2seq), or groups", "pairs", "groups", default="")
    training: Ref = input("or a file of training texts", FILE, default="")
    training_format: str = option("tevatron", "format of --training", choices=TRAINING.names())
    task: str = option("passage_query", "kind of training example", choices=tuple(KINDS))
    tokenizer: Ref = input("tokenizer's name or folder", TOKENIZER, default="wordpiece-16k")
    skip_bad: int = skip_bad_option()
    like: Ref = model_input("read titles and prompts as this retriever does", default="")
    dump_seqio: int = option(
        0, "show the first N examples of the seqio task", at_least=0, affects_result=False
    )
    shards: int = option(0, "number of output files (0: by the number of records)", at_least=0)
    texts: Texts = part(Texts)
    selection: PassageSelection = part(PassageSelection)
    sibling_passages: Siblings = part(Siblings)
    kept_negatives: Negatives = part(Negatives)
    pool: Workers = part(Workers)

    def environment(self) -> dict[str, str]:
        return {"tokenizer": tokenizers.load(self.tokenizer).identity}

    def check(self) -> None:
        super().check()
        names = ("passages", "contexts", "queries", "qrels", "negatives", "pairs", "training")
        present = {name for name in names if getattr(self, name)}
        KINDS[self.task].check_inputs(present, self._building())

    def plan(self, inputs: Plans) -> Plan:
        # About, for kinds of queries: some may have no judgement. Unknown for others.
        count = costs.count_of(inputs, "pairs" if self.pairs else "passages")
        each = getattr(KINDS[self.task], "one_each", False)
        examples = count if each else costs.count_of(inputs, "queries") if self.queries else None
        return {"task": self.task, "count": examples, **costs.on_cores("tokenize", count)}

    def run(self, inputs: Inputs, out: Writer) -> None:
        kind, tokenizer = KINDS[self.task], tokenizers.load(self.tokenizer)
        bad = BadLines(self.skip_bad)
        building = kind.completed(self._building(inputs), inputs.get_records("contexts"))
        schema = shards.schema_of(tokenizer.vocab_size, kind.stored(building))
        counts = self._written(inputs, out, building, schema, bad)
        if not any(counts):
            raise UserError(
                f"task {self.task} got no examples out of its inputs ({bad.summary()}); check them"
            )
        out.count = sum(counts)
        for name in shards.FILES:
            out.begin(name)
        shards.describe(out.path, schema, counts)
        tokenizer.save(os.fspath(out.begin("tokenizer")))
        for name in (*shards.FILES, "tokenizer"):
            out.adopt(name)
        out.info.update(
            task=self.task,
            schema=schema,
            form=form_of(tokenizer),
            vocab_size=tokenizer.vocab_size,
            tokenizer=tokenizer.identity,
            shards=counts,
            settings=kind.settings(building, tokenizer),
            left_out=dict(sorted(bad.left_out.items())),
            skipped=len(bad),
        )
        if reading := kind.how_to_read(building):
            out.info["reading"] = reading
        bad.report(out, "tokenize")

    def summary(self, artifact: Artifact) -> str:
        if not self.dump_seqio:
            return ""
        from qac_jax.data import tasks  # which imports TensorFlow

        return tasks.dumped(os.fspath(artifact.path), self.dump_seqio)

    def _building(self, inputs: Inputs | None = None) -> Building:
        """The settings that determine what is stored; title=auto becomes the kind's default."""
        from qac_jax.hub import huggingface

        texts = self.texts
        if inputs is not None and "like" in inputs:
            texts = huggingface.texts_read_by(inputs.text("like"), texts)
        if texts.title == "auto":
            texts = dataclasses.replace(texts, title=KINDS[self.task].title)
        return Building(
            tokenizer=self.tokenizer,
            seed=self.seed,
            texts=texts,
            selection=self.selection,
            siblings=self.sibling_passages,
            negatives=self.kept_negatives,
        )

    def _written(
        self,
        inputs: Inputs,
        out: Writer,
        building: Building,
        schema: Mapping[str, str],
        bad: BadLines,
    ) -> list[int]:
        """Writes all shards; returns the number of examples in each."""
        kind = KINDS[self.task]
        settings: dict[str, Any] = {"kind": kind, "building": building, "schema": schema}
        passages, pairs = inputs.get_records("passages"), inputs.get_records("pairs")
        if isinstance(kind, JudgedKind):
            queries = tuple(self._judged(inputs, passages, bad))
            settings |= {"passages": passages, "queries": queries}
            return self._pooled(shards.jobs(len(queries), self.shards, **settings), out, bad)
        if pairs is not None:
            jobs = shards.jobs(len(pairs), self.shards, pairs=pairs, **settings)
            return self._pooled(jobs, out, bad)
        assert passages is not None
        settings |= {"passages": passages, **self._contexts(inputs, passages, out, bad)}
        documents = shards.jobs(len(passages), self.shards, **settings)
        counts = self._pooled(documents, out, bad)
        sizes = out.scratch("sizes").glob("*.npy")
        each = np.concatenate([np.load(path) for path in sorted(sizes)])
        out.write_array(examples.DOCUMENTS, np.repeat(np.arange(len(each), dtype=np.int32), each))
        out.info["documents"] = len(each)
        return counts

    def _contexts(
        self, inputs: Inputs, passages: Records, out: Writer, bad: BadLines
    ) -> dict[str, Any]:
        """The contexts of the passages, and their positions if the order differs."""
        contexts, path = inputs.get_records("contexts"), ""
        scratch = os.path.abspath(out.scratch("contexts"))
        if "queries" in inputs:
            queries, qrels = inputs.text("queries"), inputs.text("qrels")
            folder = os.path.join(scratch, "queries")
            contexts = judged.as_contexts(passages, queries, qrels, folder, bad)
        if contexts is not None:
            places = shards.places(passages, contexts)
            if places is not None:
                path = os.path.join(scratch, "places.npy")
                arrays.save(path, places)
        return {"contexts": contexts, "places": path}

    def _judged(self, inputs: Inputs, passages: Records | None, bad: BadLines) -> Iterator[Judged]:
        if "training" in inputs:
            for line in read_training_lines(inputs.text("training"), self.training_format, bad=bad):
                if line.positives:
                    yield Judged(line.query, line.positives, line.negatives)
                else:
                    bad.leave_out("questions without a positive passage")
            return
        assert passages is not None
        negatives, chosen = inputs.text("negatives"), (self.kept_negatives, self.seed)
        contexts = inputs.get_records("contexts")
        if contexts is not None and "queries" not in inputs:
            yield from judged.from_generated(passages, contexts, negatives, *chosen, bad)
        else:
            queries, qrels = inputs.text("queries"), inputs.text("qrels")
            yield from judged.from_queries(passages, queries, qrels, negatives, *chosen, bad)

    def _pooled(self, jobs: Sequence[Job], out: Writer, bad: BadLines) -> list[int]:
        """Writes the missing shards; returns the number of records in each."""
        scratch = os.path.abspath(out.scratch("sizes"))
        made = []
        for number, job in enumerate(jobs):
            name = shards.shard_name(number, len(jobs))
            sizes = os.path.join(scratch, f"{number:05d}.npy")
            made.append(ShardFile(name, 1, dataclasses.replace(job, sizes=sizes)))

        def is_done(shard: ShardFile) -> bool:
            return not shard.job.of_documents or os.path.exists(shard.job.sizes)

        facts = pooled(
            out, made, shards.write, self.pool, "tokenize", is_done=is_done, records="examples"
        )
        for of_shard in facts:
            for what, count in of_shard["left_out"].items():
                bad.leave_out(what, count)
        return [of_shard["records"] for of_shard in facts]
