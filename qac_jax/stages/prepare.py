"""`qac prepare`: documents of any format into passages with their documents' identity."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.formats.registry import DOCUMENTS
from qac_jax.pipeline.stage import Inputs, Stage, option, source


if TYPE_CHECKING:
    from qac_jax.formats.documents import Document, Shard
    from qac_jax.text.preparing import Job


PYTHON_DOCS = "python_docs"

# The stage's own folder in an unfinished artefact: what workers told, and the ids they met.
_STATE = ".prepare"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepare(Stage):
    """Reads documents, cuts them into passages, and learns a vocabulary on the way if asked.

    Ids that occur twice are bad records (see --skip_bad). Equal texts under different ids are
    kept, except by python_docs, which takes a docstring that stands in several places once.
    """

    VERB: ClassVar[str] = "prepare"
    KIND: ClassVar[str] = "passages"
    VERSION: ClassVar[int] = 1
    EXAMPLE: ClassVar[str] = (
        "qac prepare --format python_docs --packages numpy,scipy,stdlib --out out/passages"
    )

    input: str = source("files, folders or patterns with documents, or the name of a data set", "")
    format: str = option("jsonl", "the form the documents come in", choices=DOCUMENTS.names())
    packages: str = option("", "python_docs: the packages, such as numpy,scipy,stdlib")
    options: str = option("", "settings of the format: name=value name=value")
    cut: str = option(
        "auto",
        "where a passage may end; auto: at sentences, but passages that come as such stay whole",
        choices=("auto", "sentences", "lines", "none"),
    )
    max_tokens: int = option(144, "tokens of a passage, special tokens not counted")
    overshoot: bool = option(False, "close a passage after the sentence that makes it too long")
    short_span_probability: float = option(0.15, "share of passages that are made shorter")
    min_tokens: int = option(0, "join smaller passages to a neighbour, leave out what stays small")
    tokenizer: str = option("wordpiece-16k", "a shipped vocabulary or a Hugging Face folder")
    splitter: str = option("auto", "sentences by auto, punkt_tab, shipped, or a learned file")
    train_vocab: int = option(0, "learn a lower-cased WordPiece of this size on the corpus first")
    train_splitter: bool = option(False, "learn the sentence splitter's parameters on the corpus")
    skip_bad: int = option(0, "leave out and list up to this many bad records")
    shards: int = option(0, "files to write; 0: one for every 64 MB")
    workers: int = option(0, "processes; 0: one a core", affects_result=False)
    runner: str = option(
        "local", "local, or an Apache Beam runner such as DirectRunner", affects_result=False
    )
    runner_options: str = option("", "flags of the Beam runner", affects_result=False)

    def environment(self) -> dict[str, str]:
        """What the result depends on beside fields and inputs."""
        from qac_jax.formats.python import python_docs
        from qac_jax.text import tokenizers

        self._check()
        found = {}
        if not self.train_vocab and self.cut != "none":
            found["tokenizer"] = tokenizers.load(self.tokenizer).identity
        if self.format == PYTHON_DOCS:
            found.update(python_docs.versions(self.packages))
        return found

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        self._check()
        return {
            "max_tokens": self.max_tokens,
            "vocabulary": self.train_vocab or self.tokenizer,
            "reads": self._path(),
        }

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats import documents

        self._check()
        parts = documents.shards(
            self.format, self._path(), self.shards or None, _parsed(self.options)
        )
        if not parts:
            raise UserError(f"{self._path()} holds no documents; check --input and --format")
        state = out.path / _STATE
        state.mkdir(parents=True, exist_ok=True)
        tokenizer, splitter = self._learned(parts, out)
        jobs = self._jobs(parts, out, tokenizer, splitter)
        told = self._mapped(jobs, out)
        told = self._without_repeats(jobs, told, out)
        self._finish(jobs, told, out, tokenizer)
        state.rmtree()

    def _check(self) -> None:
        python = self.format == PYTHON_DOCS
        if python and not self.packages:
            raise UserError("format python_docs reads packages; pass --packages numpy,scipy,stdlib")
        if not python and not self.input:
            raise UserError(f"format {self.format} reads files; pass --input with their path")
        if python and self.input or not python and self.packages:
            given, other = ("--input", "files") if python else ("--packages", "python_docs")
            raise UserError(f"{given} is for {other}, not for format {self.format}; leave it out")
        if self.max_tokens < 8:
            raise UserError(f"max_tokens={self.max_tokens} is too small; expected at least 8")
        if not 0 <= self.short_span_probability <= 1:
            raise UserError(
                f"short_span_probability={self.short_span_probability} is no probability; "
                f"expected 0 to 1"
            )
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise UserError(
                f"min_tokens={self.min_tokens} is not between 0 and max_tokens={self.max_tokens}"
            )
        _parsed(self.options)

    def _path(self) -> str:
        """What the reader of the format gets: packages, files, or a name without its scheme."""
        if self.format == PYTHON_DOCS:
            return self.packages
        return self.input.removeprefix(f"{self.format}:")

    def _learned(self, parts: Sequence[Shard], out: Writer) -> tuple[str, str]:
        """The vocabulary and the splitter to cut with, learned on the corpus where asked."""
        from qac_jax.text import sentences, vocabularies

        tokenizer, splitter = self.tokenizer, self.splitter
        if self.train_vocab:
            tokenizer = os.path.abspath(out.path / "tokenizer")
            if "tokenizer/tokenizer.json" not in out.done:
                progress.say(f"prepare: learning {self.train_vocab:,} pieces")
                texts = self._texts(parts)
                vocabularies.learn_wordpiece(texts, self.train_vocab).save(tokenizer)
                out.adopt("tokenizer")
        if self.train_splitter:
            splitter = os.path.abspath(out.path / "sentences.json")
            if "sentences.json" not in out.done:
                progress.say("prepare: learning where sentences end")
                with out.open("sentences.json") as file:
                    json.dump(sentences.learn(self._texts(parts)()), file, indent=0)
        return tokenizer, splitter

    def _texts(self, parts: Sequence[Shard]) -> Callable[[], Iterator[str]]:
        from qac_jax.formats.bad_lines import BadLines
        from qac_jax.formats.documents import read_shard

        def texts() -> Iterator[str]:
            bad = BadLines(self.skip_bad)
            with progress.Bar("reading", unit="documents") as bar:
                for part in parts:
                    for document in read_shard(part, bad):
                        bar.advance()
                        yield from _texts_of(document)

        return texts

    def _jobs(
        self, parts: Sequence[Shard], out: Writer, tokenizer: str, splitter: str
    ) -> list[Job]:
        from qac_jax.formats.records import shard_name
        from qac_jax.text.passages import Cutting
        from qac_jax.text.preparing import Job

        cutting = Cutting(
            cut=self.cut,
            max_tokens=self.max_tokens,
            overshoot=self.overshoot,
            short_span_probability=self.short_span_probability,
            min_tokens=self.min_tokens,
            seed=self.seed,
        )
        return [
            Job(
                shard=part,
                target=os.path.abspath(out.part(shard_name("passages", i, len(parts)))),
                ids=os.path.abspath(out.path / _STATE / f"ids-{i:05d}.npz"),
                cutting=cutting,
                tokenizer=tokenizer,
                splitter=splitter,
                skip_bad=self.skip_bad,
            )
            for i, part in enumerate(parts)
        ]

    def _mapped(self, jobs: Sequence[Job], out: Writer) -> list[dict[str, Any]]:
        """What every job told; those that an interrupted run had finished are not run again."""
        told = [_remembered(job, out) for job in jobs]
        left = [i for i, known in enumerate(told) if known is None]
        with progress.Bar("prepare", total=len(jobs), unit="shards") as bar:
            bar.skip(len(jobs) - len(left))
            passages = sum(known["records"] for known in told if known is not None)
            for i, answer in zip(left, self._run([jobs[i] for i in left], out), strict=True):
                _publish(jobs[i], answer, out)
                told[i] = answer
                passages += answer["records"]
                bar.advance(passages=passages)
        return [known for known in told if known is not None]

    def _run(self, jobs: Sequence[Job], out: Writer) -> Iterator[dict[str, Any]]:
        from qac_jax.pipeline import engine
        from qac_jax.text.preparing import prepare_shard

        return engine.run(
            prepare_shard,
            jobs,
            workers=self.workers,
            runner=self.runner,
            runner_options=self.runner_options,
            scratch=os.path.abspath(out.path / _STATE),
        )

    def _without_repeats(
        self, jobs: Sequence[Job], told: list[dict[str, Any]], out: Writer
    ) -> list[dict[str, Any]]:
        """A global step: ids that were there before are bad records of the shard they are in."""
        import numpy as np

        from qac_jax.formats.repeats import repeated_documents

        stored = []
        for job in jobs:
            with np.load(job.ids) as ids:
                stored.append((ids["hashes"], ids["owners"]))
        repeated = repeated_documents(stored)
        again = [dataclasses.replace(jobs[i], drop=drop) for i, drop in repeated.items()]
        for i, job, answer in zip(repeated, again, self._run(again, out), strict=True):
            _publish(job, answer, out)
            told[i] = answer
        return told

    def _finish(
        self,
        jobs: Sequence[Job],
        told: Sequence[Mapping[str, Any]],
        out: Writer,
        tokenizer: str,
    ) -> None:
        """Counts, what was left out, and the offsets."""
        from qac_jax.formats.bad_lines import BadLines
        from qac_jax.formats.records import write_offsets
        from qac_jax.text import preparing, tokenizers

        bad = BadLines(self.skip_bad)
        for answer in told:
            bad.extend(preparing.bad_lines(answer))
            bad.left_out.update(answer["left_out"])
        write_offsets(out, "passages", len(jobs))
        out.info.update(
            documents=sum(answer["documents"] for answer in told),
            without_passages=sum(answer["without_passages"] for answer in told),
            too_short=sum(answer["too_short"] for answer in told),
            skipped=len(bad),
        )
        if self.cut != "none":
            learned = f"{self.train_vocab} pieces learned here, in tokenizer"
            vocabulary = learned if self.train_vocab else self.tokenizer
            out.info.update(max_tokens=self.max_tokens, vocabulary=vocabulary)
            out.info["vocabulary_identity"] = tokenizers.load(tokenizer).identity
        for splitter in sorted({answer["sentences_by"] for answer in told} - {""}):
            out.info["splitter"] = splitter
            progress.say(f"prepare: sentences by {splitter}")
        if bad.left_out:
            out.info["left_out"] = dict(sorted(bad.left_out.items()))
        if bad.summary():
            progress.say(f"prepare: {bad.summary()}")
        if bad.items:
            with open(os.fspath(out.part("skipped.tsv")), "w", encoding="utf-8") as file:
                file.write(bad.listing())
            out.keep("skipped.tsv", volatile=True)
            progress.say("prepare: skipped.tsv lists all bad records")
        for count, what in (
            (out.info["without_passages"], "documents have no text and give no passage"),
            (out.info["too_short"], f"passages of fewer than {self.min_tokens} tokens left out"),
        ):
            if count:
                progress.say(f"prepare: {count:,} {what}")
        if out.count == 0:
            raise UserError(
                f"{self._path()} gives no passages ({out.info['documents']} documents were read); "
                f"check --input, --format and --min_tokens"
            )


def _remembered(job: Job, out: Writer) -> dict[str, Any] | None:
    """What the job told in an interrupted run, if its file is still whole."""
    name = os.path.basename(job.target).removesuffix(".part")
    note = f"{job.ids}.json"
    if name not in out.done or not (os.path.exists(job.ids) and os.path.exists(note)):
        return None
    with open(note, encoding="utf-8") as file:
        return json.load(file)


def _publish(job: Job, answer: Mapping[str, Any], out: Writer) -> None:
    with open(f"{job.ids}.json", "w", encoding="utf-8") as file:
        json.dump(answer, file)
    name = os.path.basename(job.target).removesuffix(".part")
    out.keep(name, sha256=answer["sha256"], facts={"records": answer["records"]})


def _texts_of(document: Document) -> Iterator[str]:
    for part in document.sections or document.passages:
        yield part.text


def _parsed(text: str) -> dict[str, str]:
    found = {}
    for item in text.split():
        name, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"options: {item!r} is not of the form name=value")
        found[name] = value
    return found
