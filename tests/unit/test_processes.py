"""Which process this is, as launchers say it."""

from __future__ import annotations

import pytest

from qac_jax.errors import UserError
from qac_jax.processes import Place, place


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Place()),
        ({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, Place()),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "3"}, Place("slurm", 3, 4)),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, Place()),
        ({"QAC_TPU_WORKER": "2"}, Place("tpu", 2, 0)),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1"}, Place("tpu", 1, 2)),
        (
            {"QAC_COORDINATOR": "h:1", "QAC_PROCESSES": "2", "QAC_PROCESS": "1"},
            Place("explicit", 1, 2, "h:1"),
        ),
    ],
)
def test_launchers(environment: dict[str, str], expected: Place) -> None:
    assert place(environment=environment) == expected


def test_flags_go_before_variables() -> None:
    environment = {"QAC_COORDINATOR": "h:1", "QAC_PROCESSES": "2", "QAC_PROCESS": "1"}
    assert place("g:2", 3, 0, environment) == Place("explicit", 0, 3, "g:2")


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        (("h", 2, 0), {}, "coordinator='h', processes=2, process=0 do not describe"),
        (("h:1", 2, 2), {}, "processes=2, process=2 do not describe"),
        (("h:1", 2, -1), {}, "QAC_PROCESS='' is not a number"),
        (("", 0, -1), {"SLURM_NTASKS": "x", "SLURM_PROCID": "0"}, "SLURM_NTASKS='x' is not"),
    ],
)
def test_incomplete_descriptions(flags, environment, message) -> None:
    with pytest.raises(UserError, match=message):
        coordinator, count, number = flags
        place(coordinator, count, number, environment)
