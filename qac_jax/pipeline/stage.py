"""The stage contract: a frozen dataclass that turns artefacts into one artefact (DESIGN.md).

Gin and flags only build it. Its key is a hash of its fields, of the identities of its inputs and
of its VERSION; a finished folder with the same key is never made again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from etils import epath

from qac_jax import artifacts, processes, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import Interrupted, UserError
from qac_jax import fields
from qac_jax.fields import artifact_input, option, source
from qac_jax.processes import Place


__all__ = ["Inputs", "Stage", "artifact_input", "execute", "option", "source"]

Inputs = Mapping[str, "Artifact | epath.Path"]

# "stage:NAME" in an input field names the output of another stage of the recipe.
REFERENCE = "stage:"

_SCHEME = re.compile(r"^[a-z][a-z0-9_+.-]*:")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """Base of all stages. Subclasses declare fields, VERB, KIND and `run`."""

    VERB: ClassVar[str] = ""
    KIND: ClassVar[str] = ""
    SCHEMA: ClassVar[int] = 1
    # Raise it when the same fields and inputs would give another result.
    VERSION: ClassVar[int] = 1
    EXAMPLE: ClassVar[str] = ""

    # Whether all processes of a run over several do the work; otherwise the others wait.
    SHARED: ClassVar[bool] = False

    seed: int = option(0, "seed of everything random in this stage")

    def run(self, inputs: Inputs, out: Writer) -> None:
        """Reads `inputs` (artefacts opened, sources as paths) and fills `out`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it runs")

    def summary(self, artifact: Artifact) -> str:
        """What the command line prints to stdout of the finished artefact."""
        del artifact
        return ""

    def environment(self) -> dict[str, str]:
        """What the result depends on beside fields and inputs, such as installed packages."""
        return {}

    def place(self) -> Place:
        """Which process of a run this is; only process 0 writes the artefact."""
        return processes.place()

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """What a dry run can say without reading data; `inputs` are the plans before it."""
        del inputs
        return {}


def input_fields(stage: Stage, role: str) -> list[dataclasses.Field[Any]]:
    """The fields of one role ("artifact" or "source") that are set."""
    return [
        field
        for field in dataclasses.fields(stage)
        if fields.role(field) == role and getattr(stage, field.name)
    ]


def references(stage: Stage) -> dict[str, str]:
    """Field name -> the stage of the recipe that it takes its input from.

    A source may be an artefact too, a file in one (`stage:NAME/FILE`), or several joined by
    commas: the second of them is called `field[1]`.
    """
    found = {}
    for field in input_fields(stage, "artifact") + input_fields(stage, "source"):
        for number, part in enumerate(parts_of(stage, field)):
            if part.startswith(REFERENCE):
                name = f"{field.name}[{number}]" if number else field.name
                found[name] = part.removeprefix(REFERENCE).split("/")[0]
    return found


def parts_of(stage: Stage, field: dataclasses.Field[Any]) -> list[str]:
    """What an input field names: one artefact, or the parts of a source."""
    value = getattr(stage, field.name)
    if fields.role(field) == "artifact":
        return [value]
    return [part.strip() for part in value.split(",")]


def open_inputs(stage: Stage) -> dict[str, Artifact | epath.Path]:
    """Opens every input; refuses what is missing or not whole."""
    opened: dict[str, Artifact | epath.Path] = {}
    for field in input_fields(stage, "artifact") + input_fields(stage, "source"):
        value = getattr(stage, field.name)
        if any(part.startswith(REFERENCE) for part in parts_of(stage, field)):
            raise UserError(
                f"{stage.VERB}.{field.name} = {value!r} only has a meaning in a recipe; "
                f"give the folder of an artefact"
            )
    for field in input_fields(stage, "artifact"):
        value = getattr(stage, field.name)
        opened[field.name] = artifacts.load(value, field.metadata["kind"])
    for field in input_fields(stage, "source"):
        opened[field.name] = epath.Path(getattr(stage, field.name))
    return opened


def identities(stage: Stage, inputs: Inputs) -> dict[str, str]:
    """The identity of every input: the artefact's, or the hash of a source's bytes."""
    return {
        name: value.identity if isinstance(value, Artifact) else source_identity(os.fspath(value))
        for name, value in inputs.items()
    }


def key_of(stage: Stage, input_identities: Mapping[str, str]) -> str:
    """What a finished folder is recognised by."""
    described = fields.describe(stage)
    for field in dataclasses.fields(stage):
        # Where an input lies does not matter; what it is does.
        if fields.role(field) in ("artifact", "source"):
            described.pop(field.name, None)
    decisive = {"fields": described, "inputs": dict(input_identities), "version": stage.VERSION}
    if environment := stage.environment():
        decisive["environment"] = environment
    return fields.digest(decisive)


def is_done(stage: Stage, out: epath.PathLike) -> Artifact | None:
    """The finished artefact in `out` if it is what this stage would make, else None."""
    record = artifacts.peek(out)
    if record is None or not record["finished"]:
        return None
    try:
        key = key_of(stage, identities(stage, open_inputs(stage)))
        return artifacts.load(out) if record["key"] == key else None
    except UserError:
        return None  # an input is gone, or the folder is damaged: it has to be made again


