"""A folder of Markdown, a table and a PDF, searched end to end; own advice is followed."""

import json
from pathlib import Path
from typing import Any

import pytest

from qac_jax import artifacts, cli
from qac_jax.formats.records import Records


pytest.importorskip("pypdf")


def pdf_of(*pages: str) -> bytes:
    """The least that is a PDF: a line of text on each page."""
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
def test_a_mixed_folder_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert cli.main(made.split()) == 0
    said = capsys.readouterr().err
    assert "read as format folder" in said and "1 × other kind of file" in said
    assert "faq.csv: columns title=question, text=answer" in said
    passages = artifacts.load(tmp_path / "p", "passages")
    assert '"photo.png"' in (tmp_path / "p" / "skipped.jsonl").read_text()
    assert all(record["path"] for record in Records(passages))
    assert cli.main(f"bm25 --passages {tmp_path}/p --out {tmp_path}/bm25".split()) == 0
    search = f"search --index {tmp_path}/bm25 --k 1".split()
    for question, path, known in QUESTIONS:
        capsys.readouterr()
        assert cli.main([*search, "--json", question]) == 0
        (hit,) = json.loads(capsys.readouterr().out)
        assert hit["metadata"]["path"] == path
        assert known.items() <= hit["metadata"].items()
