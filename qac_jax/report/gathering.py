"""The content of a report, gathered from the artefacts of a run."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qac_jax import artifacts
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError
from qac_jax.evaluation import results
from qac_jax.evaluation.results import Result
from qac_jax.evaluation.significance import Comparison
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.formats.runs import Run, read_run, run_files
from qac_jax.report import suites
from qac_jax.report.suites import Heatmap


KIND = "report"
ALPHA = 0.05  # significance level
LETTERS = "abcdefghijklmnopqrstuvwxyz"

# Characters of a passage, titles of relevant passages, and passages of a run that are shown.
_SNIPPET, _MAX_TITLES, _DEPTH = 220, 6, 100
_HISTORY = "metrics.jsonl"


@dataclasses.dataclass(frozen=True)
class Case:
    """A question that one system answers better than another."""

    question: str
    values: tuple[float, float]
    relevant: tuple[str, ...] = ()
    first: str = ""  # the text that the first system ranks highest
    second: str = ""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Systems measured on the same questions, or one system on several collections."""

    name: str
    results: Sequence[Result]  # a row each
    comparisons: Sequence[Comparison] = ()
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    compared: tuple[str, str] = ("", "")
    wins: Sequence[Case] = ()
    losses: Sequence[Case] = ()
    of_collections: bool = False  # rows are collections

    @property
    def measures(self) -> list[str]:
        return list(dict.fromkeys(m for result in self.results for m in result.mean))

    def better_than(self, measure: str) -> dict[str, str]:
        """System -> letters of the systems that it beats significantly (randomisation, Holm)."""
        letters = dict(zip((r.name for r in self.results), LETTERS, strict=False))
        beaten: dict[str, set[str]] = {result.name: set() for result in self.results}
        for c in self.comparisons:
            if c.measure == measure and c.randomization_holm < ALPHA and c.difference:
                pair = (c.second, c.first) if c.difference > 0 else (c.first, c.second)
                beaten[pair[0]].add(letters.get(pair[1], ""))
        return {name: "".join(sorted(marks)) for name, marks in beaten.items()}


