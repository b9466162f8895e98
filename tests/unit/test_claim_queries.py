"""claim_queries.gin: how many queries a passage, judged elsewhere too."""

from __future__ import annotations

import toy_recipes
from toy_recipes import different


def test_only_the_number_of_queries_differs() -> None:
    cells = toy_recipes.cells("claim_queries")
    one = cells["queries_1"]
    for count in (5, 10, 20):
        # Generated, tokenised and seen as often; BM25 + generated queries reads as many.
        changed = different(one, cells[f"queries_{count}"])
        assert changed == {"encoder": {"reading"}, "bm25_expanded": {"queries_each"}}
        assert cells[f"queries_{count}"]["encoder"].reading.settings == {"queries": count}
    assert one["contexts"].decoding.samples == 20
    assert cells["passages"]["encoder"].reading.kind == "two_spans"
    assert "encoder" not in cells["none"] and cells["none"]["retriever_1"].init == "stage:base"


def test_the_first_retriever_is_evaluated_as_on_its_own_collection() -> None:
    for found in toy_recipes.cells("claim_queries").values():
        elsewhere = found["elsewhere"]
        assert elsewhere.encoder == "stage:retriever_1"
        assert elsewhere.options.max_length == found["retriever_1"].reading.lengths["passages"]
        assert elsewhere.rules.measures == found["metrics"].rules.measures
