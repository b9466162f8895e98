"""Training: examples and an objective in, parameters out. Behind `pretrain` and `finetune`."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Mapping
from typing import Any

from qac_jax import processes
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline import fields
from qac_jax.pipeline.stage import Inputs, Stage, artifact_input, option, source, user_cache
from qac_jax.processes import Place


# What a run keeps while it goes; the dot keeps it through a restart (see artifacts).
WORK = ".training"
STARTS = ("init", "pretrained", "words")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(Stage):
    """Trains the objective that gin binds (`Train.objective = @mlm.Mlm()`)."""

    VERB = "pretrain"
    KIND = "parameters"
    SHARED = True
    VERSION = 3  # towers and cross-encoders hold their encoder as "backbone"
    EXAMPLE = (
        "qac pretrain --gin_file gin_configs/objectives/mlm.gin --examples out/examples "
        "--steps 1000 --out out/encoder"
    )

    objective: Any = option(help="what is trained: bound in gin")
    examples: str = artifact_input("what to learn from", kind="examples")
    validation: str = artifact_input("examples to measure on", kind="examples", default="")
    init: str = artifact_input("parameters to start from", kind="parameters", default="")
    pretrained: str = source("Hugging Face model folder to start from", default="")
    words: str = source("model folder whose word vectors a new model starts with", default="")

    steps: int = option(0, "optimiser steps in all (or --total_examples, or --epochs)")
    total_examples: int = option(0, "examples seen in all")
    epochs: float = option(0.0, "passes over the examples")
    batch_size: int = option(32, "examples an optimiser step, over all devices")
    microbatch: int = option(0, "examples at a time, to save memory (0: all)", affects_result=False)
    optimizer: Any = option(None, "an Optimizer bound in gin (default: AdamW)")
    learning_rate: float = option(0.0, "instead of the optimizer's")
    ema: float = option(0.0, "decay of the mean of parameters that becomes the result (0: none)")
    max_skips: int = option(0, "steps to skip when their loss is not finite, before giving up")
    precision: str = option("auto", "of matrix products: auto, float32 or bfloat16")

    kind: str = option("", "read the examples as this kind (default: what they were made for)")
    settings: Mapping[str, Any] | None = option(None, "of the kind")
    lengths: Mapping[str, int] | None = option(None, "limits in tokens of the features")
    crop: str = option("", "texts that are too long: random or right (default: the kind's)")
    separate_documents: bool = option(False, "no two examples of a batch from one document")
    workers: int = option(0, "processes that make batches (0: a thread)", affects_result=False)

    mesh: tuple[int, ...] = option(
        (-1, 1, 1), "devices over data, fsdp, tensor (-1: the rest)", affects_result=False
    )
    rules: str = option("default", "table of sharding rules", affects_result=False)
    coordinator: str = option("", "HOST:PORT of process 0 of several", affects_result=False)
    processes: int = option(0, "how many processes there are", affects_result=False)
    process: int = option(-1, "which of them this is", affects_result=False)

    log_every: int = option(50, "steps between log lines", affects_result=False)
    save_every: int = option(1000, "steps between checkpoints", affects_result=False)
    keep: int = option(2, "how many checkpoints to keep", affects_result=False)
    keep_every: int = option(0, "checkpoints to keep for good", affects_result=False)
    validate_every: int = option(0, "steps between validations (0: at the end)")
    validation_batches: int = option(0, "batches of a validation (0: all)")
    best: str = option("", "validation measure that chooses the result (default: the last step)")
    profile: str = option("", "steps to profile, such as 10:15", affects_result=False)

    def place(self) -> Place:
        return processes.place(self.coordinator, self.processes, self.process)

    def run(self, inputs: Inputs, out: Writer) -> None:
        import jax

        from qac_jax.data.loader import Loader
        from qac_jax.hub import parameters
        from qac_jax.text import tokenizers
        from qac_jax.training import distributed, loop, start, step
        from qac_jax.training import mesh as meshes

        distributed.start(self.place())
        _cache_compiled(jax)
        mesh = meshes.make_mesh(self.mesh)
        meshes.check_batch(self.batch_size, mesh)
        precision = start.precision_here(self.precision)

        examples = _artifact(inputs, "examples")
        tokenizer_folder = examples.path / parameters.TOKENIZER
        objective = self.objective.with_precision(precision)
        objective, given = self._start(objective, inputs)
        objective = objective.with_tokenizer(tokenizers.load(os.fspath(tokenizer_folder)))
        if "words" in inputs:
            given = self._words(objective, str(inputs["words"]), tokenizer_folder)
        objective = step.chunk_of(objective, self.microbatch)

        def loader(artifact: Artifact, batch_size: int, **more: Any) -> Loader:
            return Loader(
                os.fspath(artifact.path),
                batch_size=batch_size,
                kind=self.kind,
                settings=self.settings,
                lengths=self.lengths,
                crop=self.crop,
                host=meshes.my_part(mesh),
                **more,
            )

        data = loader(
            examples,
            self.batch_size,
            seed=self.seed,
            separate_documents=self.separate_documents,
            workers=self.workers,
        )
        reading = examples.info.get("reading", {})
        kind = data.recipes[0]
        objective = objective.with_reading(kind.lengths, reading, kind.settings)
        validation = None
        if "validation" in inputs:
            held_out = _artifact(inputs, "validation")
            rows = meshes.largest_batch(mesh, min(held_out.count, self.batch_size))
            # Shuffled, and whatever the seed of this run the same: neighbours of one document
            # would be far harder negatives of each other than any batch of the training has.
            validation = loader(held_out, rows)

        total = self._total_steps(data.examples_per_epoch)
        optimizer = self._optimizer()
        engine = step.Engine(
            objective=objective,
            tx=optimizer.build(total, start.abstract_params(objective)),
            mesh=mesh,
            rules=meshes.rules_named(self.rules),
            seed=self.seed,
            microbatch=self.microbatch,
            ema=self.ema,
            max_skips=self.max_skips,
        )
        if given is not None:
            found = start.matching(given, engine.abstract.params)
            given = found[0] if self.words else _report_start(found)
        plan = loop.Plan(
            total_steps=total,
            **{
                field.name: getattr(self, field.name)
                for field in dataclasses.fields(loop.Plan)
                if field.name != "total_steps"
            },
        )
        work = out.path / WORK
        with data:
            state = loop.train(
                engine,
                data,
                plan,
                work,
                identity={
                    "model": fields.describe(self.objective),
                    "data": data.identity,
                    "settings": {
                        "total_steps": total,
                        "optimizer": fields.describe(optimizer),
                        "seed": self.seed,
                        "ema": self.ema,
                        "precision": precision,
                        "start": {
                            name: _identity(inputs[name]) for name in STARTS if name in inputs
                        },
                    },
                },
                validation=validation,
                schedule=optimizer.schedule(total),
                params=given,
            )
        params = meshes.to_host(state.ema if self.ema else state.params)
        if distributed.is_first():
            self._write(out, objective, params, tokenizer_folder)
            out.info.update(steps=total, batch_size=self.batch_size, precision=precision)
        distributed.barrier("written")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        from qac_jax.training import estimate

        count = inputs.get("examples", {}).get("count") or 0
        steps = self._total_steps(count) if count or not self.epochs else None
        found = estimate.plan(
            self.objective,
            steps=steps,
            batch_size=self.batch_size,
            kind=self.kind or inputs.get("examples", {}).get("task", ""),
            settings=self.settings,
            lengths=self.lengths,
            ema=bool(self.ema),
            microbatch=self.microbatch,
        )
        return {**found, "learning_rate": self._optimizer().learning_rate}

    def _total_steps(self, examples: int) -> int:
        asked = {
            "steps": self.steps,
            "total_examples": self.total_examples,
            "epochs": self.epochs,
        }
        given = {name: value for name, value in asked.items() if value}
        if len(given) != 1 or min(given.values()) < 0:
            said = " and ".join(f"{name}={value}" for name, value in given.items())
            raise UserError(
                f"how long to train is said by {said or 'nothing'}; give one of --steps, "
                "--total_examples and --epochs, greater than 0"
            )
        seen = self.total_examples or int(self.epochs * examples)
        total = self.steps or seen // self.batch_size
        if total < 1:
            raise UserError(
                f"{seen} examples are less than one batch of {self.batch_size}; train for longer "
                "or make batch_size smaller"
            )
        return total

    def _optimizer(self) -> Any:
        from qac_jax.training.optimizers import Optimizer

        optimizer = Optimizer() if self.optimizer is None else self.optimizer
        if self.learning_rate:
            optimizer = dataclasses.replace(optimizer, learning_rate=self.learning_rate)
        return optimizer

    def _start(self, objective: Any, inputs: Inputs) -> tuple[Any, Any]:
        """The objective in the shape of what it starts from, and the parameters to start from."""
        from qac_jax.hub import huggingface, parameters
        from qac_jax.training import start

        given = [name for name in STARTS if name in inputs]
        if len(given) > 1:
            raise UserError(f"{' and '.join(given[:2])} are both given; start from one of them")
        runtime = objective.runtime
        if "init" in inputs:
            artifact = _artifact(inputs, "init")
            module, variables = parameters.load(artifact, runtime)
            objective, params = objective.start_from(module, variables["params"])
            whole = parameters.load_whole(artifact, runtime)
            return objective, start.fuller(objective, params, whole)
        if "pretrained" in inputs:
            folder = str(inputs["pretrained"])
            module, variables = huggingface.load(folder, runtime)
            objective, params = objective.start_from(module, variables["params"])
            return objective, {**params, **objective.stored_heads(folder)}
        return objective, None

    def _words(self, objective: Any, folder: str, tokenizer_folder: Any) -> Any:
        """The one parameter of a new model that does not start at random."""
        from qac_jax.hub import word_vectors
        from qac_jax.models import architecture
        from qac_jax.text import tokenizers

        config = architecture.of_module(objective.model)
        if config is None:
            raise UserError(
                f"words={self.words!r} is for a new encoder or T5, and this is a "
                f"{type(objective.model).__name__}; leave words out"
            )
        embedding = word_vectors.table(
            word_vectors.of_folder(folder),
            tokenizers.load(folder),
            tokenizers.load(os.fspath(tokenizer_folder)),
            (config.vocab_size, config.hidden_size),
            spread=config.embedding_std,
            seed=self.seed,
        )
        return config.with_words({}, embedding)

    def _write(self, out: Writer, objective: Any, params: Any, tokenizer: Any) -> None:
        """The artefact's files, from host arrays."""
        from qac_jax.hub import parameters
        from qac_jax.training import report, start

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
        metrics = out.path / WORK / "metrics.jsonl"
        shutil.copyfile(metrics, out.path / metrics.name)
        out.adopt(metrics.name, volatile=True)
        out.count = report.count_parameters(kept)
        if not self.keep_every:
            shutil.rmtree(out.path / WORK)


