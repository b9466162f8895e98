"""`qac analyse`: figures of contexts."""

from pathlib import Path

import pytest

from qac_jax import artifacts, cli
from qac_jax.evaluation import relatedness
from qac_jax.evaluation.results import read
from qac_jax.formats.records import write_records


DOCUMENTS, EACH = 8, 5


def texts() -> list[list[str]]:
    """Passages of documents: some words of the passage's own, some of its document's."""
    return [
        [
            " ".join([f"own{d}x{p}y{w}" for w in range(4)] + [f"topic{d}z{w}" for w in range(2)])
            for p in range(EACH)
        ]
        for d in range(DOCUMENTS)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Passages, and queries made of their own words."""
    root = tmp_path_factory.mktemp("pairs")
    passages, contexts = [], []
    for d, document in enumerate(texts()):
        for p, text in enumerate(document):
            name = f"d{d}-{p}"
            passage = {"_id": name, "doc": f"d{d}", "position": p, "title": "", "text": text}
            passages.append(passage)
            query = {"text": f"what is own{d}x{p}y1", "origin": "text2query", "score": 0.0}
            contexts.append({"_id": name, "contexts": [query]})
    for kind, records in (("passages", passages), ("contexts", contexts)):
        with artifacts.create(root / kind, kind=kind, schema=1, key=kind, stage="test") as out:
            write_records(out, records, kind)
    return root


def analyse(out: Path, *arguments: str) -> int:
    return cli.main(["analyse", *arguments, "--out", str(out)])


def test_queries_lead_back_to_their_passages(folder, tmp_path, capsys):
    inputs = ["--pairs", str(folder / "contexts"), "--passages", str(folder / "passages")]
    assert analyse(tmp_path / "out", *inputs) == 0
    printed = capsys.readouterr().out
    found, facts = read(artifacts.load(tmp_path / "out"))
    means = {result.name: result.mean for result in found}
    assert {result.queries for result in found} == {DOCUMENTS * EACH}
    assert means[relatedness.QUERY]["bm25 mrr"] == 1.0
    # A sibling shares the topic with all four others: it cannot tell them apart.
    for sort in (relatedness.RANDOM, relatedness.NEARBY):
        assert 0.2 < means[sort]["bm25 mrr"] < 0.9 and means[sort]["bm25 hit@10"] == 1.0
    assert all(c["queries"] == DOCUMENTS * EACH for c in facts["comparisons"])
    assert relatedness.QUERY in printed and "t-test" in printed
