"""What stages cost that train nothing, for dry runs: hours of devices, hours of cores, bytes.

    qac plan pair_msmarco --sizes passages=8841823,queries=502939

Rates of cores say whether they were measured; `launch/scale_drill.sh rates` measures them anew.
Applied models are computed from FLOPs at the share of a device's peak that pre-training reaches
(docs/results/speed.md), since none was measured on an accelerator. Texts are taken as long as a
usual passage, not as the longest one. Starting, loading and compiling are not counted.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qac_jax import hardware, progress
from qac_jax.errors import UserError, nearest
from qac_jax.hub import weights
from qac_jax.pipeline import inputs as inputs_lib


# The name of a stage's own size among the plans of its inputs, where it was given.
OWN = ""

PASSAGE_TOKENS, QUERY_TOKENS = 80, 12
PAIR_TOKENS = PASSAGE_TOKENS + QUERY_TOKENS + 4  # as a cross-encoder reads them
WIDTH = 768  # of vectors that are still to be made
# Of a model that is named, not trained before and not here: BERT-base.
USUAL_PARAMETERS = 110e6
# Shares of a device's peak. A decoder reads its weights for every token.
ENCODER_MFU, DECODER_MFU = 0.35, 0.05

Plans = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Rate:
    """Items that one core does in a second, the bytes that are written for each, and the source."""

    per_second: float
    bytes_each: float
    source: str


CORE: dict[str, Rate] = {
    "prepare": Rate(1_643, 480, "measured, data.md"),
    "tokenize": Rate(3_000, 190, "measured at 6,000, data.md"),
    "bm25": Rate(450, 400, "measured at 6,000, data.md"),
    "extract": Rate(302, 300, "measured, data.md"),
    "search": Rate(1_106, 24, "measured at 200,000 rows, search.md"),
    "bm25 search": Rate(4_174, 24, "measured at 12,000 passages, search.md"),
    "index": Rate(1_000, 0, "assumed, 768 dimensions"),
    "evaluate": Rate(500, 100, "assumed"),
}


# The sizes of the indexes that searching was measured on.
MEASURED_ROWS = {"search": 200_000, "bm25 search": 12_000}

# Verbs whose cost is known once their size is.
COSTED = (
    *("prepare", "tokenize", "extract", "generate", "embed", "index", "bm25", "search"),
    *("label", "mine", "evaluate"),
)


def count_of(inputs: Plans, *names: str) -> int | None:
    """The first known number of items of these inputs, or of the stage itself."""
    counts = (inputs.get(name, {}).get("count") for name in (OWN, *names))
    return next((int(count) for count in counts if count), None)


def on_cores(
    step: str, count: float | None, *, work: float = 1.0, each: float = 1.0
) -> dict[str, Any]:
    """The cost of `count` items, nothing where it is not known; `work` and `each` are what one
    takes and writes, by what the usual one does."""
    if not count:
        return {}
    rate = CORE[step]
    return {
        "core_hours": count * work / rate.per_second / 3600,
        "bytes": count * rate.bytes_each * each,
    }


def of_model(
    inputs: Plans,
    field: str,
    tokens: float | None,
    bytes_written: float | None = None,
    mfu: float = ENCODER_MFU,
) -> dict[str, Any]:
    """The cost of the model in the input `field` reading (or writing) these tokens: 2 FLOPs a
    parameter and token."""
    if not tokens:
        return {}
    known = inputs.get(field, {})
    parameters = known.get("parameters_of_layers") or USUAL_PARAMETERS
    if "folder" in known:
        parameters = weights.count_of_layers(known["folder"]) or parameters
    flops = 2 * parameters * tokens
    hours = {
        name: flops / (device.peak_flops * mfu) / 3600 for name, device in hardware.DEVICES.items()
    }
    return {"hours": hours, "flops": flops, "bytes": bytes_written or 0.0}


def searching(inputs: Plans, field: str, queries: float | None, k: int) -> dict[str, Any]:
    """The cost of searching the index in the input `field`. The rows that ScaNN looks at are a
    share of the index, so its time grows with it; BM25's does with the lists of the query's words.
    """
    known = inputs.get(field, {})
    rows = known.get("count") or MEASURED_ROWS["search"]
    step = "bm25 search" if "k1" in known else "search"
    work = max(1.0, rows / MEASURED_ROWS[step])
    return on_cores(step, queries, work=work, each=k)


def sizes_of(text: str) -> dict[str, int]:
    """NAME=N,NAME=N: the items of stages, or of files by the field that takes them."""
    sizes = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = item.partition("=")
        try:
            sizes[name] = int(float(number))
        except (ValueError, OverflowError):
            sizes[name] = 0
        if sizes[name] < 1:
            raise UserError(
                f"sizes: {item!r} is not NAME=N with a number of items; give such as "
                "passages=8841823,queries=502939"
            )
    return sizes


def check_sizes(sizes: Mapping[str, int], stages: Mapping[str, Any]) -> None:
    """Raises for the size of something that the recipe does not have."""
    fields = {field for stage in stages.values() for field in inputs_lib.set_inputs(stage)}
    each = {f"{n}.{field}" for n, s in stages.items() for field in inputs_lib.set_inputs(s)}
    for name in sizes:
        if name not in stages and name not in fields | each:
            raise UserError(
                f"sizes: {name!r} is neither a stage of the recipe nor an input of one; "
                f"{nearest(name, {*stages, *fields})}"
            )


def with_sizes(name: str, stage: Any, inputs: Plans, sizes: Mapping[str, int]) -> Plans:
    """The plans of a stage's inputs, with the sizes given for it and for files that it reads."""
    plans = dict(inputs)
    for field in inputs_lib.set_inputs(stage):
        size = sizes.get(f"{name}.{field}") or sizes.get(field)
        if size and field not in inputs:
            plans[field] = {"count": size}
    if name in sizes:
        plans[OWN] = {"count": sizes[name]}
    return plans


