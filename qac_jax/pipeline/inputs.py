"""Inputs of stages: one declaration for artefacts, model folders, files and names.

    passages: Ref = input("what is searched", "passages", FILE)

An input's value is one text on the command line, in gin and in Python:

- the folder of an artefact of one of its kinds;
- a model folder, where MODEL is among its kinds: ours, Hugging Face's, sentence-transformers', or
  the name of a model at the Hub (`owner/name`, `owner/name@revision`; a folder of that name here
  comes first, unless one writes `hf:owner/name`);
- a file, a folder, a pattern, several of them joined by commas, or the name of a data set
  (`hf:squad`), where FILE is among its kinds;
- `openai:BASE_URL#MODEL`, a language model at an address, where a stage calls one;
- the name of a vocabulary, where TOKENIZER is its kind, or a model of which it is;
- in recipes `stage:NAME`, the output of another stage, or `stage:NAME/FILE`, a file in it;
- `data:NAME`, NAME below the recipe's data folder (`data:` is that folder itself);
- `shipped:NAME`, what comes with the package.

`many=True` takes several artefacts or folders, joined by commas.
"""

import dataclasses
import glob
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from qac_jax import artifacts, fields
from qac_jax.artifacts import Artifact, hashing
from qac_jax.errors import UserError
from qac_jax.formats.records import Records
from qac_jax.formats.registry import DOCUMENTS
from qac_jax.hub import names
from qac_jax.inference import endpoint


# The text that names an input.
Ref = str
# The plan of a stage (its size and its cost, as far as they are known), and those of its inputs.
Plan = dict[str, Any]
Plans = Mapping[str, Mapping[str, Any]]

# Kinds of inputs that are not artefacts of ours (an exported model is both).
FILE, MODEL = "file", "model"
# A vocabulary that ships or a folder with one; the stage's `environment` says which it is.
TOKENIZER = "tokenizer"

STAGE, DATA = "stage:", "data:"

# Files of a linked folder whose size and time are noted.
_LISTED = 10_000


def input(help: str, *kinds: str, default: Any = fields.REQUIRED, many: bool = False) -> Any:
    """An input field."""
    metadata = {"help": help, "kinds": kinds, "many": many}
    return dataclasses.field(default=default, metadata=metadata)


def model_input(help: str, **options: Any) -> Any:
    """An input that is a model: an artefact of ours, a folder, or a name (hub/names.py)."""
    return input(help, "parameters", MODEL, **options)


def skip_bad_option(what: str = "records") -> Any:
    """How many bad records may be skipped: that decides whether a run ends well, not its result."""
    help = f"skip and list at most N bad {what}"
    return fields.option(0, help, at_least=0, affects_result=False)


@dataclasses.dataclass(frozen=True)
class Group:
    """A rule about which inputs and settings may be combined."""

    names: tuple[str, ...]
    counts: tuple[int, ...]  # how many of them may be given
    rule: str

    def check(self, stage: Any) -> None:
        values = fields.values(stage)
        present = [f"--{name}" for name in self.names if values[name]]
        if len(present) not in self.counts:
            flags = ", ".join(f"--{name}" for name in self.names)
            given = " and ".join(present) or "none"
            raise UserError(f"{stage.VERB} takes {self.rule} of {flags}; {given} of them is given")


def one_of(*names: str) -> Group:
    return Group(names, (1,), "one")


def at_most_one_of(*names: str) -> Group:
    return Group(names, (0, 1), "at most one")


def together(*names: str) -> Group:
    return Group(names, (0, len(names)), "all or none")


class Inputs(dict[str, Any]):
    """A stage's inputs, opened: field name -> Artifact or path (several: a tuple of them)."""

    def artifact(self, name: str) -> Artifact:
        value = self[name]
        assert isinstance(value, Artifact), f"{name} is not an artefact"
        return value

    def get_artifact(self, name: str) -> Artifact | None:
        """The same, or None where the input is not given or is not an artefact of ours."""
        return self.artifact(name) if isinstance(self.get(name), Artifact) else None

    def path(self, name: str) -> epath.Path:
        (path,) = self.paths(name)
        return path

    def text(self, name: str) -> str:
        """The same as text, "" where the input is not given; several are joined by commas."""
        return ",".join(map(os.fspath, self.paths(name)))

    def paths(self, name: str) -> list[epath.Path]:
        value = self.get(name, ())
        parts = value if isinstance(value, tuple) else (value,)
        return [part.path if isinstance(part, Artifact) else part for part in parts]

    def records(self, name: str) -> Records:
        return Records(self.artifact(name))

    def get_records(self, name: str) -> Records | None:
        return self.records(name) if self.get_artifact(name) else None


