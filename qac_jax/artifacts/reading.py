"""Reading artefacts: folders that are complete, or raise an error.

The bytes of an artefact are compared with their hashes when they are first used: damage of equal
size (a disk's, a copy's) would otherwise give other results in silence. Every version of a file is
read once on a machine; the hashes of what it has just written are known already. QAC_VERIFY=0 in
the environment leaves it out; stores such as gs:// check what they hold themselves.
"""

import contextlib
import hashlib
import json
import os
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from qac_jax import fields
from qac_jax.artifacts import hashing, schema
from qac_jax.artifacts.schema import Json
from qac_jax.errors import UserError, sound


COMMIT = "artifact.json"
CLAIM = ".unfinished.json"
JOURNAL = ".journal.jsonl"
PART = ".part"
SCRATCH = ".scratch"
STAGES = "stages"  # in the --out of a run: what are not its results

FORMAT = "qac_jax"
VERIFY = "QAC_VERIFY"
# The hash of the rest of a record.
SEAL = "record_sha256"


class Artifact:
    """A finished folder, opened for reading."""

    def __init__(self, path: epath.Path, record: Json):
        self.path, self.record = path, record
        vars(self).update({name: record[name] for name in _TYPES})

    kind: str
    schema: int
    count: int
    identity: str
    stage: str
    key: str
    fields: Json
    inputs: dict[str, str]
    seed: int | None
    info: Json
    contents: dict[str, str]  # identities that stand for all files below their names
    files: dict[str, Json]

    def __repr__(self) -> str:
        return f"Artifact({self.path}, {self.kind}, {self.count} items, {self.identity[:12]})"

    def file(self, name: str) -> epath.Path:
        if name not in self.files and not any(f.startswith(f"{name}/") for f in self.files):
            raise UserError(
                f"{self.path} ({self.kind}) has no {name}; it holds {', '.join(self.files)}"
            )
        return self.path / name

    def matching(self, prefix: str, suffix: str = "") -> list[epath.Path]:
        """The files with this prefix and suffix, sorted by name."""
        names = sorted(n for n in self.files if n.startswith(prefix) and n.endswith(suffix))
        return [self.path / name for name in names]

    def json(self, name: str) -> Any:
        """The content of a JSON file."""
        with sound(self.path / name):
            content = json.loads(self.file(name).read_text())
            schema.check(content, schema.FILES.get(name, {}))
            return content

    def verify(self) -> None:
        """Reads every byte again and compares it with the hashes taken while writing."""
        for name, entry in self.files.items():
            if entry["sha256"] and hashing.hash_file(self.path / name) != entry["sha256"]:
                raise _damaged(self.path / name)


_TYPES: dict[str, Any] = {**typing.get_type_hints(Artifact), "files": dict}
_UNSEALED = {*_TYPES, "format", "code", "written"}


def place(path: epath.PathLike) -> epath.Path:
    """A path; raises for an address in an object store."""
    if "://" in os.fspath(path):
        raise UserError(
            f"{path} is in an object store; mount it (gcsfuse, mountpoint-s3), and give the folder"
        )
    return epath.Path(path)


def load(path: epath.PathLike, kind: str | Sequence[str] | None = None) -> Artifact:
    """Opens a finished artefact; raises if it is missing, unfinished, damaged or another kind."""
    path = place(path)
    kinds = (kind,) if isinstance(kind, str) else tuple(kind or ())
    wanted = " or ".join(kinds)
    commit = path / COMMIT
    if not is_file(commit):
        meant = f"an artefact of kind {wanted}" if kinds else "an artefact"
        raise UserError(_why_not_whole(path, meant))
    try:
        record = json.loads(commit.read_text())
        _check_record(record)
        artifact = Artifact(path, record)
    except (UserError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{commit} cannot be read ({type(error).__name__}: {error}); it is damaged or not "
            f"ours: remove the folder and make it again"
        ) from error
    if kinds and artifact.kind not in kinds:
        raise UserError(f"{path} is of kind {artifact.kind!r}; expected {wanted}")
    for name, entry in artifact.files.items():
        file = path / name
        size = file.stat().length if is_file(file) else None
        grown = entry.get("grows") and size is not None and size > entry["size"]
        if size != entry["size"] and not grown:
            state = "missing" if size is None else f"{size} bytes long"
            raise UserError(
                f"{path} is damaged: {name} is {state} instead of {entry['size']} bytes; "
                f"remove the folder and make it again"
            )
    _check_bytes(path, artifact.files)
    return artifact


