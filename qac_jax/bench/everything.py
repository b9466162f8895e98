"""`qac bench all`: every benchmark with a peer, in one table beside what the machine can do."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from qac_jax import progress
from qac_jax.errors import UserError, nearest
from qac_jax.fields import option


@dataclasses.dataclass(frozen=True)
class _Row:
    """A benchmark's flags, and the names of its figures; nested ones are joined by dots."""

    verb: str
    ours: str
    peer: str  # several by commas: the fastest
    ratio: str
    flags: str = ""
    quick: str = ""
    gflops: str = ""


def _pretraining(name: str, flags: str = "") -> _Row:
    return _Row(
        "pretrain",
        f"{name}.passage_query.examples_per_second",
        f"{name}.pytorch_examples_per_second",
        f"{name}.ratio",
        f"--objective {name} --contexts query{flags}",
        "--layers 2 --hidden 128 --vocabulary 2000 --repetitions 3",
        f"{name}.passage_query.tflops",
    )


_OURS, _PYTORCH, _SENTENCES = "qac_jax_", "pytorch_", "sentence_transformers_"
_EXAMPLES, _FAISS = "examples_per_second", "faiss_ivf_pq_refine faiss_ivf_flat faiss_hnsw"
ROWS: Mapping[str, _Row] = {
    "train": _Row(
        "train",
        _OURS + _EXAMPLES,
        _PYTORCH + _EXAMPLES,
        "ratio",
        quick="--layers 2 --hidden 128 --vocabulary 2000 --repetitions 3",
        gflops="gflops_per_second",
    ),
    "cotmae": _pretraining("cotmae"),
    "cocondenser": _pretraining("cocondenser"),
    "cotmae_packed": _pretraining("cotmae", " --pack"),
    "cocondenser_packed": _pretraining("cocondenser", " --pack"),
    "encode": _Row(
        "encode",
        _OURS + "passages_per_second",
        _SENTENCES + "passages_per_second",
        "ratio",
        quick="--corpus gin --passages 48 --repetitions 3",
        gflops="gflops_per_second",
    ),
    "generate": _Row(
        "generate",
        _OURS + "tokens_per_second",
        "transformers_tokens_per_second",
        "ratio",
        quick="--corpus gin --passages 8 --samples 2 --max_tokens 16 --repetitions 3",
    ),
    "scann": _Row(
        "search",
        "scann_queries_per_second",
        ",".join(f"{family}_queries_per_second" for family in _FAISS.split()),
        "ratio",
        "--systems scann,faiss",
        "--rows 20000 --queries 200 --repetitions 3",
    ),
    "exact": _Row(
        "search",
        "exact_queries_per_second",
        "faiss_flat_queries_per_second",
        "exact_ratio",
        "--systems exact,faiss",
        "--rows 20000 --queries 200 --repetitions 3",
    ),
}


@dataclasses.dataclass(frozen=True)
class All:
    """Every benchmark that has a peer, each in a process of its own, and one table.

    The ceilings are the rate of a large product of float32 matrices and of copying memory;
    a share is what a model's own products reach of the first.
    """

    EXAMPLE = "qac bench all --quick"

    quick: bool = option(False, "small shapes: minutes instead of half an hour")
    only: tuple[str, ...] = option((), "rows to measure (default: all)", shown=tuple(ROWS))
    baseline: str = option("", "JSON of an earlier run, whose ratios stand beside the new ones")

    def run(self) -> dict[str, Any]:
        chosen = self.only or tuple(ROWS)
        for name in chosen:
            if name not in ROWS:
                raise UserError(f"{name!r} is not a row; {nearest(name, ROWS)}")
        before = _ratios(self.baseline) if self.baseline else {}
        ceilings = {"matmul_gflops_per_second": _product_rate(), "copy_gb_per_second": _copy_rate()}
        rows = []
        for number, name in enumerate(chosen, 1):
            progress.say(f"bench all: {name} ({number}/{len(chosen)})")
            began = time.perf_counter()
            measured = _measured(ROWS[name], self.quick)
            if (rate := measured.get("gflops_per_second")) is not None:
                measured["share_of_products"] = rate / ceilings["matmul_gflops_per_second"]
            if name in before:
                measured["ratio_before"] = before[name]
            rows.append({"name": name, **measured, "seconds": time.perf_counter() - began})
        return {"environment": _environment(), "ceilings": ceilings, "rows": rows}

    def shown(self, figures: Mapping[str, Any]) -> str:
        """The figures as a table."""
        return "\n".join(_table(figures))


