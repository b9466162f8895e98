"""own_corpus.gin on folders that nobody prepared by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import toy_retrieval as toy

from qac_jax import artifacts, cli


TINY = [
    "--gin.BUDGET='tiny'",
    "--gin.MLM_STEPS=2",
    "--gin.QAC_STEPS=2",
    "--gin.FINE_STEPS=2",
    "--gin.WIDTH=32",
    "--gin.MLP=32",
    "--gin.LAYERS=1",
    "--gin.PASSAGE_TOKENS=24",
    "--gin.PASSAGE_LENGTH=24",
    "--gin.QUERY_LENGTH=12",
    "--gin.CONTEXT_TOKENS=12",
    "--gin.layers.Runtime.dropout='hash'",
    "--gin.evaluate.Evaluate.permutations=50",
]


def generated(folder: Path, count: int) -> str:
    """A file of queries made elsewhere, in the generator's place."""
    file = folder / "generated.jsonl"
    lines = [
        json.dumps(
            {"_id": f"p{i}", "queries": [f"{toy.WORDS[i % 20]} {toy.WORDS[n]}" for n in (1, 2)]}
        )
        for i in range(count)
    ]
    file.write_text("\n".join(lines) + "\n")
    return f"--gin.generate.Generate.imported='{file}'"


GENERATED = ["--gin.CONTEXTS_STAGE=@generate.Generate()", "--gin.GENERATOR=''"]


def run(data: Path, *more: str) -> int:
    recipe = "gin_configs/recipes/own_corpus.gin"
    return cli.main(["run", recipe, f"--data_dir={data}", *TINY, *more])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_documents_alone_become_a_retriever(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders with some questions are the matter of test_collect.py: later stages see no
    difference."""
    toy.write_collection(tmp_path / "made", 30, 12)
    corpus = (tmp_path / "made" / "corpus.jsonl").read_text()
    passages = [json.loads(line) for line in corpus.splitlines()]
    documents = [
        {"_id": f"d{n}", "title": f"About {n}", "passages": passages[n : n + 3]}
        for n in range(0, 30, 3)
    ]
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    (data / "documents.jsonl").write_text("".join(json.dumps(d) + "\n" for d in documents))
    assert run(data, *GENERATED, generated(tmp_path, 30), f"--out={out}") == 0
    assert "nobody judged" in capsys.readouterr().err
    questions = artifacts.load(out / "questions").info
    assert questions["train"]["from"] == questions["test"]["from"] == "generated"
    means = artifacts.load(out / "metrics").info["mean"]
    assert list(means) == ["run_bm25", "run_expanded", "run_1", "run_2"]
    config = json.loads((out / "retriever_2" / "module.json").read_text())["config"]
    read = (config["query_length"], config["passage_length"], config["title"])
    assert read == (12, 24, "separate")


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("corpus.jsonl", "neither corpus.jsonl nor documents.jsonl"),
        ("generator", "does not come with this version"),
    ],
)
def test_what_is_missing_is_one_sentence(
    missing: str,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = toy.write_collection(tmp_path / "data", 8, 4)
    more = [f"--out={tmp_path / 'out'}"]
    if missing == "generator":
        more += [GENERATED[0], "--gin.GENERATOR='shipped:no_such_model'"]
    else:
        (data / missing).unlink()
    assert run(data, *more) == 2
    (last,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("qac:")]
    assert sentence in last


def test_an_unknown_budget_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--gin.BUDGET='hugee'", "--dry_run") == 2
    assert "huge" in capsys.readouterr().err
