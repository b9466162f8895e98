"""The cost of a run, without data and without compiling: for dry runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
from jax.sharding import Mesh

from qac_jax import hardware
from qac_jax.data.featurizer import Featurizer, settle
from qac_jax.data.form import Form
from qac_jax.errors import UserError
from qac_jax.hub import weights
from qac_jax.objectives.objective import Objective, Spec
from qac_jax.training import report
from qac_jax.training.journal import announce, padded_tokens


DEVICE_COUNTS = (1, 2, 4, 8, 16, 64, 256)
_FLOAT = 4


def plan(
    objective: Objective,
    *,
    steps: int | None,
    batch_size: int,
    kind: str = "",
    settings: Mapping[str, Any] | None = None,
    lengths: Mapping[str, int] | None = None,
    ema: bool = False,
    microbatch: int = 0,
    pack: bool = False,
) -> dict[str, Any]:
    """Steps, tokens, FLOPs, bytes of state, hours on known devices; None where unknown.

    Tokens and FLOPs are those of full batches; without padding (`pack`) hours are those measured
    with texts as long as MS MARCO's. Hours and memory of several devices assume data parallelism:
    each holds the whole state, and computes its part of a microbatch in the half precision that
    the row of the device names.
    """
    variables = _variables(objective)
    parameters = report.count_parameters(variables["params"])
    state = [x for n, part in variables.items() if n != "params" for x in jax.tree.leaves(part)]
    result: dict[str, Any] = {
        "steps": steps,
        "batch_size": batch_size,
        "parameters": parameters,
        "parameters_of_layers": report.count_parameters(_layers(variables["params"])),
        # Parameters, gradients, two moments of the optimiser, the EMA, and the objective's other
        # state.
        "state_bytes": parameters * _FLOAT * (5 if ema else 4)
        + sum(x.size * x.dtype.itemsize for x in state),
    }
    if not kind:
        return result
    recipe = settle(kind, Form(), lengths=lengths, settings=settings)

    tokens = padded_tokens(spec(recipe, batch_size))
    result["tokens_per_step"] = tokens
    result["step_flops"] = report.flops(objective, spec(recipe, batch_size))
    rows = microbatch or batch_size
    kept = objective.with_precision("bfloat16").activation_bytes(spec(recipe, rows))
    if kept is not None:
        # Linear in the examples, so a device has its share of it.
        result["microbatch"] = rows
        result["activation_bytes"] = kept
    if steps is None:
        if kept is not None:
            result["devices"] = _devices(result)
        return result
    result["tokens"] = tokens * steps
    if result["step_flops"] is not None:
        result["flops"] = result["step_flops"] * steps
        result["mfu"] = objective.PACKED_MFU if pack and objective.packs else objective.MFU
        result["hours"] = {
            name: result["flops"] / (device.peak_flops * result["mfu"]) / 3600
            for name, device in hardware.DEVICES.items()
        }
        if "activation_bytes" in result:
            result["devices"] = _devices(result)
    return result


def refuse_too_large(
    objective: Objective, recipe: Featurizer, batch_size: int, microbatch: int, mesh: Mesh
) -> None:
    """Raises where a run cannot fit into the memory of these devices, with what would.

    The formulas are of what a compiler that fuses nothing keeps, so half of the activations is the
    least that is certain; on devices of unknown memory nothing is said.
    """
    device = hardware.find(mesh.devices.flat[0].device_kind)
    if device is None:
        return
    state = _state_bytes(objective, mesh)

    def needed(objective: Objective, rows: int) -> float | None:
        kept = objective.activation_bytes(spec(recipe, rows))
        return None if kept is None else state + kept / mesh.size

    rows = microbatch or batch_size
    whole = needed(objective, rows)
    if whole is None or state + (whole - state) / 2 <= device.memory_bytes:
        return
    raise UserError(
        f"this training needs about {whole / 2**30:.0f} GiB of memory on each of {mesh.size} "
        f"{device.name}, which have {device.memory_bytes / 2**30:.0f}; "
        + _remedy(objective, rows, mesh.size, device.memory_bytes, needed)
    )


def keeping(objective: Objective, batch: Spec, mesh: Mesh) -> Objective:
    """The objective, of whose chunks of a batch of these shapes as many keep their activations for
    the backward pass as the memory of these devices has room for.

    The others are encoded twice. On devices of unknown memory that is all of them.
    """
    chunk = objective.chunk
    batch_size = next(iter(batch.values())).shape[0]
    memory = _memory(mesh.devices.flat[0])
    if memory is None or not 0 < chunk < batch_size:
        return objective
    of_chunk = objective.activation_bytes(
        {name: jax.ShapeDtypeStruct((chunk, *x.shape[1:]), x.dtype) for name, x in batch.items()}
    )
    if not of_chunk:
        return objective
    count = batch_size // chunk
    room = int((memory - _state_bytes(objective, mesh)) * mesh.size / of_chunk)
    kept = count if room >= count else max(0, room - 1)  # one is in the works
    announce(f"{kept} of {count} chunks of {chunk} examples keep their activations")
    return objective.with_kept(kept)


def _memory(device: jax.Device) -> float | None:
    """What a step may use: less than JAX takes of the device, by what the formulas do not count."""
    try:
        limit = (device.memory_stats() or {}).get("bytes_limit")
    except jax.errors.JaxRuntimeError:  # a device that is only described
        limit = None
    if limit:
        return 0.95 * limit
    known = hardware.find(device.device_kind)
    return 0.9 * known.memory_bytes if known else None


def _state_bytes(objective: Objective, mesh: Mesh) -> float:
    """That of a training on each device."""
    return state_bytes(objective) * mesh.shape["data"] / mesh.size


def state_bytes(objective: Objective) -> float:
    """Bytes of parameters, gradients and two moments."""
    return report.count_parameters(_variables(objective)["params"]) * _FLOAT * 4


def _variables(objective: Objective) -> Any:
    """Their shapes, which no kernel changes: cuDNN's needs a GPU, and plans are made anywhere."""
    runtime = dataclasses.replace(objective.runtime, attention="xla")
    plain = dataclasses.replace(objective, model=objective.model.clone(runtime=runtime))
    return nn.unbox(jax.eval_shape(plain.init, jax.random.key(0)))


