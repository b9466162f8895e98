"""launch/train_slurm.sh: which ends of a job are queued again, and job arrays."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


SCRIPT = Path(__file__).parents[2] / "launch" / "train_slurm.sh"


def submit(folder: Path, code: int, *words: str, **variables: str) -> tuple[int, str, str]:
    """The exit code, the command that ran, and the arguments that `scontrol` got."""
    (folder / "launch").mkdir(exist_ok=True)
    (folder / "launch" / "setup.sh").write_text(f"set -euo pipefail\nQAC_ROOT='{folder}'\n")
    for name, body in (("srun", f'echo "$@" > {folder}/ran; exit {code}'), ("scontrol", "")):
        (folder / name).write_text(f'#!/bin/sh\necho "$@" > {folder}/{name}.said\n{body}\n')
        (folder / name).chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_ID": "7",
        **variables,
    }
    done = subprocess.run(["bash", SCRIPT, *words], env=environment, check=False)
    said = folder / "scontrol.said"
    return done.returncode, (folder / "ran").read_text(), said.read_text() if said.exists() else ""


def test_what_is_finished_is_not_queued_again(tmp_path: Path) -> None:
    (tmp_path / "out" / "stage").mkdir(parents=True)  # of a recipe: no artifact.json beside it
    words = ["--out", str(tmp_path / "out")]
    assert submit(tmp_path, 0, "run", "demo", *words)[::2] == (0, "")
    words = [f"--out={tmp_path / 'out'}"]
    (tmp_path / "out" / "stage" / ".unfinished.json").touch()
    assert submit(tmp_path, 0, "run", "demo", *words)[::2] == (0, "requeue 7\n")


@pytest.mark.parametrize(("code", "said"), [(2, ""), (143, "requeue 7\n")])
def test_errors_are_not_queued_again(tmp_path: Path, code: int, said: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".unfinished.json").touch()
    assert submit(tmp_path, code, "pretrain", "--out", str(tmp_path / "out"))[::2] == (code, said)


def test_an_array_shares_the_cells_of_a_grid(tmp_path: Path) -> None:
    array = {"ID": "5", "MIN": "4", "COUNT": "3"}
    variables = {f"SLURM_ARRAY_TASK_{name}": value for name, value in array.items()}
    ran = submit(tmp_path, 0, "run", "grid.gin", "--out", "o", **variables)[1]
    assert ran.split() == "--kill-on-bad-exit=1 qac run grid.gin --out o --share 1/3".split()
