"""`qac generate` and `qac extract` from outside, and what SIGKILL leaves of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import toy_examples
import toy_process
import toy_retrieval as toy
from toy_generation import save_generator
from toy_process import Qac

from qac_jax import artifacts, cli
from qac_jax.data.loader import Loader
from qac_jax.errors import UserError
from qac_jax.formats.records import Records


PASSAGES = 24
SETTINGS = ["--samples", 2, "--max_tokens", 6, "--max_input", 16, "--shard_passages", 4]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with passages, a generator and what it said without an interruption."""
    folder = tmp_path_factory.mktemp("generate")
    records: list[dict[str, Any]] = []
    for n in range(PASSAGES):
        text = f"Copper wire number {n} conducts heat. " * (1 + n % 3)
        records.append({"_id": f"p{n}", "doc": f"d{n}", "position": 0, "title": f"{n}"})
        records[n] |= {"text": text}
    toy_examples.written(folder / "passages", "passages", records)
    save_generator(folder / "t5")
    assert cli.main([*map(str, words(folder)), "--out", str(folder / "whole")]) == 0
    return folder


def words(folder: Path) -> list[Any]:
    given = ["--passages", folder / "passages", "--generator", folder / "t5"]
    return ["generate", *given, *SETTINGS]


def records_of(folder: Path) -> list[dict[str, Any]]:
    return list(Records(artifacts.load(folder, "contexts")))


def test_every_passage_is_asked(here: Path, qac: Qac) -> None:
    found = records_of(here / "whole")
    assert [record["_id"] for record in found] == [f"p{n}" for n in range(PASSAGES)]
    assert all(1 <= len(record["contexts"]) <= 2 for record in found)
    for context in (context for record in found for context in record["contexts"]):
        assert context["text"] and context["origin"] == "text2query" and context["score"] < 0
    assert artifacts.load(here / "whole").info["texts"] == 2 * PASSAGES
    assert found[0]["contexts"][0]["text"] in qac("inspect", here / "whole").out


@pytest.mark.slow
def test_parts_prompts_and_seeds(here: Path, tmp_path: Path, qac: Qac) -> None:
    names = "--gin.prompts.tqgen.names=['topic', 'title']"
    given = [*words(here), "--gin_file", "queries/tqgen.gin", names, "--samples", 1]
    qac(*given, "--out", tmp_path / "one")
    found = records_of(tmp_path / "one")
    assert [record["_id"] for record in found] == [f"p{n}" for n in range(PASSAGES)]
    assert {c["origin"] for r in found for c in r["contexts"]} == {"tqgen_topic", "tqgen_title"}
    qac(*given, "--seed", 1, "--out", tmp_path / "two")
    assert records_of(tmp_path / "two") != found


