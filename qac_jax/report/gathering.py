"""What a report shows, gathered from the artefacts of a run."""

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
from qac_jax.evaluation.significance import Comparison
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.formats.runs import Run, read_run, run_files
from qac_jax.report import suites
from qac_jax.report.content import Case, Content, Evaluation, StageRow
from qac_jax.report.heatmap import Heatmap


KIND = "report"

_SNIPPET = 220
_HISTORY = "metrics.jsonl"


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """How much is shown."""

    title: str = "Report"
    cases: int = 5  # wins and losses of each test
    samples: int = 6  # passages with their generated queries, of each artefact
    queries: str = ""  # where the questions' texts are, if the runs do not say
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of tests, runs, trainings


def artifacts_in(folder: str | os.PathLike[str]) -> dict[str, Artifact]:
    """Name -> finished artefact of the folders in a folder, reports left out."""
    place = Path(folder)
    if not place.is_dir():
        raise UserError(f"{place} is not a folder; give the --out of a recipe's run")
    found = {}
    for child in sorted(place.iterdir()):
        record = artifacts.peek(child) if child.is_dir() else None
        if record is not None and record["finished"] and record["kind"] != KIND:
            found[child.name] = artifacts.load(child)
    return found


def content(
    found: Mapping[str, Artifact], metrics: Mapping[str, Artifact], choice: ReportOptions
) -> Content:
    """The report of these artefacts; `metrics` are those that hold figures."""
    ordered = _by_making(found.values())
    names = {os.fspath(artifact.path): name for name, artifact in found.items()}
    known = _Known(found, choice)
    gins = [a.info["gin"] for a in ordered if a.info.get("gin")]
    return Content(
        title=choice.title,
        evaluations=[
            _renamed(_test(name, artifact, known, choice), choice.names)
            for name, artifact in metrics.items()
        ],
        curves={
            choice.names.get(n, n): _history(a) for n, a in found.items() if _HISTORY in a.files
        },
        indexes={n: a.info["tuning"] for n, a in found.items() if a.info.get("tuning")},
        samples={
            n: _samples(a, known, choice.samples) for n, a in found.items() if a.kind == "contexts"
        },
        stages=[_stage_row(names[os.fspath(a.path)], a) for a in ordered],
        gin=max(gins, key=len, default=""),
        heatmap=_heatmap({choice.names.get(n, n): a for n, a in metrics.items()}),
    )


class _Known:
    """Texts of questions and passages, as far as the run's folder has them."""

    def __init__(self, found: Mapping[str, Artifact], choice: ReportOptions):
        self._passages = [Records(a) for a in found.values() if a.kind == "passages"]
        self._runs = {n: a for n, a in found.items() if a.kind == "run"}
        self._folder = next((a.path.parent for a in found.values()), None)
        self._sources = [choice.queries] if choice.queries else []
        fields = (a.fields.get("queries") for a in found.values() if a.kind in ("run", "vectors"))
        self._sources += [source for source in dict.fromkeys(fields) if source]

    def place(self, path: str) -> str:
        """A path that a stage was given, wherever it is now ("": nowhere)."""
        folders = Path(path).parts[-2:]
        moved = [str(Path(str(self._folder), *folders[i:])) for i in range(len(folders))]
        return next((p for p in (path, *moved) if p and os.path.exists(p)), "")

    def questions(self, ids: Iterable[str]) -> dict[str, str]:
        """Their texts; an id stands for itself where there is none."""
        wanted = {name: name for name in ids}
        for source in self._sources:
            with contextlib.suppress(UserError):
                for query in read_queries(self.place(source) or source):
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
        record = self.passage(name)
        parts = (record.get("title") or name, _short(record.get("text", "")))
        return ": ".join(filter(None, parts))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SNIPPET else text[: _SNIPPET - 1] + "…"


def _by_making(found: Iterable[Artifact]) -> list[Artifact]:
    """In the order in which they were finished, which is that of the road."""
    return sorted(found, key=lambda a: (a.record.get("written", ""), os.fspath(a.path)))


def _stage_row(name: str, artifact: Artifact) -> StageRow:
    info = artifact.info
    return StageRow(
        name,
        artifact.stage,
        artifact.kind,
        artifact.count,
        info.get("seconds"),
        info.get("peak_resident_bytes"),
        artifact.identity,
        {name: value for name, value in artifact.fields.items() if name != "type"},
    )


def _history(artifact: Artifact) -> list[dict[str, float]]:
    lines = artifact.file(_HISTORY).read_text().splitlines()
    return [json.loads(line) for line in lines]


