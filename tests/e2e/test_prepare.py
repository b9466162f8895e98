"""`qac prepare`: same bytes everywhere, resumable, nothing is dropped in silence."""

import json
from pathlib import Path

import numpy as np
import pytest
from toy_retrieval import sentence

from qac_jax import artifacts, cli
from qac_jax.errors import Interrupted
from qac_jax.formats.records import Records
from qac_jax.text import passages, tokenizers


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """120 documents of up to 40 sentences."""
    path, rng = tmp_path_factory.mktemp("corpus") / "corpus.jsonl", np.random.default_rng(0)
    with path.open("w") as file:
        for i in range(120):
            text = " ".join(sentence(rng, 6 + (i + j) % 9) for j in range(1 + i % 40))
            file.write(json.dumps({"id": f"d{i}", "title": f"Mill {i}", "text": text}) + "\n")
    return path


def prepare(out: Path, *flags: object) -> artifacts.Artifact:
    arguments = ["prepare", "--out", str(out), *map(str, flags)]
    assert cli.main(arguments) == 0
    return artifacts.load(out, "passages")


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """The corpus in three shards, made in this process."""
    out = tmp_path_factory.mktemp("whole") / "A"
    return prepare(out, "--documents", corpus, "--max_tokens", 48, "--shards", 3, "--workers", 1)


def test_passages_cover_the_documents_in_order(whole, corpus):
    found = list(Records(whole))
    assert whole.count == len(found) > 240
    texts = {d["id"]: d for d in map(json.loads, corpus.read_text().splitlines())}
    for key, document in texts.items():
        mine = [r for r in found if r["doc"] == key]
        assert [r["position"] for r in mine] == list(range(len(mine)))
        assert [r["_id"] for r in mine] == [f"{key}#{i}" for i in range(len(mine))]
        assert " ".join(r["text"] for r in mine) == document["text"]
        assert {r["title"] for r in mine} == {document["title"]}
    assert max(tokenizers.load().count([r["text"] for r in found])) <= 48
    assert whole.info["documents"] == 120
    assert len(whole.matching("passages-")) == 3


def test_an_interrupted_run_goes_on_where_it_was(whole, corpus, tmp_path, monkeypatch):
    ran = []
    real = passages.prepare_shard

    def stops_at_the_third(job, path):
        ran.append(job.shard.index)
        if len(ran) == 3:
            raise Interrupted(15)
        return real(job, path)

    monkeypatch.setattr(passages, "prepare_shard", stops_at_the_third)
    flags = ["--documents", str(corpus), "--max_tokens", "48", "--shards", "3", "--workers", "1"]
    out = tmp_path / "A"
    assert cli.main(["prepare", "--out", str(out), *flags]) == 143
    assert prepare(out, *flags).identity == whole.identity
    assert ran == [0, 1, 2, 2]


def test_ids_that_repeat_over_shards(tmp_path, capsys):
    path = tmp_path / "c.jsonl"
    lines = [{"_id": f"d{i % 20}", "text": f"The mill is number {i}."} for i in range(21)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["--documents", path, "--shards", 4, "--workers", 1]
    assert cli.main(["prepare", "--out", str(tmp_path / "A"), *map(str, flags)]) == 2
    said = capsys.readouterr().err
    assert f"{path}:21: the id of document 'd0' was there before" in said and "--skip_bad" in said
    made = prepare(tmp_path / "B", *flags, "--skip_bad", 1)
    assert made.info["skipped"] == 1 and made.info["documents"] == 20
    assert list(dict.fromkeys(r["doc"] for r in Records(made))) == [f"d{i}" for i in range(20)]
    assert sum(r["doc"] == "d0" and r["position"] == 0 for r in Records(made)) == 1
    assert "c.jsonl\t21\t" in (tmp_path / "B" / "skipped.tsv").read_text()


def test_errors_of_workers_come_home(corpus, tmp_path, capsys):
    path = tmp_path / "c.jsonl"
    path.write_text(corpus.read_text() + "{broken\n")
    flags = ["--documents", path, "--shards", 2, "--workers", 2, "--cut", "none"]
    assert cli.main(["prepare", "--out", str(tmp_path / "A"), *map(str, flags)]) == 2
    assert f"{path}:121: " in capsys.readouterr().err
    path.write_text(corpus.read_text())
    assert prepare(tmp_path / "A", *flags).info["documents"] == 120, "mended, in the same folder"
