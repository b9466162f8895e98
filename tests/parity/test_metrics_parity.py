"""Golden case 10: trec_eval's and the MS MARCO script's figures of a run with ties and gaps."""

import json
import re
from pathlib import Path

import golden_cases as golden
import numpy as np
import pytest

from qac_jax.evaluation import benchmarks, metrics
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.runs import read_run


TOLERANCE = 1e-6
CASES = golden.parameters("10_")
MEANS = {"mean_over_evaluated": "retrieved", "mean_over_all_qrels_queries": "judged"}


def ours(name: str) -> list[str]:
    """What we call a measure of the reference; some have two names with us."""
    if cut := re.fullmatch(r"recip_rank_cut(\d+)", name):
        return [f"mrr@{cut[1]}"]
    cut = re.fullmatch(r"(ndcg_cut|map_cut|recall|P|success)_(\d+)", name)
    short = {"ndcg_cut": "ndcg", "map_cut": "map", "P": "precision", "success": "hit"}
    return [name, f"{short.get(cut[1], cut[1])}@{cut[2]}"] if cut else [name]


def read(case: Path):
    expected = json.loads((case / "expected.json").read_text())
    judgements = by_query(read_judgements(case / "qrels.txt"))
    return expected, read_run(case / "run.txt"), judgements


def blocks(expected: dict, prefix: str) -> list[tuple[int, dict]]:
    """(relevance level, block) of all blocks of a kind; at least one."""
    found = [
        (int(name.removeprefix(f"{prefix}_rel")), block)
        for name, block in expected.items()
        if name.startswith(f"{prefix}_rel")
    ]
    assert found, f"expected.json has no {prefix}_rel*"
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_query_and_means(case):
    expected, run, judgements = read(case)
    for level, block in blocks(expected, "per_query"):
        asked = [name for reference in next(iter(block.values())) for name in ours(reference)]
        scores = metrics.evaluate(run, judgements, asked, level)
        assert scores.retrieved == block.keys()
        for query, values in block.items():
            same(scores.per_query[query], values)
    for prefix, over in MEANS.items():
        for level, block in blocks(expected, prefix):
            asked = [name for reference in block for name in ours(reference)]
            same(metrics.evaluate(run, judgements, asked, level).means(over), block)


def same(actual, expected):
    for reference, value in expected.items():
        for name in ours(reference):
            assert actual[name] == pytest.approx(value, abs=TOLERANCE), name


@pytest.mark.parametrize("case", CASES)
def test_the_ms_marco_script(case):
    expected, run, judgements = read(case)
    rules = benchmarks.PROTOCOLS["msmarco"]
    for level, block in blocks(expected, "msmarco_script"):
        figures = {k: v for k, v in block.items() if "@" in k}
        names = {}
        for name in figures:
            cut = name.split("@")[1].replace("all", "1000")
            names[name] = f"mrr@{cut}" if name.startswith("MRR") else f"hit@{cut}"
        scores = metrics.evaluate(run, judgements, list(names.values()), level)
        for name, value in figures.items():
            assert scores.mean(names[name], rules.over) == pytest.approx(value, abs=TOLERANCE), name
        assert len(run) == block["QueriesRanked"]
        assert len(scores.queries(rules.over)) == block["n_reference_queries"]


@pytest.mark.parametrize("case", CASES)
def test_the_arrays_and_counts(case):
    expected, run, judgements = read(case)
    _, arrays = golden.load(case)
    queries = [str(query) for query in arrays["query_ids"]]
    checked = 0
    for name, values in arrays.items():
        if match := re.fullmatch(r"rel(\d+)__(.+)", name):
            scores = metrics.evaluate(run, judgements, ours(match[2]), int(match[1]))
            for measure in ours(match[2]):
                actual = [scores.per_query[query][measure] for query in queries]
                np.testing.assert_allclose(actual, values, rtol=0, atol=TOLERANCE, err_msg=name)
                checked += 1
    assert checked
    scores = metrics.evaluate(run, judgements, ["map"])
    counts = expected["n_queries"]
    assert len(scores.queries("judged")) == counts["qrels"]
    assert len(scores.queries("retrieved")) == counts["evaluated"]
    assert len(scores.queries("answerable")) == counts["qrels_with_a_relevant"]
    assert scores.unjudged == counts["run"] - counts["evaluated"]
