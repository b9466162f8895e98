"""Parquet and Lance in and out: every kind of text and line is read again as it was written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_examples
import toy_live

from qac_jax import artifacts
from qac_jax.errors import DataError, UserError
from qac_jax.exporting.tables import ExportLance, ExportParquet
from qac_jax.formats.files import open_bytes
from qac_jax.formats.judgements import read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.formats.runs import read_run
from qac_jax.pipeline import stage
from qac_jax.retrieval import corpus
from qac_jax.stages.prepare import Prepare


parquet: Any = pytest.importorskip("pyarrow.parquet")
arrow: Any = pytest.importorskip("pyarrow")


@pytest.fixture(params=["parquet", "lance"])
def form(request: pytest.FixtureRequest) -> str:
    if request.param == "lance":
        pytest.importorskip("lance")
    return str(request.param)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".lance":
        pytest.importorskip("lance").write_dataset(arrow.Table.from_pylist(rows), path)
    else:
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    return path


def exported(given: Path | str, out: Path, form: str, content: str = "") -> Path:
    cls = ExportLance if form == "lance" else ExportParquet
    made = stage.execute(cls.make(**{form: str(given)}, content=content), out)
    return Path(made.path) / f"table.{form}"


def lines(path: Path) -> list[dict[str, Any]]:
    with open_bytes(str(path)) as file:
        return [json.loads(line) for line in file]


def test_a_table_is_documents_as_csv_is(form: str, tmp_path: Path) -> None:
    rows = [
        {"nr": n, "name": f"N{n}", "body": f"The text of row {n}.", "kind": None} for n in (7, 9)
    ]
    table = written(tmp_path / f"faq.{form}", rows)
    columns = "id=nr,title=name,text=body"
    made = stage.execute(Prepare.make(documents=str(table), columns=columns), tmp_path / "passages")
    found = list(Records(made))
    assert [r["_id"] for r in found] == [f"faq.{form}#7#0", f"faq.{form}#9#0"]
    assert [(r["title"], r["text"]) for r in found] == [(r["name"], r["body"]) for r in rows]
    (tmp_path / "faq.csv").write_text(
        "nr,name,body\n7,N7,The text of row 7.\n9,N9,The text of row 9.\n"
    )
    as_csv = stage.execute(
        Prepare.make(documents=str(tmp_path / "faq.csv"), columns=columns), tmp_path / "csv"
    )
    assert [r["text"] for r in Records(as_csv)] == [r["text"] for r in found]
    # Among other files, too.
    (folder := tmp_path / "folder").mkdir()
    table.rename(folder / table.name)
    (tmp_path / "faq.csv").rename(folder / "other.csv")
    both = stage.execute(Prepare.make(documents=str(folder), columns=columns), tmp_path / "both")
    assert sorted(r["text"] for r in Records(both)) == sorted(2 * [r["text"] for r in found])


def test_a_collection_in_tables_is_one_in_json_lines(form: str, tmp_path: Path) -> None:
    texts = [{"_id": f"p{n}", "title": "", "text": f"Words of {n}."} for n in range(3000)]
    folder = tmp_path / "collection"
    (folder / "qrels").mkdir(parents=True)
    written(folder / f"corpus.{form}", texts)
    written(folder / f"queries.{form}", [{"_id": "q1", "text": "which words?"}])
    judged = [{"query-id": "q1", "corpus-id": "p5", "score": 2}]
    written(folder / "qrels" / f"test.{form}", judged)
    assert corpus.format_of(str(folder)) == "beir"
    assert list(corpus.read_passages(str(folder))) == texts
    assert [(q.id, q.text) for q in read_queries(folder)] == [("q1", "which words?")]
    assert list(read_judgements(folder / "qrels" / f"test.{form}")) == [("q1", "p5", 2)]


def test_passages_and_vectors_round_trip(form: str, tmp_path: Path) -> None:
    records = toy_live.records(500)
    live = toy_live.live(tmp_path / "live", records)
    table = exported(tmp_path / "live", tmp_path / "table", form)
    back = lines(table)
    vectors = np.array([row.pop("vector") for row in back], np.float32)
    assert back == records
    np.testing.assert_array_equal(vectors, live.snapshot.vectors(np.arange(500)))
    lance: Any = pytest.importorskip("lance") if form == "lance" else None
    kept = lance.dataset(table).schema if lance else parquet.read_schema(table)
    assert kept.field("vector").type == arrow.list_(arrow.float32(), toy_live.WIDTH)
    some = toy_examples.written(tmp_path / "some", "passages", records[:9])
    assert lines(exported(some, tmp_path / "nine", form)) == records[:9]
    exported(some, tmp_path / "again", form)
    assert artifacts.load(tmp_path / "again").identity == artifacts.load(tmp_path / "nine").identity


def test_fields_of_several_types_are_json(tmp_path: Path) -> None:
    given = [
        {"_id": "a", "title": "", "text": "one", "x": 1, "y": {}, "z": 1},
        {"_id": "b", "title": "", "text": "two", "x": "1", "y": {}, "z": 0.5},
    ]
    live = toy_live.live(tmp_path / "live", given)
    table = parquet.read_table(exported(tmp_path / "live", tmp_path / "table", "parquet"))
    assert table["x"].to_pylist() == ["1", '"1"'] and table["y"].to_pylist() == ["{}", "{}"]
    assert table["z"].to_pylist() == [1.0, 0.5] and len(live) == 2


def test_queries_judgements_and_runs_round_trip(form: str, tmp_path: Path) -> None:
    queries, judged, run = (tmp_path / n for n in ("q.jsonl", "qrels.tsv", "run.trec"))
    queries.write_text('{"_id": "1", "text": "who?", "metadata": {"answers": ["me"], "year": 5}}\n')
    judged.write_text("query-id\tcorpus-id\tscore\n1\ta b\t3\n1\tc\t0\n")
    run.write_text("1 Q0 a 1 0.123456789 t\n1 Q0 b 2 0.1 t\n2 Q0 a 1 7 t\n")
    of_queries = exported(queries, tmp_path / "one", form, "queries")
    found, before = (next(iter(read_queries(path))) for path in (of_queries, queries))
    assert (found.id, found.text, found.answers) == ("1", "who?", ("me",))
    assert found.meta == before.meta == {"year": 5}
    of_judged = exported(judged, tmp_path / "two", form, "judgements")
    assert list(read_judgements(of_judged)) == [("1", "a b", 3), ("1", "c", 0)]
    of_run = exported(run, tmp_path / "three", form, "run")
    back, kept = read_run(of_run), read_run(run)
    assert {q: r.ids for q, r in back.items()} == {q: r.ids for q, r in kept.items()}
    assert all((back[q].scores == kept[q].scores).all() for q in kept)


def test_refusals(tmp_path: Path) -> None:
    whole = written(tmp_path / "a.parquet", [{"_id": "a", "text": "one"}] * 100).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut\.parquet: the compressed data is damaged"):
        list(read_queries(tmp_path / "cut.parquet"))
    with pytest.raises(UserError, match="say by --content what it holds"):
        exported(tmp_path / "a.parquet", tmp_path / "one", "parquet")
    with pytest.raises(UserError, match="leave out --content"):
        some = toy_examples.written(tmp_path / "some", "passages", toy_live.records(3))
        exported(some, tmp_path / "two", "parquet", "queries")
    half = written(tmp_path / "half.parquet", [{"query-id": "q", "corpus-id": "p", "score": 0.5}])
    with pytest.raises(DataError, match=r"the grade 0\.5 is not a whole number"):
        list(read_judgements(half))


def test_a_folder_that_holds_no_table_of_lance(tmp_path: Path) -> None:
    pytest.importorskip("lance")
    (folder := tmp_path / "x.lance").mkdir()
    with pytest.raises(DataError, match=r"x\.lance: the compressed data is damaged"):
        list(read_queries(folder))
