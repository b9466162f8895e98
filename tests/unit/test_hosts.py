"""Stages that several processes share, here threads, since they only meet in files; and which
process of a run this is."""

import dataclasses
import time
from typing import Any, ClassVar

import pytest
import toy_hosts
from toy_stages import Numbers

from qac_jax import artifacts, processes, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline import hosts, stage
from qac_jax.pipeline.sharding import ShardFile, sharded
from qac_jax.pipeline.stage import Inputs, Stage, option
from qac_jax.processes import Place, place


# Called with the process and the shard before a shard is written.
def before(number: int, name: str) -> None:
    """Replaced by tests."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Squares(Stage):
    """A file for each number."""

    VERB: ClassVar[str] = "squares"
    KIND: ClassVar[str] = "squares"
    DIVIDED: ClassVar[bool] = True

    count: int = option(7, "shards")

    def run(self, inputs: Inputs, out: Writer) -> None:
        number = processes.place().number

        def write(shard: ShardFile, bar: progress.Bar) -> dict[str, Any]:
            before(number, shard.name)
            out.part(shard.name).write_text(f"{shard.job**2}\n")
            return {"value": shard.job}

        shards = [ShardFile(f"squares-{n}.txt", 1, n) for n in range(self.count)]
        facts = sharded(out, shards, write, "write", "shards")
        if out.joins:
            out.info["values"] = sum(f["value"] for f in facts)
            out.count = self.count


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    toy_hosts.be_impatient(monkeypatch)


@pytest.mark.parametrize("failing", [0, 2])
def test_a_failure_ends_all_and_the_same_command_continues(failing, tmp_path, monkeypatch) -> None:
    """Also on another number of processes, which write nothing twice."""

    def fail(number: int, name: str) -> None:
        if number == failing and name in ("squares-3.txt", "squares-5.txt"):
            time.sleep(0.5)  # the others have written their own by now
            raise RuntimeError("out of order")

    out = tmp_path / "out"
    monkeypatch.setattr(f"{__name__}.before", fail)
    ends = toy_hosts.execute(lambda _: Squares(), out, range(3), count=3)
    assert sorted(type(end).__name__ for end in ends) == ["RuntimeError", *["UserError"] * 2]
    sentence = f"process {failing} of this run failed (RuntimeError: out of order)"
    assert any(sentence in str(end) for end in ends)
    again: list[str] = []
    monkeypatch.setattr(f"{__name__}.before", lambda number, name: again.append(name))
    ends = toy_hosts.execute(lambda _: Squares(), out, range(2), count=2)
    assert all(isinstance(end, Artifact) for end in ends), ends
    assert not {"squares-1.txt", "squares-4.txt"} & set(again)
    whole, found = stage.execute(Squares(), tmp_path / "whole"), artifacts.load(out)
    found.verify()
    assert (found.identity, found.count) == (whole.identity, whole.count)
    assert found.info["values"] == whole.info["values"]
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in whole.path.iterdir())


@pytest.mark.parametrize("first", [0, 1])
def test_another_command_is_refused(first, tmp_path, monkeypatch) -> None:
    """Also by a process that starts after process 0 has claimed the folder."""
    monkeypatch.setattr(hosts, "_PATIENCE", 1.0)

    def of(number: int) -> Stage:
        if number != first:
            time.sleep(0.5)
        return Squares(count=3 + number)

    ends = toy_hosts.execute(of, tmp_path / "out", (0, 1), count=2)
    assert all(isinstance(end, UserError) for end in ends)
    assert "with other settings than this process" in "".join(map(str, ends))


def test_a_stage_that_is_not_shared_is_waited_for(tmp_path, monkeypatch) -> None:
    def execute(*numbers: int, **settings: Any) -> list[Any]:
        return toy_hosts.execute(lambda _: Numbers(**settings), tmp_path / "out", numbers, count=2)

    ends = execute(1, 0, fail_at=1)
    assert sorted(type(end).__name__ for end in ends) == ["RuntimeError", "UserError"]
    ends = execute(1, 0, pause=0.2)  # the failure is one of an earlier run
    assert [type(end) for end in ends] == [Artifact, Artifact]


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
