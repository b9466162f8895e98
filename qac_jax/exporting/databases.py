"""`qac export --rows`: an index or vectors → rows of a database that searches them itself."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import re
import urllib.parse
import uuid
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import httpx2
import numpy as np

from qac_jax import extras, progress
from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.formats.records import Record, encode
from qac_jax.live import convert
from qac_jax.live.index import LiveIndex
from qac_jax.live.snapshot import Snapshot
from qac_jax.pipeline.inputs import Inputs
from qac_jax.pipeline.stage import Ref, Stage, input, option


# Rows that are written together; passages whose own vectors are searched, and their top k.
_BATCH, _ASKED, _K = 256, 50, 10
# The share of hits that must be among the exact top k: approximate indexes lose a few.
_LEAST = 0.9
BM25 = "bm25"  # sparse vectors
Words = dict[int, float]
_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")


class Row:
    """A passage, its vector, maybe BM25's scores of its words (`Snapshot.weights`), and a hash of
    all by which a row that is there already is known."""

    def __init__(self, record: Record, vector: np.ndarray, words: Words | None):
        # Databases refuse an empty vector; no word has this number.
        self.sparse: dict[str, Words] = {} if words is None else {BM25: words or {1: 1e-9}}
        self.record, self.vector, self.id = record, vector.tolist(), str(record["_id"])
        whole = encode(record) + vector.tobytes() + (repr(words).encode() if self.sparse else b"")
        self.sum = hashlib.sha256(whole).hexdigest()[:32]

    @property
    def metadata(self) -> Record:
        return {k: v for k, v in self.record.items() if k not in ("_id", "title", "text")}

    @property
    def fields(self) -> Record:
        """What is stored beside the vector, where fields have no schema."""
        texts = {name: self.record.get(name) or "" for name in ("title", "text")}
        return {"id": self.id, **texts, "metadata": self.metadata, "sum": self.sum}


class Database(Protocol):
    """Rows by their ids, searched by inner products."""

    def known(self, ids: Sequence[str]) -> dict[str, str]:
        """The sums of those of the ids that are there."""

    def write(self, rows: Sequence[Row]) -> None: ...

    def finish(self) -> None:
        """What was written can be searched then."""

    def count(self) -> int: ...

    def nearest(self, vector: list[float] | Words, k: int) -> list[str]: ...

    def close(self) -> None: ...


class Qdrant(Database):
    """An address, or, in tests, the folder of the client's local mode."""

    def __init__(self, place: str, name: str, width: int, words: bool):
        library = extras.load("qdrant_client", "qdrant", "Qdrant")
        self._models, self._name = library.models, name
        where = {"url": place} if "://" in place else {"path": place}
        self._client = library.QdrantClient(**where, api_key=os.environ.get("QDRANT_API_KEY"))
        if not self._client.collection_exists(name):
            models = library.models
            vectors = models.VectorParams(size=width, distance=models.Distance.DOT)
            sparse = {BM25: models.SparseVectorParams()} if words else None
            self._client.create_collection(name, vectors, sparse)

    def _key(self, name: str) -> str:
        """Qdrant's ids are numbers or UUIDs."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, name))

    def known(self, ids: Sequence[str]) -> dict[str, str]:
        wanted = {self._key(name): name for name in ids}
        found = self._client.retrieve(self._name, [*wanted], with_payload=["sum"])
        return {wanted[str(point.id)]: point.payload["sum"] for point in found}

    def write(self, rows: Sequence[Row]) -> None:
        made = self._models.PointStruct
        points = [made(id=self._key(r.id), vector={"": r.vector}, payload=r.fields) for r in rows]
        for point, row in zip(points, rows, strict=True):
            point.vector |= {name: self._sparse(words) for name, words in row.sparse.items()}
        self._client.upsert(self._name, points, wait=True)

    def _sparse(self, words: Words) -> Any:
        return self._models.SparseVector(indices=[*words], values=[*words.values()])

    def count(self) -> int:
        return int(self._client.count(self._name, exact=True).count)

    def nearest(self, vector: list[float] | Words, k: int) -> list[str]:
        by: dict[str, Any] = {"query": vector}
        if isinstance(vector, dict):
            by = {"query": self._sparse(vector), "using": BM25}
        found = self._client.query_points(self._name, **by, limit=k, with_payload=["id"])
        return [point.payload["id"] for point in found.points]

    def close(self) -> None:
        self._client.close()


class Pgvector(Database):
    """A table of PostgreSQL with the extension pgvector; libpq reads passwords (PGPASSWORD)."""

    def __init__(self, place: str, name: str, width: int, words: bool):
        library = extras.load("psycopg", "pgvector", "PostgreSQL")
        self._name, self._connection = name, library.connect(place, autocommit=True)
        self._run("CREATE EXTENSION IF NOT EXISTS vector")
        self._run(
            f"CREATE TABLE IF NOT EXISTS {name} (id text PRIMARY KEY, title text, text text, "
            f"metadata jsonb, sum text, embedding vector({width}))"
        )

    def _run(self, query: str, *values: Any) -> Any:
        return self._connection.execute(query, values)

    def known(self, ids: Sequence[str]) -> dict[str, str]:
        return dict(self._run(f"SELECT id, sum FROM {self._name} WHERE id = ANY(%s)", [*ids]))

    def write(self, rows: Sequence[Row]) -> None:
        values = [
            (*(str(row.fields[name]).replace("\0", " ") for name in ("id", "title", "text")),
             json.dumps(row.metadata).replace("\\u0000", " "), row.sum, str(row.vector))
            for row in rows
        ]  # fmt: skip
        # PostgreSQL holds no NUL characters.
        with self._connection.cursor() as cursor, self._connection.transaction():
            cursor.executemany(
                f"INSERT INTO {self._name} VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (id) "
                "DO UPDATE SET (title, text, metadata, sum, embedding) = (excluded.title, "
                "excluded.text, excluded.metadata, excluded.sum, excluded.embedding)",
                values,
            )

    def finish(self) -> None:
        self._run(
            f"CREATE INDEX IF NOT EXISTS {self._name}_embedding ON {self._name} "
            "USING hnsw (embedding vector_ip_ops)"
        )

    def count(self) -> int:
        return int(self._run(f"SELECT count(*) FROM {self._name}").fetchone()[0])

    def nearest(self, vector: list[float] | Words, k: int) -> list[str]:
        query = f"SELECT id FROM {self._name} ORDER BY embedding <#> %s::vector LIMIT %s"
        return [name for (name,) in self._run(query, str(vector), k)]

    def close(self) -> None:
        self._connection.close()


class Milvus(Database):
    """An address, or, in tests, the file of Milvus Lite."""

    def __init__(self, place: str, name: str, width: int, words: bool):
        library = extras.load("pymilvus", "milvus", "Milvus")
        self._name = name
        self._client = library.MilvusClient(place, token=os.environ.get("MILVUS_TOKEN", ""))
        if not self._client.has_collection(name):
            types, schema = library.DataType, self._client.create_schema(enable_dynamic_field=True)
            schema.add_field("id", types.VARCHAR, is_primary=True, max_length=2048)
            schema.add_field("embedding", types.FLOAT_VECTOR, dim=width)
            indexes = self._client.prepare_index_params()
            indexes.add_index("embedding", "AUTOINDEX", metric_type="IP")
            if words:
                schema.add_field(BM25, types.SPARSE_FLOAT_VECTOR)
                indexes.add_index(BM25, "SPARSE_INVERTED_INDEX", metric_type="IP")
            self._client.create_collection(
                name, schema=schema, index_params=indexes, consistency_level="Strong"
            )

    def known(self, ids: Sequence[str]) -> dict[str, str]:
        found = self._client.get(self._name, [*ids], output_fields=["sum"])
        return {row["id"]: row["sum"] for row in found}

    def write(self, rows: Sequence[Row]) -> None:
        fields = [{**row.fields, **row.sparse, "embedding": row.vector} for row in rows]
        self._client.upsert(self._name, fields)

    def finish(self) -> None:
        self._client.flush(self._name)

    def count(self) -> int:
        found = self._client.query(self._name, "", output_fields=["count(*)"])
        return int(found[0]["count(*)"])

    def nearest(self, vector: list[float] | Words, k: int) -> list[str]:
        field = BM25 if isinstance(vector, dict) else "embedding"
        found = self._client.search(self._name, [vector], anns_field=field, limit=k)
        return [hit["id"] for hit in found[0]]

    def close(self) -> None:
        self._client.close()


class Elasticsearch(Database):
    """An index behind an address, by its REST API."""

    def __init__(self, place: str, name: str, width: int, words: bool):
        self._base = f"{place.rstrip('/')}/{name}"
        vector = {"type": "dense_vector", "dims": width, "similarity": "max_inner_product"}
        fields = {"title": {"type": "text"}, "text": {"type": "text"}, "embedding": vector}
        fields |= {"metadata": {"type": "flattened"}, "sum": {"type": "keyword", "index": False}}
        if self._ask("HEAD") is None:
            self._ask("PUT", body={"mappings": {"properties": fields}})

    def _ask(self, method: str, path: str = "", body: Any = None) -> Any:
        """The answer; None where there is no such index."""
        lines = isinstance(body, list)
        content = b"".join(map(encode, body)) if lines else body and json.dumps(body)
        headers = {"Content-Type": f"application/{'x-ndjson' if lines else 'json'}"}
        if key := os.environ.get("ELASTIC_API_KEY"):
            headers["Authorization"] = f"ApiKey {key}"
        sent: dict[str, Any] = {"content": content, "headers": headers, "timeout": 60}
        answer = httpx2.request(method, f"{self._base}{path}", **sent, follow_redirects=True)
        if answer.status_code == 404 and method == "HEAD":
            return None
        if answer.is_error:
            raise OSError(f"{method} {path or '/'}: {answer.status_code} {answer.text[:500]}")
        return answer.json() if answer.content else {}

    def known(self, ids: Sequence[str]) -> dict[str, str]:
        found = self._ask("POST", "/_mget?_source_includes=sum", {"ids": [*ids]})
        return {row["_id"]: row["_source"]["sum"] for row in found["docs"] if row.get("found")}

    def write(self, rows: Sequence[Row]) -> None:
        lines: list[Record] = []
        for row in rows:
            lines += [{"index": {"_id": row.id}}, {**row.fields, "embedding": row.vector}]
        answer = self._ask("POST", "/_bulk", lines)
        if answer["errors"]:
            failed = next(e["index"] for e in answer["items"] if e["index"]["status"] >= 300)
            raise OSError(f"row {failed['_id']!r}: {failed['error']}")

    def finish(self) -> None:
        self._ask("POST", "/_refresh")

    def count(self) -> int:
        return int(self._ask("GET", "/_count")["count"])

    def nearest(self, vector: list[float] | Words, k: int) -> list[str]:
        asked = {"field": "embedding", "query_vector": vector, "k": k, "num_candidates": 10 * k}
        found = self._ask("POST", "/_search", {"knn": asked, "size": k, "_source": False})
        return [hit["_id"] for hit in found["hits"]["hits"]]


# Whose client would also make a file where its place is none of a server.
_SERVED = ("milvus", "qdrant")
DATABASES: dict[str, Any] = {
    "elasticsearch": Elasticsearch, "milvus": Milvus, "pgvector": Pgvector, "qdrant": Qdrant
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportRows(Stage):
    """Writes passages with their vectors to a database, in batches, and checks what it answers.

    A row has the passage's id, title, text, metadata and vector; similarity is the inner product.
    Rows that are there already stay, so an export that was stopped goes on. Keys are read from
    QDRANT_API_KEY, MILVUS_TOKEN, ELASTIC_API_KEY and PGPASSWORD.
    """

    VERB = "export"
    KIND = "exported"
    EXAMPLE = "qac export --rows out/live --to qdrant:http://localhost:6333 --out out/exported"

    rows: Ref = input(
        "living or other index with vectors, or vectors", *convert.KINDS, convert.KIND
    )
    to: str = option("", "qdrant:, pgvector:, milvus: or elasticsearch: and a server's address")
    table: str = option("passages", "table, collection or index; made where there is none")
    bm25: bool = option(False, "of a living index, to Qdrant or Milvus: sparse vectors of BM25 too")

    def check(self) -> None:
        super().check()
        kind, _, place = self.to.partition(":")
        if kind not in DATABASES or not place:
            raise UserError(f"--to {self.to!r}; give a kind and a place, as in {self.EXAMPLE!r}")
        if kind in _SERVED and "://" not in place:
            raise UserError(
                f"--to {self.to!r} is a file, and only --out is written to; give a server's "
                f"address, such as {kind}:http://localhost:6333"
            )
        if self.bm25 and kind not in ("milvus", "qdrant"):
            raise UserError("--bm25 is for Qdrant and Milvus; leave it out: others search texts")
        if not _NAME.fullmatch(self.table):
            raise UserError(f"--table {self.table!r}; give a-z, 0-9 and _, at most 48, a-z first")
        if urllib.parse.urlsplit(place).password or "password" in place:
            raise UserError("--to has a password, which would be stored; give it by PGPASSWORD")

    def run(self, inputs: Inputs, out: Writer) -> None:
        kind, _, place = self.to.partition(":")
        source = inputs.artifact("rows")
        words = LiveIndex(source.path).snapshot if self.bm25 else None
        blocks = _blocks(source, words)
        first = next(blocks, None)
        if first is None:
            raise UserError(f"{source.path} has no passages; add some first")
        try:
            opened = DATABASES[kind](place, self.table, len(first[0].vector), self.bm25)
            with contextlib.closing(opened) as database:
                written = 0
                with progress.Bar("export", total=source.count, unit="passages") as bar:
                    for rows in itertools.chain([first], blocks):
                        known = database.known([row.id for row in rows])
                        fresh = [row for row in rows if known.get(row.id) != row.sum]
                        if fresh:
                            database.write(fresh)
                        written, out.count = written + len(fresh), out.count + len(rows)
                        bar.advance(len(rows))
                database.finish()
                there, share = database.count(), _right(database, source, out.count)
                share = min(share, _right_words(database, words) if words else 1)
        except UserError:
            raise
        except Exception as error:  # each client has its own
            said = " ".join(str(error).split())[:300]
            raise UserError(
                f"{kind} at {place} failed ({type(error).__name__}: {said}); when it is mended, "
                "the same command goes on"
            ) from error
        if there != out.count:
            raise UserError(
                f"{self.table} has {there:,} rows, the index {out.count:,} passages; others were "
                "there before: give another --table"
            )
        if share < _LEAST:
            raise UserError(
                f"of the hits that {kind} finds {share:.0%} are among the exact top {_K}; its "
                "vectors are others, or its index searches too little"
            )
        progress.say(f"export: {written:,} rows written; {share:.1%} of hits as in exact search")
        out.info.update(right=share, k=_K)
        out.write_text("export.json", json.dumps({"rows": there, "right": share}) + "\n")


def _blocks(source: Any, words: Snapshot | None = None) -> Iterator[list[Row]]:
    weights = words.weights() if words else itertools.repeat(None)
    for records, vectors in convert.rows(source):
        if vectors is None:
            raise UserError(f"{source.path} keeps no vectors as they are; give its vectors")
        for start in range(0, len(records), _BATCH):
            some = slice(start, start + _BATCH)
            rows = zip(records[some], np.ascontiguousarray(vectors[some], "<f4"), weights)  # noqa: B905
            yield [Row(*row) for row in rows]


def _right(database: Database, source: Any, count: int) -> float:
    """The share of hits whose scores are those of the exact top k, of searches by vectors of some
    passages; of equal scores any is right."""
    places = np.unique(np.linspace(0, count - 1, _ASKED).astype(int)).tolist()
    asked: list[list[float]] = []
    for number, row in enumerate(row for rows in _blocks(source) for row in rows):
        if number in places:
            asked.append(row.vector)
    found = [database.nearest(vector, _K) for vector in asked]
    queries, k = np.array(asked, np.float32), min(_K, count)
    wanted: dict[str, list[int]] = {}
    for number, names in enumerate(found):
        for name in names:
            wanted.setdefault(name, []).append(number)
    best = np.full((len(asked), 0), 0, np.float32)
    scores: list[tuple[int, float]] = []
    for rows in _blocks(source):
        products = queries @ np.array([row.vector for row in rows], np.float32).T
        best = -np.sort(-np.hstack([best, products]), 1)[:, :k]
        for column, row in enumerate(rows):
            scores += [(n, float(products[n, column])) for n in wanted.get(row.id, ())]
    least = best[:, -1] - 1e-4 * np.abs(best).max()
    return sum(score >= least[number] for number, score in scores) / (k * len(asked))


def _right_words(database: Database, known: Snapshot) -> float:
    """The same of BM25's scores, of searches by the first words of some passages."""
    places = np.flatnonzero(known.alive)[:: -(-len(known) // _ASKED)]
    shares = []
    for record in known.records(places.tolist()):
        question = record["text"][:60]
        scores, words = known.bm25(question), known.analyzer.words(question)
        asked = {zlib.crc32(word.encode()): float(words.count(word)) for word in words}
        if best := sorted(scores[scores > 0].tolist())[-_K:]:
            rows = known.rows_of(database.nearest(asked, len(best)))
            shares.append(np.sum(scores[rows] >= best[0] - 1e-4 * best[-1]) / len(best))
    return float(np.mean(shares or [1]))
