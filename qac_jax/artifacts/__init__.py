"""Artefacts: folders that are complete, or raise an error (DESIGN.md, "Contracts")."""

from qac_jax.artifacts.durable import link
from qac_jax.artifacts.locking import locked
from qac_jax.artifacts.reading import (
    CLAIM,
    COMMIT,
    FORMAT,
    JOURNAL,
    LOCK,
    PART,
    SCRATCH,
    Artifact,
    identity_of,
    load,
    peek,
    place,
)
from qac_jax.artifacts.writing import Writer, create, remove, rewrite, tidy


__all__ = [
    "CLAIM",
    "COMMIT",
    "FORMAT",
    "JOURNAL",
    "LOCK",
    "PART",
    "SCRATCH",
    "Artifact",
    "Writer",
    "create",
    "identity_of",
    "link",
    "load",
    "locked",
    "peek",
    "place",
    "remove",
    "rewrite",
    "tidy",
]
