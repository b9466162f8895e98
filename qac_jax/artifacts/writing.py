"""Writing artefacts: complete at the end, resumable after an interruption.

A folder becomes an artefact when `artifact.json` appears in it, and that file is written last.
Until then it carries `.unfinished.json` (who is writing it, under which key) and `.journal.jsonl`
(one line for every file or folder that is complete, or that a library has begun to write), so that
a killed run can be resumed: complete files are kept, the others of the run are deleted.

Only what a record or a journal names is ever deleted, and the journal names a temporary file before
it is written. A folder that holds anything else, or a link, is refused before anything is made in
it. One that is being emptied lists its files in `.unfinished.json` before the first of them goes,
so that it is ours to the end.

Files are on the disk (fsync) before anything relies on them, and the folders before the commit.

Identity is a hash of the content alone: kind, schema and the files' hashes. Settings, times and
logs (`volatile` files) are recorded but do not enter it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import IO, Any

from etils import epath

import qac_jax
from qac_jax import processes
from qac_jax.artifacts import arrays, disk, hashing
from qac_jax.artifacts.disk import LOCK
from qac_jax.artifacts.reading import (
    CLAIM,
    COMMIT,
    FORMAT,
    JOURNAL,
    PART,
    SCRATCH,
    identity_of,
    inside,
    is_entry,
    is_file,
    is_inside,
    peek,
    place,
    sealed,
)
from qac_jax.artifacts.schema import Json
from qac_jax.errors import DataError, UserError


# In a claim: the files of a folder that is being emptied; why the run failed.
CLEARING, FAILED = "clearing", "failed"
# Names that a run may leave before it has claimed a folder, or after.
_TRACES = {LOCK, CLAIM, JOURNAL, *(name + PART for name in (CLAIM, JOURNAL, COMMIT))}
_BLOCK = 1 << 20
# Where Orbax writes before it renames, and SQLite what it may undo.
_ORBAX, _SQLITE = ".orbax-checkpoint-tmp", "-journal"


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
    record: Json = {"format": FORMAT, "kind": kind, "schema": schema, "stage": stage, "key": key}
    record |= {"fields": dict(fields or {}), "inputs": dict(inputs or {}), "seed": seed}
    record["code"] = qac_jax.__version__
    refuse_link(path)
    try:
        _refuse_foreign(path)
        disk.make_folder(path)
    except OSError as error:
        raise UserError(f"{path} cannot be made ({error}); choose another --out") from error
    with disk.locked(path):
        _make_room(path, record, replace)
        writer = Writer(path, record)
        try:
            yield writer
        except BaseException as error:
            claim = {**record, FAILED: f"{type(error).__name__}: {error}"}
            with contextlib.suppress(OSError):
                _claim(path, {**claim, "bad_data": isinstance(error, DataError)})
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
        self._files = journal(path)
        self._written: set[str] = set()  # by this process, which took the hashes on the way

    def inner(self, name: str) -> Writer:
        """A writer of files that are needed until the artefact is complete."""
        folder = self.scratch(name)
        mend(folder)
        return Writer(folder, {})

    def __reduce__(self) -> Any:
        """Sent to another process, it writes apart from this one."""
        return ApartWriter, (os.path.abspath(self.path),)

    @property
    def done(self) -> frozenset[str]:
        """The files that are complete (after an interruption: those that were kept)."""
        return frozenset(self._files)

    def facts(self, name: str) -> Json:
        """The facts recorded with a finished file, such as the number of its records."""
        return self._files[name].get("facts", {})

    def part(self, name: str) -> epath.Path:
        """Where to write `name` until it is complete; then call `keep`."""
        part = self._home / (inside(name) + PART)
        part.parent.mkdir(parents=True, exist_ok=True)
        self._write_journal([{"begun": name + PART}])
        return part

    def keep(
        self, name: str, facts: Mapping[str, Any] | None = None, *, volatile: bool = False
    ) -> None:
        """Notes the complete `part(name)` in the journal and publishes it under its name; "sha256"
        among its facts is its hash."""
        part, known = self._home / (name + PART), dict(facts or {})
        entry = _entry(part, volatile, known.pop("sha256", None))
        if known:
            entry["facts"] = known
        self._note({name: entry})
        part.replace(self._home / name)

    @contextlib.contextmanager
    def open(self, name: str, mode: str = "w") -> Iterator[IO[Any]]:
        """A file that appears under its name only when the block ends without an error.

        `mode` is "w" (UTF-8 text) or "wb".
        """
        text: Any = {} if mode == "wb" else {"encoding": "utf-8", "newline": "\n"}
        with open(self.part(name), mode, _BLOCK, **text) as file:
            yield file
        self.keep(name)

    def write_text(self, name: str, text: str) -> None:
        with self.open(name) as file:
            file.write(text)

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(name, json.dumps(value, indent=1))

    def write_array(self, name: str, array: Any) -> None:
        with self.open(name, "wb") as file:
            arrays.write(file, array)

    def begin(self, name: str) -> epath.Path:
        """An empty place under its final name for a library that writes files or a folder there;
        `adopt` takes it when it is complete."""
        self._write_journal([{"begun": inside(name)}])
        target = self.path / name
        (target.rmtree if target.is_dir() else target.unlink)(missing_ok=True)
        return target

    def adopt(self, name: str, *, identity: str | None = None, volatile: bool = False) -> None:
        """Takes the file or folder that a library has written to `begin(name)`.

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
        self._note({str(f.relative_to(self.path)): _entry(f, volatile) for f in files})
        if identity is not None:
            self._contents[name] = identity

    def scratch(self, name: str) -> epath.Path:
        """A folder for temporary files, deleted when the artefact is complete."""
        folder = self.path / SCRATCH / inside(name)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def take(self, folder: str, entries: Mapping[str, Json]) -> None:
        """Moves finished files of another process here, with what it says of them."""
        for name, entry in entries.items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            self._note({name: entry})
            os.replace(os.path.join(folder, name), self.path / name)
        shutil.rmtree(folder, ignore_errors=True)

    def commit(self) -> None:
        """Writes `artifact.json`: from now on the folder is an artefact."""
        files = {
            name: {what: fact for what, fact in self._files[name].items() if what != "facts"}
            for name in sorted(self._files)
        }
        kind, schema = self._record["kind"], self._record["schema"]
        identity = identity_of(kind, schema, files, self._contents)
        record: Json = {**self._record, "count": self.count, "identity": identity}
        record |= {"info": self.info, "contents": self._contents, "files": files}
        record["written"] = _now()
        # What an interrupted run or a library has left half-written beside the result.
        left = (str(file.relative_to(self.path)) for file in _walk(self.path))
        begun = _named(self.path)[1]
        half = [n for n in left if PART in n and n not in files and _is_ours(n, files, begun)]
        _remove(self.path, half)
        disk.folders(self.path, files)
        record = sealed(json.loads(json.dumps(record, default=_plain)))
        write_atomically(self.path / COMMIT, json.dumps(record, indent=1))
        taken = self._written & files.keys()
        hashing.remember(self.path, {name: files[name]["sha256"] for name in taken})
        tidy(self.path)

    def _note(self, entries: Mapping[str, Json]) -> None:
        self._files.update(entries)
        self._written.update(entries)
        self._write_journal([{"name": name, **entry} for name, entry in entries.items()])

    def _write_journal(self, unit: Sequence[Json]) -> None:
        with (self._home / JOURNAL).open("a") as file:
            file.write(_line(unit))


