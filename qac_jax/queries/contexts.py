"""Shared by generation and extraction: selecting passages, and previews of their contexts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qac_jax.artifacts import Artifact
from qac_jax.formats.records import Records


PARTS = ("all", "train", "held_out")


def belongs(passage: Mapping[str, Any], part: str) -> bool:
    """Whether a passage is in this part of the corpus."""
    return part == "all" or bool(passage.get("held_out")) == (part == "held_out")


def shown(artifact: Artifact, count: int = 3, *, origins: bool = False) -> str:
    """Some passages and their contexts, as a preview."""
    records = Records(artifact)
    lines = []
    for place in range(min(count, len(records))):
        record = records[place * len(records) // count]
        lines.append(record["_id"])
        lines += [
            f"  {c['origin']}: {c['text']}" if origins else f"  {c['text']}"
            for c in record["contexts"]
        ]
    return "\n".join(lines)
