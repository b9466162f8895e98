"""`qac prepare`: same bytes everywhere, resumable; a mixed folder, searched end to end."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_process import Qac
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


def test_ids_that_repeat_over_shards(tmp_path: Path, qac: Qac) -> None:
    path = tmp_path / "c.jsonl"
    lines = [{"_id": f"d{i % 20}", "text": f"The mill is number {i}."} for i in range(21)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["--documents", path, "--shards", 4, "--workers", 1]
    said = qac.refused("prepare", "--out", tmp_path / "A", *flags)
    assert f"{path}:21: the id of document 'd0' was there before" in said and "--skip_bad" in said
    made = prepare(tmp_path / "B", *flags, "--skip_bad", 1)
    assert made.info["skipped"] == 1 and made.info["documents"] == 20
    assert list(dict.fromkeys(r["doc"] for r in Records(made))) == [f"d{i}" for i in range(20)]
    assert sum(r["doc"] == "d0" and r["position"] == 0 for r in Records(made)) == 1
    assert "c.jsonl\t21\t" in (tmp_path / "B" / "skipped.tsv").read_text()


def test_errors_of_workers_come_home(corpus: Path, tmp_path: Path, qac: Qac) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(corpus.read_text() + "{broken\n")
    flags = ["--documents", path, "--shards", 2, "--workers", 2, "--cut", "none"]
    assert f"{path}:121: " in qac.refused("prepare", "--out", tmp_path / "A", *flags)
    path.write_text(corpus.read_text())
    assert prepare(tmp_path / "A", *flags).info["documents"] == 120, "mended, in the same folder"


def pdf_of(*pages: str) -> bytes:
    """The least that is a PDF: a line of text on each page."""
    pytest.importorskip("pypdf")
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        objects += [
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources "
            f"<< /Font << /F1 3 0 R >> >> /Contents {5 + 2 * number} 0 R >>",
            f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        ]
    body = "".join(f"{n} 0 obj\n{text}\nendobj\n" for n, text in enumerate(objects, 1))
    end = "trailer\n<< /Root 1 0 R >>\nstartxref\n0\n%%EOF\n"  # the table of places is missing
    return f"%PDF-1.4\n{body}{end}".encode()


QUESTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("who binds a cracked millstone?", "docs/mills.md", {"heading": "Tide mills > Repair"}),
    ("how many metres deep", "faq.csv", {"row": 1, "columns": {"kind": "water"}}),
    ("where do swallows nest", "report.pdf", {"page": 2}),
]


@pytest.mark.slow
def test_a_mixed_folder_is_searched(tmp_path: Path, qac: Qac) -> None:
    folder = tmp_path / "own"
    files: dict[str, bytes] = {
        "docs/mills.md": b"# Tide mills\nA tide mill is driven by the sea.\n\n## Repair\nA cracked "
        b"millstone is bound with an iron hoop.\n",
        "faq.csv": b"question,answer,kind\nHow deep is the well?,Forty metres of granite.,water\n",
        "report.pdf": pdf_of("Harvest of barley was poor.", "Swallows nested under the bridge."),
        "photo.png": b"\x89PNG\r\n",
    }
    (folder / "docs").mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    made = f"prepare --format auto --documents {folder} --workers 1 --out {tmp_path}/p"
    said = qac(*made.split()).err
    assert "read as format folder" in said and "1 × other kind of file (photo.png)" in said
    assert "faq.csv: columns title=question, text=answer" in said
    passages = artifacts.load(tmp_path / "p", "passages")
    assert '"photo.png"' in (tmp_path / "p" / "skipped.jsonl").read_text()
    assert all(record["path"] for record in Records(passages))
    qac("bm25", "--passages", tmp_path / "p", "--out", tmp_path / "bm25")
    for question, path, known in QUESTIONS:
        (hit,) = qac.json("search", "--index", tmp_path / "bm25", "--k", 1, question)
        assert hit["metadata"]["path"] == path
        assert known.items() <= hit["metadata"].items()