class ApartWriter(Writer):
    """The writer of another process, which keeps no journal: files go to a folder of their own,
    from which the process that completes the artefact takes them."""

    def __init__(self, path: str):
        super().__init__(epath.Path(path), {})

    def begin(self, name: str) -> epath.Path:
        raise NotImplementedError("only the process that completes an artefact begins folders")

    def begin_shard(self) -> None:
        self._home = self.path / SCRATCH / "shards" / uuid.uuid4().hex
        self._files = {}

    def made(self) -> tuple[str, dict[str, Json]]:
        """Where the files of this shard are, and what is recorded of them."""
        return os.fspath(self._home), self._files

    def _write_journal(self, unit: Sequence[Json]) -> None:
        del unit


def _entry(file: epath.Path, volatile: bool, sha256: str | None = None) -> Json:
    """The record of a complete file, which is on the disk from now on."""
    disk.file(file)
    entry: Json = {"size": file.stat().length, "sha256": sha256 or hashing.hash_file(file)}
    return {**entry, "volatile": True} if volatile else entry


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def rewrite(path: epath.PathLike, record: Mapping[str, Any]) -> None:
    """Replaces the commit of a folder whose versions follow one another; take `locked` before."""
    whole = json.loads(json.dumps({**record, "written": _now()}, default=_plain))
    write_atomically(epath.Path(path) / COMMIT, json.dumps(sealed(whole), indent=1))


def tidy(path: epath.PathLike) -> None:
    """Removes temporary files, which an interrupted commit leaves behind."""
    path = epath.Path(path)
    shutil.rmtree(path / SCRATCH, ignore_errors=True)  # another process may still read there
    for name in (CLAIM, JOURNAL):
        (path / name).unlink(missing_ok=True)


