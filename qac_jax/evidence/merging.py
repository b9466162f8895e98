"""Slices of any number of machines into the grid's summary, with the device of every figure."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etils import epath

from qac_jax import progress
from qac_jax.errors import UserError
from qac_jax.evaluation import results
from qac_jax.evaluation.results import Result
from qac_jax.evidence import layout, settings, slices
from qac_jax.evidence.layout import Bundle, PackedCell, finished
from qac_jax.evidence.slices import LEDGER
from qac_jax.pipeline import grid as grids_lib
from qac_jax.pipeline.grid import Grid
from qac_jax.report import grids


def merge(archive: Path, folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Writes summary.json and summary.md as a grid does; returns the summary.

    Comparisons are tested when no cell is missing; otherwise it says which are.
    """
    figures: dict[str, dict[int, dict[str, Result]]] = {}
    devices: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        bundle = layout.unpack(archive, Path(scratch) / "bundle")
        for number, folder in enumerate(folders):
            root = Path(scratch) / str(number)
            slices.unpack(folder, bundle, root)
            for cell in bundle.cells:
                of = _results(cell, root, Path(scratch) / "bundle")
                if of is None:
                    continue
                before = figures.get(cell.system, {}).get(cell.seed)
                if before is not None:
                    if _means(before) != _means(of):
                        progress.say(
                            f"{cell.name} in {folder} has other figures than before; the first "
                            "are taken"
                        )
                    continue
                figures.setdefault(cell.system, {})[cell.seed] = of
                devices[cell.name] = _devices(cell, bundle, root)
    missing = [cell.name for cell in bundle.cells if cell.name not in devices]
    if not figures:
        raise UserError("no cell is finished in these slices; run more of them")
    grid = _grid(bundle)
    in_order = {
        cell.system: figures[cell.system] for cell in bundle.cells if cell.system in figures
    }
    summary = {
        **grids.summarize(in_order, grids_lib.layout(grid), tested=not missing),
        "devices": devices,
        "missing": missing,
    }
    out.mkdir(parents=True, exist_ok=True)
    grids_lib.write_summary(epath.Path(out), grid, summary)
    if missing:
        progress.say(
            f"{len(missing)} of {len(bundle.cells)} cells are missing: {', '.join(missing)}"
        )
    return summary


def _grid(bundle: Bundle) -> Grid:
    """The parts of the grid that say what its table looks like."""
    return Grid(**{name: settings.from_json(value) for name, value in bundle.table.items()})


def _results(cell: PackedCell, root: Path, packed: Path) -> dict[str, Result] | None:
    """The figures of a finished cell by run: those judged there, and those judged before."""
    found = [finished(root, place) for place in cell.metrics]
    if None in found:
        return None
    known = [finished(packed, place) for place in cell.judged]
    return {
        result.name: result
        for artifact in (*known, *found)
        if artifact is not None
        for result in results.read(artifact)[0]
    }


def _means(of: dict[str, Result]) -> dict[str, dict[str, float]]:
    return {name: result.mean for name, result in of.items()}


def _devices(cell: PackedCell, bundle: Bundle, root: Path) -> list[str]:
    """The devices that took part in a cell."""
    path = root / LEDGER
    known = json.loads(path.read_text()).get("devices", {}) if path.is_file() else {}
    of_stages = (known.get(place, []) for place in cell.stages.values() if place in bundle.stages)
    return list(dict.fromkeys(device for devices in of_stages for device in devices))
