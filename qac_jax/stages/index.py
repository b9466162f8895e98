"""`qac index`: vectors → an exact, ScaNN or FAISS index; FOLDER --add DOCS → a living one"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from qac_jax import extras, progress
from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.pipeline import costs
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, option


if TYPE_CHECKING:
    import numpy as np

    from qac_jax.retrieval.approximate import AnyPreset, Approximate
    from qac_jax.retrieval.vectors import Vectors


# The number of vectors from which `auto` builds a ScaNN index.
_MANY = 20_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Index(Stage):
    """Indexes vectors."""

    VERB: ClassVar[str] = "index"
    KIND: ClassVar[str] = "index"
    VERSION: ClassVar[int] = 2
    EXAMPLE: ClassVar[str] = (
        "qac index --vectors out/vectors --target_recall 0.99 --out out/index\n"
        "living indexes: qac index FOLDER --add DOCS; `qac index --help --add` lists their flags"
    )

    vectors: Ref = input("passage vectors of qac embed", kinds=("vectors",))
    method: str = option(
        "auto",
        "auto: exact below 20,000 vectors, ScaNN from there on",
        choices=("auto", "exact", "scann", "faiss"),
    )
    faiss: str = option(
        "ivf",
        "FAISS: an inverted file of 4-bit codes (ivf) or a graph (hnsw, built by one thread)",
        choices=("ivf", "hnsw"),
    )
    target_recall: float = option(
        0.0, "ScaNN, FAISS: tune the search to this recall (0: use the preset)"
    )
    recall_at: int = option(100, "k of the recall@k that is tuned")
    queries: Ref = input(
        "queries to tune on: a file, or vectors of queries",
        kinds=("vectors", FILE),
        default="",
    )
    sample: int = option(
        1000, "at most N queries to tune on (without --queries: vectors of the index)"
    )
    leaves: int = option(
        -1, "leaves of ScaNN's tree or lists of ivf (-1: about 2 sqrt(vectors); 0: none)"
    )
    dims_per_block: int = option(2, "dimensions per block of the product quantisation")
    reordering: str = option(
        "float32",
        "type of the vectors that candidates are rescored with",
        choices=("float32", "bfloat16", "int8"),
    )
    part_rows: int = option(
        0,
        "ScaNN, FAISS: build in parts of at most N vectors, which bounds memory; they are searched "
        "together (0: at most 5 million)",
    )
    soar: float = option(0.0, "ScaNN: SOAR's lambda: assigns each vector to a second leaf (0: off)")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        from qac_jax.retrieval import approximate

        count = costs.count_of(inputs, "vectors")
        width = inputs.get("vectors", {}).get("dimension", costs.WIDTH)
        method = self._method(count or 0)
        plan = {"vectors": count, "count": count, "method": method}
        if not count or method == "exact":  # which links vectors' files
            return {**plan, **({"core_hours": 0.0, "bytes": 0.0} if count else {})}
        return {
            **plan,
            "dimension": width,
            "parts": len(approximate.part_rows(count, self.part_rows)),
            **costs.on_cores("index", count, work=width / costs.WIDTH),
            "bytes": approximate.stored_bytes(count, width, self.reordering),
        }

    def check(self) -> None:
        super().check()
        self._check_faiss()
        if self.part_rows < 0:
            raise UserError(
                f"part_rows={self.part_rows} is not a number of vectors; give 1 or more"
            )
        if not 0 <= self.target_recall < 1:
            raise UserError(
                f"target_recall={self.target_recall}; expected at least 0 and less than 1"
            )
        if self.target_recall and (self.sample < 2 or self.recall_at < 1):
            raise UserError(
                "target_recall is measured with two queries or more and one passage or more; raise "
                "--sample or --recall_at, or leave it out"
            )

    def _check_faiss(self) -> None:
        if self.method == "faiss":
            if importlib.util.find_spec("faiss") is None:
                raise UserError(
                    f"--method faiss needs FAISS, which is not installed; {extras.remedy('faiss')},"
                    " or give --method scann"
                )
            if self.soar:
                raise UserError(
                    f"soar={self.soar} is of ScaNN; leave it out, or give --method scann"
                )
        elif self.faiss != "ivf":
            raise UserError(f"faiss={self.faiss!r} goes with --method faiss; give that as well")
        if self.faiss == "hnsw":
            for name, own in (("leaves", -1), ("dims_per_block", 2), ("reordering", "float32")):
                if (given := getattr(self, name)) != own:
                    raise UserError(
                        f"{name}={given!r} does not go with faiss='hnsw', a graph over the vectors "
                        "themselves; leave it out, or give --faiss ivf"
                    )

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.retrieval import approximate, corpus, index
        from qac_jax.retrieval.vectors import Vectors

        added = inputs.artifact("vectors")
        if added.info["side"] != "passage":
            raise UserError(f"{added.path} holds vectors of queries; give vectors of passages")
        vectors = Vectors.of(added)
        method = self._method(len(vectors))
        rows = [(0, len(vectors))]
        if method == index.EXACT:
            index.link_vectors(added, "part-00000", out)
        else:
            rows = approximate.part_rows(len(vectors), self.part_rows)
            if index.windows_of(added):
                library = approximate.ENGINES[method].NAME
                progress.say(f"index: {library}'s index keeps no windows; --method exact does")
        parts: dict[str, dict[str, Any]] = {}
        for number, (start, stop) in enumerate(rows):
            name = f"part-{number:05d}"
            parts[name] = {"rows": stop - start}
            if method != index.EXACT:
                preset = self._preset(method, stop - start)
                parts[name]["preset"] = dataclasses.asdict(preset)
                index.build_part(method, vectors, (start, stop), preset, added.identity, name, out)
        with out.open(index.DESCRIPTION) as file:
            description = {"method": method, "dimension": vectors.width, "parts": parts}
            json.dump(description, file, indent=1)
        if corpus.IDS_OFFSETS not in out.done:
            corpus.write_ids(out, corpus.Ids(added))
        out.count = len(vectors)
        texts = [{**added.info["texts"], "rows": len(vectors)}]
        out.info.update(
            method=method,
            dimension=vectors.width,
            encoder=index.encoder_seen_from(index.encoder_of(added), out),
            texts=index.texts_seen_from(added.path, texts, out),
        )
        if method != index.EXACT and self.target_recall:
            searcher = approximate.opened(method, out.path, vectors.width, parts)
            self._tune(inputs, out, vectors, searcher)

    def _method(self, count: int) -> str:
        if self.method != "auto":
            return self.method
        return "exact" if count < _MANY else "scann"

    def _preset(self, method: str, count: int) -> AnyPreset:
        from qac_jax.retrieval import approximate

        return approximate.ENGINES[method].preset(
            count,
            family=self.faiss,
            soar=self.soar,
            leaves=None if self.leaves < 0 else self.leaves,
            dims_per_block=self.dims_per_block,
            reordering=self.reordering,
        )

    def _tune(self, inputs: Inputs, out: Writer, vectors: Vectors, searcher: Approximate) -> None:
        """Tunes the search effort on a sample of queries."""
        from qac_jax.retrieval import tuning

        tuned = tuning.tune_on_sample(
            searcher,
            vectors,
            self._queries(inputs),
            sample=self.sample,
            k=self.recall_at,
            target=self.target_recall,
            seed=self.seed,
        )
        measured = dataclasses.asdict(tuned)
        out.info.update(effort=dataclasses.asdict(tuned.effort), tuning=measured)
        sentence = tuned.sentence(searcher)
        if not self.queries:
            sentence += "; measured with vectors of the index, give --queries for real queries"
        progress.say(f"index: {sentence}")

    def _queries(self, inputs: Inputs) -> np.ndarray | None:
        """Vectors of the queries to tune on; None: vectors of the index are used."""
        from qac_jax.retrieval import tuning

        if "queries" not in inputs:
            return None
        given = inputs.get_artifact("queries") or inputs.path("queries")
        return tuning.queries_of(given, inputs.artifact("vectors").info["encoder"])