def remove(path: epath.PathLike) -> None:
    """Removes a folder of ours, finished or not; refuses anything else."""
    path = epath.Path(path)
    refuse_link(path)
    if not path.exists():
        return
    record = peek(path)
    if record is None and any(p.name not in _TRACES for p in path.iterdir()):
        raise UserError(f"{path} is not a folder of ours, so it is not removed; remove it yourself")
    # A removal that is cut short leaves no artefact behind, but a folder that is ours.
    with disk.locked(path):
        names = _ours(path)
        _claim(path, {"format": FORMAT, "kind": "", "key": "", **(record or {}), CLEARING: names})
        _clear(path, names)
        path.rmtree()


@contextlib.contextmanager
def nothing_left(path: epath.PathLike) -> Iterator[None]:
    """A folder that is new is removed again, and those above it, where a refused run completed
    nothing there and keeps nothing."""
    path = epath.Path(path)
    new = disk.absent(path)
    try:
        yield
    except UserError as error:
        with contextlib.suppress(OSError, UserError):
            # Bad data: these are mended, or read in another way, so nothing here is resumed.
            kept = (path / SCRATCH).exists() and not isinstance(error, DataError)
            if new and not journal(path) and not kept:
                remove(path)
                for folder in new[1:]:
                    folder.rmdir()
        raise


def refuse_link(path: epath.PathLike) -> None:
    """Raises where the path is a link: what it leads to is not ours to change or to remove."""
    if os.path.islink(place(path)):
        raise UserError(
            f"{path} is a link to {os.readlink(path)}, which no run has made; remove the link, or "
            "choose another --out"
        )


def refuse_overlap(out: epath.PathLike, given: epath.PathLike, name: str) -> None:
    """Raises where a folder to write to and an input are the same, or one lies in the other."""
    source, target = _above(given), _above(out)
    if source[0] in target or target[0] in source:
        raise UserError(
            f"{out} and the input {name}{given} lie in one another; write to another folder, so "
            "that no input is written over"
        )


def _above(path: epath.PathLike) -> list[object]:
    """What a path is, whatever it is called, and the folders that it is in."""
    real = pathlib.Path(os.path.realpath(path))
    states = {p: p.stat() for p in (real, *real.parents) if p.exists()}
    return [(states[p].st_dev, states[p].st_ino) if p in states else p for p in (real, *states)]


def _refuse_foreign(path: epath.Path) -> bool:
    """Whether the folder holds anything; raises where that is not ours."""
    contents = [p for p in path.iterdir() if p.name not in _TRACES] if path.exists() else []
    if contents and peek(path) is None:
        raise UserError(
            f"{path} is not empty and not a folder of ours (it holds {contents[0].name}); "
            f"choose another --out or empty it"
        )
    return bool(contents)


def _make_room(path: epath.Path, claim: Json, replace: bool) -> None:
    """Empties the folder, except for the finished files of the same unfinished run."""
    contents, existing = _refuse_foreign(path), peek(path)
    names = _ours(path)
    if existing is not None:
        same = existing["key"] == claim["key"] and existing["kind"] == claim["kind"]
        clearing = existing.get(CLEARING) is not None
        if same and not existing["finished"] and not clearing:
            _clear(path, names, keep=mend(path))
            _claim(path, claim)
            return
        # A run that failed before it wrote anything leaves nothing to keep, nor does one that
        # stopped at bad data: these were mended, or are read in another way.
        going = same and clearing
        if not (replace or going or not contents or existing.get("bad_data")):
            state = "a finished" if existing["finished"] else "an unfinished"
            raise UserError(
                f"{path} holds {state} {existing['kind']} made with other settings; choose "
                f"another --out, or pass --overwrite to replace it"
            )
        _claim(path, {**claim, CLEARING: names})
    _clear(path, names)
    _claim(path, claim)


def _claim(path: epath.Path, record: Json) -> None:
    claim = {**record, "command": processes.command(), "pid": os.getpid()}
    write_atomically(path / CLAIM, json.dumps(claim, indent=1, default=_plain))


def mend(path: epath.Path) -> tuple[str, ...]:
    """Files of an interrupted run that are complete; the journal is rewritten to match."""

    def whole(entry: Json) -> bool:
        if "begun" in entry:
            return True
        file, part = path / entry["name"], path / (entry["name"] + PART)
        return file.exists() and not part.exists() and file.stat().length == entry["size"]

    units = [unit for unit in _read_journal(path) if all(map(whole, unit))]
    write_atomically(path / JOURNAL, "".join(map(_line, units)))
    return (JOURNAL, *journal(path))


