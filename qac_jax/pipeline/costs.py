"""What the stages of a recipe cost, before anything runs: hours of devices and cores, bytes.

    qac plan pair_msmarco --sizes passages=8841823,queries=502939
    qac plan own_corpus --data_dir DATA --here

Trainings: FLOPs of a step, counted in the traced program, times steps. Applied models: 2 FLOPs a
parameter and token. Both at the share of a device's peak that was measured or is usual. All else:
items by measured rates of a core. Texts are taken as long as a usual passage, not as the longest
one. With --here some steps of every training are tried on this machine, and applied models are
taken to compute at their rate. Starting, loading and compiling are not counted.
"""

import functools
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qac_jax import fields, hardware, processes, progress
from qac_jax.errors import UserError, nearest
from qac_jax.pipeline import inputs as inputs_lib
from qac_jax.pipeline.inputs import Plan, Plans


# The name of a stage's own size among the plans of its inputs, where it was given.
OWN = ""

PASSAGE_TOKENS, QUERY_TOKENS = 80, 12
PAIR_TOKENS = PASSAGE_TOKENS + QUERY_TOKENS + 4  # as a cross-encoder reads them
WIDTH = 768  # of vectors that are still to be made
# Of a model that is named, not trained before and not here: BERT-base.
USUAL_PARAMETERS = 110e6
# Shares of a device's peak. A decoder reads its weights for every token.
ENCODER_MFU, DECODER_MFU = 0.35, 0.05
# Of training, in FLOPs of padded texts: what CoT-MAE was measured at on an H100 with dropout, with
# padding and, at MS MARCO's lengths, without (docs/results/speed.md).
TRAINING_MFU, PACKED_MFU = 0.259, 0.566
# A step that is tried takes a second or a few on two cores; more examples take in proportion.
_TRIED_FLOPS, _TRIED_SECONDS = 2.5e11, 4.0
_WORD = 7  # an id that is no special token
_FLOAT = 4  # bytes


class Rate(NamedTuple):
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
COSTED = {*CORE, "generate", "embed", "label", "mine"}


def count_of(inputs: Plans, *names: str) -> int | None:
    """The first known number of items of these inputs, or of the stage itself."""
    counts = (inputs.get(name, {}).get("count") for name in (OWN, *names))
    return next((int(count) for count in counts if count), None)


def on_cores(step: str, count: float | None, *, work: float = 1.0, each: float = 1.0) -> Plan:
    """The cost of `count` items, nothing where it is not known; `work` and `each` are what one
    takes and writes, by what the usual one does."""
    if not count:
        return {}
    rate = CORE[step]
    hours = count * work / rate.per_second / 3600
    return {"core_hours": hours, "bytes": count * rate.bytes_each * each}


def of_model(
    inputs: Plans, field: str, tokens: float | None, bytes_written: float | None = None
) -> Plan:
    """The cost of the encoder in the input `field` reading these tokens."""
    if not tokens:
        return {}
    flops = 2 * (_parameters(inputs, field) or USUAL_PARAMETERS) * tokens
    return {"flops": flops, "bytes": bytes_written or 0.0, "hours": _hours(flops, ENCODER_MFU)}


def of_generator(
    inputs: Plans, field: str, read: float, written: float, bytes_written: float
) -> Plan:
    """The cost of the encoder-decoder in the input `field`, of whose parameters one half reads
    tokens and the other writes them; nothing where the model is not known."""
    parameters = _parameters(inputs, field)
    if not parameters or not written:
        return {}
    reading, writing = parameters * read, parameters * written
    writes = _hours(writing, DECODER_MFU)
    hours = {name: reads + writes[name] for name, reads in _hours(reading, ENCODER_MFU).items()}
    return {"flops": reading + writing, "bytes": bytes_written, "hours": hours}


def _parameters(inputs: Plans, field: str) -> int | None:
    """Those of the layers of a model that is here, or will be trained before."""
    from qac_jax.hub import weights

    known = inputs.get(field, {})
    found = weights.count_of_layers(known["folder"]) if "folder" in known else None
    return found or known.get("parameters_of_layers")