def _remedy(
    objective: Objective,
    rows: int,
    devices: int,
    memory: float,
    needed: Callable[[Objective, int], float | None],
) -> str:
    """The largest microbatch that fits, without recomputation and with it."""
    choices = []
    for remat in dict.fromkeys((objective.runtime.remat, "layer")):
        runtime = dataclasses.replace(objective.runtime, remat=remat)
        tried = dataclasses.replace(objective, model=objective.model.clone(runtime=runtime))
        smaller = rows
        while smaller > devices and (needed(tried, smaller) or 0) > memory:
            smaller = max(devices, smaller // 2)
        if (needed(tried, smaller) or 0) <= memory:
            with_remat = (
                "" if remat == objective.runtime.remat else f" with Runtime.remat='{remat}'"
            )
            choices.append(
                f"--microbatch {smaller}{with_remat}" if smaller < rows else with_remat.strip()
            )
    if not choices:
        return "cut its parameters over devices (--mesh=1,-1,1), or use more or larger ones"
    return f"use {' or '.join(choices)}"


def _layers(params: Any) -> Any:
    """Parameters but those of embeddings."""
    return {
        path: leaf
        for path, leaf in flax.traverse_util.flatten_dict(params, sep="/").items()
        if not weights.is_embedding(path)
    }


def spec(recipe: Featurizer, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    shapes = recipe.spec(rows)
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in shapes.items()}


def _devices(result: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    return {
        name: {str(count): _on(device, count, result) for count in DEVICE_COUNTS}
        for name, device in hardware.DEVICES.items()
    }


def _on(device: hardware.Device, count: int, result: Mapping[str, Any]) -> dict[str, Any]:
    """Hours and memory on `count` of these devices."""
    needed = result["state_bytes"] + result["activation_bytes"] / count
    return {
        "hours": result["hours"][device.name] / count if "hours" in result else None,
        "memory_bytes": needed,
        "fits": needed <= device.memory_bytes,
        "precision": device.precision,
    }


def table(devices: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """The estimate as a table in text: hours and memory; "!" marks where it does not fit."""
    counts = next(iter(devices.values()))
    lines = [f"{'hours on':<20}" + "".join(f"{f'x {count}':>16}" for count in counts)]
    for name, each in devices.items():
        cells = []
        for estimate in each.values():
            memory = f"{estimate['memory_bytes'] / 2**30:.0f} GiB"
            hours = "?" if estimate["hours"] is None else f"{estimate['hours']:,.1f}"
            cells.append(f"{hours} ({memory}{'' if estimate['fits'] else '!'})")
        precision = next(iter(each.values()))["precision"]
        lines.append(f"{f'{name} {precision}':<20}" + "".join(f"{cell:>16}" for cell in cells))
    return lines