def totals(plans: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Hours of all trainings and applied models on one device of each kind, and those of the
    longest path through the stages, which is left where stages run beside one another; hours of
    cores, and bytes written. `without_hours`: the stages whose size is not known.
    """
    sums: dict[str, float] = {}
    longest: dict[str, dict[str, float]] = {}
    cores = written = 0.0
    unknown = []
    for one in plans:
        plan = one["plan"]
        hours = plan.get("hours") or {}
        before = [longest[name] for name in one["inputs"].values()]
        longest[one["stage"]] = {
            name: hours.get(name, 0.0) + max((each[name] for each in before), default=0.0)
            for name in hardware.DEVICES
        }
        for name, more in hours.items():
            sums[name] = sums.get(name, 0.0) + more
        cores += plan.get("core_hours") or 0.0
        written += plan.get("bytes") or 0.0
        costed = "batch_size" in plan or one.get("verb") in COSTED
        if costed and "hours" not in plan and "core_hours" not in plan:
            unknown.append(one["stage"])
    paths = {name: max(each[name] for each in longest.values()) for name in sums}
    return {
        "hours": sums,
        "longest_path_hours": paths,
        "core_hours": cores,
        "bytes": written,
        "without_hours": unknown,
        "seconds_here": sum(one["plan"].get("seconds_here") or 0.0 for one in plans),
    }


def _precisions(names: Iterable[str]) -> str:
    """The half precisions of these devices: that of most, and the exceptions."""
    of_each = {name: hardware.DEVICES[name].precision for name in names}
    usual = statistics.mode(of_each.values())
    others = [f"{precision} on {name}" for name, precision in of_each.items() if precision != usual]
    return ", ".join([usual, *others])


def shown(found: Mapping[str, Any], remedy: str = " (--sizes NAME=N)") -> list[str]:
    """The totals as lines of text; `remedy`: how sizes that are not known may be given."""
    lines = []
    if hours := found["hours"]:
        paths = found["longest_path_hours"]
        lines.append(
            "hours of trainings and applied models (the longest path) on one device, in "
            f"{_precisions(hours)}:"
        )
        lines.append("  " + ", ".join(f"{n} {_few(hours[n])} ({_few(paths[n])})" for n in hours))
    if found["core_hours"]:
        lines.append(f"hours of one core for all else: {found['core_hours']:,.1f}")
    if found["bytes"]:
        lines.append(f"written: {found['bytes'] / 1e9:,.1f} GB")
    if found["seconds_here"]:
        lines.append(f"on this machine: {progress.human_seconds(found['seconds_here'])}")
    if found["without_hours"]:
        names = ", ".join(found["without_hours"])
        lines.append(f"not counted, since the size is not known{remedy}: {names}")
    return lines


def _few(hours: float) -> str:
    """Hours with a digit that says something, also where they are minutes."""
    return f"{hours:,.1f}" if hours >= 0.1 or not hours else f"{hours:.1g}"
