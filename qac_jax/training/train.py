"""A training run from top to bottom: initial parameters, the loop, signals, and what it leaves.

It waits for the devices only at steps that log, validate or save.
"""

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
from etils import epath
from flax import traverse_util
from jax.experimental import multihost_utils

from qac_jax import artifacts, hardware, processes
from qac_jax.artifacts import Artifact, Writer
from qac_jax.data.loader import Loader, Reading
from qac_jax.errors import Interrupted, UserError
from qac_jax.hub import huggingface, parameters
from qac_jax.hub.names import tokenizer_place
from qac_jax.models.backbone import Backbone
from qac_jax.objectives.objective import Objective
from qac_jax.text import tokenizers
from qac_jax.text.tokenizers import Tokenizer
from qac_jax.training import mesh as meshes
from qac_jax.training import metrics
from qac_jax.training import step as steps
from qac_jax.training.checkpoints import Checkpoints
from qac_jax.training.mesh import announce
from qac_jax.training.options import Monitoring
from qac_jax.training.step import Engine, State, count_parameters, model_flops


Nested = dict[str, Any]

CHECKPOINTS = "checkpoints"  # folder


# Where a run starts. Loaded parameters decide the shape of the objective's module
# (`Objective.start_from`); parameters that they lack (heads) are initialised.


def initial(
    objective: Objective, source: Artifact | epath.Path | None
) -> tuple[Objective, Nested | None]:
    """The objective in the shape of its initial model, and the initial parameters.

    `source` is an artefact of parameters, or a model folder of another library.
    """
    if source is None:
        return objective, None
    runtime = objective.runtime
    if isinstance(source, Artifact) and source.kind == parameters.KIND:
        module, variables = parameters.load(source, runtime)
        objective, params = objective.start_from(module, variables["params"])
        # An artefact has the encoder, and all parameters trained with it: the same objective
        # continues with all of them, another one starts from the encoder.
        names = set(_flat(abstract_params(objective)))
        whole = parameters.load_whole(source, runtime)
        return objective, max((params, whole), key=lambda tree: len(names & set(_flat(tree))))
    folder = os.fspath(source.path if isinstance(source, Artifact) else source)
    module, variables = huggingface.load(folder, runtime)
    objective, params = objective.start_from(module, variables["params"])
    return objective, {**params, **objective.stored_heads(folder)}


def check_words(tokenizer: Tokenizer, source: Artifact | epath.Path) -> None:
    """Raises UserError where the tokenizer beside a model or examples has another number for a
    piece: what was learned of it is taken for that of another."""
    folder = tokenizer_place(source.path if isinstance(source, Artifact) else source)
    if folder is None:
        return
    here, there = (
        each.backend.get_vocab(with_added_tokens=True)
        for each in (tokenizer, tokenizers.load(os.fspath(folder)))
    )
    for piece in sorted(here, key=here.__getitem__):
        if there.get(piece, here[piece]) != here[piece]:
            raise UserError(
                f"{piece!r} is number {here[piece]} in the examples and {there[piece]} in "
                f"{folder}; make all examples by qac tokenize --tokenizer {folder}"
            )


def shaped(objective: Objective, folder: str) -> Objective:
    """The objective in the shape of the model in a folder; "": as it is."""
    if not folder:
        return objective
    place = epath.Path(folder)
    known = artifacts.peek(place)
    return initial(objective, artifacts.load(place) if known else place)[0]


def abstract_params(objective: Objective) -> Any:
    return nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))["params"]


def matching(params: Mapping[str, Any], target: Any) -> tuple[Nested, list[str], list[str]]:
    """(params that are in the target, names that are not in it, names left to initialise)."""
    expected, loaded = _flat(target), _flat(params)
    for name in sorted({*expected} & {*loaded}):
        if loaded[name].shape != expected[name].shape:
            raise UserError(
                f"the parameter {name} to start from has the shape {tuple(loaded[name].shape)}, "
                f"the model's is {tuple(expected[name].shape)}; give a model of the same shape"
            )
    kept = {name: x for name, x in loaded.items() if name in expected}
    if not kept:
        raise UserError(
            f"no parameter to start from belongs to the model ({next(iter(loaded), 'none')} there, "
            f"{next(iter(expected))} here); give another init or objective"
        )
    tree = traverse_util.unflatten_dict(kept, sep="/")
    return tree, sorted({*loaded} - {*expected}), sorted({*expected} - {*loaded})


