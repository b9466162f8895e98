"""Runs in processes of their own: killed, stopped by a signal, and shared by two processes."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


STEPS = 8
TESTS = Path(__file__).parents[1]


def launch(
    folder: Path, *arguments: object, compiled: Path, **variables: str
) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        **variables,
        "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
    }
    command = [sys.executable, str(TESTS / "toy_run.py"), str(folder), str(STEPS)]
    command += ["--mesh", "2,2,2"]
    return subprocess.Popen(
        [*command, *map(str, arguments)], env=environment, text=True, stderr=subprocess.PIPE
    )


def finish(*processes: subprocess.Popen[str]) -> list[tuple[int, str]]:
    return [(p.returncode, said) for p in processes for said in [p.communicate(timeout=200)[1]]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Path:
    """The run that nobody stops."""
    folder = tmp_path_factory.mktemp("whole")
    assert finish(launch(folder, compiled=compiled))[0][0] == 0
    return folder


def assert_same_bits(a: Path, b: Path) -> None:
    x, y = np.load(a / "result.npz"), np.load(b / "result.npz")
    assert set(x.files) == set(y.files) == {"table", "up", "down"}
    for name in x.files:
        np.testing.assert_array_equal(x[name], y[name])


def losses(folder: Path) -> list[float]:
    return [
        json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


@pytest.mark.slow
def test_killed_at_a_random_step(whole: Path, tmp_path: Path, compiled: Path) -> None:
    step = random.Random(7).randrange(STEPS)
    assert finish(launch(tmp_path, "--die", step, compiled=compiled))[0][0] == -signal.SIGKILL
    assert not (tmp_path / "result.npz").exists()
    assert finish(launch(tmp_path, compiled=compiled))[0][0] == 0
    assert_same_bits(tmp_path, whole)
    assert losses(tmp_path) == losses(whole)


@pytest.mark.slow
def test_terminated_saves_and_says_how_to_go_on(
    whole: Path, tmp_path: Path, compiled: Path
) -> None:
    code, said = finish(launch(tmp_path, "--terminate", 4, compiled=compiled))[0]
    assert code == 0
    assert f"SIGTERM: saved at step 5 of {STEPS}; continue with: qac " in said
    # Not a step of a regular checkpoint: it was saved because of the signal.
    assert (tmp_path / "checkpoints" / "5").is_dir()
    assert not (tmp_path / "result.npz").exists()
    code, said = finish(launch(tmp_path, compiled=compiled))[0]
    assert code == 0 and "resuming after step 5" in said
    assert_same_bits(tmp_path, whole)


def two_processes(folder: Path, compiled: Path, *more: object) -> list[tuple[int, str]]:
    """The same run by two processes of four devices, over loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shared = {"QAC_COORDINATOR": address, "QAC_PROCESSES": "2"}
    devices = ("--devices", 4, *more)
    return finish(
        *(
            launch(folder, *devices, compiled=compiled, QAC_PROCESS=str(i), **shared)
            for i in range(2)
        )
    )


def assert_close(a: Path, b: Path) -> None:
    np.testing.assert_allclose(losses(a), losses(b), rtol=2e-5)
    x, y = np.load(a / "result.npz"), np.load(b / "result.npz")
    for name in x.files:
        # Adam divides by the gradient's own size, which blows rounding up where it is tiny.
        np.testing.assert_allclose(x[name], y[name], rtol=0, atol=2e-4 * np.abs(x[name]).max())


@pytest.mark.slow
def test_two_processes_stop_together(whole: Path, tmp_path: Path, compiled: Path) -> None:
    for code, said in two_processes(tmp_path, compiled, "--terminate", 3):
        assert code == 0 and "SIGTERM: saved at step" in said
    assert not (tmp_path / "result.npz").exists()
    assert [code for code, _ in two_processes(tmp_path, compiled)] == [0, 0]
    assert_close(tmp_path, whole)
