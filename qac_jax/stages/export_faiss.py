"""`qac export-faiss`: vectors or an exact index → a file that FAISS opens, ids beside it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import Inputs, Ref, Stage, input


FILE = "index.faiss"
CARD = "README.md"
_CARD = """\
# {rows:,} vectors for FAISS

`{file}` is an IndexFlatIP ({width} dimensions, inner product); line n of `{ids}`, counted from 0,
is the id of row n. Queries have to be encoded by `{encoder}`.

```python
import faiss

index = faiss.read_index("{file}")
ids = open("{ids}", encoding="utf-8").read().split("\\n")
scores, rows = index.search(queries, 10)  # queries: float32 [queries, {width}]
names = [[ids[row] for row in ranking] for ranking in rows]
```
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportFaiss(Stage):
    """Writes vectors as an IndexFlatIP of FAISS, and their ids in the same order.

    FAISS's approximate indexes can be trained on and filled from this one.
    """

    VERB: ClassVar[str] = "export-faiss"
    KIND: ClassVar[str] = "faiss"
    EXAMPLE: ClassVar[str] = "qac export --faiss out/index --out out/faiss"

    faiss: Ref = input("vectors of qac embed, or an exact index", kinds=("vectors", "index"))

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        count = inputs.get("faiss", {}).get("count")
        return {"vectors": count, "type": "IndexFlatIP"}

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.retrieval import approximate, corpus

        artifact = inputs.artifact("faiss")
        vectors = self._vectors(artifact)
        with out.temporary(FILE) as path:
            approximate.write_faiss(approximate.flat(vectors), os.fspath(path))
        out.count = corpus.write_ids(out, corpus.Ids(artifact))
        known = artifact.info["encoder"]
        with out.open(CARD) as file:
            file.write(
                _CARD.format(
                    rows=out.count,
                    file=FILE,
                    width=vectors.width,
                    ids=corpus.IDS,
                    encoder=known["path"],
                )
            )
        out.info.update(dimension=vectors.width, encoder=known)

    def summary(self, artifact: Artifact) -> str:
        return f'faiss.read_index("{artifact.path / FILE}")'

    def _vectors(self, artifact: Artifact) -> Any:
        from qac_jax.retrieval import index
        from qac_jax.retrieval.vectors import Vectors

        if artifact.kind == "vectors":
            return Vectors.of(artifact)
        opened = index.Index(artifact)
        if opened.description["method"] != index.EXACT:
            raise UserError(
                f"{artifact.path} is an approximate index, of which no vectors are exported; give "
                "the vectors that it was made of"
            )
        return opened.vectors
