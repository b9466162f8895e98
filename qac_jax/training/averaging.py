"""The weighted mean of models of one shape.

A retriever that was fine-tuned for one corpus keeps more of what its start knew when its weights
are averaged with the start's (WiSE-FT, Wortsman et al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from qac_jax.errors import UserError


def averaged(trees: Sequence[Any], weights: Sequence[float]) -> Any:
    """The mean of trees of parameters, in float64 and back to each array's own type."""
    names = [_shapes(tree) for tree in trees]
    for other in names[1:]:
        if other != names[0]:
            unlike = sorted({*names[0].items()} ^ {*other.items()})[0]
            raise UserError(
                f"the models have different parameters (such as {unlike[0]}, {unlike[1]}); give "
                "models of one shape"
            )
    total = float(sum(weights))

    def mean(*leaves: Any) -> np.ndarray:
        summed = sum(
            np.asarray(leaf, np.float64) * (weight / total)
            for leaf, weight in zip(leaves, weights, strict=True)
        )
        return np.asarray(summed).astype(np.asarray(leaves[0]).dtype)

    return jax.tree.map(mean, *trees)


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): tuple(np.shape(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
