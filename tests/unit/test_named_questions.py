"""Questions judged by names; those of the demo fit the libraries that are installed."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import qac_jax
from qac_jax import artifacts
from qac_jax.errors import DataError, UserError
from qac_jax.formats import documents, judgements
from qac_jax.formats.records import write_records
from qac_jax.pipeline.stage import execute
from qac_jax.stages.questions import Judge


SHIPPED = Path(qac_jax.__file__).parent / "assets" / "demo" / "questions.jsonl"


PACKAGES = ("numpy", "scipy", "jax", "flax", "optax", "nltk", "stdlib")


def test_those_of_the_demo_are_well_formed() -> None:
    asked = judgements.read_named(SHIPPED)
    assert len({question.text for question in asked}) == len(asked) >= 240
    for question in asked:
        digest = hashlib.sha256(question.text.encode()).hexdigest()
        assert question.id == "n" + digest[:8]
        assert question.split == ("test" if int(digest[:8], 16) % 5 < 3 else "dev"), question


@pytest.mark.slow
def test_their_names_are_those_of_the_installed_libraries() -> None:
    known: set[str] = set()
    for document in documents.read("python_docs", ",".join(PACKAGES)):
        for part in document.meta["parts"]:
            known.update((part["title"], *part.get("aliases", ())))
    asked = judgements.read_named(SHIPPED)
    names = [name for question in asked for name in question.names]
    lost = [name for name in names if name not in known]
    assert len(lost) < 0.05 * len(names), lost
    unanswered = [q.text for q in asked if not known.intersection(q.names)]
    assert len(unanswered) < 0.05 * len(asked), unanswered


@pytest.fixture
def passages(tmp_path: Path) -> Path:
    records: list[dict[str, Any]] = [
        {"_id": "a#0", "title": "lib.stack", "text": "Stacks.", "aliases": ["lib.np.stack"]},
        {"_id": "a#1", "title": "lib.stack", "text": "Parameters."},
        {"_id": "b#0", "title": "lib.cut", "text": "Cuts."},
    ]
    with artifacts.create(tmp_path / "passages", kind="passages") as out:
        write_records(out, records)
    return tmp_path / "passages"


def questions(folder: Path, *records: dict) -> str:
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(file)


def test_names_become_judgements(passages: Path, tmp_path: Path) -> None:
    file = questions(
        tmp_path,
        {"_id": "q1", "text": "pile up", "relevant": ["lib.np.stack", "lib.cut"], "split": "test"},
        {"_id": "q2", "text": "divide", "relevant": ["lib.cut"], "split": "dev"},
        {"_id": "q3", "text": "gone", "relevant": ["lib.old"], "split": "dev"},
    )
    made = execute(Judge(questions=file, passages=str(passages)), tmp_path / "out")
    assert made.kind == "questions" and made.count == 2 and made.info["left_out"] == 1
    lines = made.file("test.tsv").read_text().splitlines()
    assert lines == ["query-id\tcorpus-id\tscore", "q1\ta#0\t1", "q1\tb#0\t1"]
    assert made.file("dev.tsv").read_text().splitlines()[1:] == ["q2\tb#0\t1"]
    assert json.loads(made.file("dev_queries.jsonl").read_text()) == {"_id": "q2", "text": "divide"}


def test_mistakes(passages: Path, tmp_path: Path) -> None:
    record = {"_id": "q", "text": "t", "relevant": ["lib.gone"]}
    with pytest.raises(DataError, match="stands there already"):
        judgements.read_named(questions(tmp_path, record, record))
    with pytest.raises(UserError, match="has a name that answers a question"):
        stage = Judge(questions=questions(tmp_path, record), passages=str(passages))
        execute(stage, tmp_path / "out")
