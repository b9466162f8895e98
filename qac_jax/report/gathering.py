"""The content of a report, gathered from the artefacts of a run."""

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qac_jax import artifacts
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError, short
from qac_jax.evaluation import results
from qac_jax.evaluation.results import Result
from qac_jax.evaluation.significance import Comparison
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.formats.runs import Run, read_run, run_files
from qac_jax.report import suites, tables


KIND = "report"
ALPHA = 0.05  # significance level
LETTERS = "abcdefghijklmnopqrstuvwxyz"

# Characters of a passage, and titles of relevant passages.
_SNIPPET, _MAX_TITLES = 220, 6
# Wins and losses of an evaluation, and passages with their generated queries.
_CASES, _SAMPLES = 5, 6
_HISTORY = "metrics.jsonl"


@dataclasses.dataclass(frozen=True)
class Case:
    """A question that one system answers better than another."""

    question: str
    values: tuple[float, float]
    relevant: tuple[str, ...]
    first: str  # the text that the first system ranks highest
    second: str


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Systems measured on the same questions, or one system on several collections."""

    name: str
    results: Sequence[Result]  # a row each
    comparisons: Sequence[Comparison] = ()
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    compared: tuple[str, str] = ("", "")
    cases: Mapping[str, Sequence[Case]] = dataclasses.field(default_factory=dict)
    of_collections: bool = False  # rows are collections

    @property
    def measures(self) -> list[str]:
        return tables.measures(self.results)

    def better_than(self, measure: str) -> dict[str, str]:
        """System -> letters of the systems that it beats significantly (randomisation, Holm)."""
        letters = dict(zip((r.name for r in self.results), LETTERS, strict=False))
        beaten: dict[str, set[str]] = {result.name: set() for result in self.results}
        for c in self.comparisons:
            if c.measure == measure and c.randomization_holm < ALPHA and c.difference:
                better, worse = (c.second, c.first) if c.difference > 0 else (c.first, c.second)
                beaten[better].add(letters.get(worse, ""))
        return {name: "".join(sorted(marks)) for name, marks in beaten.items()}


@dataclasses.dataclass(frozen=True)
class Content:
    title: str
    evaluations: Sequence[Evaluation] = ()
    curves: Mapping[str, Sequence[Mapping[str, float]]] = dataclasses.field(default_factory=dict)
    samples: Mapping[str, Sequence[Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    stages: Mapping[str, Artifact] = dataclasses.field(default_factory=dict)  # by time
    gin: str = ""
    conclusion: Mapping[str, Any] | None = None  # of `qac step conclude`: verdict, provenance


def artifacts_in(folder: str | os.PathLike[str]) -> dict[str, Artifact]:
    """Name -> finished artefact of a run's folder, without reports."""
    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; give the --out of a recipe's run")
    finished = {}
    for child in sorted([*root.iterdir(), *root.glob(f"{artifacts.STAGES}/*")]):
        record = artifacts.peek(child) if child.is_dir() else None
        if record is not None and record["finished"] and record["kind"] != KIND:
            finished[child.name] = artifacts.load(child)
    return finished


