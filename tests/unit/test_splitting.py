"""Passages are split by document, always alike, into parts without a passage in common."""

from __future__ import annotations

from pathlib import Path

import pytest
import toy_retrieval as toy

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.formats import records
from qac_jax.pipeline.stage import execute
from qac_jax.queries import splitting
from qac_jax.queries.splitting import PARTS, Splitting
from qac_jax.stages.split import Split


SMALL = Splitting(share=0.2, at_least=4, at_most=20)


def corpus(documents: int, each: int) -> list[dict[str, str]]:
    return [{"_id": f"d{n}-{p}", "doc": f"d{n}"} for n in range(documents) for p in range(each)]


def test_documents_stay_whole_and_parts_are_disjoint() -> None:
    passages = corpus(30, 3)
    found = splitting.split(passages, SMALL)
    documents = {
        part: {r["doc"] for r, p in zip(passages, found.parts, strict=True) if p == part}
        for part in PARTS
    }
    assert found.by == "document" and sum(map(len, documents.values())) == 30
    assert found.count("test") == found.count("validation") == 18
    assert splitting.split(passages, SMALL).parts == found.parts
    assert splitting.split(passages, SMALL, seed=1).parts != found.parts
    # The order of documents does not matter, and a judged test leaves more for training.
    mirrored = splitting.split(passages[::-1], SMALL)
    assert mirrored.parts[::-1] == found.parts
    judged = splitting.split(passages, SMALL, aside=("validation",))
    assert judged.count("test") == 0 and judged.count("train") == 72


def test_sizes_have_bounds() -> None:
    assert Splitting().target(50) == 12  # at most a quarter
    assert Splitting().target(500) == 100
    assert Splitting().target(4000) == 400
    assert Splitting().target(1_000_000) == 1000
    with pytest.raises(UserError, match="less than 0.5"):
        Splitting(share=0.5)


def test_few_documents_are_split_by_passage_and_large_ones_are_not_all_of_a_part() -> None:
    assert splitting.split(corpus(3, 20), SMALL).by == "passage"
    sizes = [{"_id": f"a{n}", "doc": "large"} for n in range(200)] + corpus(40, 1)
    found = splitting.split(sizes, Splitting(share=0.1, at_least=4))
    assert found.count("test") <= 36 and found.count("train") >= 200
    with pytest.raises(UserError, match="too few to keep some aside"):
        splitting.split(corpus(1, 2), SMALL)


def test_the_stage_keeps_nothing_aside_where_people_judged(tmp_path: Path) -> None:
    data = toy.write_collection(tmp_path / "data", 8, 4)
    with artifacts.create(tmp_path / "passages", kind="passages") as writer:
        records.write_records(writer, ({**r, "text": "t"} for r in corpus(20, 2)))

    def kept(part: str, collection: str = "") -> list[str]:
        stage = Split.make(
            passages=str(tmp_path / "passages"), collection=collection, part=part, at_least=4
        )
        artifact = execute(stage, tmp_path / f"{part}{bool(collection)}")
        return [record["_id"] for record in records.Records(artifact)]

    parts = [kept(part) for part in PARTS]
    assert sorted(name for part in parts for name in part) == sorted(
        r["_id"] for r in corpus(20, 2)
    )
    assert all(parts)
    assert kept("test", str(data)) == []
    assert kept("validation", str(data)) and len(kept("train", str(data))) > len(parts[0])
