"""The road of retrieval by its verbs, and what SIGKILL leaves of it."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import toy_process
import toy_retrieval as toy
from toy_process import Qac

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


def test_one_command_gives_the_same_figures(road: Path, tmp_path: Path, qac: Qac) -> None:
    out = tmp_path / "out"
    evaluate = f"evaluate --beir {road}/toys --out {out}".split()
    assert "ndcg@10" in qac(*evaluate, "--encoder", road / "encoder").out
    assert figures(out).per_query == figures(road / "figures").per_query
    run = read_run(out / "runs" / "toys.trec")
    expected = read_run(road / "run" / "run.trec")
    assert run.keys() == expected.keys()
    assert all(run[query].ids == expected[query].ids for query in run)
    assert not (out / ".scratch").exists()
    qac(*evaluate, "--bm25", "anserini", "--overwrite")
    assert figures(out).mean["recall@100"] == 1.0  # queries repeat words


def test_what_was_moved_is_told(road: Path, tmp_path: Path, qac: Qac) -> None:
    question = ["search", "--index", road / "index", "copper"]
    shutil.move(road / "vectors", road / "away")
    shutil.move(road / "encoder", tmp_path / "encoder")
    try:
        assert "--encoder" in qac.refused(*question)
        found = qac(*question, "--model", tmp_path / "encoder")
        assert "the texts are not at" in found.err and "p" in found.out
    finally:
        shutil.move(tmp_path / "encoder", road / "encoder")
        shutil.move(road / "away", road / "vectors")


@pytest.mark.slow
def test_killed_indexing_is_never_whole_and_completes(tmp_path: Path, qac: Qac) -> None:
    array = toy.clustered(np.random.default_rng(0), 20_000, 32)
    toy.write_vectors(tmp_path / "vectors", array)
    words = ["index", "--vectors", tmp_path / "vectors", "--method", "scann", "--leaves", 100]
    qac(*words, "--out", tmp_path / "whole")
    for step, sign in enumerate((".scratch/scann", ".scratch/scann/part-00000", "index.json")):
        out = tmp_path / f"killed-{step}"
        toy_process.kill_when((out / sign).exists, *words, "--out", out)
        with pytest.raises(UserError, match="is unfinished"):
            artifacts.load(out)
        qac(*words, "--out", out)
        again = artifacts.load(out, "index")
        again.verify()
        assert again.identity == artifacts.load(tmp_path / "whole").identity
        assert not (out / ".scratch").exists()