@dataclasses.dataclass(frozen=True)
class Content:
    """All that a report shows."""

    title: str
    evaluations: Sequence[Evaluation] = ()
    curves: Mapping[str, Sequence[Mapping[str, float]]] = dataclasses.field(default_factory=dict)
    indexes: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    samples: Mapping[str, Sequence[Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    stages: Mapping[str, Artifact] = dataclasses.field(default_factory=dict)  # by time
    gin: str = ""
    heatmap: Heatmap | None = None  # systems by collections
    conclusion: Mapping[str, Any] | None = None  # of `qac step conclude`: verdict, provenance


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """How much is shown, and under which names."""

    title: str = "Report"
    cases: int = 5  # wins and losses of each evaluation
    samples: int = 6  # passages with their generated queries, of each artefact
    queries: str = ""  # where the questions' texts are, if the runs do not name them
    # Of evaluations, runs and trainings.
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def called(self, name: str) -> str:
        return self.names.get(name, name)


def artifacts_in(folder: str | os.PathLike[str]) -> dict[str, Artifact]:
    """Name -> finished artefact of the folders in a folder, without reports."""
    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; give the --out of a recipe's run")
    finished = {}
    for child in sorted(root.iterdir()):
        record = artifacts.peek(child) if child.is_dir() else None
        if record is not None and record["finished"] and record["kind"] != KIND:
            finished[child.name] = artifacts.load(child)
    return finished


def content(
    artefacts: Mapping[str, Artifact], metrics: Mapping[str, Artifact], options: ReportOptions
) -> Content:
    """The report of a run's artefacts; `metrics` are those of kind "metrics"."""
    texts = _Texts(artefacts, options)
    by_time = sorted(
        artefacts.items(), key=lambda pair: (pair[1].record.get("written", ""), pair[0])
    )
    return Content(
        title=options.title,
        evaluations=[_evaluation(n, a, texts, options) for n, a in metrics.items()],
        curves={
            options.called(n): [json.loads(x) for x in a.file(_HISTORY).read_text().splitlines()]
            for n, a in artefacts.items()
            if _HISTORY in a.files
        },
        indexes={n: a.info["tuning"] for n, a in artefacts.items() if a.info.get("tuning")},
        samples={
            n: _samples(a, texts, options.samples)
            for n, a in artefacts.items()
            if a.kind == "contexts"
        },
        stages=dict(by_time),
        gin=max((a.info.get("gin") or "" for a in artefacts.values()), key=len, default=""),
        heatmap=_heatmap({options.called(n): a for n, a in metrics.items()}),
    )


class _Texts:
    """Texts of questions and passages, as far as the run's folder has them."""

    def __init__(self, artefacts: Mapping[str, Artifact], options: ReportOptions):
        self._passages = [Records(a) for a in artefacts.values() if a.kind == "passages"]
        self._folder = next((a.path.parent for a in artefacts.values()), Path())
        named = [
            a.fields.get("queries") for a in artefacts.values() if a.kind in ("run", "vectors")
        ]
        self._sources = [s for s in dict.fromkeys([options.queries, *named]) if s]

    def existing(self, path: str) -> str:
        """A path that a stage read, or where it is after the run was moved; "" if nowhere."""
        folders = Path(path).parts[-2:]
        moved = [str(Path(self._folder, *folders[i:])) for i in range(len(folders))]
        return next((p for p in (path, *moved) if p and os.path.exists(p)), "")

    def questions(self, ids: Iterable[str]) -> dict[str, str]:
        """Their texts; a question without a text is shown by its id."""
        wanted = {name: name for name in ids}
        for source in self._sources:
            with contextlib.suppress(UserError):
                for query in read_queries(self.existing(source) or source):
                    if query.id in wanted:
                        wanted[query.id] = query.text
        return wanted

    def passage(self, name: str) -> dict[str, Any]:
        for records in self._passages:
            (position,) = records.positions([name])
            if position is not None:
                return records[position]
        return {"_id": name}

    def title(self, name: str) -> str:
        return self.passage(name).get("title") or name

    def shown(self, name: str) -> str:
        return ": ".join(
            filter(None, (self.title(name), _short(self.passage(name).get("text", ""))))
        )


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SNIPPET else text[: _SNIPPET - 1] + "…"


def _samples(artifact: Artifact, texts: _Texts, count: int) -> list[dict[str, Any]]:
    """Records at equal distances, each with the text of its passage."""
    records = Records(artifact)
    step = max(len(records) // max(count, 1), 1)
    samples = []
    for record in [records[i] for i in range(step // 2, len(records), step)][:count]:
        passage = texts.passage(record["_id"])
        text = _short(passage.get("text", ""))
        samples.append({**record, "title": passage.get("title") or record["_id"], "text": text})
    return samples


def _evaluation(name: str, artifact: Artifact, texts: _Texts, options: ReportOptions) -> Evaluation:
    """Metrics, and the questions on which the best system gains and loses most."""
    called = options.called
    read, facts = results.read(artifact)
    systems = [dataclasses.replace(result, name=called(result.name)) for result in read]
    comparisons = [
        Comparison(**{**c, "first": called(c["first"]), "second": called(c["second"])})
        for c in facts.get("comparisons") or ()
    ]
    collections = suites.of_collections(artifact)
    plain = Evaluation(called(name), systems, comparisons, facts, of_collections=collections)
    # Collections have questions of their own each.
    if collections or not plain.measures or not all(result.per_query for result in systems):
        return plain
    measure = plain.measures[0]
    ranked = sorted(systems, key=lambda result: result.mean.get(measure, 0.0), reverse=True)
    best = ranked[0]
    runs = {called(run): ranking for run, ranking in _runs(artifact, texts).items()}
    relevant = _relevant(artifact, texts)
    # The first system is the baseline; if it is the best one, it is compared with the second best.
    other = next((r for r in (systems[0], *ranked) if r.name != best.name), None)
    if other is None:
        return dataclasses.replace(plain, compared=("", best.name))
    gains = {
        query: value - other.per_query[query][measure]
        for query, value in best.values(measure).items()
        if query in other.per_query
    }
    order = sorted((q for q in gains if gains[q]), key=lambda q: (-gains[q], q))
    wins = [q for q in order if gains[q] > 0][: options.cases]
    losses = [q for q in reversed(order) if gains[q] < 0][: options.cases]
    questions = texts.questions([*wins, *losses])

    def case(query: str) -> Case:
        first, second = (
            texts.shown(runs[r.name][query].ids[0]) if query in runs.get(r.name, {}) else ""
            for r in (other, best)
        )
        passages = relevant.get(query, ())
        # A title may be that of many passages; several passages are too much to show.
        named = texts.shown if len(passages) == 1 else texts.title
        answers = dict.fromkeys(map(named, passages))
        return Case(
            questions[query],
            (other.per_query[query][measure], best.per_query[query][measure]),
            tuple(itertools.islice(answers, _MAX_TITLES)),
            first,
            second,
        )

    return dataclasses.replace(
        plain,
        compared=(other.name, best.name),
        wins=[case(query) for query in wins],
        losses=[case(query) for query in losses],
    )


def _heatmap(metrics: Mapping[str, Artifact]) -> Heatmap | None:
    """Systems by collections, where there are several of both."""
    systems = {
        name: suites.suite(results.read(artifact)[0])
        for name, artifact in metrics.items()
        if suites.of_collections(artifact)
    }
    if len(systems) < 2 or not any(suite.ndcg for suite in systems.values()):
        return None
    return Heatmap.of(systems)


def _runs(artifact: Artifact, texts: _Texts) -> dict[str, Run]:
    """The runs that were evaluated; none if one of them was removed."""
    runs = artifact.fields.get("runs") or ""
    paths = [part.strip() for part in runs.split(",") if part.strip()]
    existing = list(filter(None, map(texts.existing, paths)))
    if not existing or len(existing) != len(paths):
        return {}
    files = run_files(",".join(existing))
    return {name: read_run(path, _DEPTH) for name, path in files.items()}


def _relevant(artifact: Artifact, texts: _Texts) -> dict[str, list[str]]:
    """Query -> its relevant passages, the best grade first."""
    path = texts.existing(artifact.fields.get("qrels") or "")
    if not path:
        return {}
    judgements = by_query(read_judgements(path))
    return {
        query: [p for p, grade in sorted(grades.items(), key=lambda g: -g[1]) if grade > 0]
        for query, grades in judgements.items()
    }
