"""The cost of a recipe's stages, before anything runs: FLOPs, hours of devices and of cores.

    qac plan pair_msmarco --sizes passages=8841823,queries=502939
    qac plan own_corpus --data_dir DATA --here

Trainings: FLOPs of a step, counted in the traced program, times steps. Applied models: 2 FLOPs a
parameter and token. Both at the share of a device's peak that was measured or is usual; with --here
at what a product of matrices reaches on this machine. Exact search is such a product. All else:
items by measured rates of a core. Texts are as long as is usual. Starting, loading and compiling
are not counted.
"""

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from qac_jax import fields, hardware, processes, progress
from qac_jax.errors import UserError
from qac_jax.pipeline.inputs import Plan, Plans


# The name of a stage's own size among the plans of its inputs, where it was given.
OWN = ""

PASSAGE_TOKENS, QUERY_TOKENS = 80, 12
PAIR_TOKENS = PASSAGE_TOKENS + QUERY_TOKENS + 4  # as a cross-encoder reads them
# Of a document that is not cut, by its format; of a page of the Pile what models read of it.
DOCUMENT_TOKENS = {"msmarco_passages": 80, "dpr": 140, "wikipedia": 110, "beir": 200, "jsonl": 600}
# Parameters of the layers of models that papers name, for plans where they are not here.
NAMED = {
    "T0_3B": 2.7e9,
    "doc2query-all-with_prefix-t5-base-v1": 198e6,
    "t5-small-lm-adapt": 44e6,
    "ernie-2.0-large-en": 302e6,
}
# Documents of the data that recipes name, for plans where they are not here: BEIR's corpora as its
# paper counts them; the Pile's Common Crawl and paragraphs of Wikipedia as AugTriever's does.
BEIR = {
    "trec-covid": 171_332, "nfcorpus": 3_633, "nq": 2_681_468, "hotpotqa": 5_233_329,
    "fiqa": 57_638, "arguana": 8_674, "webis-touche2020": 382_545, "dbpedia-entity": 4_635_922,
    "scidocs": 25_657, "fever": 5_416_568, "climate-fever": 5_416_593, "scifact": 5_183,
    "quora": 522_931, "cqadupstack/android": 22_998, "cqadupstack/english": 40_221,
    "cqadupstack/gaming": 45_301, "cqadupstack/gis": 37_637, "cqadupstack/mathematica": 16_705,
    "cqadupstack/physics": 38_316, "cqadupstack/programmers": 32_176, "cqadupstack/stats": 42_269,
    "cqadupstack/tex": 68_184, "cqadupstack/unix": 47_382, "cqadupstack/webmasters": 17_405,
    "cqadupstack/wordpress": 48_605,
}  # fmt: skip
DOCUMENTS = {
    **{f"data:beir/{name}": count for name, count in BEIR.items()},
    **dict.fromkeys(("data:beir/msmarco", "data:msmarco"), 8_841_823),
    **dict.fromkeys(("data:psgs_w100.tsv", "data:PAQ_passages.tsv"), 21_015_324),
    "data:beir": sum(BEIR.values()) + 8_841_823,  # with MS MARCO
    "data:pile": 52_400_000,
    "data:enwiki-pages-articles.xml.bz2": 22_600_000,
}
# Of a model that is not known, nor trained before, nor here; and the width of its vectors.
USUAL_PARAMETERS, USUAL_WIDTH = 110e6, 768
# Shares of a device's peak. A decoder reads its weights for every token; exact search multiplies in
# float32 (assumed).
ENCODER_MFU, DECODER_MFU, EXACT_MFU = 0.35, 0.05, 0.05
# Of training, in FLOPs of padded texts: what CoT-MAE was measured at on an H100 with dropout, with
# padding and, at MS MARCO's lengths, without (docs/results/speed.md).
TRAINING_MFU, PACKED_MFU = 0.259, 0.598
# Where less was measured: CoT-MAE took the paper 60 hours of 16 V100s.
MOST_MFU = {"V100-32": 0.175}
# Items that one core does in a second, as measured (docs/results/data.md and search.md); index and
# evaluate are assumed.
CORE = {
    "prepare": 1_643,
    "tokenize": 3_000,
    "bm25": 450,
    "extract": 302,
    "search": 1_106,
    "bm25 search": 4_174,
    "index": 1_000,
    "evaluate": 500,
}
# The sizes of the indexes that searching was measured on.
MEASURED_ROWS = {"search": 200_000, "bm25 search": 12_000}
# Verbs whose cost is known once their size is.
COSTED = {*CORE, "generate", "embed", "label", "mine"}
# Bytes that an item leaves: vectors of 384 to 768 numbers with windows, texts of passages, ids.
KEPT = {"vectors": 4000, "passages": 1000, "contexts": 400, "examples": 600, "bm25": 700}
# Parameters of recipes that make a verb's work less, the dial first.
CHEAPER = {
    "train": ("budget", "rounds", "fine_steps", "qac_steps", "mlm_steps", "steps", "epochs"),
    "generate": ("budget", "samples", "queries"),
    "embed": ("budget", "rounds", "window", "passage_length"),
    "group": ("budget", "turns", "rounds"),
    "search": ("depth", "rounds"),
    "extract": ("spans",),
}
# Tokens of language models that are called, whose cost is their owner's.
TOKENS = ("tokens_read", "tokens_written")


