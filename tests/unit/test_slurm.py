"""launch/train_slurm.sh: which ends of a job are queued again; which process of a run this is."""

import os
import subprocess
from pathlib import Path

import pytest

from qac_jax.errors import UserError
from qac_jax.processes import Place, place


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


@pytest.mark.parametrize(
    ("code", "unfinished", "said"),
    [(0, False, ""), (0, True, "requeue 7\n"), (2, True, ""), (143, True, "requeue 7\n")],
)
def test_only_what_can_go_on_is_queued_again(
    tmp_path: Path, code: int, unfinished: bool, said: str
) -> None:
    stage = tmp_path / "out" / "stage"  # of a recipe: no artifact.json beside it
    stage.mkdir(parents=True)
    if unfinished:
        (stage / ".unfinished.json").touch()
    for out in (["--out", str(tmp_path / "out")], [f"--out={tmp_path / 'out'}"]):
        assert submit(tmp_path, code, "run", "demo", *out)[::2] == (code, said)


def test_launchers() -> None:
    for environment, expected in [
        ({}, Place()),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "3"}, Place("slurm", 3, 4)),
        ({"QAC_TPU_WORKER": "2"}, Place("tpu", 2, 0)),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1"}, Place("tpu", 1, 2)),
        (
            {"QAC_COORDINATOR": "h:1", "QAC_PROCESSES": "2", "QAC_PROCESS": "1"},
            Place("explicit", 1, 2, "h:1"),
        ),
    ]:
        assert place(environment) == expected
    with pytest.raises(UserError, match="do not describe a run"):
        place({"QAC_PROCESSES": "2", "QAC_PROCESS": "1"})