def declared(cls: Any) -> dict[str, dataclasses.Field[Any]]:
    return {f.name: f for f in dataclasses.fields(cls) if fields.is_input(f)}


def set_inputs(stage: Any) -> dict[str, dataclasses.Field[Any]]:
    return {name: f for name, f in declared(stage).items() if getattr(stage, name)}


def split(stage: Any, name: str) -> list[str]:
    """The names in an input: its text, or its parts where it may have several."""
    field, value = declared(stage)[name], getattr(stage, name)
    if field.metadata["many"] or FILE in field.metadata["kinds"]:
        return [part.strip() for part in value.split(",")]
    return [value]


def references(stage: Any) -> dict[str, str]:
    """Input -> the stage of the recipe that it comes from; the second part is `name[1]`."""
    stages = {}
    for name in set_inputs(stage):
        for number, part in enumerate(split(stage, name)):
            if part.startswith(STAGE):
                label = f"{name}[{number}]" if number else name
                stages[label] = part.removeprefix(STAGE).split("/")[0]
    return stages


def located(stage: Any, folders: Mapping[str, epath.Path], data_dir: str) -> Any:
    """The stage with every `stage:` and `data:` replaced by its path."""
    return _changed(stage, lambda part, label, _: place(part, label, folders, data_dir))


def resolved(stage: Any) -> Any:
    """The stage with what ships and what comes from the Hub or a store replaced by its path."""
    return _changed(stage, _resolved)


def look_up(stages: Mapping[str, Any]) -> None:
    """Raises for a name that is not known, before any stage of a recipe runs."""
    for name, stage in stages.items():
        try:
            resolved(stage)
        except UserError as error:
            raise UserError(f"stage {name}: {error}") from error


def pinned(stage: Any) -> Any:
    """The stage with snapshots of the Hub named as such, to be written down: owner/name@COMMIT."""
    return _changed(stage, lambda part, label, kinds: names.pinned(part))


def _changed(stage: Any, change: Callable[[str, str, Sequence[str]], str]) -> Any:
    """The stage with every part of its inputs changed, given that part, its label and kinds."""
    changes = {
        name: ",".join(
            change(part, f"{stage.VERB}.{name}", field.metadata["kinds"])
            for part in split(stage, name)
        )
        for name, field in set_inputs(stage).items()
    }
    return dataclasses.replace(stage, **changes) if changes else stage


def place(part: str, label: str, folders: Mapping[str, epath.Path], data_dir: str) -> str:
    """Where one input lies. `label` names it in messages."""
    if part.startswith(STAGE):
        name, _, file = part.removeprefix(STAGE).partition("/")
        if name not in folders:
            raise UserError(f"{label} = {part!r} names a stage of a recipe; give a folder here")
        return os.path.join(folders[name], file) if file else os.fspath(folders[name])
    if not part.startswith(DATA):
        return part
    if not data_dir:
        where = "say where it is with --data_dir DIR" if folders else "give its path here"
        raise UserError(f"{label} = {part!r} lies in a recipe's data folder; {where}")
    return os.path.join(data_dir, part.removeprefix(DATA)) if part != DATA else data_dir


def _resolved(part: str, label: str, kinds: Sequence[str]) -> str:
    if part.startswith((STAGE, DATA, endpoint.PREFIX)):
        return part
    artifacts.place(part)
    want = next((kind for kind in (MODEL, TOKENIZER) if kind in kinds), "")
    try:
        if part.startswith(names.SHIPPED):
            return names.shipped_folder(part.removeprefix(names.SHIPPED))
        return names.located(part, want) if want else part
    except UserError as error:
        raise UserError(f"{label}: {error}") from error


def opened(stage: Any) -> Inputs:
    """Opens every input; raises if one is missing, of a wrong kind or incomplete."""
    inputs = Inputs()
    for name, field in set_inputs(stage).items():
        kinds, value = field.metadata["kinds"], getattr(stage, name)
        if field.metadata["many"]:
            inputs[name] = tuple(_opened(part, kinds) for part in split(stage, name))
        elif TOKENIZER not in kinds:
            inputs[name] = _opened(value, kinds)
    return inputs


