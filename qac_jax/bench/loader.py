"""`qac bench loader`: tokenised pairs a second, and over raw batched reading of the same file."""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qac_jax.data.kinds import KINDS
from qac_jax.errors import UserError
from qac_jax.fields import option


if TYPE_CHECKING:
    import numpy as np

    from qac_jax.data.examples import Examples


# Without data of the user's, the docstrings that are installed anyway.
_PACKAGES = "numpy,jax,flax,optax"
_QUERY_WORDS = 12


@dataclasses.dataclass(frozen=True)
class Loader:
    """Examples/s of passage-query pairs (144 + 32 tokens), and over array_record's raw reading.

    `null_step` is a training that computes nothing: every batch is placed onto the devices and
    goes through an empty compiled step. `headroom` is that over `--needed` examples/s.

    Raw reading is `ArrayRecordDataSource.__getitems__` of the same records in the same order and
    the same batches, in this process and nothing else; `direct` is array_record's reader without
    that class, which starts threads for every call. Repetitions alternate, figures are medians.
    """

    EXAMPLE = "qac bench loader --workers 2"

    examples: str = option("", "artefact of examples (default: made of --data_dir or docstrings)")
    data_dir: str = option("", "a BEIR folder with corpus, queries and qrels/train.tsv")
    kind: str = option(
        "",
        "read the examples as this kind (default: what they were made for)",
        choices=("", *KINDS),
    )
    batch: int = option(512, "examples per batch")
    workers: int = option(2, "loader processes (0: a thread)")
    backend: str = option("auto", "backend of --workers 0", choices=("auto", "grain", "plain"))
    needed: float = option(28_000, "examples/s that the host's devices train on (8 H100: 28,000)")
    repetitions: int = option(7, "repetitions of each side")
    seconds: float = option(1.5, "seconds per repetition")

    def run(self) -> dict[str, Any]:
        from qac_jax.data.examples import Examples

        if self.examples and self.data_dir:
            raise UserError("--examples and --data_dir are both given; give one of them")
        if self.examples:
            return self._measured(Examples(self.examples))
        with tempfile.TemporaryDirectory() as folder:
            return self._measured(Examples(_made(self.data_dir, Path(folder))))

    def _measured(self, examples: Examples) -> dict[str, Any]:
        import jax
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        from qac_jax.data import loader as loading
        from qac_jax.training import mesh as meshes

        pairs = loading.Loader(
            examples,
            kind=self.kind,
            batch_size=self.batch,
            workers=self.workers,
            backend=self.backend,
            prefetch=8,
            remainder="wrap",
        )
        raw = ArrayRecordDataSource(examples.files)
        steps = itertools.count()

        def wanted() -> np.ndarray:
            return pairs.plan.at(next(steps)).example

        mesh = meshes.mesh_for((-1, 1, 1), self.batch, 0)
        empty = jax.jit(lambda batch: batch)

        def null_step() -> None:
            jax.block_until_ready(empty(meshes.place(next(pairs), mesh)))

        sides: dict[str, Callable[[], object]] = {
            "pairs": lambda: next(pairs),
            "null": null_step,
            "raw": lambda: raw.__getitems__(wanted().tolist()),
            "direct": lambda: examples.read_bytes(wanted()),
        }
        rates: dict[str, list[float]] = {name: [] for name in sides}
        with pairs:
            for _ in range(16 * max(self.workers, 1)):  # processes start, files are opened
                for call in sides.values():
                    call()
            for _ in range(self.repetitions):
                for name, call in sides.items():
                    rates[name].append(self._rate(call))
        size = sum(os.path.getsize(file) for file in examples.files)
        medians = {name: statistics.median(measured) for name, measured in rates.items()}
        return {
            "pairs_per_second": medians["pairs"],
            "null_step_per_second": medians["null"],
            "headroom": medians["null"] / self.needed,
            "raw_per_second": medians["raw"],
            "direct_per_second": medians["direct"],
            "ratio": medians["pairs"] / medians["raw"],
            "ratio_direct": medians["pairs"] / medians["direct"],
            "fastest": {name: round(max(measured)) for name, measured in rates.items()},
            "kind": pairs.featurizers[0].kind.name,
            "lengths": str(pairs.featurizers[0].lengths),
            "examples": examples.count,
            "bytes_per_example": size / examples.count,
            "batch": self.batch,
            "workers": self.workers,
            "cores": os.cpu_count(),
        }

    def _rate(self, call: Callable[[], object]) -> float:
        """Examples/s over at least `seconds`."""
        time.sleep(0.2)  # the other side's batches made ahead are finished, not paid for here
        calls, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < self.seconds:
            call()
            calls += 1
        return calls * self.batch / elapsed


def _made(data_dir: str, folder: Path) -> str:
    """Passage-query examples of a collection, or of docstrings with their first words."""
    from qac_jax import artifacts
    from qac_jax.formats.records import Records, write_records
    from qac_jax.pipeline.stage import execute
    from qac_jax.stages.prepare import Prepare
    from qac_jax.stages.tokenize import Tokenize

    fields: dict[str, Any] = {"passages": str(folder / "passages")}
    if data_dir:
        execute(Prepare.make(documents=data_dir, format="beir", cut="none"), folder / "passages")
        fields["queries"] = os.path.join(data_dir, "queries.jsonl")
        fields["qrels"] = os.path.join(data_dir, "qrels", "train.tsv")
    else:
        passages = execute(Prepare(format="python_docs", packages=_PACKAGES), folder / "passages")
        contexts = (
            {
                "_id": record["_id"],
                "contexts": [{"text": text, "origin": "words", "score": None}],
            }
            for record in Records(passages)
            if (text := " ".join(record["text"].split()[:_QUERY_WORDS]))
        )
        with artifacts.create(folder / "contexts", kind="contexts") as writer:
            write_records(writer, contexts, "contexts")
        fields["contexts"] = str(folder / "contexts")
    return str(execute(Tokenize(**fields), folder / "examples").path)
