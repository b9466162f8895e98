"""Checkpoints of which a kill or a loss of power left a part do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from etils import epath

from qac_jax.training.checkpoints import Checkpoints


FILES = {"meta/metadata": "{}", "state/_METADATA": "{}", "state/d/0": "numbers"}


def saved(folder: Path, step: int) -> None:
    for name, text in FILES.items():
        (folder / str(step) / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / str(step) / name).write_text(text)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("text", [None, "", '{"cut'])
def test_a_checkpoint_that_lost_its_bytes_is_left_out(name, text, tmp_path):
    """Fault 16: after a loss of power the training refused to continue until it was removed."""
    saved(tmp_path, 2)
    saved(tmp_path, 4)
    file = tmp_path / "4" / name
    file.unlink() if text is None else file.write_text(text)
    checkpoints = object.__new__(Checkpoints)  # Orbax itself needs whole ones
    checkpoints.folder = epath.Path(tmp_path)
    checkpoints._remove_halves()
    # Of the numbers themselves Orbax knows what they should be.
    kept = {"2", "4"} if name == "state/d/0" and text != "" else {"2"}
    assert {path.name for path in tmp_path.iterdir()} == kept