def peek(path: epath.PathLike) -> Json | None:
    """The record of a finished or unfinished artefact; None for other folders."""
    folder = place(path)
    for name in (COMMIT, CLAIM):
        file = folder / name
        if is_file(file):
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(file.read_text())
                if isinstance(record, dict) and record.get("format") == FORMAT:
                    if isinstance(record.get("kind"), str) and isinstance(record.get("key"), str):
                        return {**record, "finished": name == COMMIT}
    return None


def identity_of(
    kind: str, schema: int, files: Mapping[str, Json], contents: Mapping[str, str]
) -> str:
    """The hash of the content; `contents` stand for all files below their names."""
    digest = hashlib.sha256(f"{kind}\n{schema}\n".encode())
    parts = dict(contents)
    for name, entry in files.items():
        covered = any(f"{name}/".startswith(f"{c}/") for c in contents)
        if not covered and not entry.get("volatile"):
            parts[name] = entry["sha256"]
    for name in sorted(parts):
        digest.update(f"{name}\n{parts[name]}\n".encode())
    return digest.hexdigest()


def _why_not_whole(path: epath.Path, wanted: str) -> str:
    if not path.exists():
        return f"{path} does not exist; expected {wanted}"
    if (record := peek(path)) is not None:
        return (
            f"{path} is unfinished ({record['kind']}, begun by `{record.get('command', '?')}`); "
            f"re-run that command to complete it"
        )
    return f"{path} is not a folder of ours (no {COMMIT} in it); expected {wanted}"


def sealed(record: Json) -> Json:
    """The record with a hash of itself, so that damage in it is noticed too."""
    return {**record, SEAL: _seal(record)}


def is_entry(name: Any, entry: Any) -> bool:
    """Whether this describes a file of the folder."""
    return is_inside(name) and fields.fits(entry, schema.ENTRY) and entry["size"] >= 0


def is_inside(name: Any) -> bool:
    """Whether this names something below the folder, and in one way only."""
    outside = {"", ".", ".."}
    return isinstance(name, str) and "\0" not in name and outside.isdisjoint(name.split("/"))


def inside(name: str) -> str:
    """The name of something to write; raises where it would lie outside of the folder."""
    if not is_inside(name):
        raise UserError(f"{name!r} does not name a file inside of --out; change that name")
    return name


def is_file(path: epath.Path) -> bool:
    """Whether there is a file that can be read: a pipe would be waited for."""
    return os.path.isfile(path)


def _seal(record: Json) -> str:
    content = {name: value for name, value in record.items() if name != SEAL}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _check_record(record: Any) -> None:
    """Raises ValueError, TypeError or KeyError for a record that was not written like this."""
    if record["format"] != FORMAT:
        raise KeyError("format")
    schema.check(record, _TYPES)
    schema.check(record["info"], schema.INFO.get(record["kind"], {}))
    if record["count"] < 0:
        raise ValueError(f"count is {record['count']}")
    for name, entry in record["files"].items():
        if not is_entry(name, entry):
            raise ValueError(f"{name!r} does not describe a file of the folder")
    # Artefacts of earlier versions have no seal, and nothing in its place.
    sealed = record[SEAL] == _seal(record) if SEAL in record else _UNSEALED.issuperset(record)
    if not sealed:
        raise ValueError("it was changed after it was written")


def _check_bytes(path: epath.Path, files: Mapping[str, Json]) -> None:
    """Raises UserError where a file has other bytes than were written."""
    if os.environ.get(VERIFY, "1") == "0":
        return
    kept = {n: entry for n, entry in files.items() if not entry.get("volatile")}
    written = {n: entry["sha256"] for n, entry in kept.items() if entry["sha256"]}
    for name, sha256 in hashing.hashes(path, written, expected=written).items():
        if sha256 != written[name]:
            raise _damaged(path / name)


def _damaged(path: epath.Path) -> UserError:
    return UserError(
        f"{path} is damaged: its bytes are not those that were written; remove the folder and "
        "make it again"
    )
