"""The cache of the Hugging Face Hub on this machine: which repositories and revisions it holds.

    models--owner--name/refs/main           the commit that a branch or tag stands for
    models--owner--name/snapshots/COMMIT    the files of a commit, as links into `blobs`

HF_HOME and HF_HUB_CACHE say where it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from qac_jax.errors import UserError


MAIN = "main"

_COMMIT = re.compile(r"[0-9a-f]{40}")


def folder() -> Path:
    """The cache's folder, as huggingface_hub determines it."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def is_commit(revision: str) -> bool:
    return _COMMIT.fullmatch(revision) is not None


def models() -> Iterator[str]:
    """The names of all models in the cache, sorted."""
    for path in sorted(folder().glob("models--*")):
        if path.is_dir():
            yield path.name.removeprefix("models--").replace("--", "/")


def revisions(name: str, kind: str = "model") -> dict[str, str]:
    """Branch or tag -> commit, of those that the cache knows."""
    refs = _repository(name, kind) / "refs"
    files = sorted(path for path in refs.rglob("*") if path.is_file())
    return {path.relative_to(refs).as_posix(): path.read_text().strip() for path in files}


def snapshot(name: str, revision: str = "", kind: str = "model") -> Path | None:
    """The folder of a revision (a branch, a tag or a commit; "": main), None if there is none."""
    revision = revision or MAIN
    commit = revision if is_commit(revision) else revisions(name, kind).get(revision, "")
    place = _repository(name, kind) / "snapshots" / commit
    return place if commit and place.is_dir() else None


def origin(path: Path) -> tuple[str, str] | None:
    """(owner/name, commit) of a snapshot's folder in any cache; None for other folders."""
    path = path.absolute()
    repository, snapshots, commit = path.parent.parent.name, path.parent.name, path.name
    if snapshots != "snapshots" or not is_commit(commit) or not repository.startswith("models--"):
        return None
    return repository.removeprefix("models--").replace("--", "/"), commit


def refuse_foreign_link(file: Path) -> None:
    """A file that is copied into a result must be the folder's own, or a snapshot's blob: a link
    could bring in what its maker only knows the name of."""
    target, folder = file.resolve(), file.parent.resolve()
    blobs = folder.parent.parent / "blobs"
    own = [folder, *([blobs] if origin(folder) is not None else [])]
    if file.is_symlink() and not any(target.is_relative_to(place) for place in own):
        raise UserError(
            f"{file} is a link to {target}, outside of the model's folder, so it is not copied; "
            "put the file itself there"
        )


def _repository(name: str, kind: str) -> Path:
    return folder() / f"{kind}s--{name.replace('/', '--')}"
