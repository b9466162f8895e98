"""`qac sample`: queries of several files → a random part of them, each text once."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.formats.registry import QUERIES
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, option


FILE_NAME = "queries.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample(Stage):
    """Draws queries from the union of several sources, such as PAIR's 1.8 million unlabelled ones.

    The hashes of the texts and the seed decide, so the order of the files does not matter. Files
    are read twice, and eight bytes of each query are kept in memory. An id begins with the name of
    its file or folder.
    """

    VERB: ClassVar[str] = "sample"
    KIND: ClassVar[str] = "questions"
    EXAMPLE: ClassVar[str] = (
        "qac sample --queries orcas.tsv,mrqa --count 1800000 --out out/unlabelled"
    )

    queries: Ref = input("files or folders of queries", kinds=(FILE,), many=True)
    count: int = option(0, "number of queries to draw (0: all)")
    format: str = option("auto", "format of the files", choices=("auto", *QUERIES.names()))
    # It decides whether a run ends well, not what one that does gives.
    skip_bad: int = option(0, "skip and list at most N bad records", affects_result=False)

    def check(self) -> None:
        super().check()
        if self.count < 0:
            raise UserError(f"count={self.count} is not a number of queries; expected 0 or more")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        del inputs
        return {"queries": self.count or None}

    def run(self, inputs: Inputs, out: Writer) -> None:
        import numpy as np

        from qac_jax.formats.bad_lines import BadLines

        paths = [os.fspath(path) for path in inputs.paths("queries")]
        names = [os.path.basename(os.path.normpath(path)).split(".")[0] for path in paths]
        if len(set(names)) < len(names):
            raise UserError(
                f"two files of {self.queries} have one name, with which the ids of their queries "
                "begin; rename one of them"
            )
        bad = BadLines(self.skip_bad)
        sources = list(zip(names, paths, strict=True))
        hashes = np.fromiter((h for h, _, _ in self._all(sources, bad)), np.uint64)
        different = np.unique(hashes)
        count = self.count or len(different)
        if count < len(different):
            different = np.partition(different, count - 1)[:count]
        chosen = set(different.tolist())
        by_source = dict.fromkeys(names, 0)
        with out.open(FILE_NAME) as file:
            for value, name, query in self._all(sources, BadLines(self.skip_bad)):
                if value in chosen:
                    chosen.remove(value)  # its text may come again
                    record = {"_id": f"{name}/{query.id}", "text": query.text}
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
                    by_source[name] += 1
                    out.count += 1
        bad.report(out, self.VERB)
        out.info.update(
            questions=by_source,
            read=len(hashes),
            repeated=len(hashes) - len(np.unique(hashes)),
            skipped=len(bad),
        )
        drawn = ", ".join(f"{count:,} of {name}" for name, count in by_source.items())
        progress.say(f"sample: {out.count:,} of {len(hashes):,} queries ({drawn})")

    def _all(self, sources: Any, bad: Any) -> Iterator[tuple[int, str, Any]]:
        """(hash of seed and text, name of the source, query) of every query."""
        from qac_jax.formats.identities import id_hash
        from qac_jax.formats.queries import read_queries
        from qac_jax.retrieval.mining import plain

        for name, path in sources:
            for query in read_queries(path, self.format, bad=bad):
                yield id_hash(f"{self.seed} {plain(query.text)}"), name, query
