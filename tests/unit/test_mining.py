"""Training data from rankings: hard negatives, labels by thresholds, groups of similar passages."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_examples
import toy_retrieval as toy

from qac_jax import artifacts
from qac_jax.data import judged
from qac_jax.errors import UserError
from qac_jax.formats.queries import Query
from qac_jax.formats.records import Records, write_records
from qac_jax.inference.reranker import probability
from qac_jax.pipeline import stage
from qac_jax.retrieval import mining
from qac_jax.retrieval.corpus import Searchable
from qac_jax.retrieval.hybrid import Hybrid
from qac_jax.retrieval.mining import Labelling, Miner, Mining, Question
from qac_jax.stages import index, mine
from qac_jax.stages.tokenize import Tokenize


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
    stage.execute(index.Bm25(passages=str(folder / "passages")), folder / "bm25")
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
    # Both systems are drawn from and noted.
    (record,) = miner(folder, "mined", "backwards", depth=3).mine([Question("q", "x", (0,))])
    noted = zip(record["negatives"], *record["ranks"].values(), strict=True)
    expected = [("p1", 2, 0), ("p2", 3, 0), ("p27", 0, 3), ("p28", 0, 2), ("p29", 0, 1)]
    assert sorted(noted) == [*expected, ("p3", 4, 0)]


def test_the_draw_depends_on_seed_and_query_alone(folder):
    questions = [Question(f"q{i}", "x", (i,)) for i in range(3)]
    whole = list(miner(folder, "mined", keep=4).mine(questions))
    other = list(miner(folder, "mined", keep=4, seed=1).mine(questions))
    assert next(miner(folder, "mined", keep=4).mine(questions[1:2])) == whole[1]
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


def test_what_is_mined_of_judged_queries(folder, tmp_path):
    made = stage.execute(stage_of(folder, keep=8), tmp_path / "negatives")
    assert (made.kind, made.count) == (judged.NEGATIVES, 3)
    assert made.info["systems"]["bm25"]["identity"] == artifacts.load(folder / "bm25").identity
    found = list(Records(made))
    assert [record["_id"] for record in found] == ["q0", "q1", "q2"]
    assert "p5" not in found[2]["negatives"] and len(found[2]["negatives"]) == 8


def test_generated_queries(folder, tmp_path):
    contexts = [{"_id": "p3", "contexts": [{"text": "thing3"}, {"text": "speaks of 3"}]}]
    with artifacts.create(tmp_path / "contexts", kind="contexts") as out:
        write_records(out, contexts, "contexts")
    settings = {"queries": "", "qrels": "", "contexts": str(tmp_path / "contexts")}
    found = list(Records(stage.execute(stage_of(folder, **settings), tmp_path / "negatives")))
    assert [record["_id"] for record in found] == ["p3#q0", "p3#q1"]
    assert all("p3" not in record["negatives"] for record in found)


def test_mistakes_are_told(folder, tmp_path):
    settings: Any
    for settings, told in [
        ({"negatives": "mined+bm25"}, "pass --index"),
        ({"qrels": ""}, "belong together"),
    ]:
        with pytest.raises(UserError, match=told):
            stage.execute(stage_of(folder, **settings), tmp_path / "out")
    passages = Records(artifacts.load(folder / "passages"))
    with pytest.raises(UserError, match="1 judged passages .* 'nowhere'"):
        mining.questions_of({"q": "x"}, {"q": {"nowhere": 1}}, passages)


IDS = tuple("abcdefgh")
SURE = np.array([0.06, 0.93, 0.52, 0.02, 0.97, 0.01, 0.08, 0.31])


def label(rule: Labelling, **changes: Any) -> tuple[dict[str, Any] | None, Counter[str]]:
    given = {"ids": IDS, "odds": np.log(SURE / (1 - SURE)), "counts": Counter[str](), **changes}
    return mining.label(rule, Query("q", "what?"), **given), given["counts"]


def labelled(rule: Labelling, seed: int = 111, **changes: Any) -> dict[str, Any]:
    record, _ = label(rule, seed=seed, **changes)
    assert record is not None
    return record


def test_the_best_candidate_and_the_first_that_are_surely_wrong() -> None:
    record = labelled(Labelling(count=2, depth=8))
    assert record["positives"] == ["e"] and record["negatives"] == ["a", "d"]
    np.testing.assert_allclose(probability(np.array(record["positives_scores"])), [0.97], rtol=1e-4)
    np.testing.assert_allclose(
        probability(np.array(record["negatives_scores"])), [0.06, 0.02], rtol=1e-4
    )
    assert labelled(Labelling(depth=8))["negatives"] == ["a", "d", "f", "g"]
    assert labelled(Labelling(positives="all", depth=8))["positives"] == ["e", "b"]
    assert labelled(Labelling(depth=4))["positives"] == ["b"]
    sampled = Labelling(order="sampled", count=2, depth=8)
    drawn = {tuple(labelled(sampled, seed)["negatives"]) for seed in range(20)}
    assert len(drawn) > 3 and all(set(pair) < set("adfg") for pair in drawn)
    assert labelled(sampled, 3) == labelled(sampled, 3)
    # What may be right is never a negative.
    assert labelled(Labelling(depth=8), excluded={"a", "f"})["negatives"] == ["d", "g"]
    assert "d" not in labelled(Labelling(depth=8), relevant={"d": -4.0})["negatives"]


def test_judged_queries_keep_their_positives_and_lose_doubtful_negatives() -> None:
    given: dict[str, Any] = {"relevant": {"c": 0.0, "z": 0.0}}
    record = labelled(Labelling(depth=8), **given)
    assert record["positives"] == ["c", "z"] and record["negatives"] == ["a", "d", "f", "g"]
    extended = labelled(Labelling(depth=8, extend=True, positives="all"), **given)
    assert extended["positives"] == ["c", "z", "e", "b"]
    # Without a candidate that holds an answer there is no positive (Natural Questions).
    assert label(Labelling(depth=8), relevant={})[0] is None


def test_a_shortage_is_filled_from_later_ranks_for_judged_queries() -> None:
    rule = Labelling(depth=4, fill=7, count=4)
    record = labelled(rule, relevant={"e": 1.0})
    assert record["negatives"][:2] == ["a", "d"] and set(record["negatives"][2:]) == {"f", "g"}
    assert record["negatives_scores"][2:] == [0.0, 0.0]
    assert labelled(rule)["negatives"] == ["a", "d"]  # an unjudged query is not filled up


def test_without_a_teacher_all_but_the_known_is_wrong() -> None:
    record = labelled(Labelling(depth=8, count=3), odds=None, relevant={"b": 0.0}, excluded={"c"})
    assert record["positives"] == ["b"] and record["negatives"] == ["a", "d", "e"]
    lines = mining.lines_of(labelled(Labelling(depth=8, positives="all", count=3)))
    assert len(lines) == 6 and {len(line["negatives"]) for line in lines} == {1}


def test_what_is_left_out_is_counted() -> None:
    for rule, reason in (
        (Labelling(positive=0.99, depth=8), "queries without a positive"),
        (Labelling(negative=0.001, depth=8), "queries without a negative"),
    ):
        record, counts = label(rule)
        assert record is None and counts[reason] == 1


def test_right_labels_are_counted_over_all_pieces() -> None:
    pieces = [
        {"counts": {"queries": 1}, "right": {"positives": 1, "positives compared": 1}},
        {"counts": {"queries": 2}, "right": {"positives compared": 3}},
    ]
    found = mining.summed(pieces, {"queries": 4}, judged=True)
    assert found == {"counts": {"queries": 7}, "accuracy": {"positives": 0.25}}


def test_rules_that_mean_nothing() -> None:
    for wrong in ({"positive": 0.1}, {"count": 0}, {"fill": 10}):
        with pytest.raises(UserError, match="expected|raise|move"):
            Labelling(**wrong)


def test_every_row_is_in_a_group_of_one_size_with_its_like() -> None:
    rng = np.random.default_rng(0)
    kinds = np.repeat(np.arange(4), 10)
    vectors = (10 * np.eye(4)[kinds] + rng.normal(size=(40, 4))).astype(np.float32)
    groups = mining.similar_groups(vectors, 10, np.random.default_rng(1))
    assert sorted(np.concatenate(groups).tolist()) == list(range(40))
    # Of four kinds; drawn at random nearly every group would have them all.
    assert np.mean([len(set(kinds[rows].tolist())) for rows in groups]) <= 2.5
    for count in [3, 10, 11, 25]:
        groups = mining.similar_groups(vectors[:count], 10, np.random.default_rng(0))
        assert {len(set(rows.tolist())) for rows in groups} == {min(10, count)}
        assert set(np.concatenate(groups).tolist()) == set(range(count))


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = toy.indexed(tmp_path_factory.mktemp("grouping"))
    joined = index.Hybrid.make(index=str(folder / "index"), bm25=str(folder / "bm25"), weight=0.4)
    stage.execute(joined, folder / "hybrid")
    names = records(folder / "passages").ids()
    found = [
        {
            "_id": name,
            "contexts": [{"text": toy.sentence(np.random.default_rng(n + i), 3)} for i in range(3)],
        }
        for n, name in enumerate(list(names)[:-2])
    ]
    toy_examples._write(folder / "contexts", "contexts", found)
    return folder


def records(folder: Path) -> Records:
    return Records(artifacts.load(folder))


def made(road: Path, out: Path, **settings: Any) -> list[dict[str, Any]]:
    of: Any = {name: str(road / name) for name in ("passages", "contexts")}
    grouped = mine.Group(teacher=str(road / "hybrid"), **of, **settings)
    return list(Records(stage.execute(grouped, out)))


def test_scores_are_those_of_the_hybrid_index(road: Path, tmp_path: Path) -> None:
    teacher = Hybrid(artifacts.load(road / "hybrid"))
    places = {text: name for name, text in texts_of(road).items()}
    groups = made(road, tmp_path / "out", size=8, per_passage=2)
    assert len(groups) == 5 and all(len(g["passages"]) == 8 for g in groups)
    for of in groups[:2]:
        scores, rows = teacher.find(of["queries"], 40)
        for number in range(len(of["queries"])):
            fused = {teacher.ids[r]: s for r, s in zip(rows[number], scores[number], strict=True)}
            expected = [fused[places[p["title"], p["text"]]] for p in of["passages"]]
            np.testing.assert_allclose(of["scores"][number], expected, atol=1e-5)


def texts_of(road: Path) -> dict[str, tuple[str, str]]:
    return {r["_id"]: (r["title"], r["text"]) for r in records(road / "passages")}


def test_turns_group_anew_and_groups_become_examples(road: Path, tmp_path: Path) -> None:
    once = made(road, tmp_path / "once", size=8, per_passage=2)
    twice = made(road, tmp_path / "twice", size=8, per_passage=2, turns=2)
    assert json.dumps(twice[:5]) == json.dumps(once) and len(twice) == 10
    assert twice[5]["passages"] != twice[0]["passages"]
    of_passage = {
        name: {query.text for query in queries}
        for name, queries in mining.of_contexts([records(road / "contexts")]).items()
    }
    names = {text: name for name, text in texts_of(road).items()}
    for of in once:
        known = {
            q for p in of["passages"] for q in of_passage.get(names[p["title"], p["text"]], ())
        }
        assert set(of["queries"]) <= known and len(of["queries"]) >= 12
    tokenize = Tokenize.make(pairs=str(tmp_path / "once"), task="groups", workers=1)
    (first, *_) = toy_examples.stored(stage.execute(tokenize, tmp_path / "examples").path)
    assert len(first["scores"]) == 8 * len(first["queries"]) and len(first["passages"]) == 8


def test_queries_with_judgements_and_without(road: Path, tmp_path: Path) -> None:
    teacher = Hybrid(artifacts.load(road / "hybrid"))
    text = records(road / "passages")[5]["text"]
    asked = {"judged": "river", "log": text, "elsewhere": "lamp"}
    lines = [json.dumps({"_id": name, "text": words}) for name, words in asked.items()]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines))
    known = list(teacher.ids)
    judgements = f"judged\t{known[0]}\t1\njudged\t{known[1]}\t1\nelsewhere\tnowhere\t1\n"
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + judgements)
    grouped = mine.Group(
        passages=str(road / "passages"),
        queries=str(tmp_path / "queries.jsonl"),
        qrels=str(tmp_path / "qrels.tsv"),
        teacher=str(road / "hybrid"),
        size=8,
    )
    groups = records(stage.execute(grouped, tmp_path / "out").path)
    found = sorted(name for of in groups for name in of["query_ids"])
    first = teacher.ids[int(teacher.find([text], 1)[1][0, 0])]
    assert found == ["judged", "judged", "log"] and first == known[5]
