"""SIGKILL between the first shard and the commit: nothing half-made is accepted, twenty times."""

from __future__ import annotations

import random
import time

import pytest
from toy_process import start
from toy_stages import Numbers

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.pipeline import stage


KILLS = 20
SETTINGS = ["--count", "40", "--shards", "8"]


def test_killed_stages_are_never_whole_and_always_complete(tmp_path):
    whole = stage.execute(Numbers(count=40, shards=8), tmp_path / "whole")
    rng = random.Random(0)
    partial = 0
    for batch in range(0, KILLS, 4):  # four at a time: start-up is most of it
        folders = [tmp_path / str(i) for i in range(batch, batch + 4)]
        processes = [
            start("numbers", *SETTINGS, "--pause", "0.15", "--out", folder) for folder in folders
        ]
        for folder, process in zip(folders, processes, strict=True):
            deadline = time.monotonic() + 60
            while not list(folder.glob("numbers-0*.jsonl")) and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, 0.3))
            process.kill()
            process.communicate()
            written = [p for p in folder.glob("numbers-*") if p.stat().st_size]
            if written and not (folder / artifacts.COMMIT).exists():
                partial += 1
                with pytest.raises(UserError, match="is unfinished"):
                    artifacts.load(folder)
            again = stage.execute(Numbers(count=40, shards=8), folder)
            assert again.identity == whole.identity
            again.verify()
            assert not list(folder.glob("*.part"))
    assert partial >= 15, f"only {partial} of {KILLS} kills left partial files"