def refuse_overlap(stage: Any, out: epath.PathLike) -> None:
    """Raises where the output folder is an input, or one of them lies in the other."""
    for name in set_inputs(stage):
        for part in {getattr(stage, name), *split(stage, name)}:
            for path in [part] if os.path.exists(part) else glob.glob(part):
                artifacts.refuse_overlap(out, path, f"--{name} ")
    for path in stage.reads():
        artifacts.refuse_overlap(out, path, "")


def _opened(text: str, kinds: Sequence[str]) -> Artifact | epath.Path | str:
    """The artefact that the text names, if its kind is expected; otherwise a path."""
    if endpoint.is_named(text):
        return text
    wanted = tuple(kind for kind in kinds if kind != FILE)
    if not wanted or ("," in text and FILE in kinds):
        return artifacts.place(text)
    if FILE in kinds or MODEL in kinds:
        record = artifacts.peek(text) if os.path.isdir(text) else None
        # A folder of ours may be read as files, such as questions in BEIR's layout.
        if record is None or (FILE in kinds and record["kind"] not in wanted):
            return artifacts.place(text)
    return artifacts.load(text, wanted)


def identities(inputs: Inputs) -> dict[str, str]:
    """The identity of every input: the artefact's, or the hash of a file's bytes."""
    hashes = {}
    for name, value in inputs.items():
        for number, part in enumerate(value if isinstance(value, tuple) else (value,)):
            label = f"{name}[{number}]" if number else name
            hashes[label] = part.identity if isinstance(part, Artifact) else identity(str(part))
    return hashes


def identity(text: str) -> str:
    """The hash of the bytes of a file, a folder, a pattern or a list of them.

    A name such as `hf:squad` is its own identity, since the data may not be downloaded yet, and
    a snapshot of the Hub has its name and commit, since its folder may hold some files or all.
    """
    if not text:
        return ""
    if endpoint.is_named(text):  # whose port and path may change
        _, model, host = endpoint.address(text)
        return f"{endpoint.PREFIX}{host}#{model}"
    if names.origin(Path(text)) is not None:
        return f"{names.HUB}{names.pinned(text)}"
    if not os.path.exists(text):
        if "," in text:
            return fields.digest([identity(part.strip()) for part in text.split(",")])
        if matches := [] if os.path.islink(text) else sorted(glob.glob(text)):
            return fields.digest([identity(match) for match in matches])
        if is_named(text):
            commit = names.data_commit(text)
            return f"{text.partition('@')[0]}@{commit}" if commit else text
    path = artifacts.place(text)
    if not path.exists():
        raise UserError(f"{text} does not exist; give an existing file or folder")
    if (path / artifacts.COMMIT).exists():
        return artifacts.load(path).identity
    if path.is_dir():
        children = sorted(p for p in path.iterdir() if not p.name.startswith("."))
        return fields.digest([(p.name, _identity_in(os.fspath(p))) for p in children])
    if not os.path.isfile(text):
        raise UserError(f"{text} is neither a file nor a folder; give what can be read again")
    return hashing.sha256_once(text)


def _identity_in(path: str) -> str:
    """The same of what a folder holds, which may be anything that folders hold."""
    if not os.path.exists(path):
        return "a link to nothing"
    if not (os.path.isdir(path) or os.path.isfile(path)):
        return "neither a file nor a folder"
    if os.path.islink(path) and os.path.isdir(path):
        target, folder = os.path.realpath(path), os.path.realpath(os.path.dirname(path))
        upwards = os.path.commonpath([target, folder]) == target
        return "a link upwards" if upwards else fields.digest(_listing(path))
    try:
        return identity(path)
    except PermissionError:
        return "unreadable"


def _listing(path: str) -> list[str]:
    """The content of a linked folder, by name, size and time: the first thousands of its files."""
    entries = [os.path.realpath(path)]
    for folder, below, files in os.walk(path):
        below.sort()
        for name in sorted(files):
            if len(entries) >= _LISTED:
                return entries
            status = os.lstat(os.path.join(folder, name))
            entries.append(f"{folder}/{name} {status.st_size} {status.st_mtime_ns}")
    return entries


def is_named(text: str) -> bool:
    return DOCUMENTS.named(text) is not None
