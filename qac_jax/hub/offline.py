"""Which names resolve without a network: what ships, models in the Hub's cache, prepared data.

for one in offline.all_names():
    print(one.name, one.what, one.lacks)
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from qac_jax.errors import UserError
from qac_jax.hub import hub_cache, names, shipped


class Local(NamedTuple):
    """A name that is known here; `lacks` says why it cannot be used as it is, and what helps."""

    name: str
    what: str
    path: str
    lacks: str = ""


def all_names() -> list[Local]:
    """Everything that is known here by a name, usable or not."""
    return [*_shipped(), *_models(), *_hub_data(), *_prepared()]


def _shipped() -> Iterator[Local]:
    for name in shipped.names():
        path = Path(shipped.folder(name))
        if path.is_file():
            what = "questions"
        else:
            what = _model(path)[0] if (path / "config.json").exists() else "vocabulary"
        yield Local(f"{shipped.SCHEME}{name}", what, str(path))


def _models() -> Iterator[Local]:
    """A model by its branches and tags: the names that people write."""
    for name in hub_cache.models():
        for revision in hub_cache.revisions(name):
            wanted = names.HubName(name, "" if revision == hub_cache.MAIN else revision)
            place = hub_cache.snapshot(name, revision)
            if place is None:
                yield Local(str(wanted), "model", "", f"no files of it; run {wanted.command}")
                continue
            what, lacks = _model(place)
            if file := names.lacking(place):
                only = names.tokenizer_folder(place) is not None
                what = "tokenizer" if only else what
                lacks = f"{file} is missing; run {wanted.command}"
            yield Local(str(wanted), what, str(place), lacks)


def _model(place: Path) -> tuple[str, str]:
    """What a model folder holds in a few words, and why it is not read ("": it is)."""
    from qac_jax.models import backbone
    from qac_jax.models.backbone import Architecture

    kinds, classes = [], []
    for part in names.described(place):
        raw = names.read_json(place / part / "config.json")
        if "model_type" not in raw:
            continue  # a dense layer
        kinds.append(str(raw["model_type"]))
        classes += [str(name) for name in raw.get("architectures") or ()]
        config = backbone.reading(raw, Architecture)
        try:
            if config is None:
                return kinds[-1], f"{kinds[-1]} models are not read here; use another model"
            config.from_hf(raw, **dict.fromkeys(config.hf_parts, False))
        except UserError as error:
            return kinds[-1], f"{error}"
    what = " and ".join(dict.fromkeys(kinds)) or "model"
    if (place / "modules.json").is_file():
        what += ", sentence-transformers"
    elif any(name.endswith("ForSequenceClassification") for name in classes):
        what += ", cross-encoder"
    return what, ""


def _hub_data() -> Iterator[Local]:
    if importlib.util.find_spec("datasets") is None:
        return
    for path in sorted(hub_cache.folder().glob("datasets--*")):
        name = path.name.removeprefix("datasets--").replace("--", "/")
        if hub_cache.snapshot(name, kind="dataset"):
            yield Local(f"{names.HUB}{name}", "data set", str(path))


def _prepared() -> Iterator[Local]:
    """The data sets that TensorFlow Datasets has prepared: NAME[/CONFIG]:VERSION."""
    root = Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    for depth in ("*/*", "*/*/*"):
        for file in sorted(root.glob(f"{depth}/dataset_info.json")):
            *name, version = file.parent.relative_to(root).parts
            form = names.read_json(file).get("fileFormat", "tfrecord")
            lacks = "" if form == "array_record" else f"prepared as {form}, not as array_record"
            yield Local(f"tfds:{'/'.join(name)}:{version}", "data set", str(file.parent), lacks)
