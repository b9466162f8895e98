"""Writes the parts of an index: linked vectors, ScaNN's or FAISS's files, parts of another index.

Existing files are hard-linked where the file system allows it: no file is ever changed in place.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from etils import epath

from qac_jax import artifacts, fields, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.formats.identities import IdSet, repeated_id
from qac_jax.retrieval import engines, memory, texts
from qac_jax.retrieval.engines import AnyPreset
from qac_jax.retrieval.ids import Ids
from qac_jax.retrieval.index import Index
from qac_jax.retrieval.vectors import Vectors, shard_names


_ROWS = 1 << 16  # that are turned into float32 at a time


def build(
    method: str,
    vectors: Vectors,
    rows: tuple[int, int],
    preset: AnyPreset,
    identity: str,
    name: str,
    out: Writer,
) -> None:
    """One part of these rows by ScaNN or FAISS; a finished one survives an interruption."""
    work = out.scratch(method)
    built = work / name
    if not built.exists():
        unfinished = work / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        start, stop = rows
        reordering = getattr(preset, "reordering", "float32")
        memory.refuse_too_large(stop - start, vectors.width, reordering, method)
        called = memory.NAMES[method]
        progress.say(f"index: building {called}'s index of {stop - start:,} vectors ({name})")
        # Handed over without a name here: ScaNN has its own copy, ours is freed.
        engines.build(method, _floats(vectors, start, stop), preset, unfinished)
        os.rename(unfinished, built)
    shutil.rmtree(out.path / name, ignore_errors=True)
    shutil.copytree(built, out.path / name, copy_function=artifacts.link)
    # Threads make k-means differ in the last bits, so the identity is that of the inputs.
    decisive: list[Any] = [identity, dataclasses.asdict(preset), engines.version(method)]
    if rows != (0, len(vectors)):
        decisive.append(rows)
    out.adopt(name, identity=fields.digest(decisive))


def _floats(vectors: Vectors, start: int, stop: int) -> np.ndarray:
    """Rows as float32, without a second copy of all of them in the type they are stored in."""
    floats = np.empty((stop - start, vectors.width), np.float32)
    for begin in range(start, stop, _ROWS):
        end = min(begin + _ROWS, stop)
        floats[begin - start : end - start] = vectors.read(begin, end)
    return floats


def link_vectors(vectors: Artifact, name: str, out: Writer) -> None:
    """The files of vectors as a part: linked where that is possible, else copied."""
    files = (*shard_names(vectors), *windows_of(vectors))
    _link_files(vectors, {f"{name}/{file}": file for file in files}, out)


def windows_of(vectors: Artifact) -> list[str]:
    """The files of windows beside vectors."""
    return [file for file in vectors.files if file.startswith("window")]


def link_parts(base: Artifact, parts: Iterable[str], out: Writer) -> None:
    """The parts of an index that vectors are added to."""
    for part in parts:
        files = [file for file in base.files if file.startswith(f"{part}/")]
        if identity := base.record["contents"].get(part):
            shutil.rmtree(out.path / part, ignore_errors=True)
            for file in files:
                (out.path / file).parent.mkdir(exist_ok=True)
                artifacts.link(base.path / file, out.path / file)
            out.adopt(part, identity=identity)
        else:
            _link_files(base, {file: file for file in files}, out)


def link_whole(artifact: Artifact, name: str, out: Writer) -> None:
    """A finished artefact as a folder of another one."""
    shutil.rmtree(out.path / name, ignore_errors=True)
    for file in (*artifact.files, artifacts.COMMIT):
        target = out.path / name / file
        target.parent.mkdir(parents=True, exist_ok=True)
        artifacts.link(artifact.path / file, target)
    out.adopt(name, identity=artifact.identity)


def _link_files(source: Artifact, names: Mapping[str, str], out: Writer) -> None:
    for name, theirs in names.items():
        if name not in out.done:
            part = out.part(name)
            part.unlink(missing_ok=True)
            artifacts.link(source.path / theirs, part)
            out.keep(name, sha256=source.files[theirs]["sha256"])


def check_alike(base: Index, added: Artifact, width: int) -> None:
    """Raises UserError for vectors of another encoder, or of passages that are in the index."""
    if base.description["dimension"] != width or (
        base.artifact.info["encoder"]["identity"] != encoder_of(added)["identity"]
    ):
        raise UserError(
            f"{added.path} was made with another encoder than {base.artifact.path}; "
            "embed the new passages with the same one"
        )
    known = IdSet(base.ids)
    for name in Ids(added):
        if name in known:
            raise repeated_id(name, f"of {added.path} is in {base.artifact.path} already")


def encoder_of(added: Artifact) -> dict[str, Any]:
    """The encoder that made these vectors, and its options."""
    identity = added.inputs.get("encoder") or added.inputs.get("model")
    return {**added.info["encoder"], "identity": identity}


def encoder_seen_from(known: Mapping[str, Any], out: Writer, base: str = "") -> dict[str, Any]:
    """The location of an encoder, also relative to the new folder: both may be moved together.

    `base`: the folder of the index that it is taken from.
    """
    path = known["path"]
    if base and "relative" in known:
        together = os.path.normpath(os.path.join(base, known["relative"]))
        path = together if os.path.isdir(together) else path
    if not os.path.isabs(path) or "://" in path or "://" in str(out.path):
        return {**known, "path": path}  # a name at the Hub, or in a store
    relative = os.path.relpath(path, os.path.abspath(os.fspath(out.path)))
    return {**known, "path": path, "relative": relative}


def texts_seen_from(
    folder: epath.Path, known: Iterable[Mapping[str, Any]], out: Writer
) -> list[dict[str, Any]]:
    """The locations of texts that a folder refers to, relative to the new folder."""
    return [
        {**entry, **(texts.location(text, out.path) if text else {})}
        for entry in known
        for text in [texts.find(entry, folder)]
    ]