def _hours(flops: float, mfu: float) -> dict[str, float]:
    return {
        name: flops / (device.peak_flops * mfu) / 3600 for name, device in hardware.DEVICES.items()
    }


def of_training(
    objective: Any,
    kind: Any,
    *,
    batch_size: int,
    steps: int | None,
    microbatch: int = 0,
    ema: bool = False,
    pack: bool = False,
) -> Plan:
    """Steps, tokens, FLOPs, bytes of state and hours; None where unknown.

    `kind` has the shapes of the examples (None: not known). Tokens and FLOPs are those of full
    batches; without padding (`pack`) hours are those measured with texts as long as MS MARCO's.
    """
    import jax

    from qac_jax.hub import weights
    from qac_jax.objectives.objective import Context
    from qac_jax.training import step
    from qac_jax.training.metrics import padded_tokens

    _, variables = step.plain(objective)
    parameters = step.count_parameters(variables["params"])
    paths = jax.tree_util.tree_leaves_with_path(variables["params"])
    layers = sum(
        leaf.size
        for path, leaf in paths
        if not weights.is_embedding(jax.tree_util.keystr(path, simple=True, separator="/"))
    )
    state = [x for n, part in variables.items() if n != "params" for x in jax.tree.leaves(part)]
    plan: Plan = {
        "steps": steps,
        "batch_size": batch_size,
        "parameters": parameters,
        "parameters_of_layers": layers,
        # Parameters, gradients, two moments of the optimiser, the EMA, the objective's own state.
        "state_bytes": parameters * _FLOAT * (5 if ema else 4)
        + sum(x.size * x.dtype.itemsize for x in state),
    }
    if kind is None:
        return plan
    shapes = shapes_of(kind, batch_size)
    plan["tokens_per_step"] = padded_tokens(shapes)
    plan["step_flops"] = step.model_flops(objective.bind(Context()), shapes)
    if steps is None:
        return plan
    plan["tokens"], plan["flops"] = plan["tokens_per_step"] * steps, plan["step_flops"] * steps
    plan["mfu"] = PACKED_MFU if pack and objective.packs else TRAINING_MFU
    if microbatch and not objective.splittable:  # encodes its chunks twice
        plan["mfu"] *= 3 / 4
    return {**plan, "hours": _hours(plan["flops"], plan["mfu"])}


def shapes_of(kind: Any, rows: int) -> dict[str, Any]:
    """The arrays of a batch of this many examples."""
    import jax

    shapes = kind.spec(rows).items()
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in shapes}


def searching(inputs: Plans, field: str, queries: float | None, k: int) -> Plan:
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


def sized(
    stages: Mapping[str, Any], name: str, inputs: Plans, sizes: Mapping[str, int]
) -> dict[str, Mapping[str, Any]]:
    """The plans of a stage's inputs, with the sizes given for it and for files that it reads."""
    plans = {OWN: {"count": sizes[name]}, **inputs} if name in sizes else dict(inputs)
    for field in inputs_lib.set_inputs(stages[name]):
        size = sizes.get(f"{name}.{field}") or sizes.get(field)
        if size and field not in inputs:
            plans[field] = {"count": size}
    return plans


def check_sizes(sizes: Mapping[str, int], stages: Mapping[str, Any]) -> None:
    """Raises for the size of something that the recipe does not have."""
    fields = {field for stage in stages.values() for field in inputs_lib.set_inputs(stage)}
    each = {f"{n}.{field}" for n, s in stages.items() for field in inputs_lib.set_inputs(s)}
    for name in sizes.keys() - (stages.keys() | fields | each):
        raise UserError(
            f"sizes: {name!r} is neither a stage of the recipe nor an input of one; "
            f"{nearest(name, {*stages, *fields})}"
        )


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


