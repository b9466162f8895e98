"""Learning-rate schedules by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.training import optimizers
from qac_jax.training.optimizers import Optimizer


def rates(name: str, total: int, warmup: int, **options: float) -> np.ndarray:
    rate = optimizers.schedule(name, 2.0, total, warmup, **options)
    return np.asarray(jax.vmap(rate)(jnp.arange(total + 3)))


def test_linear_warms_up_from_zero_and_ends_at_zero() -> None:
    expected = [0, 1, 2, 1.5, 1, 0.5, 0, 0, 0]
    np.testing.assert_allclose(rates("linear", 6, 2), expected, atol=1e-7)


def test_linear_may_end_above_zero() -> None:
    np.testing.assert_allclose(rates("linear", 4, 0, floor=0.5)[:6], [2, 1.75, 1.5, 1.25, 1, 1])


def test_cosine_is_half_way_at_half_time() -> None:
    found = rates("cosine", 10, 2)
    np.testing.assert_allclose(found[[0, 1, 2, 6, 10, 12]], [0, 1, 2, 1, 0, 0], atol=1e-7)


def test_constant_stays_after_the_warm_up() -> None:
    np.testing.assert_allclose(rates("constant", 4, 2), [0, 1, 2, 2, 2, 2, 2])


def test_paddle_jump_never_reaches_its_peak() -> None:
    found = rates("paddle_jump", 20, 4) / 2
    np.testing.assert_allclose(found[:6], [0, 0.25, 0.5, 0.75, 0.8, 0.75], rtol=1e-6)
    assert found.max() < 1 and found[20] == 0


@pytest.mark.parametrize("name", optimizers.SCHEDULES)
def test_no_warm_up_starts_at_the_peak(name: str) -> None:
    assert rates(name, 5, 0)[0] == 2.0


def test_a_ratio_is_rounded_as_each_reference_rounds_it() -> None:
    assert optimizers.warmup_steps("linear", 25, 0.1, 0) == 3
    assert optimizers.warmup_steps("paddle_jump", 25, 0.1, 0) == 2
    assert optimizers.warmup_steps("linear", 25, 0.1, 7) == 7


def test_the_optimizer_hands_on_its_schedule() -> None:
    rate = Optimizer(learning_rate=2.0, warmup_ratio=0.3).schedule(6)
    np.testing.assert_allclose([rate(t) for t in range(7)], rates("linear", 6, 2)[:7], atol=1e-7)


def test_errors_name_the_value() -> None:
    with pytest.raises(UserError, match="warm-up of 9 steps is longer than the 4 steps"):
        optimizers.schedule("linear", 1.0, 4, 9)
