"""Settings of reading examples in training, without heavy imports, for stages that list them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from qac_jax.data.kinds import KINDS
from qac_jax.fields import option


CROPS = ("random", "right")


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
    workers: int = option(0, "loader processes (0: a thread)", affects_result=False)