def count_of(inputs: Plans, *names: str) -> int | None:
    """The first known number of items of these inputs, or of the stage itself."""
    counts = (inputs.get(name, {}).get("count") for name in (OWN, *names))
    return next((int(count) for count in counts if count), None)


def on_cores(step: str, count: float | None, work: float = 1.0) -> Plan:
    """The cost of `count` items, nothing where it is not known; `work`: of one, by the usual."""
    return {"core_hours": count * work / CORE[step] / 3600} if count else {}


def tokens_each(inputs: Plans, most: int = 0) -> int:
    """The tokens of one of these passages, of which `most` are read (0: all)."""
    each = inputs.get("passages", {}).get("tokens_each") or PASSAGE_TOKENS
    return min(each, most) if most else each


def of_model(inputs: Plans, field: str, tokens: float | None, written: float | None = None) -> Plan:
    """The cost of the model in the input `field` reading these tokens.

    `written`: tokens that an encoder-decoder writes with one half of its parameters, while it reads
    with the other; nothing where that model is not known.
    """
    from qac_jax.hub import weights

    known = inputs.get(field, {})
    found = weights.count_of_layers(known["folder"]) if "folder" in known else None
    parameters = found or known.get("parameters_of_layers") or 0
    if not tokens or (written is not None and not parameters):
        return {}
    if written is None:
        reading, writing = 2 * (parameters or USUAL_PARAMETERS) * tokens, 0.0
    else:
        reading, writing = parameters * tokens, parameters * written
    hours = _hours(reading + writing * ENCODER_MFU / DECODER_MFU, ENCODER_MFU)
    return {"flops": reading + writing, "hours": hours}


def _hours(flops: float, mfu: float) -> dict[str, float]:
    """Those that FLOPs at this share of the peak take on every device."""
    return {
        name: flops / min(mfu, MOST_MFU.get(name, mfu)) / device.peak_flops / 3600
        for name, device in hardware.DEVICES.items()
    }


def of_training(
    objective: Any, kind: Any, batch_size: int, steps: int | None, *, pack: bool
) -> Plan:
    """Steps, tokens, FLOPs, bytes of state and hours, as far as they are known.

    `kind` has the shapes of the examples (None: not known). Tokens and FLOPs are those of full
    batches; without padding (`pack`) hours are those measured with texts as long as MS MARCO's.
    """
    import jax

    from qac_jax.objectives.objective import Context
    from qac_jax.training import step
    from qac_jax.training.metrics import padded_tokens

    objective = objective.bind(Context())
    described = fields.describe(objective)
    parameters, of_layers = _once(("parameters", described), lambda: _parameters(objective))
    plan: Plan = {
        "steps": steps,
        "batch_size": batch_size,
        "parameters": parameters,
        "parameters_of_layers": of_layers,
        # In float32: parameters, gradients, two moments of the optimiser.
        "state_bytes": 16 * parameters,
    }
    if kind is None:
        return plan
    arrays = kind.spec(batch_size).items()
    shapes = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in arrays}
    plan["tokens_per_step"] = padded_tokens(shapes)
    # The share of a second loss changes no product of matrices; 0 leaves its products out.
    described |= {"alpha": bool(described.get("alpha"))}
    plan["step_flops"] = _once(
        ("flops", described, str(shapes)), lambda: step.model_flops(objective, shapes)
    )
    if steps is not None:
        plan["tokens"], plan["flops"] = plan["tokens_per_step"] * steps, plan["step_flops"] * steps
        plan["mfu"] = PACKED_MFU if pack else TRAINING_MFU
        plan["hours"] = _hours(plan["flops"], plan["mfu"])
    return plan


