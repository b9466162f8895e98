"""Settings that several verbs have in common."""

from __future__ import annotations

import dataclasses

from qac_jax import processes as launched
from qac_jax.fields import option


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Runs over several hosts, one process each."""

    coordinator: str = option(
        "",
        "several hosts: HOST:PORT of process 0 (needed where they compute together: training)",
        affects_result=False,
    )
    processes: int = option(0, "several hosts: number of processes", affects_result=False)
    process: int = option(-1, "several hosts: index of this process", affects_result=False)

    def place(self) -> launched.Place:
        """Which of them this process is."""
        return launched.place(self.coordinator, self.processes, self.process)
