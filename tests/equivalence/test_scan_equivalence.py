"""A scan over layers gives what a loop gives, in bfloat16 too, for every pre-training objective."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
import toy_pretraining as toy
from toy_objectives import batch_for, objective

from qac_jax.hub import weights


# Nearly all of the time is the compiler's, so none is in the fast tests.
NAMES = ["mlm", "cocondenser", "cotmae", "retromae"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_scan_in_bfloat16_is_the_loop(name: str) -> None:
    looped, batch = objective(name, "bfloat16", toy.BERT), batch_for(name)
    runtime = dataclasses.replace(looped.runtime, scan=True)
    scanned = dataclasses.replace(looped, model=looped.model.clone(runtime=runtime))

    def run(objective: Any) -> Any:
        params = nn.unbox(jax.jit(objective.init)(jax.random.key(0)))["params"]
        ready = jax.jit(objective.prepare)(batch, jax.random.key(1))

        @jax.jit
        def differentiate(params: Any) -> Any:
            def loss(params: Any) -> Any:
                return objective.loss({"params": params}, ready, jax.random.key(2), True)[0]

            return jax.value_and_grad(loss)(params)

        loss, gradient = differentiate(params)
        return float(loss), weights.looped(gradient)

    (loss, gradient), (expected, wanted) = run(scanned), run(looped)
    assert loss == pytest.approx(expected, rel=4e-3)  # a bfloat16 has eight bits
    apart = jax.tree.map(np.subtract, gradient, wanted)
    assert norm(wanted) > 1e-2
    assert norm(apart) < 1e-2 * norm(wanted)


def norm(tree: Any) -> float:
    return float(np.sqrt(sum(np.square(x.astype(np.float64)).sum() for x in jax.tree.leaves(tree))))
