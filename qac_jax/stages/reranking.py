"""A cross-encoder behind `search`: runs in a new order, piece by piece, and hits on the screen."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence

from etils import epath

from qac_jax import artifacts, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.formats import runs
from qac_jax.formats.queries import read_queries, shares
from qac_jax.formats.records import Records
from qac_jax.formats.runs import Ranking
from qac_jax.inference.reranker import Reranker, Settings, Texts, rerank
from qac_jax.retrieval import texts
from qac_jax.retrieval.hits import Hit


# What an interrupted stage goes on from; the dot keeps it through a restart.
_WORK = ".rerank"
# Pairs of a piece: what an interruption loses at most.
_PAIRS = 1 << 15


def work_folder(out: Writer) -> epath.Path:
    """Where pieces are kept while the stage runs."""
    folder = out.path / _WORK
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def texts_of(index: str, passages: str) -> Texts:
    """Ids -> texts with titles, from an artefact of passages or from where an index has them."""
    if passages:
        return passage_texts([artifacts.load(passages, texts.KIND)])
    artifact = artifacts.load(index)
    found = [texts.find(location, artifact.path) for location in artifact.info["texts"]]
    if None in found:
        raise UserError(
            f"the texts of {index} are not where they were; give them with --passages DIR"
        )
    return passage_texts([artifact for artifact in found if artifact is not None])


def passage_texts(given: Sequence[Artifact]) -> Texts:
    """Ids -> title and text of a passage, as cross-encoders read them."""
    parts = [Records(artifact) for artifact in given]

    def look(ids: Sequence[str]) -> list[str]:
        found: dict[str, str] = {}
        for records in parts:
            left = [name for name in ids if name not in found]
            for name, place in zip(left, records.positions(left), strict=True):
                if place is not None:
                    found[name] = texts.passage_text(records[place])
        absent = [name for name in ids if name not in found]
        if absent:
            raise UserError(
                f"passage {absent[0]!r} of the run is not among the passages; give those that "
                "were searched"
            )
        return [found[name] for name in ids]

    return look


def write(
    out: Writer,
    name: str,
    *,
    candidates: str,
    queries: str,
    texts: Texts,
    model: str,
    settings: Settings,
    k: int,
    depth: int,
) -> int:
    """Writes the run in its new order as the file `name`; returns how many queries there are.

    The first `depth` passages are read and reordered; those after them follow in their old order,
    below.
    """
    run = runs.read_run(candidates, k)
    asked = {query.id: query.text for query in read_queries(queries) if query.id in run}
    if absent := run.keys() - asked.keys():
        raise UserError(
            f"{len(absent)} queries of the run have no text in {queries}, such as "
            f"{min(absent)!r}; give the queries that were searched with"
        )
    work, names = work_folder(out), list(run)
    step = max(1, _PAIRS // depth)
    pieces = [names[i : i + step] for i in range(0, len(names), step)]
    reranker: Reranker | None = None
    with progress.Bar("rerank", total=len(names), unit="queries") as bar:
        for number, piece in enumerate(pieces):
            path = os.fspath(work / f"piece-{number:06d}.trec")
            if os.path.exists(path):
                bar.skip(len(piece))
                continue
            if reranker is None:
                reranker = Reranker.load(model, settings)
            first = {query: run[query].top(depth) for query in piece}
            ordered = rerank(first, asked, texts, reranker)
            whole = {query: _followed(ordered[query], run[query].ids[depth:]) for query in piece}
            runs.write_run(path, whole)
            bar.advance(len(piece))
    with out.open(name, "wb") as file:
        for number in range(len(pieces)):
            with open(os.fspath(work / f"piece-{number:06d}.trec"), "rb") as part:
                shutil.copyfileobj(part, file)
    shutil.rmtree(work)
    return len(names)


def _followed(ranking: Ranking, rest: Sequence[str]) -> Ranking:
    """The ranking with passages that nobody read behind it, one point apart each."""
    if not rest:
        return ranking
    lowest = float(ranking.scores[-1])
    below = [lowest - 1 - place for place in range(len(rest))]
    return runs.ranked((*ranking.ids, *rest), [*ranking.scores.tolist(), *below])


def hits(question: str, found: Sequence[Hit], model: str) -> list[Hit]:
    """Hits for a question in the cross-encoder's order, with its log-odds as scores."""
    if not found:
        return []
    if not all(hit.text for hit in found):
        raise UserError("the cross-encoder reads texts, and they are not where they were")
    read = [texts.passage_text(dataclasses.asdict(hit)) for hit in found]
    reranker = Reranker.load(model, Settings(max_length=0))
    told = reranker.module.reads_scores
    standing = shares([hit.score for hit in found]) if told else None
    odds = reranker.score([question] * len(found), read, standing)
    order = sorted(range(len(found)), key=lambda i: -odds[i])
    return [dataclasses.replace(found[i], score=float(odds[i])) for i in order]
