"""Advice in messages can be followed; help and lists say what there is; nothing is left behind."""

import json
import logging
from pathlib import Path

import pytest
import toy_live
from toy_retrieval import save_encoder, write_collection

from qac_jax import artifacts, cli
from qac_jax.errors import UserError
from qac_jax.live import convert
from qac_jax.retrieval.corpus import read_passages


def complaint(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert cli.main([str(word) for word in words]) == 2
    return capsys.readouterr().err


def test_a_folder_of_a_recipe_names_an_artefact_in_it(tmp_path: Path) -> None:
    with artifacts.create(tmp_path / "out" / "words", kind="words", key="k") as writer:
        writer.count = 0
    for kind in (None, "words"):
        with pytest.raises(UserError, match=r"expected an artefact.*, such as .*out/words$"):
            artifacts.load(tmp_path / "out", kind)
    with pytest.raises(UserError, match="expected an artefact of kind runs$"):
        artifacts.load(tmp_path / "out", "runs")
    with pytest.raises(UserError, match="does not exist; expected an artefact of kind live$"):
        artifacts.load(tmp_path / "none", "live")


def test_a_folder_of_other_files_names_the_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a.md").write_text("A lamp.")
    documents = ("--documents", tmp_path / "documents")
    said = complaint(capsys, "prepare", *documents, "--out", tmp_path / "out")
    assert "check the path, or read files of other kinds by --format folder" in said
    said = complaint(capsys, "prepare", "--format", "zzz", *documents, "--out", "o")
    assert said.count("wikipedia") == 1


@pytest.mark.slow
def test_a_bm25_index_is_searched_quietly_and_says_what_filters_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "corpus.jsonl"
    texts.write_text(
        "".join(json.dumps({"_id": f"d{n}", "text": "A lamp."}) + "\n" for n in (1, 2))
    )
    index = tmp_path / "bm25"
    assert cli.main(["bm25", "--passages", str(texts), "--out", str(index)]) == 0
    assert logging.getLogger("bm25s").level == logging.WARNING
    capsys.readouterr()
    said = complaint(capsys, "search", "--index", index, "--where", '{"a": 1}', "lamp")
    assert "of BM25: its passages, with --encoder" in said
    live = tmp_path / "live"
    encoder = save_encoder(tmp_path / "encoder")
    for source, what in ((index, "dense or hybrid index"), (tmp_path / "no", "does not exist")):
        assert what in complaint(capsys, "index", live, "--add", source, "--encoder", encoder)
        assert not live.exists()  # another encoder may be given with the right passages


def test_filters_of_a_corpus_that_was_added_and_why_they_find_nothing(tmp_path: Path) -> None:
    lines = [
        {"_id": "a", "text": "A lamp.", "lang": "en", "metadata": {"year": 2021}},
        {"_id": "b", "text": "Eine Lampe.", "lang": "de", "metadata": "none"},
    ]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert set(next(read_passages(str(corpus)))) == {"_id", "title", "text"}
    live = toy_live.live(tmp_path / "live")
    assert convert.add(live, str(corpus)) == 2
    (hit,) = live.search(["lamp"], where={"lang": "en", "year": (">=", 2020)})[0]
    assert hit.id == "a"
    assert [h.id for h in live.search(["lamp"], where={"metadata": "none"})[0]] == ["b"]
    (said,) = live.snapshot.unknown_fields({"lnag": "en", "lang": "fr"})
    assert said == "no passage has the field 'lnag'; did you mean 'lang'?"


def test_some_of_a_grids_systems_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_collection(tmp_path)
    run = ("run", "claim_qac", "--data_dir", tmp_path, "--out", tmp_path / "out", "--dry_run")
    given = [*map(str, run), "--systems"]
    assert cli.main([*given, "none,queries-cotmae"]) == 0
    assert "6 cells" in capsys.readouterr().out
    assert "did you mean 'none'?" in complaint(capsys, *given, "nome")
    said = complaint(capsys, "run", "own_corpus", *given[2:], "none")
    assert "own_corpus is a recipe; --systems is for grids, leave it out" in said
