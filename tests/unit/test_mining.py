"""Hard negatives: what is taken out, drawn and noted, and that tokenize can read it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from qac_jax import artifacts
from qac_jax.data import judged
from qac_jax.data.kind import Negatives
from qac_jax.errors import UserError
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.records import Records, write_records
from qac_jax.pipeline import stage
from qac_jax.retrieval import mining
from qac_jax.retrieval.corpus import Searchable
from qac_jax.retrieval.mining import Miner, Mining, Question
from qac_jax.stages import bm25, mine


COUNT = 30


class InOrder(Searchable):
    """Finds the rows in their order (or from behind), whatever is asked."""

    def __init__(self, passages: artifacts.Artifact, backwards: bool = False):
        self.artifact = passages
        self.ids = [f"p{row}" for row in range(COUNT)]  # type: ignore[assignment]
        self._rows = np.arange(COUNT)[:: -1 if backwards else 1]

    def find(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        rows = np.tile(self._rows[:k], (len(questions), 1))
        return -np.arange(k, dtype=np.float32)[None].repeat(len(questions), 0), rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Passages p0 … p29; p5 says what p2 says, in other letters."""
    folder = tmp_path_factory.mktemp("mining")
    texts = [f"passage number {row} speaks of thing{row}" for row in range(COUNT)]
    texts[5] = "Passage  NUMBER 2 speaks of thing2"
    with artifacts.create(folder / "passages", kind="passages") as out:
        write_records(out, ({"_id": f"p{i}", "text": t} for i, t in enumerate(texts)))
    queries = [{"_id": f"q{row}", "text": f"thing{row} speaks"} for row in range(4)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in queries))
    (folder / "qrels.tsv").write_text("q0\tp0\nq1\tp1\nq2\tp2\n")
    stage.execute(bm25.Bm25(passages=str(folder / "passages")), folder / "bm25")
    return folder


def miner(folder: Path, *names: str, seed: int = 42, **settings: int) -> Miner:
    passages = artifacts.load(folder / "passages")
    searchers = {name: InOrder(passages, name == "backwards") for name in names}
    return Miner(Records(passages), searchers, Mining(**settings), seed)


def test_positives_and_their_copies_are_no_negatives(folder):
    (record,) = miner(folder, "mined", depth=6, keep=100).mine([Question("q", "x", (2, 3))])
    assert record["positives"] == ["p2", "p3"]
    assert sorted(record["negatives"]) == ["p0", "p1", "p4", "p6", "p7", "p8"]
    ranks = dict(zip(record["negatives"], record["ranks"]["mined"], strict=True))
    assert (ranks["p0"], ranks["p8"]) == (1, 9)


def test_both_systems_are_drawn_from_and_noted(folder):
    (record,) = miner(folder, "mined", "backwards", depth=3).mine([Question("q", "x", (0,))])
    assert sorted(record["negatives"]) == ["p1", "p2", "p27", "p28", "p29", "p3"]
    of = {
        name: dict(zip(record["negatives"], record["ranks"][name], strict=True))
        for name in ("mined", "backwards")
    }
    assert (of["mined"]["p1"], of["backwards"]["p1"]) == (2, 0)
    assert (of["mined"]["p29"], of["backwards"]["p29"]) == (0, 1)


def test_the_draw_depends_on_seed_and_query_alone(folder):
    questions = [Question(f"q{i}", "x", (i,)) for i in range(3)]
    whole = miner(folder, "mined", keep=4).mine(questions)
    alone = miner(folder, "mined", keep=4).mine(questions[1:2])
    other = miner(folder, "mined", keep=4, seed=1).mine(questions)
    assert alone[0] == whole[1]
    assert [r["negatives"] for r in other] != [r["negatives"] for r in whole]
    assert len({tuple(r["negatives"]) for r in whole}) == 3
    assert all(len(r["negatives"]) == 4 for r in whole)


def stage_of(folder: Path, **settings: object) -> mine.Mine:
    given = {
        "passages": str(folder / "passages"),
        "bm25": str(folder / "bm25"),
        "queries": str(folder / "queries.jsonl"),
        "qrels": str(folder / "qrels.tsv"),
        **settings,
    }
    return mine.Mine.make(**given)


def test_tokenize_reads_what_is_mined(folder, tmp_path):
    made = stage.execute(stage_of(folder, keep=8), tmp_path / "negatives")
    assert (made.kind, made.count) == (judged.NEGATIVES, 3)
    assert made.info["systems"]["bm25"]["identity"] == artifacts.load(folder / "bm25").identity
    records = list(Records(made))
    assert [record["_id"] for record in records] == ["q0", "q1", "q2"]
    assert "p5" not in records[2]["negatives"] and len(records[2]["negatives"]) == 8
    queries = list(
        judged.from_queries(
            Records(artifacts.load(folder / "passages")),
            str(folder / "queries.jsonl"),
            str(folder / "qrels.tsv"),
            str(tmp_path / "negatives"),
            Negatives(),
            0,
            BadLines(),
        )
    )
    found = {f"p{number}" for number in queries[2].negatives}
    assert found == set(records[2]["negatives"])


def test_generated_queries(folder, tmp_path):
    contexts = [{"_id": "p3", "contexts": [{"text": "thing3"}, {"text": "speaks of 3"}]}]
    with artifacts.create(tmp_path / "contexts", kind="contexts") as out:
        write_records(out, contexts, "contexts")
    settings = {"queries": "", "qrels": "", "contexts": str(tmp_path / "contexts")}
    made = stage.execute(stage_of(folder, **settings), tmp_path / "negatives")
    assert [record["_id"] for record in Records(made)] == ["p3#q0", "p3#q1"]
    assert all("p3" not in record["negatives"] for record in Records(made))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"negatives": "mined+bm25"}, "pass --index"),
        ({"qrels": ""}, "--queries with --qrels"),
        ({"depth": 0}, "depth = 0"),
    ],
)
def test_mistakes_are_told(folder, tmp_path, settings, told):
    with pytest.raises(UserError, match=told):
        stage.execute(stage_of(folder, **settings), tmp_path / "out")


def test_foreign_passages_are_told(folder):
    passages = Records(artifacts.load(folder / "passages"))
    with pytest.raises(UserError, match="1 judged passages .* 'nowhere'"):
        mining.questions_of({"q": "x"}, {"q": {"nowhere": 1}}, passages)