@dataclasses.dataclass(frozen=True)
class Gathering:
    """A run's artefacts, and the names under which evaluations, runs and trainings are shown."""

    artefacts: Mapping[str, Artifact]
    names: Mapping[str, str]

    def content(self, title: str, metrics: Mapping[str, Artifact]) -> Content:
        """The report; `metrics` are the artefacts of kind "metrics"."""
        made = self.artefacts
        by_time = sorted(made.items(), key=lambda of: (of[1].record.get("written", ""), of[0]))
        return Content(
            title=title,
            evaluations=[self._evaluation(n, a) for n, a in metrics.items()],
            curves={
                self._called(n): list(map(json.loads, a.file(_HISTORY).read_text().splitlines()))
                for n, a in made.items()
                if _HISTORY in a.files
            },
            samples={n: self._samples(a) for n, a in made.items() if a.kind == "contexts"},
            stages=dict(by_time),
            gin=max((a.info.get("gin") or "" for a in made.values()), key=len, default=""),
        )

    def _called(self, name: str) -> str:
        return self.names.get(name, name)

    def _existing(self, path: str | None) -> str:
        """A path that a stage read, or where it is after the run was moved; "" if nowhere."""
        here = {a.path.parent for a in self.artefacts.values()}
        parts = Path(path or "").parts
        places = [
            path or "",
            *(os.path.join(h, *parts[-n:]) for n in (1, 2) if parts for h in here),
        ]
        return next(filter(os.path.exists, places), "")

    def _questions(self, ids: Iterable[str]) -> dict[str, str]:
        """Their texts; a question without a text is shown by its id."""
        wanted = {name: name for name in ids}
        for source in {a.fields.get("queries") or "": None for a in self.artefacts.values()}:
            with contextlib.suppress(UserError):
                for query in read_queries(self._existing(source)) if source else ():
                    if query.id in wanted:
                        wanted[query.id] = query.text
        return wanted

    @functools.cached_property
    def _passages(self) -> list[Records]:
        return [Records(a) for a in self.artefacts.values() if a.kind == "passages"]

    def _passage(self, name: str) -> tuple[str, str]:
        """(title or id, beginning of the text)."""
        for records in self._passages:
            (position,) = records.positions([name])
            if position is not None:
                record = records[position]
                text = " ".join((record.get("text") or "").split())
                return record.get("title") or name, short(text, _SNIPPET)
        return name, ""

    def _shown(self, name: str) -> str:
        return ": ".join(filter(None, self._passage(name)))

    def _samples(self, artifact: Artifact) -> list[dict[str, Any]]:
        """Records at equal distances, each with the text of its passage."""
        records = Records(artifact)
        step = max(len(records) // _SAMPLES, 1)
        chosen = [records[i] for i in range(step // 2, len(records), step)][:_SAMPLES]
        named = [(record, *self._passage(record["_id"])) for record in chosen]
        return [{**record, "title": title, "text": text} for record, title, text in named]

    def _evaluation(self, name: str, artifact: Artifact) -> Evaluation:
        """Metrics, and the questions on which the best system gains and loses most."""
        read, facts = results.read(artifact)
        systems = [dataclasses.replace(r, name=self._called(r.name)) for r in read]
        comparisons = [
            Comparison(**{**c, **{side: self._called(c[side]) for side in ("first", "second")}})
            for c in facts.get("comparisons") or ()
        ]
        evaluation = Evaluation(
            self._called(name),
            systems,
            comparisons,
            facts,
            of_collections=suites.of_collections(artifact),
        )
        if evaluation.of_collections or not all(result.per_query for result in systems):
            return evaluation
        measure = evaluation.measures[0]
        ranked = sorted(systems, key=lambda result: result.mean.get(measure, 0.0), reverse=True)
        best = ranked[0]
        # The first system is the baseline; the best one is compared with the second best.
        other = next((r for r in (systems[0], *ranked) if r.name != best.name), best)
        before, after = other.values(measure), best.values(measure)
        gains = {q: after[q] - before[q] for q in after.keys() & before.keys()}
        order = sorted((q for q in gains if gains[q]), key=lambda q: (-gains[q], q))
        wins = [q for q in order[:_CASES] if gains[q] > 0]
        losses = [q for q in order[: -_CASES - 1 : -1] if gains[q] < 0]
        questions = self._questions([*wins, *losses])
        runs, relevant = self._runs(artifact), self._relevant(artifact)

        def first(system: str, query: str) -> str:
            found = runs.get(system, {}).get(query)
            return self._shown(found.ids[0]) if found else ""

        def case(query: str) -> Case:
            passages = relevant.get(query, ())
            # Several passages are too much to show, and may have one title.
            titles = [
                self._shown(p) if len(passages) == 1 else self._passage(p)[0] for p in passages
            ]
            return Case(
                questions[query],
                (before[query], after[query]),
                tuple(dict.fromkeys(titles))[:_MAX_TITLES],
                first(other.name, query),
                first(best.name, query),
            )

        cases = {"Won": list(map(case, wins)), "Lost": list(map(case, losses))} if order else {}
        return dataclasses.replace(evaluation, compared=(other.name, best.name), cases=cases)

    def _runs(self, artifact: Artifact) -> dict[str, Run]:
        """The runs that were evaluated; none if one of them was removed."""
        paths = [path.strip() for path in (artifact.fields.get("runs") or "").split(",")]
        existing = list(map(self._existing, paths))
        files = run_files(",".join(existing)) if all(existing) else {}
        return {self._called(name): read_run(path, 1) for name, path in files.items()}

    def _relevant(self, artifact: Artifact) -> dict[str, list[str]]:
        """Query -> its relevant passages, the best grade first."""
        path = self._existing(artifact.fields.get("qrels"))
        return {
            query: [p for p, grade in sorted(grades.items(), key=lambda g: -g[1]) if grade > 0]
            for query, grades in (by_query(read_judgements(path)) if path else {}).items()
        }
