"""A run that two processes share stops in both at a signal to one, and goes on like one process."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from toy_process import devices


STEPS = 8
TESTS = Path(__file__).parents[1]


def launch(
    folder: Path, *arguments: object, count: int = 8, **variables: str
) -> subprocess.Popen[str]:
    variables["PYTHONPATH"] = f"{TESTS}{os.pathsep}{TESTS.parent}"
    environment = devices(count, **variables, JAX_DISABLE_MOST_OPTIMIZATIONS="1")
    command = [sys.executable, TESTS / "toy_run.py", folder, STEPS, *arguments]
    return subprocess.Popen(
        [*map(str, command)], env=environment, text=True, stderr=subprocess.PIPE
    )


def finish(*processes: subprocess.Popen[str]) -> list[tuple[int, str]]:
    return [(p.returncode, said) for p in processes for said in [p.communicate(timeout=200)[1]]]


def two_processes(folder: Path, *more: object) -> list[tuple[int, str]]:
    """The same run by two processes of four devices, over loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shared = {"QAC_COORDINATOR": address, "QAC_PROCESSES": "2"}
    each = [launch(folder, *more, count=4, QAC_PROCESS=str(i), **shared) for i in range(2)]
    return finish(*each)


def losses(folder: Path) -> list[float]:
    return [
        json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


@pytest.mark.slow
def test_two_processes_stop_together(tmp_path: Path) -> None:
    whole, shared = tmp_path / "whole", tmp_path / "shared"
    assert finish(launch(whole))[0][0] == 0
    for code, said in two_processes(shared, "--terminate", 3):
        assert code == 0 and "SIGTERM: saved at step" in said
    assert not (shared / "result.npz").exists()
    again = two_processes(shared)
    assert [code for code, _ in again] == [0, 0] and "resuming after step" in again[0][1]
    np.testing.assert_allclose(losses(shared), losses(whole), rtol=2e-5)
    x, y = np.load(shared / "result.npz"), np.load(whole / "result.npz")
    assert set(x.files) == set(y.files) == {"table", "up", "down"}
    for name in x.files:
        # Adam divides by the gradient's own size, which blows rounding up where it is tiny.
        np.testing.assert_allclose(x[name], y[name], rtol=0, atol=2e-4 * np.abs(x[name]).max())
