"""`qac export --parquet` and `--lance`: texts, vectors, judgements or a run → a table."""

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from qac_jax import extras
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.formats import runs
from qac_jax.formats.judgements import read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.live import convert
from qac_jax.pipeline.inputs import FILE, Inputs
from qac_jax.pipeline.stage import Ref, Stage, input, option
from qac_jax.retrieval.corpus import PASSAGES, read_passages
from qac_jax.stages.search import Search


_READ = (PASSAGES, "contexts", *convert.KINDS, convert.KIND, Search.KIND, FILE)
_GIVEN = "passages, contexts, vectors, an index or a run; with --content a file"
# Rows that are in memory together.
_ROWS = 1 << 12

Row = Mapping[str, Any]
# Rows, and the vectors of those that have them.
Block = tuple[Sequence[Row], np.ndarray | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportTable(Stage):
    """Writes a table, which every stage reads again wherever it reads such texts or lines.

    Passages and queries have a row each, with the columns `_id`, `title`, `text` and what else is
    known of them, vectors a column `vector` more; judgements have BEIR's columns, runs a row for
    each ranked passage.
    """

    VERB = "export"
    KIND = "table"
    # The input, and the ending of what is written.
    FORM: ClassVar[str]

    content: str = option(
        "", "what a file holds", choices=("", "passages", "queries", "judgements", "run")
    )

    def run(self, inputs: Inputs, out: Writer) -> None:
        arrow = extras.load("pyarrow", self.FORM, "writing tables")
        read = self._reader(inputs)
        types = _types(arrow, read())
        schema = arrow.schema(list(types.items()))
        content = hashlib.sha256(schema.serialize())

        def batches() -> Iterator[Any]:
            for rows, vectors in read():
                columns = [
                    _column(arrow, name, kind, rows, vectors) for name, kind in types.items()
                ]
                batch = arrow.record_batch(columns, schema=schema)
                content.update(batch.serialize())
                out.count += len(rows)
                yield batch

        self._write(batches(), schema, os.fspath(out.begin(self._name)))
        if not out.count:
            raise UserError(f"there are no rows in {inputs.text(self.FORM)}; check the path")
        out.adopt(self._name, identity=content.hexdigest())

    def _write(self, batches: Iterator[Any], schema: Any, path: str) -> None:
        raise NotImplementedError

    @property
    def _name(self) -> str:
        return f"table.{self.FORM}"

    def _reader(self, inputs: Inputs) -> Callable[[], Iterator[Block]]:
        """What yields all rows, in blocks, each time that it is called."""
        artifact, path = inputs.get_artifact(self.FORM), inputs.text(self.FORM)
        if artifact is None:
            if self.content not in _FILES:
                raise UserError(f"{path} is a file; say by --content what it holds: queries, …")
            return lambda: _blocks(_FILES[self.content](path))
        if self.content:
            raise UserError(f"{path} says itself what it holds; leave out --content")
        if artifact.kind == Search.KIND:
            return lambda: _blocks(_FILES["run"](path))
        if artifact.kind in (PASSAGES, "contexts"):
            return lambda: _blocks(Records(artifact))
        return lambda: convert.rows(artifact)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportParquet(ExportTable):
    __doc__ = ExportTable.__doc__
    EXAMPLE = "qac export --parquet out/passages --out out/table"
    FORM = "parquet"

    parquet: Ref = input(_GIVEN, *_READ)

    def _write(self, batches: Iterator[Any], schema: Any, path: str) -> None:
        parquet = extras.load("pyarrow.parquet", "parquet", "writing Parquet")
        with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch)

    def summary(self, artifact: Artifact) -> str:
        return f'pandas.read_parquet("{artifact.path / self._name}")'


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportLance(ExportTable):
    __doc__ = ExportTable.__doc__
    EXAMPLE = "qac export --lance out/passages --out out/table"
    FORM = "lance"

    lance: Ref = input(_GIVEN, *_READ)

    def _write(self, batches: Iterator[Any], schema: Any, path: str) -> None:
        lance = extras.load("lance", "lance", "writing Lance")
        lance.write_dataset(batches, path, schema=schema)

    def summary(self, artifact: Artifact) -> str:
        return f'lance.dataset("{artifact.path / self._name}")'


def _blocks(rows: Iterable[Row]) -> Iterator[Block]:
    rows = iter(rows)
    while some := list(itertools.islice(rows, _ROWS)):
        yield some, None


def _queries(path: str) -> Iterator[Row]:
    for query in read_queries(path):
        meta = {**query.meta, **({"answers": list(query.answers)} if query.answers else {})}
        yield {"_id": query.id, "text": query.text, **({"metadata": meta} if meta else {})}


def _run(path: str) -> Iterator[Row]:
    (file,) = runs.run_files(path).values()
    for query, ranking in runs.read_run(file).items():
        pairs = zip(ranking.ids, ranking.scores.tolist(), strict=True)
        for rank, (passage, score) in enumerate(pairs, 1):
            yield dict(zip(runs.COLUMNS, (query, passage, rank, score), strict=True))


_FILES: dict[str, Callable[[str], Iterator[Row]]] = {
    "passages": read_passages,
    "queries": _queries,
    "judgements": lambda path: (
        {"query-id": query, "corpus-id": passage, "score": grade}
        for query, passage, grade in read_judgements(path)
    ),
    "run": _run,
}


def _types(arrow: Any, blocks: Iterator[Block]) -> dict[str, Any]:
    """Column -> its type in all blocks; where values are of several types, they are JSON texts."""
    types: dict[str, Any] = {}
    for rows, vectors in blocks:
        for name in dict.fromkeys(name for row in rows for name in row):
            known = types.get(name, arrow.null())
            try:
                found = arrow.array([row.get(name) for row in rows]).type
                both = [arrow.schema([(name, kind)]) for kind in (known, found)]
                merged = arrow.unify_schemas(both, promote_options="permissive").field(0).type
            except (arrow.ArrowException, OverflowError):
                merged = _json(arrow)
            types[name] = _json(arrow) if "struct<>" in str(merged) else merged
        if vectors is not None:
            types["vector"] = arrow.list_(arrow.float32(), vectors.shape[1])
    # Parquet's readers disagree about columns without any value.
    return {name: arrow.string() if arrow.types.is_null(t) else t for name, t in types.items()}


def _json(arrow: Any) -> Any:
    """The type of columns whose values are written as JSON."""
    return arrow.large_string()


def _column(
    arrow: Any, name: str, kind: Any, rows: Sequence[Row], vectors: np.ndarray | None
) -> Any:
    if name == "vector" and vectors is not None:
        flat = arrow.array(np.ascontiguousarray(vectors, np.float32).ravel())
        return arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    values = [row.get(name) for row in rows]
    if kind == _json(arrow):
        values = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]
    return arrow.array(values, kind)
