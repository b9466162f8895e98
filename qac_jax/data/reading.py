"""Settings of reading examples in training, without heavy imports, for stages that list them."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import Any

from qac_jax import extras
from qac_jax.data.kinds import KINDS
from qac_jax.errors import UserError
from qac_jax.fields import option


CROPS = ("random", "right")
# What makes batches: grain or our own thread ("auto": grain where it is installed), or seqio.
FEEDS = ("auto", "grain", "plain", "seqio")


@dataclasses.dataclass(frozen=True)
class Reading:
    """How examples are read."""

    kind: str = option(
        "",
        "read the examples as this kind (default: the one they were made for)",
        choices=("", *KINDS),
    )
    settings: Mapping[str, Any] | None = option(None, "of the kind")
    lengths: Mapping[str, int] | None = option(None, "limits in tokens of the features")
    crop: str = option(
        "",
        "where texts that are too long are cropped (default: the kind's)",
        choices=("", *CROPS),
    )
    separate_documents: bool = option(False, "never put two examples of one document into a batch")
    workers: int = option(
        -1,
        "loader processes (0: a thread; -1: a thread on CPUs, a process for two accelerators)",
        affects_result=False,
    )
    feed: str = option(
        "auto",
        "what makes the batches, which are the same: our loader with grain's thread or its own, or "
        "seqio (the extra seqio)",
        choices=FEEDS,
        affects_result=False,
    )

    def check_installed(self) -> None:
        """Raises where what the feed needs is missing."""
        if self.workers < -1:
            raise UserError(f"workers={self.workers} is not a number of processes; give 0 or more")
        if self.feed == "seqio" and importlib.util.find_spec("seqio") is None:
            raise UserError(f"--feed seqio needs seqio; {extras.remedy('seqio')}, or leave it out")
