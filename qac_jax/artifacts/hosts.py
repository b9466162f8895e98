"""An artefact whose shards several processes write: process 0 joins what the others complete.

Each of the others writes into a folder of its own inside of the unfinished artefact, with a journal
of its own, so no file has two writers. A file counts if a journal names it and it is there: one
that process 0 has moved is named by its journal.
"""

from __future__ import annotations

import contextlib

from etils import epath

from qac_jax.artifacts.reading import SCRATCH
from qac_jax.artifacts.writing import Writer, journal, mend


# Folder in an unfinished artefact: shards of processes other than process 0.
HOSTS = f"{SCRATCH}/hosts"


class HostWriter(Writer):
    """The writer of a process other than process 0: it reads in the artefact, writes beside it."""

    def __init__(self, path: epath.Path, number: int):
        super().__init__(path, {})
        self._number = number
        self._home = path / HOSTS / f"process-{number}"
        self._home.mkdir(parents=True, exist_ok=True)
        mend(self._home)
        self._files.update(journal(self._home))

    @property
    def joins(self) -> bool:
        return False

    def inner(self, name: str) -> Writer:
        return HostWriter(self.scratch(name), self._number)

    def commit(self) -> None:
        raise RuntimeError("only process 0 completes an artefact")


def refresh(out: Writer) -> None:
    """Notes what other processes have completed; process 0 takes it over."""
    if not out.joins:
        out._files.update(journal(out.path))
    folder = out.path / HOSTS
    for home in sorted(folder.iterdir()) if folder.exists() else ():
        if home == out._home:
            continue
        for name, entry in journal(home).items():
            if name in out.done or not (home / name).exists():
                continue
            if out.joins:
                with contextlib.suppress(FileNotFoundError):
                    out.take(home, name, entry)
            else:
                out._files[name] = entry


def gather(out: Writer) -> None:
    """Takes over what processes of an interrupted run have completed."""
    refresh(out)
    if (out.path / HOSTS).exists():
        (out.path / HOSTS).rmtree()
