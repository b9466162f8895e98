"""Golden cases: finding them, loading them, and comparing with their tolerances.

The folder comes from QAC_GOLDEN_DIR (default: golden, beside this file). Nothing about
shapes, seeds or variants is known here: everything is discovered from the folder, so that
another set of cases runs through the same tests. `parameters` makes pytest parameters whose
ids name the case; a prefix without any case is a failure, never a silent skip.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest


PRECISIONS = ("float32", "float64")
X64_RTOL, X64_ATOL = 1e-9, 1e-10


def root() -> Path:
    """The folder of golden cases."""
    return Path(os.environ.get("QAC_GOLDEN_DIR", Path(__file__).parent / "golden"))


def cases(prefix: str) -> list[Path]:
    """Every case folder whose name starts with `prefix` (`01_`, `04_cotmae`, `04c_` …)."""
    return sorted(p.parent for p in root().glob(f"**/{prefix}*/case.json"))


def parameters(*prefixes: str) -> list[Any]:
    """pytest parameters, one a case; a prefix that finds nothing makes a failing parameter."""
    found: list[Any] = []
    for prefix in prefixes:
        here = cases(prefix) or [root() / f"{prefix}-is-missing"]
        found += [pytest.param(case, id=str(case.relative_to(root()))) for case in here]
    return found


def case_variants(*prefixes: str, slow: tuple[str, ...] = ()) -> list[Any]:
    """pytest parameters (case, variant name), the variants as `case.json` lists them.

    Those in `slow` are compared by the slow tests only: each compiles a program of its own.
    """
    found: list[Any] = []
    for prefix in prefixes:
        for case in cases(prefix) or [root() / f"{prefix}-is-missing"]:
            names = variants(case) if case.is_dir() else ["missing"]
            assert names, f"{case} lists no variants"
            label = str(case.relative_to(root()))
            for name in names:
                marks = [pytest.mark.slow] if name in slow else []
                found.append(pytest.param(case, name, id=f"{label}-{name}", marks=marks))
    return found


def variants(case: Path) -> list[str]:
    """The variants of a case: its `variants` table, else the flag tables named by variant."""
    meta = _meta(case)
    table = meta.get("variants") or {
        name: flags for name, flags in meta.get("flags", {}).items() if isinstance(flags, dict)
    }
    return list(table)


def load(case: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(what case.json says, the arrays). The arrays are read-only and shared: copy to change."""
    assert case.is_dir(), f"no golden case here: {case}"
    return _meta(case), dict(_arrays(case))


@functools.cache
def _meta(case: Path) -> dict[str, Any]:
    return json.loads((case / "case.json").read_text())


@functools.cache
def _arrays(case: Path) -> dict[str, np.ndarray]:
    with np.load(case / "arrays.npz") as archive:
        arrays = {name: archive[name] for name in archive.files}
    for array in arrays.values():
        array.setflags(write=False)
    return arrays


def lengths(attention_mask: np.ndarray) -> np.ndarray:
    """A right-padded 0/1 mask as sequence lengths; any other mask is refused."""
    mask = np.asarray(attention_mask).astype(bool)
    counts = mask.sum(-1).astype(np.int32)
    prefix = np.arange(mask.shape[-1]) < counts[..., None]
    if not (prefix == mask).all():
        raise ValueError("the attention mask is not a prefix of ones; lengths cannot say it")
    return counts


def expected(arrays: dict[str, np.ndarray], name: str, precision: str) -> np.ndarray:
    """The reference's value in `precision`: `name`, or `name__f64` for float64."""
    return arrays[f"{name}__f64" if precision == "float64" else name]


def names(arrays: Iterable[str], prefix: str = "", suffix: str = "") -> Iterator[str]:
    """The names between prefix and suffix of the float32 arrays that have both."""
    for name in arrays:
        if name.endswith("__f64") or not (name.startswith(prefix) and name.endswith(suffix)):
            continue
        yield name[len(prefix) : len(name) - len(suffix)]


def precision_context(precision: str):
    """Makes JAX compute in `precision`: x64 on, or full float32 matrix products."""
    if precision == "float64":
        return jax.enable_x64(True)
    return jax.default_matmul_precision("highest")


def in_precision(variables: Any, precision: str) -> Any:
    """fp32 parameters in the precision that is tested."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, precision), variables)


def assert_activation(
    actual: Any, reference: np.ndarray, precision: str, *, factor: float = 1.0, what: str = ""
) -> None:
    """Activations, logits, vectors: 2e-5 of max(1, largest), in x64 rtol 1e-9 and atol 1e-10."""
    scale = max(1.0, _largest(reference))
    _assert_close(actual, reference, precision, 2e-5 * scale * factor, what)


def assert_gradient(
    actual: Any, reference: np.ndarray, precision: str, *, factor: float = 1.0, what: str = ""
) -> None:
    """Gradients: 2e-5 of the largest entry, in x64 rtol 1e-9 and atol 1e-10."""
    _assert_close(actual, reference, precision, 2e-5 * _largest(reference) * factor, what)


def assert_loss(
    actual: Any, reference: np.ndarray, precision: str, *, factor: float = 1.0, what: str = ""
) -> None:
    """Scalar losses: rtol 1e-5, in x64 1e-9."""
    _assert_close(actual, reference, precision, 1e-5 * _largest(reference) * factor, what)


def assert_gradient_norm(
    actual: Any, reference: float, precision: str, *, factor: float = 1.0, what: str = ""
) -> None:
    """L2 norm of one parameter's gradient: rtol 1e-4, atol 1e-5; in x64 as everything else."""
    norm = np.linalg.norm(np.asarray(actual, np.float64).ravel())
    _assert_close(
        norm,
        np.asarray(reference, np.float64),
        precision,
        (1e-4 * abs(reference) + 1e-5) * factor,
        what,
    )


def _largest(reference: np.ndarray) -> float:
    return float(np.max(np.abs(np.asarray(reference, np.float64)), initial=0.0))


def _assert_close(
    actual: Any, reference: np.ndarray, precision: str, tolerance: float, what: str
) -> None:
    assert precision in PRECISIONS, precision
    actual, reference = np.asarray(actual), np.asarray(reference)
    assert actual.shape == reference.shape, (what, actual.shape, reference.shape)
    if precision == "float64":
        assert actual.dtype == np.float64, f"{what}: computed in {actual.dtype}, not in x64"
        np.testing.assert_allclose(
            actual, reference, rtol=X64_RTOL, atol=X64_ATOL, err_msg=what, strict=False
        )
        return
    worst = float(np.max(np.abs(np.asarray(actual, np.float64) - reference), initial=0.0))
    assert worst <= tolerance, f"{what}: off by {worst:.3g}, at most {tolerance:.3g} is allowed"
