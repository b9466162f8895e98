"""FLOPs of matrix products, counted in the traced program: for plans and for rates.

XLA counts a loop's body once, whatever its length, so its own number is not used. A multiplication
and an addition are two FLOPs; sums, norms and activations are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax


def of(function: Callable[..., Any], *arguments: Any) -> float:
    """FLOPs of a function of arrays of these shapes, which nothing computes."""
    return _counted(jax.make_jaxpr(function)(*arguments).jaxpr)


def _counted(program: Any) -> float:
    total = 0.0
    for operation in program.eqns:
        within = [_counted(inner) for inner in _inner(operation.params)]
        if operation.primitive.name == "dot_general":
            (contracted, _), _ = operation.params["dimension_numbers"]
            left = operation.invars[0].aval.shape
            size = math.prod(operation.outvars[0].aval.shape)
            total += 2.0 * size * math.prod(left[axis] for axis in contracted)
        elif operation.primitive.name == "cond":
            total += max(within)
        else:
            total += sum(within) * operation.params.get("length", 1)  # of a scan
    return total


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    """The programs that an operation calls."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            program = getattr(item, "jaxpr", item)
            if hasattr(program, "eqns"):
                yield program
