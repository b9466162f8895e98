"""The judged test questions of a collection, and the table of runs that they judged.

    python launch/own_documents.py questions COLLECTION FILE
    python launch/own_documents.py table OUT COLLECTION...

launch/own_documents.sh calls it. A question's reciprocal rank is the mean over the seeds, so that
the paired tests compare questions and not questions times seeds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from qac_jax.evaluation import metrics, significance
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.formats.runs import read_run


MEASURE = "mrr@10"
# The place of the first answer among the first ten; "-": it is not there.
PLACES = "-123456789A"
RECIPROCAL = {place: 1 / number if number else 0.0 for number, place in enumerate(PLACES)}
SYSTEMS = {
    "bm25": "BM25",
    "index_start": "start",
    "index_1": "retriever 1",
    "hybrid_start": "start + BM25",
    "hybrid_1": "retriever 1 + BM25",
    "index": "`OUT/index`",
}
COMPARED = (
    ("index_1", "index_start"),
    ("hybrid_1", "bm25"),
    ("hybrid_1", "index_start"),
    ("hybrid_1", "hybrid_start"),
    ("index", "bm25"),
    ("index", "index_start"),
    ("index", "hybrid_start"),
)


def judgements(collection: Path) -> dict[str, dict[str, int]]:
    return by_query(read_judgements(collection / "qrels" / "test.tsv"))


def write_questions(collection: Path, file: Path) -> None:
    judged = judgements(collection)
    asked = (q for q in read_queries(collection / "queries.jsonl") if q.id in judged)
    lines = (json.dumps({"_id": q.id, "text": q.text}, ensure_ascii=False) for q in asked)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def places(run: Path, judged: dict[str, dict[str, int]]) -> dict[str, str]:
    """System -> the place of every question's first answer, in the order of the judgements.

    Made of the rankings wherever they are, and kept in the run's folder. These small files are what
    a table needs, so that seeds can be run on different days and machines:
    docs/results/own_documents holds some.
    """
    kept = run / "places.json"
    if _is_searched(run):
        found = {}
        for system in SYSTEMS:
            ranking = read_run(run / "judged" / f"{system}.trec")
            scores = metrics.evaluate(ranking, judged, [MEASURE]).per_query.values()
            found[system] = "".join(
                PLACES[round(1 / s[MEASURE]) if s[MEASURE] else 0] for s in scores
            )
        kept.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
    return dict(json.loads(kept.read_text(encoding="utf-8")))


def _is_searched(run: Path) -> bool:
    return all((run / "judged" / f"{system}.trec").exists() for system in SYSTEMS)


def values(out: Path, collection: Path) -> tuple[int, dict[str, dict[str, float]]]:
    """The number of finished seeds; system -> question -> reciprocal rank, the mean over seeds."""
    judged = judgements(collection)
    runs = [
        folder
        for folder in sorted((out / collection.name).glob("seed_*"))
        if (folder / "places.json").exists() or _is_searched(folder)
    ]
    of_seeds = [places(folder, judged) for folder in runs]
    means = {}
    for system in SYSTEMS if of_seeds else ():
        found = [[RECIPROCAL[place] for place in seed[system]] for seed in of_seeds]
        means[system] = dict(zip(judged, np.mean(found, axis=0).tolist(), strict=True))
    return len(of_seeds), means


def table(out: Path, collections: list[Path]) -> Iterator[str]:
    found = {c.name: values(out, c) for c in collections}
    found = {name: (seeds, means) for name, (seeds, means) in found.items() if seeds}
    yield f"{MEASURE} on judged test questions; means over seeds.\n"
    yield "| collection | seeds | questions | " + " | ".join(SYSTEMS.values()) + " |"
    yield "|---" * (len(SYSTEMS) + 3) + "|"
    for name, (seeds, means) in found.items():
        figures = " | ".join(f"{np.mean([*means[s].values()]):.3f}" for s in SYSTEMS)
        yield f"| {name} | {seeds} | {len(means['bm25']):,} | {figures} |"
    yield "\n| collection | difference | mean | better / worse / equal | p (Holm) |"
    yield "|---|---|---|---|---|"
    rows = []
    for name, (_, means) in found.items():
        for ours, theirs in COMPARED:
            (one,) = significance.compare({s: means[s] for s in (theirs, ours)}, MEASURE)
            rows.append((name, ours, theirs, one))
    corrected = significance.holm([one.randomization for *_, one in rows])
    for (name, ours, theirs, one), p in zip(rows, corrected, strict=True):
        counts = f"{one.wins} / {one.losses} / {one.ties}"
        shown = "< .0001" if p < 1e-4 else f"{p:.4f}"
        yield (
            f"| {name} | {SYSTEMS[ours]} − {SYSTEMS[theirs]} | {one.difference:+.4f} | {counts} "
            f"| {shown} |"
        )


def main() -> None:
    verb, first, *rest = sys.argv[1:]
    if verb == "questions":
        write_questions(Path(first), Path(rest[0]))
        return
    text = "\n".join(table(Path(first), [Path(name) for name in rest])) + "\n"
    (Path(first) / "own_documents.md").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
