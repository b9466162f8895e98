"""What a training leaves as an artefact: parameters, tokenizer, metrics, checkpoints to keep."""

from __future__ import annotations

import json
import shutil
from typing import Any

from etils import epath

from qac_jax.artifacts import Writer, link
from qac_jax.hub import parameters
from qac_jax.objectives.objective import Objective
from qac_jax.training import journal, profiler, report, start


# Folder of the checkpoints of --keep_every.
CHECKPOINTS = "checkpoints"


def write(
    out: Writer,
    work: epath.Path,
    objective: Objective,
    params: Any,
    tokenizer: epath.Path,
    *,
    checkpoints: bool,
) -> None:
    """Writes the artefact's files from host arrays and from the scratch folder of the run."""
    module, kept = start.exported(objective, params)
    folders = {parameters.EXPORTED: kept}
    if report.count_parameters(kept) != report.count_parameters(params):
        folders[parameters.WHOLE] = params
    for name, tree in folders.items():
        shutil.rmtree(out.path / name, ignore_errors=True)
        out.adopt(name, identity=parameters.save(out.path / name, tree))
    with out.open(parameters.MODULE) as file:
        json.dump(parameters.describe_module(module), file, indent=1)
    shutil.copytree(tokenizer, out.path / parameters.TOKENIZER, dirs_exist_ok=True)
    out.adopt(parameters.TOKENIZER)
    metrics = work / "metrics.jsonl"
    shutil.copyfile(metrics, out.path / metrics.name)
    out.adopt(metrics.name, volatile=True)
    out.count = report.count_parameters(kept)
    kept_folders = [CHECKPOINTS] if checkpoints else []
    if (work / profiler.FOLDER).exists():
        kept_folders.append(profiler.FOLDER)
        journal.announce(profiler.how_to_open(out.path / profiler.FOLDER))
    for name in kept_folders:
        shutil.rmtree(out.path / name, ignore_errors=True)
        # Linked: a run that is killed here still has them to go on from.
        shutil.copytree(work / name, out.path / name, copy_function=link)
        out.adopt(name, volatile=True)