def _ours(path: epath.Path) -> list[str]:
    """The files that runs have written into the folder; raises where it holds anything else.

    A link in place of a temporary file, which nobody keeps, is removed itself.
    """
    record = peek(path) or {}
    noted, begun = _named(path)
    recorded = [of for of in map(record.get, ("files", CLEARING)) if isinstance(of, dict | list)]
    names = {COMMIT, *noted, *(name for of in recorded for name in of if is_inside(name))}
    found = []
    for folder, below, files in os.walk(path):
        for name in (*below, *files):
            place = os.path.join(folder, name)
            relative = os.path.relpath(place, path)
            ours = _is_ours(relative, names, begun)
            if os.path.islink(place):
                if not (ours and name.endswith(PART)):
                    refuse_link(place)
                os.unlink(place)
            elif name in files and not relative.startswith(f"{SCRATCH}/"):
                found.append(relative)
                if not ours:
                    raise UserError(
                        f"{place} was not written by a run, so it is not removed; move it "
                        "elsewhere, or choose another --out"
                    )
    return found


def _named(folder: epath.PathLike) -> tuple[list[str], set[str]]:
    """The files of a journal, and what was begun and is not complete: all that lies in these
    folders is of the run."""
    begun, names = set[str](), list[str]()
    for entry in (entry for unit in _read_journal(folder) for entry in unit):
        if "begun" in entry:
            begun.add(entry["begun"])
        else:
            names.append(entry["name"])
            begun = {name for name in begun if not f"{names[-1]}/".startswith(f"{name}/")}
    return names, begun


def _is_ours(name: str, names: Collection[str], begun: Collection[str]) -> bool:
    """Whether a run wrote this: by name, into what it began, or as a library's temporary file."""
    *above, last = name.split("/")
    folders = map(str, PurePosixPath(name).parents[:-1])
    return (
        name in names
        or (name in _TRACES and not above)
        or not {name, *folders}.isdisjoint(begun)
        or (last.endswith(_SQLITE) and name.removesuffix(_SQLITE) in names)
        or any((p[0] == "." and p.endswith(PART)) or _ORBAX in p for p in (*above, last))
        or name.split("/")[0] == SCRATCH
    )


def _clear(path: epath.Path, names: Sequence[str], keep: Collection[str] = ()) -> None:
    """Removes these files but what is kept, and folders that are empty then.

    The claim and the lock stay. Where anything is kept, so are temporary files in the scratch
    folder, such as checkpoints."""
    (path / COMMIT).unlink(missing_ok=True)
    if not keep:
        shutil.rmtree(path / SCRATCH, ignore_errors=True)
    kept = {LOCK, CLAIM, *keep}
    _remove(path, [name for name in names if name not in kept])


def _remove(path: epath.Path, names: Sequence[str]) -> None:
    for name in names:
        (path / name).unlink(missing_ok=True)
    folders = {folder for name in names for folder in PurePosixPath(name).parents[:-1]}
    for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
        with contextlib.suppress(OSError):
            os.rmdir(path / folder)


def _line(unit: Sequence[Json]) -> str:
    """A line of the journal: the files that became complete together."""
    return json.dumps(unit, default=_plain) + "\n"


def journal(path: epath.Path) -> dict[str, Json]:
    """The files that are complete in an unfinished folder: name -> what is recorded of them."""
    return {e.pop("name"): e for unit in _read_journal(path) for e in unit if "name" in e}


def _is_noted(entry: Any) -> bool:
    return isinstance(entry, dict) and (
        is_inside(entry.get("begun")) or is_entry(entry.get("name"), entry)
    )


def _read_journal(path: epath.PathLike) -> list[list[Json]]:
    file = epath.Path(path) / JOURNAL
    if not is_file(file):
        return []
    text = file.read_bytes().decode(errors="replace")
    units = []
    with contextlib.suppress(ValueError, RecursionError):  # at the last line of a killed run
        for line in text.splitlines():
            unit = json.loads(line)
            if not isinstance(unit, list) or not all(map(_is_noted, unit)):
                break
            units.append(unit)
    return units


def _walk(path: epath.Path) -> Iterator[epath.Path]:
    for folder, _, files in os.walk(path):
        for name in files:
            yield epath.Path(folder) / name


def write_atomically(path: epath.Path, text: str) -> None:
    part = path.parent / (path.name + PART)
    if os.path.islink(part):
        part.unlink()
    with part.open("wb") as file:
        file.write(text.encode())
    disk.file(part)
    part.replace(path)
    disk.file(path.parent)


def _plain(value: Any) -> Any:
    """JSON for what fields may hold: paths, numpy scalars, dataclasses by their repr."""
    if hasattr(value, "item"):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else repr(value)
