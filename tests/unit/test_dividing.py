"""Shards divided among processes: here threads, since they only meet in files."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import toy_hosts

from qac_jax import artifacts, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline import dividing, following, stage
from qac_jax.pipeline.sharding import ShardFile, Workers, pooled, sharded
from qac_jax.pipeline.stage import Inputs, Stage, option
from qac_jax.processes import Place


# Called with the process, the phase and the shard before a shard is written.
def before(number: int, phase: str, name: str) -> None:
    """Replaced by tests."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Squares(Stage):
    """Two phases: a sum over all shards, then shards that need it."""

    VERB: ClassVar[str] = "squares"
    KIND: ClassVar[str] = "squares"
    DIVIDED: ClassVar[bool] = True

    count: int = option(7, "shards")
    number: int = option(0, "this process", affects_result=False)
    processes: int = option(1, "processes", affects_result=False)

    def place(self) -> Place:
        numbered = Place("numbered", self.number, self.processes)
        return numbered if self.processes > 1 else Place()

    def run(self, inputs: Inputs, out: Writer) -> None:
        work = out.inner("parts")
        parts = [ShardFile(f"{n}.json", 1, n) for n in range(self.count)]

        def count(shard: ShardFile, _: None) -> None:
            before(self.number, "count", shard.name)
            work.part(shard.name).write_text(str(shard.job**2))

        with progress.Bar("count", total=self.count) as bar:
            sharded(work, parts, count, bar)

        def join() -> None:
            with out.open("sum.json") as file:
                json.dump(sum(int((work.path / s.name).read_text()) for s in parts), file)

        if "sum.json" not in out.done:
            dividing.once("sum", join)
        total = int((out.path / "sum.json").read_text())

        def write(shard: ShardFile, _: None) -> dict[str, Any]:
            before(self.number, "write", shard.name)
            out.part(shard.name).write_text(f"{shard.job} {total}\n")
            before(self.number, "keep", shard.name)
            return {"value": shard.job}

        shards = [ShardFile(f"squares-{n}.txt", 1, n) for n in range(self.count)]
        with progress.Bar("write", total=self.count) as bar:
            facts = sharded(out, shards, write, bar)
        if out.joins:
            out.info["values"] = sum(f["value"] for f in facts)
            out.count = self.count


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    toy_hosts.be_impatient(monkeypatch)


def start(out: Path, numbers: Iterable[int], processes: int) -> list[Any]:
    return toy_hosts.execute(lambda n: Squares(number=n, processes=processes), out, numbers)


@pytest.fixture
def whole(tmp_path: Path) -> Artifact:
    return stage.execute(Squares(), tmp_path / "whole")


def same(out: Path, whole: Artifact) -> None:
    found = artifacts.load(out)
    found.verify()
    assert (found.identity, found.count) == (whole.identity, whole.count)
    assert found.info["values"] == whole.info["values"]
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in whole.path.iterdir())


def test_the_rate_is_that_of_what_was_done_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.execute(Squares(), tmp_path / "out")
    shown = capsys.readouterr().err
    assert "7/7 items (100%)" in shown and "  0/s" not in shown


@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_are_one(processes, whole, tmp_path, monkeypatch) -> None:
    writers = set()
    monkeypatch.setattr(f"{__name__}.before", lambda number, *_: writers.add(number))
    ends = start(tmp_path / "out", range(processes), processes)
    assert all(isinstance(end, Artifact) for end in ends), ends
    assert writers == set(range(processes))
    same(tmp_path / "out", whole)


def test_a_process_that_fails_is_replaced(whole, tmp_path, monkeypatch) -> None:
    def fail(number: int, phase: str, name: str) -> None:
        if number == 2 and phase == "write":
            raise RuntimeError("out of order")

    monkeypatch.setattr(f"{__name__}.before", fail)
    ends = start(tmp_path / "out", range(3), 3)
    assert sorted(type(end).__name__ for end in ends) == ["Artifact", "Artifact", "RuntimeError"]
    same(tmp_path / "out", whole)


@pytest.mark.parametrize("when", ["write", "keep"])
def test_nobody_waits_for_a_slow_heir(when, whole, tmp_path, monkeypatch) -> None:
    """Two processes may write a shard of a lost one; the later of them leaves nothing behind."""
    slow: list[str] = []

    def fail(number: int, phase: str, name: str) -> None:
        if number == 2 and phase == "write":
            raise RuntimeError("out of order")
        while number == 0 and name == "squares-2.txt" and not slow:
            time.sleep(0.01)
        if number == 1 and phase == when and name == "squares-5.txt":
            slow.append(name)
            while following.finished(tmp_path / "out") is None:
                time.sleep(0.01)

    monkeypatch.setattr(f"{__name__}.before", fail)
    ends = start(tmp_path / "out", range(3), 3)
    assert slow
    assert sorted(type(end).__name__ for end in ends) == ["Artifact", "Artifact", "RuntimeError"]
    same(tmp_path / "out", whole)


def test_a_process_that_never_begins_is_replaced(whole, tmp_path) -> None:
    ends = start(tmp_path / "out", range(2), 3)
    assert all(isinstance(end, Artifact) for end in ends), ends
    same(tmp_path / "out", whole)


def test_what_was_complete_is_kept_by_another_number_of_processes(
    whole, tmp_path, monkeypatch
) -> None:
    def fail(number: int, phase: str, name: str) -> None:
        if number == 0 and name == "squares-3.txt":
            time.sleep(0.3)  # the other process has written its own by now
            raise KeyboardInterrupt

    monkeypatch.setattr(f"{__name__}.before", fail)
    ends = start(tmp_path / "out", range(3), 3)
    assert any(isinstance(end, UserError) for end in ends)
    again: list[str] = []
    monkeypatch.setattr(f"{__name__}.before", lambda number, phase, name: again.append(name))
    ends = start(tmp_path / "out", range(2), 2)
    assert all(isinstance(end, Artifact) for end in ends), ends
    assert not {"squares-1.txt", "squares-2.txt", "0.json"} & set(again)
    same(tmp_path / "out", whole)


def test_another_command_is_refused(tmp_path) -> None:
    ends = toy_hosts.execute(
        lambda n: Squares(number=n, processes=2, count=3 + n), tmp_path / "out", range(2)
    )
    assert "with other settings than this process" in "".join(map(str, ends))
    assert artifacts.load(tmp_path / "out").count == 3


def test_a_pool_is_divided_too(tmp_path) -> None:
    out = Writer(artifacts.place(tmp_path), {})
    shards = [ShardFile(str(n), 1, str(out.part(str(n)))) for n in range(3)]
    with progress.Bar("pool", total=3) as bar:
        facts = pooled(out, shards, _touch, Workers(workers=1), bar)
    assert [f["records"] for f in facts] == [1, 1, 1]


def _touch(path: str) -> dict[str, Any]:
    Path(path).write_text("x")
    return {"records": 1}