def _artifact(inputs: Inputs, name: str) -> Artifact:
    found = inputs[name]
    assert isinstance(found, Artifact)
    return found


def _identity(value: Any) -> str:
    from qac_jax.pipeline.stage import source_identity

    return value.identity if isinstance(value, Artifact) else source_identity(os.fspath(value))


def _report_start(found: tuple[Any, list[str], list[str]]) -> Any:
    """Says which parameters are not taken over, so that nobody wonders later."""
    from qac_jax.training.journal import announce

    kept, unused, fresh = found
    for names, what in ((unused, "are not used"), (fresh, "start anew")):
        if names:
            shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
            announce(f"{len(names)} parameter arrays {what}: {shown}")
    return kept


def _cache_compiled(jax: Any) -> None:
    """Compiled programs are kept between runs, unless JAX is told where itself."""
    from jax.experimental.compilation_cache import compilation_cache

    if jax.config.jax_compilation_cache_dir is None:
        folder = user_cache() / "compiled" / _machine(jax.default_backend())
        jax.config.update("jax_compilation_cache_dir", os.fspath(folder))
        # An earlier stage of this process has compiled without, and JAX looks only once.
        compilation_cache.reset_cache()


def _machine(backend: str) -> str:
    """What compiled programs are tied to and JAX's keys for them do not say: a CPU's
    instructions and how many cores share the work."""
    if backend != "cpu":
        return backend
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    told = [platform.machine(), platform.processor(), str(cores)]
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        first = file.read().split("\n\n", 1)[0].splitlines()
        told += [line for line in first if line.startswith(("model name", "flags", "Features"))]
    return "cpu-" + hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]
