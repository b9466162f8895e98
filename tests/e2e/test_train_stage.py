"""`qac pretrain` from examples to parameters: results, restarts, errors."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import toy_examples
from toy_process import Qac, devices

from qac_jax import artifacts
from qac_jax.hub import huggingface, parameters
from qac_jax.models import bert
from qac_jax.objectives import mlm
from qac_jax.training import train


GIN = Path(__file__).parents[1] / "toy_mlm.gin"


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    toy_examples.passages(folder, documents=20)
    return Path(toy_examples.tokenized(folder, "mlm").path)


@pytest.fixture(scope="module")
def trained(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps that nobody interrupts, in a process like all others here."""
    folder = tmp_path_factory.mktemp("trained") / "mlm"
    code, said = finish(launch(examples, folder, "--steps", 6))
    assert code == 0, said
    return folder


def launch(examples: Path, out: Path, *flags: object, count: int = 2, **variables: object) -> Any:
    environment = devices(count, **{name: str(value) for name, value in variables.items()})
    words = command(examples, out, "--log_every", 1, "--save_every", 2, *flags)
    return subprocess.Popen(
        [sys.executable, "-m", "qac_jax.cli", *map(str, words)],
        env=environment,
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )


def finish(process: Any) -> tuple[int, str]:
    said = process.communicate(timeout=250)[1]
    return process.returncode, said


def wait_for_step(out: Path, step: int, process: Any) -> None:
    """Returns when the run has logged this step (or has ended)."""
    log = out / ".scratch" / "training" / "metrics.jsonl"
    while process.poll() is None:
        if log.exists() and len(log.read_text().splitlines()) >= step:
            return
        time.sleep(0.002)


@pytest.mark.slow
def test_the_artefact_holds_a_usable_model(trained: Path, examples: Path) -> None:
    artifact = artifacts.load(trained, kind="parameters")
    artifact.verify()
    assert {name.split("/")[0] for name in artifact.files} == {
        *("parameters", "objective", "module.json", "tokenizer", "metrics.jsonl")
    }
    assert artifact.info["steps"] == 6 and "mlm.Mlm" in artifact.info["gin"]
    assert not (trained / ".scratch").exists()
    module, variables = parameters.load(artifact)
    assert isinstance(module, bert.Bert) and module.config.hidden_size == 16
    ids, lengths = np.array([[2, 7, 9, 3, 0]], np.int32), np.array([4], np.int32)
    assert np.isfinite(module.apply(variables, ids, lengths).last).all()
    whole = parameters.load_whole(artifact)
    assert set(whole) - set(variables["params"]) == {"mlm_head"}
    metrics = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_sigterm_saves_and_exits_zero(trained: Path, examples: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    long = ("--steps", 100_000, "--log_every", 100_000, "--save_every", 100_000)
    process = launch(examples, out, *long)
    checkpoints = out / ".scratch" / "training" / "metrics.jsonl"
    while not checkpoints.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    code, said = finish(process)
    assert code == 0, said
    assert "SIGTERM: saved at step" in said
    assert f"continue with: qac pretrain --gin_file {GIN}" in said
    saved = [p.name for p in (out / ".scratch" / "training" / "checkpoints").iterdir()]
    assert len(saved) == 1 and int(saved[0]) < 100_000


@pytest.mark.slow
def test_two_processes_write_one_artefact(trained: Path, examples: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shared = {"QAC_COORDINATOR": address, "QAC_PROCESSES": 2}
    processes = [
        launch(examples, tmp_path / "out", "--steps", 6, count=1, **shared, QAC_PROCESS=i)
        for i in range(2)
    ]
    for code, said in [finish(process) for process in processes]:
        assert code == 0, said
    x, y = (parameters.load_whole(artifacts.load(p)) for p in (tmp_path / "out", trained))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), x, y)


def command(examples: Path, out: Path, *flags: object) -> list[object]:
    return ["pretrain", "--gin_file", GIN, "--examples", examples, "--out", out, *flags]


@pytest.mark.slow
def test_starts_from_an_artefact_and_from_a_folder(
    trained: Path, examples: Path, tmp_path: Path, qac: Qac
) -> None:
    artifact = artifacts.load(trained)
    # Its own objective goes on with all parameters, heads too.
    objective, params = train.initial(mlm.Mlm(bert.Bert(bert.BertConfig())), artifact)
    assert objective.model.config.hidden_size == 16
    jax.tree.map(np.testing.assert_array_equal, params, parameters.load_whole(artifact))
    module, variables = parameters.load(artifact)
    huggingface.save(tmp_path / "hf", module, variables)

    # From a folder: its shape counts, not that of the gin file, and the head is new.
    still = ("--steps", 1, "--learning_rate", 1e-30, "--gin.optimizers.Optimizer.weight_decay=0.0")
    shape = ("--gin.bert.BertConfig.hidden_size=8",)
    words = command(examples, tmp_path / "b", "--init", tmp_path / "hf", *still, *shape)
    assert "5 parameter arrays are initialised: mlm_head/" in qac(*words).err
    again, variables_again = huggingface.load(tmp_path / "b")  # an artefact is as good as a folder
    assert again == module
    jax.tree.map(np.testing.assert_array_equal, variables_again, variables)


@pytest.mark.slow
def test_seqio_continues_what_the_loader_began(
    examples: Path, trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    begun = launch(examples, out, "--steps", 6)
    wait_for_step(out, 3, begun)
    begun.send_signal(signal.SIGTERM)
    finish(begun)
    fed = launch(examples, out, "--steps", 6, "--gin_file", "overlays/seqio.gin")
    code, said = finish(fed)
    assert code == 0, said
    assert artifacts.load(out).identity == artifacts.load(trained).identity


def test_mistakes_get_one_sentence(examples: Path, tmp_path: Path, qac: Qac) -> None:
    other = toy_examples.tokenized(examples.parent, "mlm", "other", tokenizer="wordpiece-16k").path
    for flags, message in {
        "": "set by nothing; give one of --steps",
        "--epochs 0.01": "0 examples are fewer than one batch of 16",
        "--steps 1 --microbatch 5": "microbatch=5 does not divide batch_size=16",
        "--steps 1 --batch_size 0": "batch_size = 0; expected at least 1",
        "--steps 1 --microbatch -1": "microbatch = -1; expected at least 0",
        "--steps 1 --mesh 3,1,1": "mesh=3x1x1 does not fit 8 device",
        # A model, or validation, whose words have other numbers trained and measured noise.
        "--steps 1 --overwrite --init shipped:minilm": "'[UNK]' is number 1 in the examples",
        f"--steps 1 --overwrite --validation {other}": f"--tokenizer {other}/tokenizer",
    }.items():
        assert message in qac.refused(*command(examples, tmp_path / "out", *flags.split()))
