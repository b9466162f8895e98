"""Three toy stages for the tests of stages, recipes and the command line."""

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from etils import epath

from qac_jax.artifacts import Artifact, Writer
from qac_jax.pipeline.recipe import Run
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, option, part


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbers(Stage):
    """Writes `count` numbers into shards, slowly if asked to."""

    VERB: ClassVar[str] = "numbers"
    KIND: ClassVar[str] = "numbers"
    EXAMPLE: ClassVar[str] = "qac numbers --count 3"

    count: int = option(10, "how many")
    shards: int = option(2, "in how many files")
    word: str = option("n", "a word", choices=("n", "m"))
    pause: float = option(0.0, "seconds before each shard", affects_result=False)
    fail_at: int = option(-1, "shard before which it fails", affects_result=False)
    full_disk: bool = option(False, "write to a device without space", affects_result=False)
    base: Ref = input("a file with a number to add", FILE, default="")

    def run(self, inputs: Inputs, out: Writer) -> None:
        offset = 0
        if "base" in inputs:
            offset = int(Path(str(inputs["base"])).read_text())
        for shard in range(self.shards):
            name = f"numbers-{shard:05d}.jsonl"
            if name in out.done:
                continue
            time.sleep(self.pause)
            if shard == self.fail_at:
                raise RuntimeError("fails on purpose")
            if self.full_disk:
                Path(str(out.part(name))).symlink_to("/dev/full")  # the kernel says ENOSPC
            with out.open(name) as file:
                for i in range(shard, self.count, self.shards):
                    file.write(json.dumps({"value": i + offset, "word": self.word}) + "\n")
                    file.flush()
                    time.sleep(self.pause / max(self.count, 1))
        out.count = self.count

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {"items": self.count}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of things."""

    width: int = option(3, "how wide")
    depth: int = option(4, "how deep")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sized(Stage):
    """Writes its settings, some of which it shares with other stages."""

    VERB: ClassVar[str] = "sized"
    KIND: ClassVar[str] = "sizes"

    name: str = option("x", "a name")
    sizes: Sizes = part(Sizes)

    def run(self, inputs: Inputs, out: Writer) -> None:
        with out.open("sizes.json") as file:
            json.dump([self.name, self.sizes.width, self.sizes.depth], file)
        out.count = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Doubled(Stage):
    """Doubles numbers."""

    VERB: ClassVar[str] = "double"
    KIND: ClassVar[str] = "numbers"

    numbers: Ref = input("the numbers", "numbers")
    factor: int = option(2, "by how much")

    def run(self, inputs: Inputs, out: Writer) -> None:
        with out.open("numbers-00000.jsonl") as file:
            for value in values(inputs["numbers"]):
                file.write(json.dumps({"value": value * self.factor}) + "\n")
                out.count += 1

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {"items": inputs["numbers"]["items"]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summed(Stage):
    """Adds numbers up."""

    VERB: ClassVar[str] = "sum"
    KIND: ClassVar[str] = "sum"

    numbers: Ref = input("the numbers", "numbers")

    def run(self, inputs: Inputs, out: Writer) -> None:
        with out.open("sum.json") as file:
            json.dump(sum(values(inputs["numbers"])), file)
        out.count = 1


def values(artifact: Artifact | epath.Path) -> Iterator[int]:
    assert isinstance(artifact, Artifact)
    for path in artifact.matching("numbers-"):
        for line in path.read_text().splitlines():
            yield json.loads(line)["value"]


def toy(run: Run) -> None:
    """Numbers, doubled, and their sum."""
    first = run(Numbers, "first")
    run(Summed, "total", numbers=run(Doubled, "twice", numbers=first))
