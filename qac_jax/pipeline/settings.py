"""Settings that several verbs have in common."""

from __future__ import annotations

import dataclasses

from qac_jax import processes as launched
from qac_jax.fields import option


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Several processes that share the work, one a host."""

    coordinator: str = option("", "HOST:PORT of process 0 of several", affects_result=False)
    processes: int = option(0, "how many processes there are", affects_result=False)
    process: int = option(-1, "which of them this is", affects_result=False)

    def place(self) -> launched.Place:
        """Which of them this process is."""
        return launched.place(self.coordinator, self.processes, self.process)
