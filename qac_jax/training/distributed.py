"""Start-up of a run over several processes, before JAX touches a device."""

from __future__ import annotations

import jax
from jax.experimental import multihost_utils

from qac_jax.errors import UserError
from qac_jax.processes import Place
from qac_jax.progress import say


def start(place: Place) -> None:
    """Joins the other processes of this run, if there are any."""
    if place.launcher == "numbered":
        raise UserError(
            f"{place.count} processes that compute together need to find one another; give "
            "--coordinator HOST:PORT of process 0 too (or QAC_COORDINATOR)"
        )
    if place.launcher and not jax.distributed.is_initialized():
        # CPU devices of several processes reduce over gloo; other devices ignore it.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        if place.launcher == "explicit":
            jax.distributed.initialize(place.coordinator, place.count, place.number)
        else:  # JAX finds the coordinator itself
            jax.distributed.initialize(
                cluster_detection_method="slurm" if place.launcher == "slurm" else None
            )
    if jax.process_count() > 1:
        say(
            f"process {jax.process_index()} of {jax.process_count()}: "
            f"{jax.local_device_count()} of {jax.device_count()} devices"
        )


def accelerators() -> int:
    """The devices of this process that are not CPUs."""
    return 0 if jax.default_backend() == "cpu" else jax.local_device_count()


def is_first() -> bool:
    """Whether this process writes the files that only one process writes."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Returns when all processes of the run have reached this point."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)