def _samples(artifact: Artifact, known: _Known, count: int) -> list[dict[str, Any]]:
    """Records spread over the whole, each beside its passage."""
    records = Records(artifact)
    step = max(len(records) // max(count, 1), 1)
    chosen = [records[i] for i in range(step // 2, len(records), step)][:count]
    shown = []
    for record in chosen:
        passage = known.passage(record["_id"])
        text = _short(passage.get("text", ""))
        shown.append({**record, "title": passage.get("title") or record["_id"], "text": text})
    return shown


def _test(name: str, artifact: Artifact, known: _Known, choice: ReportOptions) -> Evaluation:
    found, facts = results.read(artifact)
    comparisons = [Comparison(**c) for c in facts.get("comparisons") or ()]
    collections = _of_collections(artifact)
    plain = Evaluation(name, found, comparisons, facts, of_collections=collections)
    measure = plain.measures[0] if plain.measures else ""
    if not measure or not all(result.per_query for result in found):
        return plain
    if collections:  # each has questions of its own
        return plain
    ranked = sorted(found, key=lambda result: result.mean.get(measure, 0.0), reverse=True)
    best = ranked[0]
    runs = _runs(artifact, known)
    relevant = _relevant(artifact, known)
    scores = _scores(runs[best.name], relevant) if best.name in runs and relevant else []
    # Against what stands first, which is the baseline; or the next best where that is the best.
    other = next((r for r in (found[0], *ranked) if r.name != best.name), None)
    if other is None:
        return dataclasses.replace(plain, scores=scores, compared=("", best.name))
    gains = {
        query: value - other.per_query[query][measure]
        for query, value in best.values(measure).items()
        if query in other.per_query
    }
    order = sorted((q for q in gains if gains[q]), key=lambda q: (-gains[q], q))
    won = [q for q in order if gains[q] > 0][: choice.cases]
    lost = [q for q in reversed(order) if gains[q] < 0][: choice.cases]
    texts = known.questions([*won, *lost])

    def case(query: str) -> Case:
        tops = [
            known.shown(runs[r.name][query].ids[0]) if query in runs.get(r.name, {}) else ""
            for r in (other, best)
        ]
        titles = dict.fromkeys(known.title(p) for p in relevant.get(query, ()))
        return Case(
            texts[query],
            (other.per_query[query][measure], best.per_query[query][measure]),
            tuple(itertools.islice(titles, 6)),
            *tops,
        )

    return dataclasses.replace(
        plain,
        compared=(other.name, best.name),
        wins=[case(query) for query in won],
        losses=[case(query) for query in lost],
        scores=scores,
    )


def _of_collections(artifact: Artifact) -> bool:
    """Whether the rows of these figures are collections, and not runs on one."""
    return bool(artifact.fields.get("beir") or artifact.fields.get("suite"))


def _heatmap(metrics: Mapping[str, Artifact]) -> Heatmap | None:
    """Systems by collections, where there are several of both."""
    found = {
        name: suites.suite(results.read(artifact)[0])
        for name, artifact in metrics.items()
        if _of_collections(artifact)
    }
    if len(found) < 2 or not any(suite.ndcg for suite in found.values()):
        return None
    return Heatmap.from_suites(found)


def _renamed(test: Evaluation, names: Mapping[str, str]) -> Evaluation:
    def called(name: str) -> str:
        return names.get(name, name)

    first, second = test.compared
    return dataclasses.replace(
        test,
        name=called(test.name),
        results=[dataclasses.replace(r, name=called(r.name)) for r in test.results],
        comparisons=[
            dataclasses.replace(c, first=called(c.first), second=called(c.second))
            for c in test.comparisons
        ],
        compared=(called(first), called(second)),
    )


def _runs(artifact: Artifact, known: _Known) -> dict[str, Run]:
    """The runs that were judged, where they still are."""
    given = [artifact.fields.get(name) or "" for name in ("runs", "searched", "against")]
    paths = [part.strip() for parts in given for part in parts.split(",") if part.strip()]
    places = [place for path in paths if (place := known.place(path))]
    if not places or len(places) != len(paths):
        return {}
    return {name: read_run(path, 100) for name, path in run_files(",".join(places)).items()}


def _relevant(artifact: Artifact, known: _Known) -> dict[str, list[str]]:
    """Query -> its relevant passages, the best grade first."""
    place = known.place(artifact.fields.get("qrels") or "")
    if not place:
        return {}
    judged = by_query(read_judgements(place))
    return {
        query: [p for p, grade in sorted(grades.items(), key=lambda g: -g[1]) if grade > 0]
        for query, grades in judged.items()
    }


def _scores(run: Run, relevant: Mapping[str, Sequence[str]]) -> list[tuple[str, list[float]]]:
    """Scores of relevant passages, and of the best that is not, for each question."""
    right: list[float] = []
    wrong: list[float] = []
    for query, ranking in run.items():
        if good := set(relevant.get(query, ())):
            pairs = list(zip(ranking.ids, ranking.scores.tolist(), strict=True))
            right += [score for name, score in pairs if name in good]
            wrong += [score for name, score in pairs if name not in good][:1]
    return [("relevant", right), ("best other", wrong)] if right and wrong else []
