"""`qac extract`: pseudo-queries that stand in the documents: spans, titles, anchors."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from etils import epath

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import Inputs, Stage, artifact_input, option, source


if TYPE_CHECKING:
    from qac_jax.queries.extraction import Extraction, Job, Salience


_FILES = "contexts"
_STATISTICS = "statistics.json"
# The stage's own folder in an unfinished artefact: word counts of parts of the corpus.
_STATE = ".extract"
# Passages of one file: what an interruption loses at most; eight files of a small corpus.
_FEW, _SHARD = 512, 8192
_SHOWN = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extract(Stage):
    """Takes each passage's best spans by BM25, a T5's likelihood or an encoder; or its title, or
    its anchors. What --contexts holds already is kept before them.
    """

    VERB: ClassVar[str] = "extract"
    KIND: ClassVar[str] = "contexts"
    EXAMPLE: ClassVar[str] = (
        "qac extract --passages out/passages --method bm25 --keep 16 --out out/contexts"
    )

    passages: str = artifact_input("documents, as passages", kind="passages")
    contexts: str = artifact_input(
        "contexts that there are already, to which these are added", kind="contexts", default=""
    )
    method: str = option(
        "bm25",
        "by what spans are ranked, or what else is taken",
        choices=("bm25", "plm", "self", "random", "title", "anchor"),
    )
    model: str = source("plm: a T5's folder; self: a dual encoder's", "")
    trained: str = artifact_input("or one trained here", kind="parameters", default="")
    statistics: str = artifact_input(
        "bm25: word counts of another corpus, which it was extracted from by bm25",
        kind="contexts",
        default="",
    )
    part: str = option(
        "all",
        "which passages: all, those that prepare marked as held out, or the others",
        choices=("all", "train", "held_out"),
    )
    keep: int = option(1, "the best so many spans of each passage")
    origin: str = option("", "what they are called (default: qext_bm25 …, doc_title, doc_anchor)")

    spans: int = option(16, "spans that are drawn and ranked")
    shortest: int = option(4, "words of a span, at least")
    longest: int = option(16, "words of a span, at most")
    context_words: int = option(256, "words of a passage that are looked at")
    k1: float = option(1.2, "of BM25")
    b: float = option(0.75, "of BM25")
    likelihood: str = option(
        "sum",
        "plm: sum or mean of log-probabilities, or the released code's sum with padding",
        choices=("sum", "mean", "released"),
    )
    document_tokens: int = option(192, "plm: tokens of the document, its end included")
    span_tokens: int = option(32, "plm: tokens of a span")
    first_line: str = option(
        "any",
        "title: which first line is one where none is given",
        choices=("any", "sentence", "none"),
    )
    title_words: int = option(64, "words of a title")

    precision: str = option("auto", "of matrix products: auto, float32 or bfloat16")
    shard_passages: int = option(0, "passages a file (0: 8192, or an eighth of fewer)")
    batch_texts: int = option(0, "plm: documents a batch and device", affects_result=False)
    workers: int = option(0, "processes without a model; 0: one a core", affects_result=False)
    runner: str = option(
        "local", "local, or an Apache Beam runner such as DirectRunner", affects_result=False
    )
    runner_options: str = option("", "flags of the Beam runner", affects_result=False)

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        self._check()
        count = inputs.get("passages", {}).get("count")
        spans = self.spans if self.method in ("bm25", "plm", "self", "random") else None
        return {"passages": count, "method": self.method, "spans a passage": spans}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats.records import Records, shard_name, write_offsets
        from qac_jax.queries.extraction import Job

        extraction = self._check()
        passages = Records(_artifact(inputs, "passages"))
        given = Records(_artifact(inputs, "contexts")) if "contexts" in inputs else None
        (out.path / _STATE).mkdir(exist_ok=True)
        size = self.shard_passages or min(_SHARD, max(_FEW, -(-len(passages) // 8)))
        edges = [*range(0, len(passages), size), len(passages)]
        statistics = self._statistics(inputs, out, passages, edges)
        names = [shard_name(_FILES, n, len(edges) - 1) for n in range(len(edges) - 1)]
        jobs = [
            Job(
                extraction=extraction,
                passages=passages,
                given=given,
                start=start,
                stop=stop,
                target=os.path.abspath(out.part(name)),
                statistics=statistics,
                k1=self.k1,
                b=self.b,
            )
            for name, start, stop in zip(names, edges[:-1], edges[1:], strict=True)
        ]
        self._write(jobs, names, out, self._salience(inputs))
        write_offsets(out, _FILES, len(names))
        facts = [out.facts(name) for name in names]
        out.info.update(
            method=self.method,
            origin=extraction.origin or None,
            extracted=sum(f["extracted"] for f in facts),
            without=sum(f["without"] for f in facts),
        )
        progress.say(
            f"extract: {out.info['extracted']:,} texts; {out.info['without']:,} passages have none"
        )
        shutil.rmtree(out.path / _STATE)

    def summary(self, artifact: Artifact) -> str:
        """Some of the texts, so that one sees what was made."""
        from qac_jax.formats.records import Records

        records = Records(artifact)
        lines = []
        for place in range(min(_SHOWN, len(records))):
            record = records[place * len(records) // _SHOWN]
            lines.append(record["_id"])
            lines += [f"  {c['origin']}: {c['text']}" for c in record["contexts"]]
        return "\n".join(lines)

    def _check(self) -> Extraction:
        from qac_jax.queries.extraction import Drawing, Extraction
        from qac_jax.queries.structure import TitleRule

        models = [name for name in ("model", "trained") if getattr(self, name)]
        needed = int(self.method in ("plm", "self"))
        if len(models) != needed:
            wanted = "one of --model and --trained" if needed else "no model"
            raise UserError(
                f"--method {self.method} takes {wanted}, and "
                f"{' and '.join(models) or 'neither'} is given"
            )
        if self.statistics and self.method != "bm25":
            raise UserError("--statistics are for --method bm25; leave them out")
        if self.keep < 1 or self.shard_passages < 0:
            raise UserError(
                f"keep={self.keep}, shard_passages={self.shard_passages}; expected 1 or more, and "
                "0 or more"
            )
        drawing = Drawing(self.spans, self.shortest, self.longest, self.context_words, self.seed)
        rule = TitleRule(self.first_line, self.title_words)
        return Extraction(self.method, drawing, self.keep, rule, self.origin, self.part)

    def _salience(self, inputs: Inputs) -> Salience | None:
        """What needs a model, loaded once; on all devices of this process."""
        if self.method not in ("plm", "self"):
            return None
        from qac_jax.inference import likelihood
        from qac_jax.inference.encoder import Encoder, Settings

        place = _path(inputs, "trained" if self.trained else "model")
        if self.method == "self":
            encoder = Encoder.load(place, Settings(precision=self.precision))
            return likelihood.EncoderSalience(encoder)
        return likelihood.Likelihood.load(
            place,
            precision=self.precision,
            kind=self.likelihood,
            document_tokens=self.document_tokens,
            span_tokens=self.span_tokens,
            texts=self.batch_texts,
        )

    def _statistics(self, inputs: Inputs, out: Writer, passages: Any, edges: Sequence[int]) -> str:
        """The file with the corpus's word counts: a global step, its parts counted one by one."""
        from qac_jax.queries import extraction
        from qac_jax.queries.extraction_bm25 import Statistics

        if self.method != "bm25":
            return ""
        target = os.path.abspath(out.path / _STATISTICS)
        if _STATISTICS in out.done:
            return target
        if self.statistics:
            shutil.copyfile(_artifact(inputs, "statistics").file(_STATISTICS), target)
        else:
            folder = out.path / _STATE
            counts = [os.path.abspath(folder / f"{n}.json") for n in range(len(edges) - 1)]
            jobs = [
                extraction.CountJob(passages, start, stop, path)
                for start, stop, path in zip(edges[:-1], edges[1:], counts, strict=True)
            ]
            for _ in self._run(extraction.count_words, jobs, out):
                pass
            total = Statistics()
            for path in counts:
                total.add(Statistics.load(path))
            total.save(target)
        out.adopt(_STATISTICS)
        return target

    def _write(
        self, jobs: Sequence[Job], names: Sequence[str], out: Writer, salience: Salience | None
    ) -> None:
        """The files that an interrupted run had not finished."""
        from qac_jax.queries import extraction

        left = [(job, name) for job, name in zip(jobs, names, strict=True) if name not in out.done]
        total = jobs[-1].stop if jobs else 0
        with progress.Bar("extract", total=total, unit="passages") as bar:
            bar.skip(total - sum(job.stop - job.start for job, _ in left))
            if salience is None:
                todo = [job for job, _ in left]
                for (job, name), told in zip(
                    left, self._run(extraction.write_shard, todo, out), strict=True
                ):
                    _publish(out, name, told)
                    bar.advance(job.stop - job.start)
                return
            for job, name in left:
                _publish(out, name, extraction.write_shard(job, salience, bar.advance))

    def _run(self, function: Any, jobs: Sequence[Any], out: Writer) -> Any:
        from qac_jax.pipeline import engine

        return engine.run(
            function,
            jobs,
            workers=self.workers,
            runner=self.runner,
            runner_options=self.runner_options,
            scratch=os.path.abspath(out.path / _STATE),
        )


def _publish(out: Writer, name: str, told: dict[str, Any]) -> None:
    facts = {key: told[key] for key in ("records", "extracted", "without")}
    out.keep(name, sha256=told["sha256"], facts=facts)


def _artifact(inputs: Inputs, name: str) -> Artifact:
    found = inputs[name]
    assert isinstance(found, Artifact)
    return found


def _path(inputs: Inputs, name: str) -> epath.Path:
    found = inputs[name]
    return found.path if isinstance(found, Artifact) else found
