"""Rows to databases: resumed, compared by content, counted and searched.

Qdrant and Milvus are their clients' local modes, PostgreSQL with pgvector a server where one is
named, and Elasticsearch a stand-in that speaks the part of its REST API that is used.
"""

import dataclasses
import importlib.util
import json
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_live

from qac_jax.errors import UserError
from qac_jax.exporting import databases
from qac_jax.exporting.databases import DATABASES, ExportRows, Row
from qac_jax.live.index import LiveIndex
from qac_jax.live.snapshot import Snapshot
from qac_jax.pipeline import stage


# How libpq reaches a server.
SERVER = os.environ.get("QAC_TEST_PGVECTOR", "")


class Stub(BaseHTTPRequestHandler):
    """Elasticsearch's answers about one index, whose rows are `server.rows`."""

    server: Any

    def log_message(self, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        where = self.path.partition("?")[0].split("/")[2:]
        code, answer = self._of("/".join(where) or self.command, raw.decode())
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET = do_PUT = do_POST = _answer

    def _of(self, what: str, body: str) -> tuple[int, Any]:
        rows: dict[str, Any] = self.server.rows
        if what == "HEAD":
            return (404 if self.server.mapping is None else 200), {}
        if what == "PUT":
            self.server.mapping = json.loads(body)["mappings"]["properties"]
        elif what == "_count":
            return 200, {"count": len(rows)}
        elif what == "_mget":
            ids = json.loads(body)["ids"]
            return 200, {"docs": [self._row(name, rows.get(name)) for name in ids]}
        elif what == "_bulk":
            assert self.headers["Content-Type"] == "application/x-ndjson" and body.endswith("\n")
            lines = [*map(json.loads, body.splitlines())]
            for action, source in zip(lines[::2], lines[1::2], strict=True):
                assert len(source["embedding"]) == self.server.mapping["embedding"]["dims"]
                rows[action["index"]["_id"]] = source
            return 200, {"errors": False, "items": []}
        elif what == "_search":
            asked = json.loads(body)["knn"]
            vectors = np.array([row[asked["field"]] for row in rows.values()])
            order = np.argsort(-(vectors @ asked["query_vector"]))[: asked["k"]]
            names = [*rows]
            return 200, {"hits": {"hits": [{"_id": names[place]} for place in order]}}
        return 200, {}

    def _row(self, name: str, row: Any) -> Any:
        found = {} if row is None else {"_source": {"sum": row["sum"]}}
        return {"_id": name, "found": row is not None, **found}


@pytest.fixture
def elasticsearch() -> Iterator[str]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    server.rows, server.mapping = {}, None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"elasticsearch:http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def _needs(module: str) -> Any:
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"needs {module}")


SPARSE = [
    pytest.param("qdrant", marks=_needs("qdrant_client")),
    pytest.param("milvus", marks=_needs("milvus_lite")),
]