def test_queries_made_elsewhere(here: Path, tmp_path: Path, qac: Qac) -> None:
    file, out = tmp_path / "made.jsonl", tmp_path / "out"
    lines: list[dict[str, Any]] = [
        {"_id": "p9", "queries": ["who is nine", "Who is nine?"]},
        {"_id": "p2", "contexts": [{"text": "two", "origin": "llm", "score": 1}]},
        {"_id": "p9", "query": "nine again"},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ["generate", "--passages", here / "passages", "--shard_passages", 5]
    qac(*given, "--imported", file, "--out", out)
    found = {r["_id"]: r["contexts"] for r in records_of(out)}
    assert len(found) == PASSAGES
    assert [c["text"] for c in found["p9"]] == ["who is nine", "nine again"]
    assert found["p2"] == [{"text": "two", "origin": "llm", "score": 1}] and not found["p0"]
    with file.open("a") as more:
        more.write(json.dumps({"_id": "nobody", "queries": ["x"]}) + "\n")
    said = qac.refused(*given, "--imported", file, "--out", tmp_path / "no")
    assert f"{file}:4" in said and "'nobody' is not among the passages" in said
    qac(*given, "--imported", file, "--skip_bad", 1, "--out", tmp_path / "yes")
    assert records_of(tmp_path / "yes") == records_of(out)


@pytest.mark.slow
def test_killed_generation_completes_with_the_same_identity(
    here: Path, tmp_path: Path, qac: Qac
) -> None:
    whole, out = artifacts.load(here / "whole"), tmp_path / "out"
    second = out / "contexts-00001-of-00006.jsonl"
    toy_process.kill_when(second.exists, *words(here), "--out", out)
    with pytest.raises(UserError, match="is unfinished"):
        artifacts.load(out)
    kept = {p.name: p.stat().st_mtime_ns for p in out.glob("contexts-*.jsonl")}
    qac(*words(here), "--out", out)
    again = artifacts.load(out, "contexts")
    again.verify()
    assert again.identity == whole.identity
    assert again.info["tokens"] == whole.info["tokens"]
    # What was finished is not made again, but for a file that was not in the journal yet.
    assert sum((out / n).stat().st_mtime_ns != when for n, when in kept.items()) <= 1


def test_a_retriever_judges(here: Path, tmp_path: Path, qac: Qac) -> None:
    """Queries that find their passage again stay."""
    file = tmp_path / "made.tsv"
    file.write_text("p3\tcopper wire number 3\np4\tcopper wire number 3\n")
    passages = ["--passages", here / "passages"]
    qac("bm25", *passages, "--out", tmp_path / "bm25")
    asked = ["generate", *passages, "--imported", file, "--round_trip", 1]
    qac(*asked, "--index", tmp_path / "bm25", "--out", tmp_path / "out")
    found = {r["_id"]: r["contexts"] for r in records_of(tmp_path / "out") if r["contexts"]}
    assert list(found) == ["p3"]
    assert artifacts.load(tmp_path / "out").info["dropped"] == {"not found again": 1}


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.collected(tmp_path_factory.mktemp("extract"), 30) / "passages"


def extracted(qac: Qac, passages: Path, out: Path, *more: object) -> Records:
    qac("extract", "--passages", passages, "--out", out, "--workers", 1, *more)
    return Records(artifacts.load(out, "contexts"))


def test_spans_are_ranked(passages: Path, tmp_path: Path, qac: Qac) -> None:
    found = extracted(qac, passages, tmp_path / "bm25", "--keep", 16, "--shard_passages", 8)
    texts = {record["_id"]: record["text"] for record in Records(artifacts.load(passages))}
    assert [record["_id"] for record in found] == list(texts)
    for record in found:
        contexts = record["contexts"]
        scores = [context["score"] for context in contexts]
        assert scores == sorted(scores, reverse=True)
        whole = " ".join(texts[record["_id"]].split())
        assert all(c["text"] in whole and c["origin"] == "qext_bm25" for c in contexts)
        assert contexts or len(whole.split()) < 8


def test_what_there_is_already_is_kept(passages: Path, tmp_path: Path, qac: Qac) -> None:
    extracted(qac, passages, tmp_path / "spans")
    given = ("--method", "title", "--contexts", tmp_path / "spans")
    found = extracted(qac, passages, tmp_path / "both", *given)
    assert [c["origin"] for c in found[0]["contexts"]] == ["qext_bm25", "doc_title"]
    assert found[0]["contexts"][1]["text"] == "About river"

    examples = tmp_path / "examples"
    task = ["--task", "augtriever", "--contexts", tmp_path / "both", "--out", examples]
    qac("tokenize", "--passages", passages, *task)
    strategies = {"qext_bm25": 0.4, "doc_title": 0.3, "qext_self": 0.3}
    with Loader(str(examples), batch_size=10, settings={"strategies": strategies}) as loader:
        batch = next(loader)
    assert batch["spans"].shape == (10, 16, 32) and set(batch["extract"]) <= {0, 1}


def test_what_does_not_fit_is_refused(passages: Path, tmp_path: Path, qac: Qac) -> None:
    words = ["extract", "--passages", passages, "--out", tmp_path / "no"]
    for flags, said in (("--method plm", "give --scorer"), ("--scorer .", "takes no model")):
        assert said in qac.refused(*words, *flags.split())
