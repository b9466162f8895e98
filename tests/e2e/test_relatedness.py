"""`qac analyse`: figures of contexts."""

import itertools

from qac_jax import artifacts, cli
from qac_jax.evaluation import relatedness
from qac_jax.evaluation.results import read
from qac_jax.formats.records import write_records


DOCUMENTS, EACH = 8, 5


def test_queries_lead_back_to_their_passages(tmp_path, capsys):
    """Passages of words of their own and of their document's, and queries of their own words."""
    passages, contexts = [], []
    for d, p in itertools.product(range(DOCUMENTS), range(EACH)):
        words = [f"own{d}x{p}y{w}" for w in range(4)] + [f"topic{d}z{w}" for w in range(2)]
        passage = {"_id": f"d{d}-{p}", "doc": f"d{d}", "position": p, "title": ""}
        passages.append(passage | {"text": " ".join(words)})
        query = {"text": f"what is own{d}x{p}y1", "origin": "text2query", "score": 0.0}
        contexts.append({"_id": f"d{d}-{p}", "contexts": [query]})
    for kind, records in (("passages", passages), ("contexts", contexts)):
        with artifacts.create(tmp_path / kind, kind=kind, key=kind, stage="test") as out:
            write_records(out, records, kind)
    inputs = ["--pairs", str(tmp_path / "contexts"), "--passages", str(tmp_path / "passages")]
    assert cli.main(["analyse", *inputs, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    found, _ = read(artifacts.load(tmp_path / "out"))
    means = {result.name: result.mean for result in found}
    assert {result.queries for result in found} == {DOCUMENTS * EACH}
    assert means[relatedness.QUERY]["bm25 mrr"] == 1.0
    # A sibling shares the topic with all four others: it cannot tell them apart.
    for sort in (relatedness.RANDOM, relatedness.NEARBY):
        assert 0.2 < means[sort]["bm25 mrr"] < 0.9 and means[sort]["bm25 hit@10"] == 1.0
    assert relatedness.QUERY in printed and "t-test" in printed
