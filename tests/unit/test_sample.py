"""Queries of several files, drawn by seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qac_jax.errors import UserError
from qac_jax.pipeline import stage
from qac_jax.stages.questions import FILE_NAME, Sample


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """ORCAS (a query has a line for every click) and MRQA, with two questions in common."""
    orcas = "".join(f"{n}\tquery {n}\tD{n}{c}\thttp://\n" for n in range(40) for c in range(2))
    (tmp_path / "orcas.tsv").write_text(orcas)
    (tmp_path / "mrqa").mkdir()
    asked = [{"qid": f"q{n}", "question": f"Query {n}?", "answers": ["a"]} for n in range(38, 60)]
    records: list[Any] = [{"header": {"dataset": "SQuAD"}}, {"context": "c", "qas": asked}]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "mrqa" / "SQuAD.jsonl").write_text(lines)
    return tmp_path / "orcas.tsv", tmp_path / "mrqa"


def drawn(out: Path, *paths: Path, **settings: Any) -> tuple[list[dict[str, str]], dict[str, Any]]:
    made = stage.execute(Sample(queries=",".join(map(str, paths)), **settings), out)
    lines = (out / FILE_NAME).read_text().splitlines()
    return [json.loads(line) for line in lines], made.info


def test_a_part_by_seed(files: tuple[Path, Path], tmp_path: Path) -> None:
    found, info = drawn(tmp_path / "a", *files, count=30, seed=1)
    texts = {record["text"].rstrip("?").lower() for record in found}
    assert len(found) == len(texts) == 30
    assert info["read"] == 62 and info["repeated"] == 2
    assert info["questions"]["orcas"] + info["questions"]["mrqa"] == 30
    assert {record["_id"].split("/")[0] for record in found} == {"orcas", "mrqa"}
    other, _ = drawn(tmp_path / "b", *reversed(files), count=30, seed=1)
    assert {record["text"].rstrip("?").lower() for record in other} == texts
    third, _ = drawn(tmp_path / "c", *files, count=30, seed=2)
    assert {record["text"].rstrip("?").lower() for record in third} != texts


def test_all_of_them(files: tuple[Path, Path], tmp_path: Path) -> None:
    found, _ = drawn(tmp_path / "a", *files)
    assert len(found) == 60


def test_names_must_differ(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="have one name"):
        drawn(tmp_path / "a", files[0], files[0])
