"""Our figures are trec_eval's on a thousand random runs full of ties.

pytrec_eval is given the raw scores in double precision; ours go through our own order (and, for
some, through a file). The measures that we compute ourselves are compared with what trec_eval's
own measures imply, so nothing here relies on our order.
"""

import numpy as np
import pytest
import pytrec_eval

from qac_jax.evaluation import metrics
from qac_jax.formats.runs import ranked, read_run, write_run


RUNS = 1000
CUTS = (1, 3, 10, 50)
TREC = ("map", "ndcg", "recip_rank", "Rprec", "bpref", "num_rel_ret")
OURS = [f"{name}@{k}" for name in ("ndcg", "map", "recall", "precision") for k in CUTS]
OWN = [f"{name}@{k}" for name in ("mrr", "hit", "capped_recall") for k in CUTS]
PARTS = ("ndcg_cut", "map_cut", "recall", "P", "success")
THEIRS = {*TREC, "num_rel", *(f"{part}.{','.join(map(str, CUTS))}" for part in PARTS)}


def random_run(rng: np.random.Generator) -> tuple[dict, dict]:
    """A run with many ties, some of them only in single precision, and graded judgements."""
    run: dict[str, dict[str, float]] = {}
    judgements: dict[str, dict[str, int]] = {}
    pool = rng.permutation(300)[: rng.integers(5, 120)]
    for number in range(rng.integers(1, 5)):
        query = f"q{number}"
        found = rng.permutation(pool)[: rng.integers(1, len(pool) + 1)]
        levels = rng.choice([1, 2, 7, 1000])
        scores = rng.integers(-levels, levels + 1, len(found)) * rng.choice([0.1, 1.0, 3e38])
        # These vanish in single precision: trec_eval sees ties, a sort of doubles would not.
        scores = scores + scores * rng.normal(0, 1e-12, len(found))
        if rng.random() < 0.9:
            run[query] = {_name(d): float(s) for d, s in zip(found, scores, strict=True)}
        if rng.random() < 0.9:
            judged = rng.permutation(pool)[: rng.integers(1, len(pool) + 1)]
            judgements[query] = {_name(d): int(rng.integers(-1, 4)) for d in judged}
    return run, judgements


def _name(number: int) -> str:
    """Names whose order as text is neither that of numbers nor ASCII only."""
    return ("d", "é", "\U0001f681", "")[number % 4] + str(number)


@pytest.mark.slow
def test_a_thousand_random_runs(tmp_path):
    rng = np.random.default_rng(20260101)
    compared = ties = 0
    while compared < RUNS:
        raw, judgements = random_run(rng)
        if not raw.keys() & judgements.keys():
            continue
        level = int(rng.integers(1, 4))
        with np.errstate(over="ignore"):
            ties += any(
                len(np.unique(np.array(list(scores.values()), np.float32))) < len(scores)
                for scores in raw.values()
            )
        run = {query: ranked(list(s), list(s.values())) for query, s in raw.items()}
        if compared % 20 == 0:
            finite = all(np.isfinite(r.scores).all() for r in run.values())
            if finite:
                write_run(tmp_path / "run.trec", run)
                run = read_run(tmp_path / "run.trec")
        scores = metrics.evaluate(run, judgements, [*TREC, *OURS, *OWN], level)
        # trec_eval loops for ever on a query whose grades are all negative.
        bearable = {q: grades for q, grades in judgements.items() if max(grades.values()) >= 0}
        theirs = pytrec_eval.RelevanceEvaluator(bearable, THEIRS, level).evaluate(raw)
        assert scores.retrieved == raw.keys() & judgements.keys()
        for query, values in scores.per_query.items():
            if query not in theirs:
                assert not any(values.values())
                continue
            for name, value in implied(theirs[query]).items():
                assert values[name] == pytest.approx(value, abs=1e-12), (compared, query, name)
        for name in OURS:
            total = sum(implied(values)[name] for values in theirs.values())
            assert scores.mean(name, "retrieved") == pytest.approx(total / len(scores.retrieved))
            assert scores.mean(name, "judged") == pytest.approx(total / len(judgements))
        compared += 1
    assert ties > RUNS / 2


def implied(theirs: dict[str, float]) -> dict[str, float]:
    """Our measures by their names, from trec_eval's alone."""
    found = {name: theirs[name] for name in TREC}
    rank = round(1 / theirs["recip_rank"]) if theirs["recip_rank"] else None
    for k in CUTS:
        found[f"ndcg@{k}"] = theirs[f"ndcg_cut_{k}"]
        found[f"map@{k}"] = theirs[f"map_cut_{k}"]
        found[f"recall@{k}"] = theirs[f"recall_{k}"]
        found[f"precision@{k}"] = theirs[f"P_{k}"]
        found[f"hit@{k}"] = theirs[f"success_{k}"]
        found[f"mrr@{k}"] = theirs["recip_rank"] if rank is not None and rank <= k else 0.0
        relevant = theirs["num_rel"]
        found[f"capped_recall@{k}"] = theirs[f"P_{k}"] * k / min(k, relevant) if relevant else 0.0
    return found
