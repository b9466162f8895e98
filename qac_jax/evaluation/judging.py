"""Runs on one collection into results: by judgements, or by the answers of questions.

judge = by_judgements("qrels/test.tsv", Rules(protocol="msmarco").resolved())
results = [judge(name, read_run(path)) for name, path in run_files("a.trec,b.trec").items()]
compared(results, ("mrr@10",))
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError
from qac_jax.evaluation import answers, benchmarks, significance
from qac_jax.evaluation.benchmarks import Protocol
from qac_jax.evaluation.metrics import depth_of
from qac_jax.evaluation.results import MACRO, Result
from qac_jax.evaluation.significance import Comparison
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.formats.runs import Run


Path = str | os.PathLike[str]
Judge = Callable[[str, Run], Result]


def by_judgements(qrels: Path, rules: Protocol) -> Judge:
    """Judges runs by relevance judgements, which are read once."""
    judgements = by_query(read_judgements(qrels))
    return lambda name, run: benchmarks.judge(name, run, judgements, rules)


def by_answers(queries: Path, passages: Artifact, form: str, measures: Sequence[str]) -> Judge:
    """Judges runs by whether passages hold an answer; EntityQuestions by relation as well."""
    questions = list(read_queries(queries))
    relations = answers.relations(questions)
    texts = texts_of(passages)

    def judge(name: str, run: Run) -> Result:
        scores = answers.evaluate(run, questions, texts, form=form, measures=measures)
        result = Result.of(name, scores, "judged")
        if relations:
            macro = answers.macro_means(scores, relations)
            result.mean.update({MACRO + measure: value for measure, value in macro.items()})
        return result

    return judge


def texts_of(passages: Artifact) -> Callable[[Sequence[str]], list[str]]:
    """Ids -> texts of a passages artefact."""
    records = Records(passages)

    def texts(ids: Sequence[str]) -> list[str]:
        read = []
        for name, position in zip(ids, records.positions(ids), strict=True):
            if position is None:
                raise UserError(
                    f"passage {name!r} of the run is not in {passages.path}; give the passages "
                    f"that were searched"
                )
            read.append(records[position]["text"])
        return read

    return texts


def too_shallow(run: Run, measures: Sequence[str], asked: int = 0) -> tuple[int, list[str]]:
    """(the most passages of a query, the measures that look at more of them and at more than were
    asked for)."""
    deepest = max(len(ranking.ids) for ranking in run.values())
    return deepest, [m for m in measures if (depth_of(m) or 0) > max(deepest, asked)]


def compared(
    results: Sequence[Result],
    measures: Sequence[str],
    permutations: int = significance.PERMUTATIONS,
    seed: int = 0,
) -> list[Comparison]:
    """All pairs of runs (or of sorts of contexts) by each measure."""
    return [
        comparison
        for measure in measures
        for comparison in significance.compare(
            {result.name: result.values(measure) for result in results},
            measure,
            permutations=permutations,
            seed=seed,
        )
    ]
