"""An index folder, exact, of ScaNN or of FAISS: vectors in, ids and texts out.

Artefacts of kind "index" contain the ids, `index.json` (how it was built) and parts, one for each
artefact of vectors in it: `part-00000/` with the vectors (exact) or the library's files. Existing
files are hard-linked where the file system allows it: no file is ever changed in place.
"""

import copy
import dataclasses
import functools
import os
import shutil
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from qac_jax import artifacts, fields, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.hub import names
from qac_jax.inference.encoder import Encoder
from qac_jax.retrieval import approximate, corpus
from qac_jax.retrieval.corpus import Searchable
from qac_jax.retrieval.exact import Exact
from qac_jax.retrieval.vectors import Vectors, Windows, shard_names, windows_names


KIND = "index"
DESCRIPTION = "index.json"
EXACT = "exact"
WINDOWS = "window"  # what the names of files of windows begin with

# Questions of one search: their rankings of 1,000 take little memory.
_TOGETHER = 4096
# Rows that are turned into float32 at a time.
_ROWS = 1 << 16


class Index(Searchable):
    """A finished index, opened: its searcher, ids, and where texts and encoder are."""

    def __init__(self, artifact: Artifact, *, encoder: str = ""):
        super().__init__(artifact)
        self.description = artifact.json(DESCRIPTION)
        self._encoder = encoder

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, encoder: str = "") -> Self:
        """`encoder`: where the encoder's folder is, if it was moved."""
        return cls(artifacts.load(path, KIND), encoder=encoder)

    @functools.cached_property
    def searcher(self) -> Exact | approximate.Approximate:
        if self.description["method"] == EXACT:
            return Exact(self.vectors)
        tuned = self.artifact.info.get("tunings", ())
        return approximate.opened(
            self.description["method"],
            self.artifact.path,
            self.description["dimension"],
            self.description["parts"],
            {each["k"]: approximate.Effort(**each["effort"]) for each in tuned},
        )

    @functools.cached_property
    def vectors(self) -> Vectors:
        parts = self.description["parts"]
        files = [name for part in parts for name in shard_names(self.artifact, f"{part}/")]
        vectors = Vectors([os.fspath(self.artifact.path / name) for name in files])
        if len(vectors) != len(self):
            raise UserError(f"{self.artifact.path} has other vectors than ids; make it again")
        return vectors

    def exactly(self, vectors: Vectors) -> Self:
        """The same index with exact search of its vectors."""
        if len(vectors) != len(self):
            raise UserError(f"{self.artifact.path} was not made of these vectors; give its own")
        other = copy.copy(self)
        other.searcher = Exact(vectors)
        return other

    @functools.cached_property
    def windows(self) -> Windows | None:
        """The windows of the passages, where every part of an exact index has them."""
        if self.description["method"] != EXACT:
            return None
        files = []
        for part in self.description["parts"]:
            count = len(shard_names(self.artifact, f"{part}/"))
            pairs = (windows_names(number, count) for number in range(count))
            files += [[f"{part}/{name}" for name in pair] for pair in pairs]
        if not files or not all(name in self.artifact.files for pair in files for name in pair):
            return None
        return Windows([[os.fspath(self.artifact.path / name) for name in pair] for pair in files])

    @functools.cached_property
    def encoder(self) -> Encoder:
        known = self.artifact.info["encoder"]
        return Encoder.remembered(known, place_of_encoder(self.artifact, self._encoder))

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(scores float32, rows int64) [queries, k], best first; row -1 where there is none."""
        parts = [
            self.searcher.search(queries[start : start + _TOGETHER], k)
            for start in range(0, len(queries), _TOGETHER)
        ] or [self.searcher.search(queries, k)]
        scores, rows = zip(*parts, strict=True)
        return np.concatenate(scores), np.concatenate(rows)

    def find(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        return self.search(self.encoder.encode(questions, "query"), k)


def place_of_encoder(index: Artifact, moved: str = "") -> str:
    """Where the encoder of an index or of vectors is: as given, beside them as before, or where it
    was.

    A name at the Hub that only the index gives is looked up in this machine's cache alone: whoever
    made it may be a stranger.
    """
    if moved:
        return os.fspath(names.folder(moved))
    places = corpus.places(index.info["encoder"], index.path)
    for place in places:
        if os.path.isdir(place):
            return place
    named = names.parsed(places[-1])
    if named is not None and (kept := names.snapshot(*named)) is not None:
        return os.fspath(kept)
    raise UserError(
        f"the encoder of {index.path} is not at {places[-1]}; give it by --encoder"
        + (f", such as --encoder {named} to fetch it from the Hub" if named else "")
    )


def build_part(
    method: str,
    vectors: Vectors,
    rows: tuple[int, int],
    preset: approximate.Preset,
    identity: str,
    name: str,
    out: Writer,
) -> None:
    """One part of these rows by ScaNN or FAISS; a finished one survives an interruption."""
    engine, work = approximate.ENGINES[method], out.scratch(method)
    built = work / name
    if not built.exists():
        unfinished = work / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        start, stop = rows
        approximate.refuse_too_large(stop - start, vectors.width, method)
        progress.say(f"index: building {engine.NAME}'s index of {stop - start:,} vectors ({name})")
        # Handed over without a name here: ScaNN has its own copy, ours is freed.
        engine.build(_floats(vectors, start, stop), preset, unfinished)
        os.rename(unfinished, built)
    shutil.copytree(built, out.begin(name), copy_function=artifacts.link)
    # Threads make k-means differ in the last bits, so the identity is that of the inputs.
    decisive: list[Any] = [identity, dataclasses.asdict(preset), engine.version()]
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


def link_vectors(vectors: Artifact, part: str, out: Writer) -> None:
    """The files of vectors as a part: linked where that is possible, else copied."""
    for file in (*shard_names(vectors), *(f for f in vectors.files if f.startswith(WINDOWS))):
        if (name := f"{part}/{file}") not in out.done:
            target = out.part(name)
            target.unlink(missing_ok=True)
            artifacts.link(vectors.path / file, target)
            out.keep(name, {"sha256": vectors.files[file]["sha256"]})


def link_whole(artifact: Artifact, name: str, out: Writer) -> None:
    folder = out.begin(name)
    for file in (*artifact.files, artifacts.COMMIT):
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        artifacts.link(artifact.path / file, target)
    out.adopt(name, identity=artifact.identity)


def encoder_of(added: Artifact) -> dict[str, Any]:
    """The encoder that made these vectors, and its options."""
    identity = added.inputs.get("encoder") or added.inputs.get("model")
    return {**added.info["encoder"], "identity": identity}