def _measured(row: _Row, quick: bool) -> dict[str, Any]:
    """A row's figures, or the reason why it was not measured."""
    flags = [*row.flags.split(), *(row.quick.split() if quick else ())]
    command = [sys.executable, "-m", "qac_jax.cli", "bench", row.verb, *flags, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        return {"not_measured": lines[-1]}
    found = json.loads(done.stdout.strip().splitlines()[-1])
    peers = [_at(found, name) for name in row.peer.split(",")]
    figures = {
        "ours": _at(found, row.ours),
        "peer": max((peer for peer in peers if peer is not None), default=None),
        "ratio": _at(found, row.ratio),
        "unit": row.ours.removesuffix("_per_second").replace("_", ".").rpartition(".")[2],
        "command": f"qac bench {row.verb} {' '.join(flags)}".strip(),
    }
    if row.gflops and (rate := _at(found, row.gflops)) is not None:
        figures["gflops_per_second"] = rate * (1000 if row.gflops.endswith("tflops") else 1)
    return figures


def _at(figures: Mapping[str, Any], name: str) -> float | None:
    """A nested figure, or None."""
    found: Any = figures
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _ratios(file: str) -> dict[str, float]:
    """Of an earlier run."""
    try:
        rows = json.loads(Path(file).read_text(encoding="utf-8"))["rows"]
        return {row["name"]: float(row["ratio"]) for row in rows if row.get("ratio") is not None}
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}); check --baseline") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{file} does not hold the figures of an earlier run; make it with "
            "`qac bench all --json > FILE`"
        ) from None


def _environment() -> dict[str, Any]:
    import jax

    versions = {}
    names = ("jax", "jaxlib", "flax", "numpy", "torch", "transformers", "sentence-transformers")
    for name in (*names, "scann", "faiss-cpu"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    device, python = jax.devices()[0].device_kind, platform.python_version()
    return {"device": device, "cores": os.cpu_count(), "python": python, **versions}


def _product_rate() -> float:
    import jax
    import jax.numpy as jnp

    x, w = jnp.ones((4096, 1024)), jnp.ones((1024, 1024))
    run = jax.jit(functools.partial(jnp.matmul, precision="highest"))
    return 2e-9 * x.size * w.shape[1] / _fastest(lambda: run(x, w).block_until_ready())


def _copy_rate() -> float:
    import numpy as np

    source = np.ones(1 << 25)
    target = np.empty_like(source)
    return 2e-9 * source.nbytes / _fastest(lambda: np.copyto(target, source))


def _fastest(action: Any) -> float:
    action()
    times = []
    for _ in range(7):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def _table(figures: Mapping[str, Any]) -> Iterator[str]:
    yield ", ".join(f"{name} {value}" for name, value in figures["environment"].items())
    products, copying = figures["ceilings"].values()
    yield f"ceilings: products {products:,.0f} GFLOP/s, copying {copying:.1f} GB/s\n"
    yield "| benchmark | a second | ours | peer | ratio | before | share of products |"
    yield "|---|---|---|---|---|---|---|"
    for row in figures["rows"]:
        if "not_measured" in row:
            yield f"| {row['name']} | not measured: {row['not_measured']} | | | | | |"
            continue
        share = row.get("share_of_products")
        cells = [row["name"], row["unit"], *(_number(row[side]) for side in ("ours", "peer"))]
        cells += [_number(row["ratio"]), _number(row.get("ratio_before"))]
        yield f"| {' | '.join([*cells, '' if share is None else f'{share:.0%}'])} |"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.2f}"
