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
from qac_jax.formats.records import Records
from qac_jax.inference.reranker import Reranker, probability
from qac_jax.inference.settings import RerankerOptions
from qac_jax.pipeline import stage
from qac_jax.retrieval import mining
from qac_jax.retrieval.corpus import Searchable, passage_text
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
    passages = [{"_id": f"p{i}", "text": t} for i, t in enumerate(texts)]
    toy_examples.written(folder / "passages", "passages", passages)
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


def mined(folder: Path, out: Path, **settings: object) -> artifacts.Artifact:
    given = {
        "passages": str(folder / "passages"),
        "bm25": str(folder / "bm25"),
        "queries": str(folder / "queries.jsonl"),
        "qrels": str(folder / "qrels.tsv"),
        **settings,
    }
    return stage.execute(mine.Mine.make(**given), out)


def test_what_is_mined_of_judged_queries(folder, tmp_path):
    made = mined(folder, tmp_path / "negatives", keep=8)
    assert (made.kind, made.count) == (judged.NEGATIVES, 3)
    assert made.info["systems"]["bm25"]["identity"] == artifacts.load(folder / "bm25").identity
    found = list(Records(made))
    assert [record["_id"] for record in found] == ["q0", "q1", "q2"]
    assert "p5" not in found[2]["negatives"] and len(found[2]["negatives"]) == 8
    with pytest.raises(UserError, match="pass --index"):
        mined(folder, tmp_path / "out", bm25="")
    passages = Records(artifacts.load(folder / "passages"))
    with pytest.raises(UserError, match="judged passages .* 'nowhere'"):
        mining.questions_of({"q": "x"}, {"q": {"nowhere": 1}}, passages)


def test_generated_queries(folder, tmp_path):
    contexts = [{"_id": "p3", "contexts": [{"text": "thing3"}, {"text": "speaks of 3"}]}]
    given = toy_examples.written(tmp_path / "contexts", "contexts", contexts)
    found = list(Records(mined(folder, tmp_path / "out", queries="", qrels="", contexts=given)))
    assert [record["_id"] for record in found] == ["p3#q0", "p3#q1"]
    assert all("p3" not in record["negatives"] for record in found)


IDS = tuple("abcdefgh")
SURE = np.array([0.06, 0.93, 0.52, 0.02, 0.97, 0.01, 0.08, 0.31])


def labelled(seed: int = 111, depth: int = 8, **changes: Any) -> dict[str, Any] | str:
    """The record, or why there is none."""
    names = ("relevant", "excluded", "odds")
    given = {name: changes.pop(name) for name in names if name in changes}
    given = {"odds": np.log(SURE / (1 - SURE)), "counts": Counter[str](), "seed": seed, **given}
    found = mining.label(Labelling(depth=depth, **changes), Query("q", "what?"), IDS, **given)
    return found or next(name for name in given["counts"] if " without a " in name)


def test_labels_by_thresholds() -> None:
    """The best candidate and the first that are surely wrong; judged queries keep their positives
    and lose doubtful negatives; what may be right is never a negative."""
    judged: dict[str, Any] = {"relevant": {"c": 0.0, "z": 0.0}}
    changes: dict[str, Any]
    for changes, positives, negatives in (
        ({}, "e", "adfg"),
        ({"positives": "all"}, "eb", "adfg"),
        ({"excluded": {"a", "f"}}, "e", "dg"),
        ({"relevant": {"d": -4.0}}, "d", "afg"),
        (judged, "cz", "adfg"),
        ({**judged, "extend": True, "positives": "all"}, "czeb", "adfg"),
        ({"depth": 4, "fill": 7, "count": 4}, "b", "ad"),  # an unjudged query is not filled up
        # Without a teacher all but the known is wrong.
        ({"odds": None, "count": 3, "relevant": {"b": 0.0}, "excluded": {"c"}}, "b", "ade"),
    ):
        record: Any = labelled(**changes)
        found = "".join(record["positives"]), "".join(record["negatives"])
        assert found == (positives, negatives), changes
        if "odds" not in changes:
            sure = probability(np.array(record["negatives_scores"]))
            np.testing.assert_allclose(sure, [SURE[IDS.index(n)] for n in negatives], rtol=1e-3)
    # Without a candidate that holds an answer there is no positive (Natural Questions).
    assert labelled(relevant={}) == labelled(positive=0.99) == "queries without a positive"
    assert labelled(negative=0.001) == "queries without a negative"
    lines = mining.lines_of(labelled(positives="all", count=3))  # type: ignore[arg-type]
    assert len(lines) == 6 and {len(line["negatives"]) for line in lines} == {1}
    with pytest.raises(UserError, match="raise"):
        Labelling(fill=10)


def test_negatives_that_are_drawn() -> None:
    drawn: Any = [labelled(seed, order="sampled", count=2) for seed in (*range(20), 0)]
    pairs = {tuple(record["negatives"]) for record in drawn}
    assert len(pairs) > 3 and all(set(pair) < set("adfg") for pair in pairs)
    assert drawn[0] == drawn[-1]
    # A shortage of a judged query is filled from later ranks.
    record: Any = labelled(depth=4, fill=7, count=4, relevant={"e": 1.0})
    assert record["negatives"][:2] == ["a", "d"] and set(record["negatives"][2:]) == {"f", "g"}
    assert record["negatives_scores"][2:] == [0.0, 0.0]


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
    toy_examples.contexts(folder)
    return folder