def placed(params: Mapping[str, Any], target: Any) -> Nested:
    """The parameters that belong to the model; says which are not loaded."""
    kept, unused, fresh = matching(params, target)
    for names, what in ((unused, "are not used"), (fresh, "are initialised")):
        if names:
            shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
            announce(f"{len(names)} parameter arrays {what}: {shown}")
    return kept


def _flat(tree: Any) -> dict[str, Any]:
    return traverse_util.flatten_dict(tree, sep="/")


# The loop: compile, resume, then step, log, validate and save until the end.


def train(
    engine: Engine,
    data: Loader,
    total_steps: int,
    monitoring: Monitoring,
    folder: epath.PathLike,
    *,
    identity: Mapping[str, Any],
    validation: Loader | None = None,
    schedule: Callable[[int], Any] | None = None,
    params: Any = None,
    pack: bool = False,
    name: str = "",
) -> State:
    """Trains for this number of steps, from the last checkpoint in `folder` if there is one.

    Returns the state whose parameters are the result: of the last step, or of the best one.
    `params` are initial parameters, `identity` describes the run (see Checkpoints), `pack` leaves
    padding out, `name` is what trackers call it. After a signal it saves and raises Saved.
    """
    folder = epath.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    profile = metrics.Profile(monitoring.profile, folder / metrics.PROFILE, total_steps)
    spec = meshes.whole_spec(data.spec, engine.mesh)
    known = hardware.find(engine.mesh.devices.flat[0].device_kind)
    step_flops = model_flops(engine.objective, spec) if known else None
    programs = steps.programs(engine, spec, pack)
    validate = None
    if validation is not None:
        validate = metrics.Validation(engine, validation, monitoring.validation_batches)

    kept = Checkpoints(folder / CHECKPOINTS, identity, engine, monitoring)
    state, step = kept.begin(engine, data, params, total_steps)

    def now(every: int) -> bool:
        """Whether something that happens every N steps, and at the last step, happens now."""
        return step == total_steps or bool(every and step % every == 0)

    since_log: list[Any] = []
    clock = metrics.Clock(step)
    journal = partial(metrics.Journal, folder, step, tensorboard=monitoring.tensorboard, name=name)
    with watch() as signals, contextlib.closing(journal()) as log, kept.finishing():
        while step < total_steps:
            profile.begin(step, state)
            if (batch := next(data, None)) is None:
                raise UserError(f"the data ended after {step} of {total_steps} steps; choose fewer")
            with clock.paused():  # a program may be compiled
                run_step = programs(batch)
            state, scalars = run_step(state, meshes.place(batch, engine.mesh))
            step += 1
            since_log.append(scalars)
            clock.tokens += metrics.tokens_of(batch)

            with clock.paused():
                profile.end(step, state)
            if now(monitoring.log_every):
                figures = metrics.finite_means(engine, state, since_log, step)
                figures |= clock.rates(step, spec, step_flops, engine.mesh)
                if schedule is not None:
                    figures["learning_rate"] = float(schedule(step - 1))
                log.log(step, figures)
                announce(metrics.log_line(step, total_steps, figures))
                since_log.clear()
                clock.restart(step)
            if validate is not None and now(monitoring.validate_every):
                with clock.paused():
                    metrics.finite_means(engine, state, since_log, step)  # or it may be kept
                    measured = validate(state)
                    log.log(step, measured)
                    announce(f"step {step}: {metrics.shown(measured)}")
                    kept.measured(step, state, data, measured)
            stop = signals.stop(step)
            if stop or now(monitoring.save_every):
                with clock.paused():
                    metrics.finite_means(engine, state, since_log, step)
                    kept.save(step, state, data)
            if stop and step < total_steps:
                kept.close()
                raise Saved(signals.number, step, total_steps)

    return kept.result(step, state)