def shown(found: Mapping[str, Any], remedy: str = " (--sizes NAME=N)") -> list[str]:
    """The totals as lines of text; `remedy`: how sizes that are not known may be given."""
    lines = []
    if hours := found["hours"]:
        paths = found["longest_path_hours"]
        lines.append(
            "hours of trainings and applied models (the longest path) on one device, in half "
            "precision:"
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


# On this machine.


def add_seconds(
    stages: Mapping[str, Any], plans: Sequence[Plan], each: Mapping[str, float]
) -> None:
    """Adds to every plan its `seconds_here`, where its size is known; `each`: those of an item."""
    tried: dict[str, float] = {}
    for one in plans:
        stage, plan = stages[one["stage"]], one["plan"]
        if not plan.get("step_flops"):
            continue
        key = fields.digest([fields.describe(stage.objective), plan["step_flops"]])
        if key not in tried:
            progress.say(f"trying a step of {one['stage']}")
            tried[key] = _flops_per_second(stage, plan)
        if plan.get("flops"):
            plan["seconds_here"] = plan["flops"] / tried[key]
    cores = processes.cores()
    for one in plans:
        plan = one["plan"]
        if plan.get("step_flops"):
            continue
        if one["stage"] in each and plan.get("count"):
            plan["seconds_here"] = plan["count"] * each[one["stage"]] / cores
        elif "core_hours" in plan:
            plan["seconds_here"] = 3600 * plan["core_hours"] / cores
        elif hours := plan.get("hours"):
            rate = statistics.median(tried.values()) if tried else _product_rate()
            peak = hardware.DEVICES["H100"].peak_flops * ENCODER_MFU
            plan["seconds_here"] = 3600 * hours["H100"] * peak / rate


@functools.cache
def _product_rate() -> float:
    """Half of the FLOPs a second of a product of matrices: about what a model reaches."""
    import jax
    import jax.numpy as jnp

    square = jax.block_until_ready(jnp.ones((1024, 1024)) @ jnp.ones((1024, 1024)))
    began = time.perf_counter()
    jax.block_until_ready(square @ square)
    return 1024**3 / (time.perf_counter() - began)


def _flops_per_second(stage: Any, plan: Mapping[str, Any]) -> float:
    """The rate of a few steps of a training, of fewer examples where these take long."""
    import jax
    import jax.numpy as jnp
    import optax

    from qac_jax.objectives.objective import Context
    from qac_jax.training import mesh as meshes
    from qac_jax.training import step, train

    objective, kind = stage.planned(plan["kind"], plan["started from"] or "")
    size, chosen = plan["batch_size"], stage.schedule.microbatch
    least = min(2, size)  # contrastive losses need another example
    rows = max(least, min(size, int(size * _TRIED_FLOPS / plan["step_flops"])))
    piece = chosen or objective.chunk
    if 0 < piece < size:  # in two pieces, as it would be in more
        piece = min(piece, max(rows // 2, 1))
        rows = 2 * piece
    precision = train.precision_here(stage.precision)
    objective = objective.bind(Context(precision=precision, chunk=piece))
    mesh = meshes.make_mesh(devices=jax.local_devices()[:1])
    rules, shapes = meshes.rules_named("default"), shapes_of(kind, rows)
    engine = step.Engine(objective, optax.adamw(1e-4), mesh, rules, microbatch=piece)
    batch = {name: np.zeros(x.shape, x.dtype) for name, x in shapes.items()}
    for name, lengths in batch.items():
        if name.endswith("_length") and (text := name.removesuffix("_length")) in batch:
            batch[text][:] = _WORD
            lengths[:] = batch[text].shape[-1]
    program = engine.compile_step(shapes)
    # Values do not matter, so no program is compiled that draws them.
    state = jax.tree.map(lambda x: jnp.full(x.shape, 0.01, x.dtype), engine.abstract)
    state, placed = jax.device_put(state, engine.shardings), meshes.place(batch, mesh)
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) < _TRIED_SECONDS:
        began = time.perf_counter()
        state, metrics = program(state, placed)
        jax.block_until_ready((state, metrics))
        taken.append(time.perf_counter() - began)
    # The first one may wait for memory.
    return float(plan["step_flops"] * rows / size / np.median(taken[1:]))
