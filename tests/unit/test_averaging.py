"""Weights are averaged with the start's; what is no question is no test question."""

from __future__ import annotations

import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.queries.filtering import Filter, is_question
from qac_jax.training.checkpoints import averaged


def test_weights_are_averaged() -> None:
    start, trained = {"w": np.zeros(2, np.float32)}, {"w": np.full(2, 4, np.float32)}
    mean = averaged([start, trained], (0.75, 0.25))["w"]
    assert mean.dtype == np.float32 and mean.tolist() == [1.0, 1.0]
    with pytest.raises(UserError, match="different parameters"):
        averaged([start, {"w": np.zeros(3)}], (1, 1))


def test_what_is_no_question_is_dropped() -> None:
    for text in ("what is the name of the ship", "is the sea deep", "in what year was it built"):
        assert is_question(text)
    for text in ("what is", "the old ship", "what is the first first ship", "who is the who is"):
        assert not is_question(text)
    dropped: dict[str, int] = {"not well-formed": 0}
    texts = [{"text": "The old ship"}, {"text": "Who sails the old ship?"}]
    kept = Filter(well_formed=True)(texts, "", dropped)  # type: ignore[arg-type]
    assert [c["text"] for c in kept] == ["Who sails the old ship?"]
    assert dropped["not well-formed"] == 1
