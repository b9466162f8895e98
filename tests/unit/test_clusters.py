"""Scripts and files of clusters: what they start, which ends of a job are queued again, and which
process of a run this is."""

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from qac_jax import cli
from qac_jax.errors import UserError
from qac_jax.processes import Place, place


ROOT = Path(__file__).parents[2]
SCRIPT, DEPLOY = ROOT / "launch" / "train_slurm.sh", ROOT / "deploy"


def faked(folder: Path, **programs: str) -> dict[str, str]:
    """The environment of a script of a clone in the folder, in which these programs come first."""
    (folder / "launch").mkdir(exist_ok=True)
    (folder / "launch" / "setup.sh").write_text(f"set -euo pipefail\nQAC_ROOT='{folder}'\n")
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(folder)}


def submit(folder: Path, code: int, *words: str) -> tuple[int, str]:
    """The exit code, and the arguments that `scontrol` got."""
    ran, said = folder / "ran", folder / "said"
    environment = faked(
        folder, srun=f'echo "$@" > {ran}; exit {code}', scontrol=f'echo "$@" > {said}'
    )
    command = ["bash", str(SCRIPT), *words]
    done = subprocess.run(command, env={**environment, "SLURM_JOB_ID": "7"}, check=False)
    assert ran.read_text().endswith(f"qac {' '.join(words)}\n")
    return done.returncode, said.read_text() if said.exists() else ""


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
        assert submit(tmp_path, code, "run", "demo", *out) == (code, said)


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


def test_ray_is_started_on_all_nodes(tmp_path: Path) -> None:
    """By SLURM's script and the TPU's, with programs that say what they are called with."""
    environment = faked(
        tmp_path,
        srun='echo "$@"',
        scontrol="printf 'a\\nb\\n'",
        gcloud='case "$*" in *describe*) echo 10.0.0.1 4 ;; *) echo "$@" ;; esac',
    )
    environment |= {"SLURM_JOB_NODELIST": "a,b", "SLURM_JOB_NUM_NODES": "2"}
    environment |= {"TPU_NAME": "slice", "TPU_ZONE": "zone"}

    def said(script: str) -> str:
        words = ["bash", str(DEPLOY / script), "embed", "--out", "o u"]
        return subprocess.run(
            words, env=environment, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert said("ray_slurm.sh") == (
        "--kill-on-bad-exit=1 env -u SLURM_PROCID ray symmetric-run --address a:6379 "
        "--min-nodes 2 -- qac embed --out o u --engine a:6379"
    )
    assert said("ray_tpu.sh").endswith(
        "ray symmetric-run --address 10.0.0.1:6379 --min-nodes 4 -- qac embed --out o\\ u "
        "--engine 10.0.0.1:6379 --resources TPU=4"
    )


@pytest.mark.parametrize("file", ["jobset.yaml", "rayjob.yaml"])
def test_the_commands_of_files_are_ours(file: str) -> None:
    known = yaml.safe_load((DEPLOY / file).read_text())
    found = list(_commands(known))
    assert found
    for words in found:
        assert cli.main([*words, "--dry_run", "--json"]) == 0


def _commands(part: Any) -> Iterator[list[str]]:
    """The arguments of `qac` in a file: a line, or the arguments of a pod."""
    if isinstance(part, dict) and part.get("command") == ["qac"]:
        yield part["args"]
    for value in (
        part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    ):
        yield from _commands(value)
    if isinstance(part, str) and part.startswith("qac "):
        yield shlex.split(part)[1:]