_ONCE: dict[str, Any] = {}


def _once(what: Any, make: Callable[[], Any]) -> Any:
    """What tracing finds, for equal trainings of a grid once."""
    key = fields.digest(what)
    if key not in _ONCE:
        _ONCE[key] = make()
    return _ONCE[key]


def _parameters(objective: Any) -> tuple[int, int]:
    """How many there are, and how many are not of embeddings."""
    import jax

    from qac_jax.hub import weights
    from qac_jax.training import step

    leaves = jax.tree_util.tree_leaves_with_path(step.plain(objective)[1]["params"])
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    of_layers = sum(
        leaf.size
        for name, (_, leaf) in zip(names, leaves, strict=True)
        if not weights.is_embedding(name)
    )
    return sum(leaf.size for _, leaf in leaves), of_layers


def searching(inputs: Plans, field: str, queries: float | None) -> Plan:
    """The cost of searching the index in the input `field`. The rows that ScaNN looks at are a
    share of the index, so its time grows with it; BM25's does with the lists of the query's words.
    Exact search reads all rows, on devices.
    """
    known = inputs.get(field, {})
    step = "bm25 search" if "k1" in known else "search"
    rows = known.get("count") or 0
    if known.get("exact"):
        flops = 2 * rows * USUAL_WIDTH * (queries or 0)
        return {"flops": flops, "hours": _hours(flops, EXACT_MFU)} if flops else {}
    return on_cores(step, queries, max(1.0, rows / MEASURED_ROWS[step]))


def summed(plans: Sequence[Plan]) -> Plan:
    """The cost of several, nothing where one is not known."""
    if not all(plans):
        return {}
    hours = [plan["hours"] for plan in plans if "hours" in plan]
    total = {"core_hours": sum(plan.get("core_hours", 0.0) for plan in plans)}
    if not hours:
        return total
    return {**total, "hours": {name: sum(each[name] for each in hours) for name in hours[0]}}


def named(stage: Any) -> dict[str, Plan]:
    """Input -> the size of the model or data that it names, where that is known."""
    given = {field: str(v) for field, v in fields.values(stage).items()}
    models = {field: name.rsplit(":", 1)[-1] for field, name in given.items()}
    return {
        **{f: {"count": DOCUMENTS[name]} for f, name in given.items() if name in DOCUMENTS},
        **{f: {"parameters_of_layers": NAMED[n]} for f, n in models.items() if n in NAMED},
    }


def sizes_of(text: str) -> dict[str, int]:
    """NAME=N,NAME=N: the items of stages, or of files by the field that takes them."""
    pairs = (item.partition("=") for item in text.replace(" ", "").split(",") if item)
    try:
        return {name: int(float(number)) for name, _, number in pairs}
    except (ValueError, OverflowError) as error:
        raise UserError(
            f"sizes={text!r} is not NAME=N,NAME=N; give such as passages=8841823,queries=502939"
        ) from error