def execute(
    stage: Stage, out: epath.PathLike, *, replace: bool = False, documentation: str = ""
) -> Artifact:
    """Runs a stage into `out`, or takes the finished artefact that is there already."""
    fields.check(stage)
    inputs = open_inputs(stage)
    input_identities = identities(stage, inputs)
    key = key_of(stage, input_identities)
    record = artifacts.peek(out)
    if record is not None and record["finished"] and record["key"] == key:
        try:
            artifact = artifacts.load(out)
            progress.say(f"{stage.VERB}: {out} is up to date")
            return artifact
        except UserError as damage:
            if not replace:
                raise
            progress.say(f"{stage.VERB}: made again, since {damage}")
    if stage.place().number:
        return _follow(stage, inputs, out, key)
    began = time.monotonic()
    with interruptible():
        with artifacts.create(
            out,
            kind=stage.KIND,
            schema=stage.SCHEMA,
            key=key,
            stage=stage.VERB,
            fields=fields.describe(stage),
            inputs=input_identities,
            seed=stage.seed,
            replace=replace,
        ) as writer:
            stage.run(inputs, writer)
            writer.info["seconds"] = round(time.monotonic() - began, 3)
            writer.info["peak_resident_bytes"] = _peak_bytes()
            if documentation:
                writer.info["gin"] = documentation
    artifact = artifacts.load(out)
    progress.say(
        f"{stage.VERB}: {artifact.count:,} items of kind {artifact.kind} in {out} "
        f"({progress.human_seconds(artifact.info['seconds'])})"
    )
    return artifact


def _follow(stage: Stage, inputs: Inputs, out: epath.PathLike, key: str) -> Artifact:
    """Takes part in what process 0 of this run does, and opens what it writes."""
    with interruptible():
        if stage.SHARED:
            stage.run(inputs, Writer(epath.Path(out), {}))
        while (record := artifacts.peek(out)) is None or not record["finished"]:
            time.sleep(0.2)
    if record["key"] != key:
        raise UserError(f"{out} holds an artefact made with other settings; choose another --out")
    return artifacts.load(out)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM end the block with `Interrupted`, so that files are closed in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: object) -> None:
        raise Interrupted(number)

    def again(ignored: Any) -> None:
        # It came where Python lets nothing out, as in the garbage collector's callback that JAX
        # has: the signal is sent once more from outside.
        if isinstance(ignored.exc_value, Interrupted):
            number = ignored.exc_value.signal_number
            threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        else:
            hook(ignored)

    hook, sys.unraisablehook = sys.unraisablehook, again
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def source_identity(text: str) -> str:
    """The hash of the bytes of a file, a folder, a pattern or a list of them.

    A name such as `tfds:squad` stands for itself: nobody can hash what is not here yet.
    """
    if not text:
        return ""
    if not os.path.exists(text):
        if "," in text:
            return fields.digest([source_identity(part.strip()) for part in text.split(",")])
        if matches := sorted(glob.glob(text)):
            return fields.digest([source_identity(match) for match in matches])
        if _SCHEME.match(text) and "://" not in text:
            return text
        if "://" not in text:
            raise UserError(f"{text} does not exist; give an existing file or folder")
    path = epath.Path(text)
    if not path.exists():
        raise UserError(f"{text} does not exist; give an existing file or folder")
    if (path / artifacts.COMMIT).exists():
        return artifacts.load(path).identity
    if path.is_dir():
        children = sorted(p for p in path.iterdir() if not p.name.startswith("."))
        return fields.digest([(p.name, source_identity(os.fspath(p))) for p in children])
    return _hash_once(text)


def _hash_once(path: str) -> str:
    """The sha256 of a file; remembered by path, size and time, since corpora are large."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:  # not a local file
        return hashlib.sha256(epath.Path(path).read_bytes()).hexdigest()
    remembered = _HashCache()
    signature = f"{os.path.realpath(path)}\t{stat.st_size}\t{stat.st_mtime_ns}"
    known = remembered.get(signature)
    if known is None:
        with open(path, "rb") as file:
            known = hashlib.file_digest(file, "sha256").hexdigest()
        remembered.put(signature, known)
    return known


def user_cache() -> Path:
    """Where things are remembered between runs that cost only time to lose."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "qac_jax"


class _HashCache:
    """Hashes of large sources, in the user's cache folder; losing it costs time only."""

    SMALL = 1 << 24

    def __init__(self) -> None:
        self._path = user_cache() / "source_hashes.jsonl"

    def get(self, signature: str) -> str | None:
        if int(signature.split("\t")[1]) < self.SMALL:
            return None
        found = None
        with contextlib.suppress(OSError):
            for line in self._path.read_text().splitlines():
                with contextlib.suppress(ValueError, KeyError):
                    record = json.loads(line)
                    if record["file"] == signature:
                        found = record["sha256"]
        return found

    def put(self, signature: str, sha256: str) -> None:
        if int(signature.split("\t")[1]) < self.SMALL:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps({"file": signature, "sha256": sha256}) + "\n")


def _peak_bytes() -> int:
    """The largest resident size of this process so far (Linux counts in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