@pytest.fixture(
    params=[
        "elasticsearch",
        *SPARSE,
        pytest.param("pgvector", marks=pytest.mark.skipif(not SERVER, reason="needs a server")),
    ]
)
def to(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database without rows; Qdrant and Milvus are their clients' local modes."""
    monkeypatch.setattr(databases, "_SERVED", ())
    if request.param == "elasticsearch":
        return str(request.getfixturevalue("elasticsearch"))
    places = {"qdrant": tmp_path / "qdrant", "milvus": tmp_path / "m.db", "pgvector": SERVER}
    return f"{request.param}:{places[request.param]}"


class Counted:
    """A database that says which rows are written, and is lost after some batches."""

    def __init__(self, kind: str, monkeypatch: pytest.MonkeyPatch):
        self.written: list[str] = []
        self.batches_left = 10**6
        made, write = DATABASES[kind], DATABASES[kind].write

        def counted(database: Any, rows: Sequence[Row]) -> None:
            if not self.batches_left:
                raise ConnectionError("the database went away")
            self.batches_left -= 1
            self.written += [row.id for row in rows]
            write(database, rows)

        monkeypatch.setattr(made, "write", counted)


def test_an_export_goes_on_where_it_stopped(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = to.partition(":")[0]
    counted = Counted(kind, monkeypatch)
    table = f"t{uuid.uuid4().hex[:8]}"
    records = toy_live.records(700)
    records[3] |= {"_id": "d 3/ü", "text": 'quotes " and \\ and \0 NUL'}
    toy_live.live(tmp_path / "live", records)
    how = ExportRows(rows=str(tmp_path / "live"), to=to, table=table)

    counted.batches_left = 2
    with pytest.raises(UserError, match=r"the database went away\); when it is mended"):
        stage.execute(how, tmp_path / "out")
    assert len(counted.written) == 512
    counted.batches_left = 10**6
    made = stage.execute(how, tmp_path / "out")
    assert len(counted.written) == made.count == 700 and made.info["right"] >= 0.9
    assert sorted(counted.written) == sorted(record["_id"] for record in records)

    # What was changed is written again, and nothing else.
    live = LiveIndex(tmp_path / "live", encoder=toy_live.stub())
    live.add([{"_id": "d5", "title": "New", "text": "other words"}], replace=True)
    again = stage.execute(how, tmp_path / "again")
    assert again.count == 700 and counted.written[700:] == ["d5"]

    # Deleted passages stay in the database, which is said.
    live.delete(["d6"])
    with pytest.raises(UserError, match="has 700 rows, the index 699 passages"):
        stage.execute(how, tmp_path / "third")


def test_wrong_vectors_are_noticed(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = to.partition(":")[0]
    write = DATABASES[kind].write

    def mixed(database: Any, rows: Sequence[Row]) -> None:
        for row, other in zip(rows, [row.vector for row in rows][::-1], strict=True):
            row.vector = other
        write(database, rows)

    monkeypatch.setattr(DATABASES[kind], "write", mixed)
    toy_live.live(tmp_path / "live", toy_live.records(200))
    how = ExportRows(rows=str(tmp_path / "live"), to=to, table=f"t{uuid.uuid4().hex[:8]}")
    with pytest.raises(UserError, match="are among the exact top 10; its vectors are others"):
        stage.execute(how, tmp_path / "out")


@pytest.mark.parametrize("to", SPARSE, indirect=True)
def test_sparse_vectors_are_bm25s(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = toy_live.live(tmp_path / "live", [*toy_live.records(300), {"_id": "x", "text": "."}])
    live.delete(["d6"])
    how = ExportRows(rows=str(tmp_path / "live"), to=to, table="good", bm25=True)
    assert stage.execute(how, tmp_path / "out").info["right"] == 1.0
    weights = Snapshot.weights
    monkeypatch.setattr(Snapshot, "weights", lambda known: reversed([*weights(known)]))
    with pytest.raises(UserError, match="are among the exact top 10"):
        stage.execute(dataclasses.replace(how, table="bad"), tmp_path / "bad")


@pytest.mark.parametrize(
    ("to", "table", "said"),
    [
        ("oracle:x", "t", "give a kind and a place"),
        ("qdrant:", "t", "give a kind and a place"),
        ("qdrant:/tmp/rows", "t", "is a file, and only --out is written to; give a server's"),
        ("milvus:rows.db", "t", "is a file, and only --out is written to; give a server's"),
        ("qdrant:http://x", "T; DROP", "give a-z, 0-9 and _"),
        ("pgvector:postgresql://me:secret@x/y", "t", "would be stored; give it by PGPASSWORD"),
        ("pgvector:host=x password=secret", "t", "would be stored; give it by PGPASSWORD"),
    ],
)
def test_refusals(to: str, table: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ExportRows(rows="x", to=to, table=table).check()
    with pytest.raises(UserError, match="--bm25 is for Qdrant and Milvus"):
        ExportRows(rows="x", to="pgvector:host=x", bm25=True).check()