# SIGTERM and SIGINT while training: finish the step, save, print how to resume.


class Saved(Interrupted):
    """Training stopped on a signal after saving. SIGTERM is how schedulers end a job: exit 0."""

    def __init__(self, signal_number: int, step: int, total_steps: int):
        super().__init__(signal_number)
        name = signal.Signals(signal_number).name
        self.exit_code = 0 if name == "SIGTERM" else self.exit_code
        self.args = (
            f"{name}: saved at step {step} of {total_steps}; continue with: {processes.command()}",
        )


class Watch:
    """Whether a signal has been received; checked once per step."""

    def __init__(self) -> None:
        self.number = 0

    def stop(self, step: int) -> bool:
        """True on every process at the same step.

        Hosts of one run get SIGTERM at different moments; JAX agrees on a step for them.
        """
        if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
            self.number = signal.SIGTERM
        return bool(self.number)


@contextlib.contextmanager
def watch() -> Iterator[Watch]:
    """Records signals inside the context; a second one has its usual effect at once.

    One that comes after the last step ends nothing here: the result is written, and the next stage
    of a recipe does not begin.
    """
    signals = Watch()
    before: dict[Any, Any] = {}
    # With several processes SIGTERM belongs to JAX's own notifier, which notifies all of them.
    if jax.process_count() == 1 and threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: object) -> None:
        signals.number = number
        restore()

    for number in before:
        signal.signal(number, note)
    try:
        yield signals
    finally:
        restore()
    if signals.number:
        processes.received.append(signals.number)


# Loaders of examples that are not trained.


def validation_loader(
    examples: Artifact, reading: Reading, batch_size: int, engine: Engine, pack: bool
) -> Loader:
    """Batches as those of training, or smaller ones where there are too few examples.

    Shuffled with a fixed seed: passages of one document would be harder in-batch negatives of each
    other than those of training batches. Where they are encoded in chunks nothing fills them up.
    """
    count, objective = min(examples.count, batch_size), engine.objective
    fills = objective.fills and not pack and not 0 < objective.chunk < count
    return Loader(
        os.fspath(examples.path),
        reading=reading,
        separate_documents=False,
        workers=0,
        batch_size=meshes.largest_batch(engine.mesh, count, fills),
        host=meshes.my_part(engine.mesh),
    )


# What a run leaves as an artefact: parameters, tokenizer, metrics, checkpoints to keep.


def exported(objective: Objective, params: Any) -> tuple[nn.Module, Nested]:
    module, kept = objective.export({"params": params})
    if isinstance(module, Backbone):  # its optional parts are those that have parameters
        module = module.clone(config=module.config.with_parts(*kept))
    return module, kept


def write_result(
    out: Writer, work: epath.Path, objective: Objective, params: Any, tokenizer: epath.Path
) -> None:
    """Writes the artefact's files from host arrays and from the scratch folder of the run."""
    module, kept = exported(objective, params)
    folders = {parameters.EXPORTED: kept}
    if count_parameters(kept) != count_parameters(params):
        folders[parameters.WHOLE] = params
    for name, tree in folders.items():
        out.adopt(name, identity=parameters.save(out.begin(name), tree))
    out.write_json(parameters.MODULE, parameters.describe_module(module))
    shutil.copytree(tokenizer, out.begin(parameters.TOKENIZER))
    out.adopt(parameters.TOKENIZER)
    shutil.copyfile(work / "metrics.jsonl", out.begin("metrics.jsonl"))
    out.adopt("metrics.jsonl", volatile=True)
    out.count = count_parameters(kept)
    kept_folders = [n for n in (metrics.PROFILE, metrics.TENSORBOARD) if (work / n).exists()]
    if metrics.PROFILE in kept_folders:
        announce(metrics.how_to_open(out.path / metrics.PROFILE))
    for name in kept_folders:
        # Linked: a run that is killed here still has them to go on from.
        shutil.copytree(work / name, out.begin(name), copy_function=artifacts.link)
        out.adopt(name, volatile=True)