def grouped(road: Path, out: Path, **settings: Any) -> list[dict[str, Any]]:
    given: Any = {"passages": str(road / "passages"), "teacher": str(road / "hybrid"), **settings}
    return list(Records(stage.execute(mine.Group(**given, size=8), out)))


def test_scores_are_those_of_the_hybrid_index_and_turns_group_anew(
    road: Path, tmp_path: Path
) -> None:
    teacher = Hybrid(artifacts.load(road / "hybrid"))
    every = Records(artifacts.load(road / "passages"))
    places = {(r["title"], r["text"]): r["_id"] for r in every}
    given: Any = {"contexts": str(road / "contexts"), "per_passage": 2}
    groups = grouped(road, tmp_path / "once", **given)
    twice = grouped(road, tmp_path / "twice", **given, turns=2)
    assert json.dumps(twice[:5]) == json.dumps(groups) and len(twice) == 10
    assert twice[5]["passages"] != twice[0]["passages"]
    of_passage = {
        r["_id"]: {query["text"] for query in r["contexts"]}
        for r in Records(artifacts.load(road / "contexts"))
    }
    for of in groups:
        names = [places[p["title"], p["text"]] for p in of["passages"]]
        assert len(names) == 8
        assert len(of["queries"]) == sum(min(2, len(of_passage[name])) for name in names)
        assert set(of["queries"]) <= set().union(*(of_passage[name] for name in names))
        for query, scores, lexical, own in zip(
            *(of[name] for name in ("queries", "scores", "lexical", "own")), strict=True
        ):
            best, rows = teacher.find([query], 40)
            fused = {teacher.ids[r]: s for r, s in zip(rows[0], best[0], strict=True)}
            np.testing.assert_allclose(scores, [fused[name] for name in names], atol=1e-5)
            (words,) = teacher.parts.bm25.scores_of([query], [np.arange(len(teacher.ids))])
            share = words / max(teacher.parts.bm25.information(query), 1e-6)
            by_words = dict(zip(teacher.parts.bm25.ids, share.tolist(), strict=True))
            np.testing.assert_allclose(lexical, [by_words[name] for name in names], atol=1e-5)
            assert query in of_passage[names[own]]


def test_a_cross_encoder_scores_the_best_of_a_group_and_the_others_have_none(
    road: Path, tmp_path: Path
) -> None:
    model, pairs = toy.save_cross_encoder(tmp_path / "model"), RerankerOptions(max_length=64)
    given: Any = {"contexts": str(road / "contexts"), "per_passage": 2}
    by_index = grouped(road, tmp_path / "index", **given)
    read: Any = {"reranker": str(model), "reranked": 3, "pairs": pairs, "at_most": 2}
    groups = grouped(road, tmp_path / "groups", **given, **read)
    reranker, unlike = Reranker.load(model, pairs), 0
    assert len(groups) == 2
    for of, first in zip(groups, by_index, strict=False):
        assert of["passages"] == first["passages"] and of["queries"] == first["queries"]
        texts = [passage_text(passage) for passage in of["passages"]]
        for query, scores, fused in zip(of["queries"], of["scores"], first["scores"], strict=True):
            scored = [place for place, score in enumerate(scores) if score is not None]
            assert sorted(scored) == sorted(np.argsort(-np.array(fused), kind="stable")[:3])
            odds = reranker.score([query] * 3, [texts[place] for place in scored])
            np.testing.assert_allclose([scores[place] for place in scored], odds, atol=1e-4)
            unlike += int(scored[odds.argmax()] != np.argmax(fused))
    assert unlike  # the order is the cross-encoder's
    examples: Any = {"task": "groups", "pairs": str(tmp_path / "groups"), "workers": 1}
    made = Tokenize.make(**examples, tokenizer="wordpiece-16k")
    stage.execute(made, tmp_path / "examples")
    for record in toy_examples.stored(tmp_path / "examples"):
        rows = np.reshape(record["scores"], (-1, 8))
        assert (np.isfinite(rows).sum(1) == 3).all() and np.isnan(rows).sum() == 5 * len(rows)


def test_queries_with_judgements_and_without(road: Path, tmp_path: Path) -> None:
    teacher = Hybrid(artifacts.load(road / "hybrid"))
    text = Records(artifacts.load(road / "passages"))[5]["text"]
    asked = {"judged": "river", "log": text, "elsewhere": "lamp"}
    lines = [json.dumps({"_id": name, "text": words}) for name, words in asked.items()]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines))
    known = list(teacher.ids)
    judgements = f"judged\t{known[0]}\t1\njudged\t{known[1]}\t1\nelsewhere\tnowhere\t1\n"
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + judgements)
    given = {name: str(tmp_path / name) for name in ("queries.jsonl", "qrels.tsv")}
    groups = grouped(
        road, tmp_path / "out", queries=given["queries.jsonl"], qrels=given["qrels.tsv"]
    )
    found = sorted(name for of in groups for name in of["query_ids"])
    first = teacher.ids[int(teacher.find([text], 1)[1][0, 0])]
    assert found == ["judged", "judged", "log"] and first == known[5]
