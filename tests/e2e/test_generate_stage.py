"""`qac generate` and `qac extract` from outside, and what SIGKILL leaves of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import toy_process
import toy_retrieval as toy
from toy_generation import save_generator

from qac_jax import artifacts, cli
from qac_jax.cli import main
from qac_jax.data.loader import Loader
from qac_jax.errors import UserError
from qac_jax.formats.records import Records, write_records


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
    with artifacts.create(folder / "passages", kind="passages", key="k") as writer:
        write_records(writer, records)
    save_generator(folder / "t5")
    assert qac(*words(folder), "--out", folder / "whole") == 0
    return folder


def words(folder: Path) -> list[Any]:
    given = ["--passages", folder / "passages", "--generator", folder / "t5"]
    return ["generate", *given, *SETTINGS]


def qac(*arguments: Any) -> int:
    return cli.main([str(argument) for argument in arguments])


def records_of(folder: Path) -> list[dict[str, Any]]:
    return list(Records(artifacts.load(folder, "contexts")))


def test_every_passage_is_asked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = records_of(here / "whole")
    assert [record["_id"] for record in found] == [f"p{n}" for n in range(PASSAGES)]
    assert all(1 <= len(record["contexts"]) <= 2 for record in found)
    for context in (context for record in found for context in record["contexts"]):
        assert context["text"] and context["origin"] == "text2query" and context["score"] < 0
    assert artifacts.load(here / "whole").info["texts"] == 2 * PASSAGES
    assert qac("inspect", here / "whole") == 0
    assert found[0]["contexts"][0]["text"] in capsys.readouterr().out


@pytest.mark.slow
def test_parts_prompts_and_seeds(here: Path, tmp_path: Path) -> None:
    names = "--gin.prompts.tqgen.names=['topic', 'title']"
    given = [*words(here), "--gin_file", "queries/tqgen.gin", names, "--samples", 1]
    assert qac(*given, "--out", tmp_path / "one") == 0
    found = records_of(tmp_path / "one")
    assert [record["_id"] for record in found] == [f"p{n}" for n in range(PASSAGES)]
    assert {c["origin"] for r in found for c in r["contexts"]} == {"tqgen_topic", "tqgen_title"}
    assert qac(*given, "--seed", 1, "--out", tmp_path / "two") == 0
    assert records_of(tmp_path / "two") != found


def test_queries_made_elsewhere(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "made.jsonl", tmp_path / "out"
    lines: list[dict[str, Any]] = [
        {"_id": "p9", "queries": ["who is nine", "Who is nine?"]},
        {"_id": "p2", "contexts": [{"text": "two", "origin": "llm", "score": 1}]},
        {"_id": "p9", "query": "nine again"},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ["generate", "--passages", here / "passages", "--shard_passages", 5]
    assert qac(*given, "--imported", file, "--out", out) == 0
    found = {r["_id"]: r["contexts"] for r in records_of(out)}
    assert len(found) == PASSAGES
    assert [c["text"] for c in found["p9"]] == ["who is nine", "nine again"]
    assert found["p2"] == [{"text": "two", "origin": "llm", "score": 1}] and not found["p0"]
    with file.open("a") as more:
        more.write(json.dumps({"_id": "nobody", "queries": ["x"]}) + "\n")
    assert qac(*given, "--imported", file, "--out", tmp_path / "no") == 2
    said = capsys.readouterr().err
    assert f"{file}:4" in said and "'nobody' is not among the passages" in said
    assert qac(*given, "--imported", file, "--skip_bad", 1, "--out", tmp_path / "yes") == 0
    assert records_of(tmp_path / "yes") == records_of(out)


@pytest.mark.slow
def test_killed_generation_completes_with_the_same_identity(here: Path, tmp_path: Path) -> None:
    whole, out = artifacts.load(here / "whole"), tmp_path / "out"
    second = out / "contexts-00001-of-00006.jsonl"
    toy_process.kill_when(second.exists, *words(here), "--out", out)
    with pytest.raises(UserError, match="is unfinished"):
        artifacts.load(out)
    kept = {p.name: p.stat().st_mtime_ns for p in out.glob("contexts-*.jsonl")}
    assert qac(*words(here), "--out", out) == 0
    again = artifacts.load(out, "contexts")
    again.verify()
    assert again.identity == whole.identity
    assert again.info["tokens"] == whole.info["tokens"]
    # What was finished is not made again, but for a file that was not in the journal yet.
    assert sum((out / n).stat().st_mtime_ns != when for n, when in kept.items()) <= 1


def test_a_retriever_judges(here: Path, tmp_path: Path) -> None:
    """Queries that find their passage again stay."""
    file = tmp_path / "made.tsv"
    file.write_text("p3\tcopper wire number 3\np4\tcopper wire number 3\n")
    passages = ["--passages", here / "passages"]
    assert qac("bm25", *passages, "--out", tmp_path / "bm25") == 0
    asked = ["generate", *passages, "--imported", file, "--round_trip", 1]
    assert qac(*asked, "--index", tmp_path / "bm25", "--out", tmp_path / "out") == 0
    found = {r["_id"]: r["contexts"] for r in records_of(tmp_path / "out") if r["contexts"]}
    assert list(found) == ["p3"]
    assert artifacts.load(tmp_path / "out").info["dropped"] == {"not found again": 1}


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.collected(tmp_path_factory.mktemp("extract"), 30) / "passages"


def extracted(passages: Path, out: Path, *more: str) -> Records:
    arguments = ["--passages", str(passages), "--out", str(out), "--workers", "1"]
    assert main(["extract", *arguments, *more]) == 0
    return Records(artifacts.load(out, "contexts"))


def test_spans_are_ranked(passages: Path, tmp_path: Path) -> None:
    found = extracted(passages, tmp_path / "bm25", "--keep", "16", "--shard_passages", "8")
    texts = {record["_id"]: record["text"] for record in Records(artifacts.load(passages))}
    assert [record["_id"] for record in found] == list(texts)
    for record in found:
        contexts = record["contexts"]
        scores = [context["score"] for context in contexts]
        assert scores == sorted(scores, reverse=True)
        whole = " ".join(texts[record["_id"]].split())
        assert all(c["text"] in whole and c["origin"] == "qext_bm25" for c in contexts)
        assert contexts or len(whole.split()) < 8


def test_what_there_is_already_is_kept(passages: Path, tmp_path: Path, capsys: Any) -> None:
    extracted(passages, tmp_path / "spans")
    given = ("--contexts", str(tmp_path / "spans"))
    found = extracted(passages, tmp_path / "both", "--method", "title", *given)
    assert [c["origin"] for c in found[0]["contexts"]] == ["qext_bm25", "doc_title"]
    assert found[0]["contexts"][1]["text"] == "About river"

    examples = tmp_path / "examples"
    task = ["--task", "augtriever", "--contexts", str(tmp_path / "both"), "--out", str(examples)]
    assert main(["tokenize", "--passages", str(passages), *task]) == 0
    strategies = {"qext_bm25": 0.4, "doc_title": 0.3, "qext_self": 0.3}
    with Loader(str(examples), batch_size=10, settings={"strategies": strategies}) as loader:
        batch = next(loader)
    assert batch["spans"].shape == (10, 16, 32) and set(batch["extract"]) <= {0, 1}


def test_what_does_not_fit_is_refused(passages: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["extract", "--passages", str(passages), "--out", str(tmp_path / "no")]
    for flags, said in (("--method plm", "give --scorer"), ("--scorer .", "takes no model")):
        assert main([*words, *flags.split()]) == 2
        assert said in capsys.readouterr().err
