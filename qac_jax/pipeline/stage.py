"""The stage contract: a frozen dataclass that turns artefacts into one artefact.

Gin and flags only build it. Its key is a hash of its settings, of the identities of its inputs and
of its VERSION; a finished folder with the same key is never made again.
"""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Mapping
from resource import RUSAGE_SELF, getrusage
from typing import Any, ClassVar, Self

from etils import epath

from qac_jax import artifacts, fields, processes, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.artifacts.writing import FAILED
from qac_jax.errors import UserError
from qac_jax.fields import option, part
from qac_jax.inference import endpoint
from qac_jax.pipeline import inputs
from qac_jax.pipeline.inputs import FILE, Group, Inputs, Plan, Plans, Ref, input, model_input
from qac_jax.processes import interruptible


# The names that a new stage is written with; rules about its inputs are in `inputs.py`.
__all__ = ["FILE", "Inputs", "Plan", "Plans", "Ref", "Stage"]
__all__ += ["execute", "input", "model_input", "option", "part"]

# Seconds between two looks at what process 0 makes.
_POLL = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """Base of all stages. Subclasses declare fields, VERB, KIND and `run`."""

    VERB: ClassVar[str] = ""
    KIND: ClassVar[str] = ""
    SCHEMA: ClassVar[int] = 1
    # Increment it when the same fields and inputs would give another result.
    VERSION: ClassVar[int] = 1
    EXAMPLE: ClassVar[str] = ""

    # Which inputs go together: `one_of("passages", "queries")`.
    GROUPS: ClassVar[tuple[Group, ...]] = ()

    # Of a run over several processes all compute each step together; otherwise process 0 works, and
    # the others wait.
    SHARED: ClassVar[bool] = False
    # Its shards may be made on a cluster (engines.py).
    DIVIDED: ClassVar[bool] = False

    seed: int = option(0, "seed of everything random in this stage")

    @classmethod
    def make(cls, **settings: Any) -> Self:
        """The stage from settings by their flat names, as flags give them."""
        return fields.make(cls, settings)

    def check(self) -> None:
        """Raises UserError for invalid settings or combinations of inputs; subclasses extend it."""
        for name, field in inputs.declared(self).items():
            if endpoint.is_named(getattr(self, name)):
                endpoint.address(getattr(self, name))
            if field.default == fields.REQUIRED and not getattr(self, name):
                raise UserError(f"{self.VERB} needs --{name} ({field.metadata['help']}); give it")
        for group in self.GROUPS:
            group.check(self)

    def reads(self) -> list[epath.Path]:
        """What it reads without its being an input."""
        return []

    def run(self, inputs: Inputs, out: Writer) -> None:
        """Reads `inputs` (artefacts opened, others as paths) and fills `out`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it runs")

    def summary(self, artifact: Artifact) -> str:
        """The text that the command line prints for the finished artefact."""
        del artifact
        return ""

    @property
    def verb(self) -> str:
        """The name of the stage in logs and in what it makes."""
        return self.VERB

    def environment(self) -> dict[str, str]:
        """Further things that the result depends on, such as versions of packages."""
        return {}

    def plan(self, inputs: Plans) -> Plan:
        """The plan of a dry run, without reading data; `inputs` are the plans of its inputs."""
        del inputs
        return {}

    def survey(self, data_dir: str) -> tuple[int, float] | None:
        """How many items it makes of inputs that are here, and the seconds of one."""
        return None


def key_of(stage: Stage, identities: Mapping[str, str]) -> str:
    """The key that identifies a finished folder."""
    described = fields.describe(stage)
    for name in inputs.declared(stage):
        described.pop(name, None)  # the identity of an input matters, not its path
    decisive = {"fields": described, "inputs": dict(identities), "version": stage.VERSION}
    if environment := stage.environment():
        decisive["environment"] = environment
    return fields.digest(decisive)


def execute(
    stage: Stage,
    out: epath.PathLike,
    *,
    replace: bool = False,
    documentation: str = "",
    verb: str = "",
) -> Artifact:
    """Runs a stage into `out`, or takes the finished artefact that is there already.

    `verb` is what it was called by, where that is not its own name.
    """
    verb = verb or stage.verb
    fields.check(stage)
    stage.check()
    stage = inputs.resolved(stage)
    artifacts.refuse_link(out)
    inputs.refuse_overlap(stage, out)
    opened = inputs.opened(stage)
    identities = inputs.identities(opened)
    key = key_of(stage, identities)
    record = artifacts.peek(out)
    if record is not None and record["finished"] and record["key"] == key:
        try:
            artifact = artifacts.load(out)
            with contextlib.suppress(OSError):  # a folder that only others may write
                artifacts.tidy(out)
            progress.say(f"{verb}: {out} is up to date")
            return artifact
        except UserError as damage:
            if not replace:
                raise
            progress.say(f"{verb}: made again, since {damage}")
    several = processes.place().count != 1  # of which only process 0 writes the artefact
    if several and _follows(stage, opened, out, key):
        return artifacts.load(out)
    began = time.monotonic()
    with (
        interruptible(),
        # Other hosts look there for what went wrong.
        contextlib.nullcontext() if several else artifacts.nothing_left(out),
        artifacts.create(
            out,
            kind=stage.KIND,
            schema=stage.SCHEMA,
            key=key,
            stage=verb,
            fields=fields.describe(inputs.pinned(stage)),
            inputs=identities,
            seed=stage.seed,
            replace=replace,
        ) as writer,
    ):
        if several:
            _meet()
        stage.run(opened, writer)
        writer.info["seconds"] = round(time.monotonic() - began, 3)
        # Linux counts in KiB, macOS in bytes.
        unit = 1 if sys.platform == "darwin" else 1024
        writer.info["peak_resident_bytes"] = unit * getrusage(RUSAGE_SELF).ru_maxrss
        if documentation:
            writer.info["gin"] = documentation
    artifact = artifacts.load(out)
    progress.say(
        f"{verb}: {artifact.count:,} items of kind {artifact.kind} in {out} "
        f"({progress.human_seconds(artifact.info['seconds'])})"
    )
    return artifact


def _follows(stage: Stage, opened: Inputs, out: epath.PathLike, key: str) -> bool:
    """Does the part of a process other than process 0, which completes the artefact."""
    from qac_jax.training import mesh

    mesh.join(processes.place())
    if mesh.is_first():
        return False
    with interruptible():
        _meet()
        if (artifacts.peek(out) or {}).get("key") != key:
            raise UserError(
                f"process 0 writes {out} with other settings than this process; start all "
                "processes with the same command and the same inputs"
            )
        if stage.SHARED:
            stage.run(opened, Writer(epath.Path(out), {}))
        while not (record := artifacts.peek(out) or {}).get("finished"):
            if why := record.get(FAILED):
                raise UserError(
                    f"process 0 of this run failed ({why}); see what it printed, and start all "
                    "processes again"
                )
            time.sleep(_POLL)
    return True


def _meet() -> None:
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices("begun")
