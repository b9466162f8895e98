"""Writing artefacts: complete at the end, resumable after an interruption.

A folder becomes an artefact when `artifact.json` appears in it, and that file is written last.
Until then it carries `.unfinished.json` (who is writing it, under which key) and `.journal.jsonl`
(one line for every file or folder that is complete), so that a killed run can be resumed:
files in the journal are kept, all others are deleted. A folder that is being cleared says so in
`.unfinished.json` before the first file goes, so that it is ours to the end. Nothing is deleted
through a link: a folder with links that are not ours is refused.

Files are on the disk (fsync) before the journal names them, and the folders before the commit;
QAC_FSYNC=0 (`--no_fsync`) leaves this out, for scratch disks.

Identity is a hash of the content alone: kind, schema and the files' hashes. Settings, times and
logs (`volatile` files) are recorded but do not enter it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import IO, Any

from etils import epath

import qac_jax
from qac_jax import processes
from qac_jax.artifacts import durable, verifying
from qac_jax.artifacts.locking import locked
from qac_jax.artifacts.reading import (
    BLOCK,
    CLAIM,
    COMMIT,
    FORMAT,
    JOURNAL,
    LOCK,
    PART,
    SCRATCH,
    Json,
    hash_file,
    identity_of,
    is_entry,
    peek,
    sealed,
)
from qac_jax.errors import DataError, UserError


# In the claim of a folder that is being emptied.
CLEARING = "clearing"
# Names that a run may leave before it has claimed a folder, or after.
_TRACES = {LOCK, CLAIM, JOURNAL, *(name + PART for name in (CLAIM, JOURNAL, COMMIT))}
# Of these the end of the command speaks.
_SAID_ELSEWHERE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
# Times that a folder is removed in which other processes may still write.
_ATTEMPTS = 100
_NOBODY: Json = {"format": FORMAT, "kind": "", "key": ""}


@contextlib.contextmanager
def create(
    out: epath.PathLike,
    *,
    kind: str,
    schema: int = 1,
    key: str = "",
    stage: str = "",
    fields: Mapping[str, Any] | None = None,
    inputs: Mapping[str, str] | None = None,
    seed: int | None = None,
    replace: bool = False,
) -> Iterator[Writer]:
    """Writes an artefact: complete when the block ends, resumable when it ends with an error.

    An unfinished folder of the same key is resumed. Any other content is refused, or,
    when it is ours and `replace` is set, removed first; so is a run that stopped at bad data.
    """
    path = epath.Path(out)
    record: Json = {
        "format": FORMAT,
        "kind": kind,
        "schema": schema,
        "stage": stage,
        "key": key,
        "fields": dict(fields or {}),
        "inputs": dict(inputs or {}),
        "seed": seed,
        "code": qac_jax.__version__,
    }
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; give a folder to write to")
    try:
        durable.make_folder(path)
    except OSError as error:
        if error.errno in _SAID_ELSEWHERE:
            raise
        raise UserError(f"{path} cannot be made ({error}); choose another --out") from error
    with locked(path):
        _make_room(path, record, replace)
        writer = Writer(path, record)
        try:
            yield writer
        except DataError:
            _claim(path, {**record, "bad_data": True})
            raise
        writer.commit()


class Writer:
    """An artefact while it is being written."""

    def __init__(self, path: epath.Path, record: Json):
        self.path = self._home = path  # where it reads, and where it writes
        self.count = 0
        self.info: Json = {}
        self._record = record
        self._contents: dict[str, str] = {}
        self._files: dict[str, Json] = {}
        self._written: set[str] = set()  # by this process, which took the hashes on the way
        self._files.update(journal(path))

    @property
    def joins(self) -> bool:
        """Whether this process completes the artefact; others only write some of its shards."""
        return True

    def inner(self, name: str) -> Writer:
        """A writer of files that are needed until the artefact is complete."""
        folder = self.scratch(name)
        mend(folder)
        return Writer(folder, {})

    @property
    def done(self) -> frozenset[str]:
        """The files that are complete (after an interruption: those that were kept)."""
        return frozenset(self._files)

    def facts(self, name: str) -> Json:
        """The facts recorded with a finished file, such as the number of its records."""
        return self._files[name].get("facts", {})

    def part(self, name: str) -> epath.Path:
        """Where to write `name` until it is complete; then call `keep`."""
        final = self._home / name
        final.parent.mkdir(parents=True, exist_ok=True)
        return final.parent / (final.name + PART)

    def keep(
        self,
        name: str,
        *,
        sha256: str | None = None,
        facts: Mapping[str, Any] | None = None,
        volatile: bool = False,
    ) -> None:
        """Publishes the complete `part(name)` under its name and notes it in the journal."""
        part = self.part(name)
        durable.file(part)
        entry: Json = {"size": part.stat().length, "sha256": sha256 or hash_file(part)}
        if facts:
            entry["facts"] = dict(facts)
        if volatile:
            entry["volatile"] = True
        part.replace(self._home / name)
        self._note({name: entry})

    @contextlib.contextmanager
    def open(
        self, name: str, mode: str = "w", *, facts: MutableMapping[str, Any] | None = None
    ) -> Iterator[IO[Any]]:
        """A file that appears under its name only when the block ends without an error.

        `mode` is "w" (UTF-8 text) or "wb". `facts` may be filled until the block ends.
        """
        if mode not in ("w", "wb"):
            raise ValueError(f"mode {mode!r}: a part is written once, with 'w' or 'wb'")
        with self.part(name).open("wb") as raw:
            hashing = _HashingFile(raw)
            buffer = io.BufferedWriter(hashing, BLOCK)
            if mode == "wb":
                yield buffer
            else:
                text = io.TextIOWrapper(buffer, encoding="utf-8", newline="\n")
                yield text
                text.flush()
                text.detach()
            buffer.flush()
        self.keep(name, sha256=hashing.digest.hexdigest(), facts=facts)

    @contextlib.contextmanager
    def temporary(
        self, name: str, *, facts: MutableMapping[str, Any] | None = None
    ) -> Iterator[epath.Path]:
        """A path for a library that writes a file itself; published as `name` afterwards."""
        part = self.part(name)
        # Some libraries append an extension they miss (numpy.save): give them the right one.
        path = part.parent / (".writing-" + (self.path / name).name)
        yield path
        path.replace(part)
        self.keep(name, facts=facts)

    def adopt(self, name: str, *, identity: str | None = None, volatile: bool = False) -> None:
        """Takes a file or folder that stands under its name already.

        A folder is one unit: after an interruption all of its files are `done`, or none is.
        `identity` replaces the hash of its bytes where these are not reproducible (Orbax);
        `volatile` things (logs) are listed but do not enter the artefact's identity.
        """
        target = self.path / name
        if not target.exists():
            raise FileNotFoundError(f"{target} was not written")
        # An interrupted run may have noted files of other names (Orbax names them at random).
        for noted in [n for n in self._files if n == name or n.startswith(f"{name}/")]:
            del self._files[noted]
        files = sorted(_walk(target)) if target.is_dir() else [target]
        entries: dict[str, Json] = {}
        for file in files:
            durable.file(file)
            # A size that may still change under a log's writer would make the folder look damaged.
            entry: Json = {"size": file.stat().length, "sha256": hash_file(file)}
            if volatile:
                entry["volatile"] = True
            entries[str(file.relative_to(self.path))] = entry
        self._note(entries)
        if identity is not None:
            self._contents[name] = identity

    def scratch(self, name: str) -> epath.Path:
        """A folder for temporary files, deleted when the artefact is complete."""
        folder = self.path / SCRATCH / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def take(self, folder: epath.Path, name: str, entry: Json) -> None:
        """Moves a finished file of another process here, with what its journal says of it."""
        part = self.part(name)
        (folder / name).replace(part)
        part.replace(self.path / name)
        self._note({name: entry})

    def commit(self) -> None:
        """Writes `artifact.json`: from now on the folder is an artefact."""
        files = {name: dict(self._files[name]) for name in sorted(self._files)}
        for entry in files.values():
            entry.pop("facts", None)
        record: Json = {
            **self._record,
            "count": self.count,
            "identity": identity_of(
                self._record["kind"], self._record["schema"], files, self._contents
            ),
            "info": self.info,
            "contents": self._contents,
            "files": files,
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        _remove_parts(self.path, files)
        durable.folders(self.path, files)
        record = sealed(json.loads(json.dumps(record, default=_plain)))
        _write_atomically(self.path / COMMIT, json.dumps(record, indent=1))
        verifying.remember(self.path, files, self._written & files.keys())
        tidy(self.path)

    def _note(self, entries: Mapping[str, Json]) -> None:
        self._files.update(entries)
        self._written.update(entries)
        with (self._home / JOURNAL).open("a") as file:
            file.write(_line([{"name": name, **entry} for name, entry in entries.items()]))


def rewrite(path: epath.PathLike, record: Mapping[str, Any]) -> None:
    """Replaces the commit of a folder whose versions follow one another; take `locked` before."""
    written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    whole = json.dumps({**record, "written": written}, indent=1, default=_plain)
    _write_atomically(epath.Path(path) / COMMIT, whole)


def tidy(path: epath.PathLike) -> None:
    """Removes temporary files, which an interrupted commit leaves behind."""
    path = epath.Path(path)
    for _ in range(_ATTEMPTS):
        if not (path / SCRATCH).exists():
            break
        try:
            (path / SCRATCH).rmtree()
        except OSError as error:  # another process writes its last file there, or removes it too
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise
    for name in (CLAIM, JOURNAL):
        (path / name).unlink(missing_ok=True)


def remove(path: epath.PathLike) -> None:
    """Removes a folder of ours, finished or not; refuses anything else."""
    path = epath.Path(path)
    if "://" in os.fspath(path):
        from qac_jax.artifacts import stores

        stores.remove(path)
        path = stores.local(path)
    if path.exists() and peek(path) is None and any(p.name not in _TRACES for p in path.iterdir()):
        raise UserError(f"{path} is not a folder of ours, so it is not removed; remove it yourself")
    if path.exists():
        # A removal that is cut short leaves no artefact behind, but a folder that is ours.
        _refuse_links(path)
        _claim(path, {**(peek(path) or _NOBODY), CLEARING: True})
        _clear(path, keep=())
        path.rmtree()


def _make_room(path: epath.Path, record: Json, replace: bool) -> None:
    """Empties the folder, except for the finished files of the same unfinished run."""
    existing = peek(path)
    contents = [p for p in path.iterdir() if p.name not in _TRACES]
    if existing is None and contents:
        raise UserError(
            f"{path} is not empty and not a folder of ours (it holds {contents[0].name}); "
            f"choose another --out or empty it"
        )
    _refuse_links(path)
    if existing is not None:
        same = existing["key"] == record["key"] and existing["kind"] == record["kind"]
        if same and not existing["finished"] and not existing.get(CLEARING):
            _clear(path, keep=mend(path))
            _claim(path, record)
            return
        # A run that failed before it wrote anything leaves nothing to keep, nor does one that
        # stopped at bad data: these were mended, or are read in another way.
        going = same and existing.get(CLEARING)
        if not (replace or going or not contents or existing.get("bad_data")):
            state = "a finished" if existing["finished"] else "an unfinished"
            raise UserError(
                f"{path} holds {state} {existing['kind']} made with other settings; choose "
                f"another --out, or pass --overwrite to replace it"
            )
        _claim(path, {**record, CLEARING: True})
    _clear(path, keep=())
    _claim(path, record)


def _claim(path: epath.Path, record: Json) -> None:
    """Notes who is writing the folder, and with which settings."""
    claim = {**record, "command": processes.command(), "pid": os.getpid()}
    _write_atomically(path / CLAIM, json.dumps(claim, indent=1, default=_plain))


def mend(path: epath.Path) -> tuple[str, ...]:
    """Files of an interrupted run that are complete; the journal is rewritten to match."""

    def whole(entry: Json) -> bool:
        file = path / entry["name"]
        return file.exists() and file.stat().length == entry["size"]

    units = [unit for unit in _read_journal(path / JOURNAL) if all(map(whole, unit))]
    _write_atomically(path / JOURNAL, "".join(map(_line, units)))
    return (JOURNAL, *(entry["name"] for unit in units for entry in unit))


def _clear(path: epath.Path, keep: Sequence[str]) -> None:
    """Removes all files but `keep`, the claim, and folders that stages own (with a leading dot)."""
    (path / COMMIT).unlink(missing_ok=True)
    kept = {LOCK, CLAIM, *keep}
    for child in list(path.iterdir()):
        if _is_link(child) or not child.is_dir():
            if child.name not in kept:
                child.unlink()
        elif not keep:
            child.rmtree()
        elif child.name.startswith("."):
            continue  # a stage's own resumable state, such as checkpoints
        else:
            for file in list(_walk(child)):
                if str(file.relative_to(path)) not in kept:
                    file.unlink()


def _remove_parts(path: epath.Path, files: Mapping[str, Json]) -> None:
    """Removes what an interrupted run or a library left half-written beside the result."""
    for stray in list(_walk(path)):
        name = str(stray.relative_to(path))
        if name not in files and name.endswith(PART):
            stray.unlink()
    for folder in [child for child in path.iterdir() if child.name.endswith(PART)]:
        if folder.is_dir() and not any(name.startswith(f"{folder.name}/") for name in files):
            folder.rmtree()


def _refuse_links(path: epath.Path) -> None:
    """A link leads elsewhere, to files that are not ours to change or to remove.

    In place of a temporary file, which nobody keeps, it is removed itself.
    """
    if "://" in os.fspath(path):
        return
    for folder, below, names in os.walk(path):
        for name in (*below, *names):
            place = os.path.join(folder, name)
            if os.path.islink(place) and name.endswith(PART):
                os.unlink(place)
            elif os.path.islink(place):
                raise UserError(
                    f"{place} is a link to {os.readlink(place)}, which no run has made; remove "
                    "the link, or choose another --out"
                )


def _is_link(path: epath.Path) -> bool:
    return "://" not in os.fspath(path) and os.path.islink(path)


def _line(unit: Sequence[Json]) -> str:
    """A line of the journal: the files that became complete together."""
    return json.dumps(unit, default=_plain) + "\n"


def journal(path: epath.Path) -> dict[str, Json]:
    """The files that are complete in an unfinished folder: name -> what is recorded of them."""
    units = _read_journal(path / JOURNAL)
    return {entry.pop("name"): entry for unit in units for entry in unit}


def _read_journal(path: epath.Path) -> list[list[Json]]:
    if not path.exists():
        return []
    units = []
    for line in path.read_bytes().decode(errors="replace").splitlines():
        try:
            unit = json.loads(line)
        except (ValueError, RecursionError):
            break  # the last line of a killed run
        if not isinstance(unit, list) or not all(_is_noted(entry) for entry in unit):
            break
        units.append(unit)
    return units


def _is_noted(entry: Any) -> bool:
    return isinstance(entry, dict) and is_entry(entry.get("name"), entry)


def _walk(path: epath.Path) -> Iterator[epath.Path]:
    for child in path.iterdir():
        if child.is_dir() and not _is_link(child):
            yield from _walk(child)
        else:
            yield child


def _write_atomically(path: epath.Path, text: str) -> None:
    part = path.parent / (path.name + PART)
    if _is_link(part):
        part.unlink()
    with part.open("wb") as file:
        file.write(text.encode())
    durable.file(part)
    part.replace(path)
    durable.folder(path.parent)


def _plain(value: Any) -> Any:
    """JSON for what fields may hold: paths, numpy scalars, dataclasses by their repr."""
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return repr(value)


class _HashingFile(io.RawIOBase):
    """Passes bytes on and hashes them on the way."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.digest.update(data)
        return memoryview(data).nbytes
