"""Golden cases: finding them, loading them, and comparing with their tolerances.

The folder comes from QAC_GOLDEN_DIR (default: golden, beside this file). Nothing about
shapes, seeds or variants is known here: everything is discovered from the folder, so that
another set of cases runs through the same tests. `parameters` makes pytest parameters whose
ids name the case; a prefix without any case is a failure, never a silent skip.
"""

import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator
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


def each_case(*prefixes: str, slow: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Runs a test for every case in both precisions; those of `slow` in the slow tests only.

    The test's file says `precision = golden.precision`.
    """
    found = [
        pytest.param(*case.values, p, id=f"{case.id}-{p}", marks=_slow(p in slow))
        for case in parameters(*prefixes)
        for p in PRECISIONS
    ]
    return pytest.mark.parametrize(("case", "precision"), found, indirect=["precision"])


def each_variant(
    *prefixes: str, kind: str = "", without: str = "", slow: tuple[str, ...] = ()
) -> pytest.MarkDecorator:
    """Runs a test for every variant of the cases in float64; for the first in float32 too.

    Float32 and the variants in `slow` are compared by the slow tests only: each compiles a
    program of its own. Variants with `without` in their name are left out.
    """
    found = []
    for case in parameters(*prefixes):
        names = list(variants(case.values[0], kind)) if case.values[0].is_dir() else ["missing"]
        names = [name for name in names if not without or without not in name]
        assert names, f"{case.id} lists no variants"
        runs = [(name, "float64", name in slow) for name in names] + [(names[0], "float32", True)]
        found += [
            pytest.param(*case.values, name, p, id=f"{case.id}-{name}-{p}", marks=_slow(late))
            for name, p, late in runs
        ]
    return pytest.mark.parametrize(("case", "variant", "precision"), found, indirect=["precision"])


def _slow(late: bool) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if late else []


@pytest.fixture
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """The precision of a run, in which JAX computes during the test."""
    with precision_context(request.param):
        yield request.param


def variants(case: Path, kind: str = "") -> dict[str, Any]:
    """The variants of a case (of a kind, where it has several) and their flags."""
    meta = _meta(case)
    flags = {
        name: given for name, given in meta.get("flags", {}).items() if isinstance(given, dict)
    }
    table = meta.get("variants") or flags or meta["grad_norms_f64"]
    return table.get(kind, table)


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


def _assertion(tolerance: Callable[[float], float]) -> Callable[..., None]:
    """Compares to within `tolerance` of the reference's largest entry."""

    def check(
        actual: Any, reference: Any, precision: str, *, factor: float = 1.0, what: str = ""
    ) -> None:
        largest = float(np.max(np.abs(np.asarray(reference, np.float64)), initial=0.0))
        _assert_close(actual, reference, precision, tolerance(largest) * factor, what)

    return check


# In x64 all of them: rtol 1e-9 and atol 1e-10. Activations are also logits and vectors.
assert_activation = _assertion(lambda largest: 2e-5 * max(1.0, largest))
assert_gradient = _assertion(lambda largest: 2e-5 * largest)
assert_loss = _assertion(lambda largest: 1e-5 * largest)
_assert_norm = _assertion(lambda largest: 1e-4 * largest + 1e-5)


def assert_gradient_norm(actual: Any, reference: float, precision: str, **options: Any) -> None:
    """L2 norm of one parameter's gradient."""
    norm = np.linalg.norm(np.asarray(actual, np.float64).ravel())
    _assert_norm(norm, np.asarray(reference, np.float64), precision, **options)


def _assert_close(
    actual: Any, reference: np.ndarray, precision: str, tolerance: float, what: str
) -> None:
    assert precision in PRECISIONS, precision
    actual, reference = np.asarray(actual), np.asarray(reference)
    assert actual.shape == reference.shape, (what, actual.shape, reference.shape)
    if precision == "float64":
        assert actual.dtype == np.float64, f"{what}: computed in {actual.dtype}, not in x64"
        np.testing.assert_allclose(actual, reference, X64_RTOL, X64_ATOL, err_msg=what)
        return
    worst = float(np.max(np.abs(np.asarray(actual, np.float64) - reference), initial=0.0))
    assert worst <= tolerance, f"{what}: off by {worst:.3g}, at most {tolerance:.3g} is allowed"