def totals(plans: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Hours of all trainings and applied models on one device of each kind, hours of cores,
    seconds on this machine, tokens of language models; `without_hours`: the stages whose size is
    not known."""
    found = [one["plan"] for one in plans]
    costed = [plan for plan in found if plan.get("hours")]
    return {
        "hours": summed(costed).get("hours", {}),
        **{
            name: sum(plan.get(name, 0.0) for plan in found)
            for name in ("core_hours", "seconds_here", *TOKENS)
        },
        "without_hours": [
            one["stage"]
            for one in plans
            if ("batch_size" in one["plan"] or one.get("verb") in COSTED)
            and not any(one["plan"].get(name) for name in ("hours", "core_hours", *TOKENS))
        ],
    }


def shown(
    found: Mapping[str, Any], plans: Sequence[Plan] = (), parameters: Collection[str] = ()
) -> list[str]:
    """The totals as lines: time, and of the plans memory, disk, what is slowest and what of the
    recipe's parameters would make that cheaper."""
    apart = [f"{progress.human_seconds(found['seconds_here'])} here"] * bool(found["seconds_here"])
    if hours := found["hours"]:
        few = {name: f"{n:,.1f}" if n >= 0.1 else f"{n:.1g}" for name, n in hours.items()}
        each = ", ".join(f"{name} {n}" for name, n in few.items())
        said = "under three minutes of models on a GPU or TPU"
        small = max(hours.values()) < 0.05
        apart.append(said if small else f"hours of models on one device: {each}")
    if found["core_hours"] >= 0.05:
        apart.append(f"hours of one core for all else: {found['core_hours']:,.1f}")
    if found["tokens_read"]:
        read, written = (progress.human(found[name]) for name in TOKENS)
        apart.append(f"tokens of language models, about: {read} read, {written} written")
    lines = [f"time     {'; '.join(apart)}"] if apart else []
    states = [(one["plan"].get("state_bytes", 0), one["stage"]) for one in plans]
    if (most := max(states, default=(0, "")))[0]:
        held = progress.human(most[0], "B")
        lines.append(f"memory   {held} of {most[1]}'s weights and optimiser, and 2 GB for the rest")
    if kept := sum(map(_bytes, plans)):
        lines.append(f"disk     about {progress.human(kept, 'B')}; --keep none leaves less")
    slow = sorted((_seconds(one["plan"]), one["stage"], one["verb"]) for one in plans)[:-4:-1]
    if slow and slow[0][0]:
        named = ", ".join(f"{name} {progress.human_seconds(n)}" for n, name, _ in slow)
        lines.append(f"slowest  {named}{'' if found['seconds_here'] else ' (an H100, one core)'}")
        known = dict.fromkeys(n for *_, verb in slow for n in CHEAPER.get(verb, ()))
        flags = ", ".join(f"--{name}" for name in known if name in parameters)
        lines.append(f"cheaper  {f'less of {flags}' if flags else 'fewer documents'}")
    if names := found["without_hours"]:
        some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        lines.append(f"not counted, since the size is not known (--sizes NAME=N): {some}")
    return lines


def _seconds(plan: Mapping[str, Any]) -> float:
    """On this machine where it was tried, else on an H100 and one core."""
    hours = plan.get("hours", {}).get("H100", 0.0) + plan.get("core_hours", 0.0)
    return plan.get("seconds_here") or 3600 * hours


def _bytes(one: Mapping[str, Any]) -> float:
    """About what a stage leaves on the disk; indexes link what they read."""
    plan, kind = one["plan"], one["kind"]
    return plan.get("parameters", 0) * 4 + (plan.get("count") or 0) * KEPT.get(kind, 0)


def add_seconds(
    stages: Mapping[str, Any], plans: Sequence[Plan], each: Mapping[str, float]
) -> None:
    """Adds to every plan its `seconds_here`, where its size is known; `each`: those of an item."""
    peak = hardware.DEVICES["H100"].peak_flops * ENCODER_MFU
    for one in plans:
        name, plan = one["stage"], one["plan"]
        if name in each and plan.get("count"):
            plan["seconds_here"] = plan["count"] * each[name] / processes.cores()
        elif "hours" in plan:
            rate = _flops_per_second(fields.values(stages[name]).get("precision", "auto"))
            plan["seconds_here"] = 3600 * plan["hours"]["H100"] * peak / rate
        elif "core_hours" in plan:
            plan["seconds_here"] = 3600 * plan["core_hours"] / processes.cores()


@functools.cache
def _flops_per_second(precision: str) -> float:
    """The rate of a product of matrices here, about twice an encoder's."""
    import jax
    import jax.numpy as jnp

    backend = jax.default_backend()
    half = hardware.precision_on(backend, precision) in ("mixed", "bfloat16", "float16")
    size = 1024 if backend == "cpu" else 8192
    square = jnp.ones((size, size), jnp.bfloat16 if half else jnp.float32)
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(square, square))
    began = time.perf_counter()
    jax.block_until_ready([product(square, square) for _ in range(8)])
    return 8 * size**3 / (time.perf_counter() - began)
