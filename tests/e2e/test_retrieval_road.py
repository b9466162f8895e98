"""The road of retrieval by its verbs, and what SIGKILL leaves of it."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import toy_process
import toy_retrieval as toy

from qac_jax import artifacts, cli
from qac_jax.errors import UserError
from qac_jax.evaluation import results
from qac_jax.formats.runs import read_run


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with collection, encoder, vectors, index, run and figures."""
    folder = tmp_path_factory.mktemp("road")
    data = toy.write_collection(folder / "toys")
    toy.save_encoder(folder / "encoder")
    for words in (
        f"embed --encoder {folder}/encoder --passages {data}/corpus.jsonl --out {folder}/vectors",
        f"index --vectors {folder}/vectors --out {folder}/index",
        f"search --index {folder}/index --queries {data}/queries.jsonl --out {folder}/run",
        f"evaluate --runs {folder}/run --qrels {data}/qrels/test.tsv --out {folder}/figures",
    ):
        assert cli.main(words.split()) == 0
    return folder


def figures(folder: Path) -> results.Result:
    (result,), _ = results.read(artifacts.load(folder))
    return result


def test_one_command_gives_the_same_figures(road, tmp_path, capsys):
    out = tmp_path / "out"
    evaluate = f"evaluate --beir {road}/toys --out {out}"
    assert cli.main([*evaluate.split(), "--encoder", str(road / "encoder")]) == 0
    assert "ndcg@10" in capsys.readouterr().out
    assert figures(out).per_query == figures(road / "figures").per_query
    run = read_run(out / "runs" / "toys.trec")
    expected = read_run(road / "run" / "run.trec")
    assert run.keys() == expected.keys()
    assert all(run[query].ids == expected[query].ids for query in run)
    assert not (out / ".scratch").exists()
    assert cli.main([*evaluate.split(), "--bm25", "anserini", "--overwrite"]) == 0
    assert figures(out).mean["recall@100"] == 1.0  # queries repeat words


def test_what_was_moved_is_told(road, tmp_path, capsys):
    question = ["search", "--index", str(road / "index"), "copper"]
    shutil.move(road / "vectors", road / "away")
    shutil.move(road / "encoder", tmp_path / "encoder")
    try:
        assert cli.main(question) == 2
        assert "--encoder" in capsys.readouterr().err
        assert cli.main([*question, "--model", str(tmp_path / "encoder")]) == 0
        captured = capsys.readouterr()
        assert "the texts are not at" in captured.err and "p" in captured.out
    finally:
        shutil.move(tmp_path / "encoder", road / "encoder")
        shutil.move(road / "away", road / "vectors")


@pytest.mark.slow
def test_killed_indexing_is_never_whole_and_completes(tmp_path):
    array = toy.clustered(np.random.default_rng(0), 20_000, 32)
    toy.write_vectors(tmp_path / "vectors", array)
    words = ["index", "--vectors", tmp_path / "vectors", "--method", "scann", "--leaves", 100]
    assert cli.main([*map(str, words), "--out", str(tmp_path / "whole")]) == 0
    for step, sign in enumerate((".scratch/scann", ".scratch/scann/part-00000", "index.json")):
        out = tmp_path / f"killed-{step}"
        toy_process.kill_when((out / sign).exists, *words, "--out", out)
        with pytest.raises(UserError, match="is unfinished"):
            artifacts.load(out)
        assert cli.main([*map(str, words), "--out", str(out)]) == 0
        again = artifacts.load(out, "index")
        again.verify()
        assert again.identity == artifacts.load(tmp_path / "whole").identity
        assert not (out / ".scratch").exists()
