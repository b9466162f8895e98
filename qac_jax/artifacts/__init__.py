"""Artefacts: folders that are complete, or raise an error."""

from qac_jax.artifacts.disk import LOCK, link, locked
from qac_jax.artifacts.reading import (
    CLAIM,
    COMMIT,
    FORMAT,
    JOURNAL,
    PART,
    SCRATCH,
    STAGES,
    Artifact,
    identity_of,
    inside,
    load,
    peek,
    place,
)
from qac_jax.artifacts.writing import (
    Writer,
    create,
    nothing_left,
    refuse_link,
    refuse_overlap,
    remove,
    rewrite,
    tidy,
    write_atomically,
)


__all__ = ["CLAIM", "COMMIT", "FORMAT", "JOURNAL", "LOCK", "PART", "SCRATCH", "STAGES", "Artifact"]
__all__ += ["Writer", "create", "identity_of", "inside", "link", "load", "locked", "peek", "place"]
__all__ += ["nothing_left", "refuse_link", "refuse_overlap", "remove", "rewrite", "tidy"]
__all__ += ["write_atomically"]
