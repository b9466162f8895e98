"""Faults that would stop a stage at its start, said before the first stage of a recipe runs.

Nothing is read but what artefacts say about themselves, and nothing is downloaded: names at the Hub
are looked up by `inputs.look_up`.
"""

import glob
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.hub import names
from qac_jax.pipeline import inputs
from qac_jax.pipeline.inputs import DATA, FILE, MODEL, STAGE, TOKENIZER
from qac_jax.text import tokenizers


_SAY_WHERE = "say where it is with --data_dir DIR"


def check_kinds(name: str, stage: Any, made: Mapping[str, str]) -> None:
    """Raises where a stage takes what another makes for something else; `made`: name -> kind."""
    for field, part, kinds in _parts(stage):
        target, slash, _ = part.removeprefix(STAGE).partition("/")
        if not part.startswith(STAGE) or slash or {FILE, TOKENIZER} & set(kinds):
            continue
        if made[target] not in kinds:
            raise UserError(
                f"{name}.{field} = {part!r}, which makes {made[target]}; expected "
                f"{' or '.join(kinds)}, so name another stage"
            )


def missing(stage: Any, data_dir: str = "") -> list[str]:
    """Every input that is not there, and why; what other stages make is not asked."""
    reasons = []
    for field, part, kinds in _parts(stage):
        if part.startswith(STAGE):
            continue
        if part.startswith(DATA) and not data_dir:
            reasons.append(f"{field}: {part} lies in the recipe's data folder; {_SAY_WHERE}")
            continue
        where = inputs.place(part, field, {}, data_dir)
        if why := _lacks(where, kinds):
            reasons.append(f"{field}: {where} {why}")
    return reasons


def local_models(stage: Any, data_dir: str = "") -> dict[str, str]:
    """Input -> the folder of the model that it names, where that is on this machine."""
    found = {}
    for field, part, kinds in _parts(stage):
        if MODEL not in kinds or part.startswith(STAGE) or part.startswith(DATA) and not data_dir:
            continue
        place = inputs.place(part, field, {}, data_dir)
        if place.startswith(names.SHIPPED):
            place = names.shipped_folder(place.removeprefix(names.SHIPPED))
        if os.path.isdir(place):
            found[field] = place
    return found


def check(stages: Mapping[str, Any], data_dir: str) -> None:
    """Raises before a recipe runs if one of its stages could not start."""
    if data_dir and not os.path.exists(data_dir):
        raise UserError(f"--data_dir {data_dir} does not exist; give the folder of the data")
    for name, stage in stages.items():
        for why in missing(stage, data_dir):
            raise UserError(f"nothing was run, since {name}.{why}")


def _parts(stage: Any) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Every part of every input: field, text, kinds."""
    for name, field in inputs.set_inputs(stage).items():
        kinds, value = field.metadata["kinds"], getattr(stage, name)
        whole = FILE in kinds and os.path.exists(value)  # a comma may be part of its name
        for part in [value] if whole else inputs.split(stage, name):
            yield name, part, kinds


def _lacks(text: str, kinds: Sequence[str]) -> str:
    """Why an input cannot be used, "" where nothing speaks against it."""
    if text.startswith(names.SHIPPED):
        try:
            names.shipped_folder(text.removeprefix(names.SHIPPED))
        except UserError as error:
            return f"cannot be had: {error}"
        return ""
    if "://" in text or (TOKENIZER in kinds and text in tokenizers.shipped()):
        return ""
    if os.path.exists(text):
        record = artifacts.peek(text)
        if {FILE, MODEL, TOKENIZER} & set(kinds) or record and record["kind"] in kinds:
            return ""
        found = f"is of kind {record['kind']}" if record else "is not an artefact"
        return f"{found}; expected {' or '.join(kinds)}"
    if {MODEL, TOKENIZER} & set(kinds) and (name := names.parsed(text)) is not None:
        local = os.path.isdir(text.partition("/")[0]) and not text.startswith(names.HUB)
        return "does not exist" if local and names.snapshot(*name) is None else ""
    if FILE in kinds and inputs.is_named(text):
        there = not text.startswith("hf:") or importlib.util.find_spec("datasets")
        return "" if there else "needs datasets, which is not installed; pip install datasets"
    return "" if FILE in kinds and glob.glob(text) else "does not exist"
