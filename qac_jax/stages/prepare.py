"""`qac prepare`: documents in any format → passages that keep their documents' ids."""

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import DataError, UserError
from qac_jax.formats import documents
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import repeated_documents
from qac_jax.formats.readers import python_docs
from qac_jax.formats.readers.pages import pdf_version
from qac_jax.formats.records import write_offsets
from qac_jax.formats.registry import DOCUMENTS
from qac_jax.pipeline import costs, inputs, readiness
from qac_jax.pipeline.inputs import TOKENIZER, skip_bad_option
from qac_jax.pipeline.sharding import ShardFile, Workers, cut, pooled, record_files
from qac_jax.pipeline.stage import FILE, Inputs, Plan, Plans, Ref, Stage, input, option, part
from qac_jax.retrieval import corpus
from qac_jax.text import passages, tokenizers
from qac_jax.text.passages import Cutter, Cutting, PrepareJob
from qac_jax.text.spans import SPLITTERS


PYTHON_DOCS, AUTO = "python_docs", "auto"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepare(Stage):
    """Reads documents and cuts them into passages.

    Duplicate ids are bad records (see --skip_bad). Duplicate texts under different ids are kept,
    except by python_docs, which keeps a docstring that occurs in several places once.
    """

    VERB = "prepare"
    KIND = "passages"
    VERSION = 3
    DIVIDED = True
    EXAMPLE = "qac prepare --format python_docs --packages numpy,scipy,stdlib --out out/passages"

    documents: Ref = input("folder, files, patterns or name of a data set", FILE, default="")
    format: str = option(
        AUTO,
        "format; folder: Markdown, HTML, text, tables, PDF, mixed; auto: recognised",
        choices=(*DOCUMENTS.names(), AUTO),
    )
    packages: str = option("", "python_docs: packages to read, such as numpy,scipy,stdlib")
    options: str = option("", "options of the format, as name=value name=value")
    columns: str = option("", "columns of tables (folder): id=…,title=…,text=a+b,url=…")
    tokenizer: Ref = input("tokenizer's name or folder", TOKENIZER, default="wordpiece-16k")
    splitter: str = option("auto", "sentence splitter", choices=SPLITTERS)
    skip_bad: int = skip_bad_option()
    shards: int = option(0, "number of output files (0: one for every 64 MB)", at_least=0)
    cutting: Cutting = part(Cutting)
    pool: Workers = part(Workers)

    def environment(self) -> dict[str, str]:
        identities = {}
        if self.cutting.cut != "none":
            identities["tokenizer"] = tokenizers.load(self.tokenizer).identity
        if self.format == PYTHON_DOCS:
            identities.update(python_docs.versions(self.packages))
        elif self._source()[0] == corpus.FOLDER:
            identities["pypdf"] = pdf_version()
        return identities

    def check(self) -> None:
        super().check()
        docs = self.format == PYTHON_DOCS
        if bool(self.packages) != docs or bool(self.documents) == docs:
            raise UserError(
                f"format {self.format}: python_docs reads --packages, such as numpy,scipy,stdlib, "
                "and every other format --documents; give that one alone"
            )
        self.reader_options()

    def plan(self, inputs: Plans) -> Plan:
        whole = self.cutting.cut in ("none", "lines")
        each = costs.DOCUMENT_TOKENS.get(self.format) if whole else None
        count = costs.count_of(inputs, "documents")
        known = {"tokens_each": each} if each else {}
        known |= {"count": count} if whole and count else {}
        return {**known, **costs.on_cores("prepare", count)}

    def survey(self, data_dir: str) -> tuple[int, float] | None:
        """Reads documents for some seconds, and cuts some of them."""
        if readiness.missing(self, data_dir):
            return None
        stage = inputs.resolved(inputs.located(self, {}, data_dir))
        options: dict[str, Any] = stage.reader_options()
        first: list[Any] = []
        began, total = time.monotonic(), 0
        for document in documents.read(*stage._source(), **options):
            total += 1
            first += [document] if total <= 4096 else []
            if time.monotonic() - began > 10.0:  # no time to count them all
                return None
        spent, began = time.monotonic() - began, time.monotonic()
        cutter = stage._cutter()()
        found = sum(1 for document in first for _ in cutter.records(document))
        if not found:
            return None
        count = round(total * found / len(first))
        return count, (time.monotonic() - began) / found + spent / count

    def run(self, inputs: Inputs, out: Writer) -> None:
        del inputs  # the format's reader opens them by path or name
        format, path = self._source()
        pieces = documents.shards(format, path, self.shards or None, self.reader_options())
        if self.format == AUTO:
            progress.say(f"prepare: {path} is read as format {format}")
        out.info["format"] = format
        if not pieces:
            raise UserError(f"{self._path()} holds no documents; check --documents and --format")
        scratch = os.path.abspath(out.scratch("ids"))

        def job(number: int, _: int) -> PrepareJob:
            return PrepareJob(
                shard=pieces[number],
                ids=os.path.join(scratch, f"{number:05d}.npy"),
                cutter=self._cutter(),
                skip_bad=self.skip_bad,
            )

        shards = record_files("passages", cut(len(pieces), 1), job)
        self._finish(self._prepared(shards, out), out)

    def _cutter(self) -> Callable[[], Cutter]:
        return functools.partial(
            passages.cutter_of, self.cutting, self.seed, self.tokenizer, self.splitter
        )

    def _path(self) -> str:
        """The source that is read: packages, files, or a data set by its name."""
        return self.packages if self.format == PYTHON_DOCS else self.documents

    def _source(self) -> tuple[str, str]:
        """The format, and what its reader takes; columns are of the tables of a folder."""
        format = corpus.FOLDER if self.columns and self.format == AUTO else self.format
        return corpus.source(format, self._path())

    def reader_options(self) -> dict[str, str]:
        return documents.options_of(self.options, columns=self.columns)

    def _prepared(self, shards: Sequence[ShardFile], out: Writer) -> list[dict[str, Any]]:
        """Writes all shards; returns their facts. Ids of earlier shards are bad records."""

        def has_ids(shard: ShardFile) -> bool:
            return os.path.exists(shard.job.ids)

        work = passages.prepare_shard
        pooled(out, shards, work, self.pool, "prepare", is_done=has_ids, records="passages")
        drops = repeated_documents(np.load(shard.job.ids) for shard in shards)
        again = [
            dataclasses.replace(shards[i], job=dataclasses.replace(shards[i].job, drop=drop))
            for i, drop in drops.items()
        ]
        if again:
            pooled(out, again, work, self.pool, "prepare again", is_done=lambda _: False)
        return [out.facts(shard.name) for shard in shards]

    def _finish(self, facts: Sequence[Mapping[str, Any]], out: Writer) -> None:
        """Writes the offsets and records counts and what was left out."""
        bad = BadLines(self.skip_bad)
        for of_shard in facts:
            bad.merge(of_shard)
        write_offsets(out, "passages", len(facts))
        for name in ("documents", "without_passages"):
            out.info[name] = sum(of_shard[name] for of_shard in facts)
        out.info["skipped"] = len(bad) + len(bad.skipped)
        if self.cutting.cut != "none":
            out.info.update(max_tokens=self.cutting.max_tokens, vocabulary=self.tokenizer)
            out.info["vocabulary_identity"] = tokenizers.load(self.tokenizer).identity
        for splitter in {of_shard["sentences_by"] for of_shard in facts} - {""}:
            out.info["splitter"] = splitter
            if self.splitter == "auto":
                progress.say(f"prepare: sentences are cut by {splitter}")
        out.info.update(bad.counts())
        bad.report(out, "prepare")
        if count := out.info["without_passages"]:
            progress.say(f"prepare: {count:,} documents have no text and give no passage")
        if out.count == 0:
            raise DataError(
                f"it gives no passages ({out.info['documents']} documents were read); check "
                "--documents and --format",
                file=self._path(),
            )
