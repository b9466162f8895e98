"""Start-up of a run over several processes, before JAX touches a device."""

from __future__ import annotations

import os
from collections.abc import Mapping

import jax
from jax.experimental import multihost_utils

from qac_jax.errors import UserError
from qac_jax.progress import say


def needed(environment: Mapping[str, str]) -> str | None:
    """How the launcher of this process says that there are others: "slurm", "tpu" or None."""
    if int(environment.get("SLURM_NTASKS", "1")) > 1 and "SLURM_PROCID" in environment:
        return "slurm"
    if len(environment.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1:
        return "tpu"
    return None


def start(
    coordinator: str = "",
    processes: int = 0,
    process: int = -1,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Joins the other processes of this run, if there are any.

    SLURM and TPU pods are recognised by themselves. Elsewhere give `coordinator` (HOST:PORT of
    process 0), the number of `processes` and the number of this `process`, or the variables
    QAC_COORDINATOR, QAC_PROCESSES and QAC_PROCESS.
    """
    environment = os.environ if environment is None else environment
    coordinator = coordinator or environment.get("QAC_COORDINATOR", "")
    if coordinator:
        count = processes or _number(environment, "QAC_PROCESSES")
        index = process if process >= 0 else _number(environment, "QAC_PROCESS")
        if ":" not in coordinator or count < 1 or not 0 <= index < count:
            raise UserError(
                f"coordinator={coordinator!r}, processes={count}, process={index} do not describe "
                "a run; give HOST:PORT of process 0, the number of processes, and 0 to that number "
                "less one for this one"
            )
        _initialize(coordinator_address=coordinator, num_processes=count, process_id=index)
    elif (kind := needed(environment)) is not None:
        _initialize(cluster_detection_method="slurm" if kind == "slurm" else None)
    if jax.process_count() > 1:
        say(
            f"process {jax.process_index()} of {jax.process_count()}: "
            f"{jax.local_device_count()} of {jax.device_count()} devices"
        )


def is_first() -> bool:
    """Whether this process writes what is written once."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Returns when all processes of the run have come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def _initialize(**arguments: object) -> None:
    if jax.distributed.is_initialized():
        return
    # CPU devices of several processes reduce over gloo; the option says nothing elsewhere.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(**arguments)  # type: ignore[arg-type]


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdigit():
        raise UserError(f"{name}={text!r} is not a number; QAC_COORDINATOR needs it beside it")
    return int(text)
