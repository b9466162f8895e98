"""The verbs of the command line, read from the files in `stages/` without importing them.

The first line of a stage's file names the verb, its input and its output:

    \"""`qac embed`: passages or queries → vectors of a dual encoder.\"""

and its first class that is a `Stage` implements it. Two verbs may share a file.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from pathlib import Path
from typing import Any


# The order in which `qac --help` lists verbs; all others follow, sorted by name.
ORDER = (
    *("prepare", "pairs", "generate", "extract", "collect", "unite", "judge", "tokenize"),
    *("pretrain", "finetune", "bm25", "embed", "index", "hybrid", "search", "fuse", "mine"),
    *("group", "label", "evaluate", "evaluate-beir", "evaluate-mteb", "suite", "relate"),
    *("votes", "similarities"),
    *("report", "export", "export-faiss"),
)

_STAGES = Path(__file__).parent / "stages"
_FIRST_LINE = re.compile(r'^"""((?:`qac [\w-]+`(?:, | and )?)+): (.+)$', re.M)
_BENCH = re.compile(r'^"""`qac bench (\w+)`: (.+?)\.(?:\s|""")', re.S)
_CLASS = re.compile(r"^class (\w+)\((?:\w+\.)?Stage\):", re.M)


@dataclasses.dataclass(frozen=True)
class Verb:
    """One verb: the stage behind it, and a line about it."""

    name: str
    module: str
    cls: str
    summary: str

    def load(self) -> Any:
        """The stage's class; heavy rooms are imported by its methods only."""
        return getattr(importlib.import_module(self.module), self.cls)


@functools.cache
def stages() -> dict[str, Verb]:
    """Every verb that makes an artefact."""
    verbs = {}
    for path in _STAGES.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        line, cls = _FIRST_LINE.match(text), _CLASS.search(text)
        if line is None or cls is None:
            continue
        summary = line[2].rstrip('"').rstrip(".")
        for name in re.findall(r"`qac ([\w-]+)`", line[1]):
            verbs[name] = Verb(name, f"qac_jax.stages.{path.stem}", cls[1], summary)
    place = {name: number for number, name in enumerate(ORDER)}
    return dict(sorted(verbs.items(), key=lambda item: (place.get(item[0], len(place)), item[0])))


def benchmarks() -> dict[str, str]:
    """Every benchmark with the first sentence of its file."""
    texts = ((path.read_text(encoding="utf-8")) for path in (_STAGES.parent / "bench").glob("*.py"))
    found = (_BENCH.match(text) for text in texts)
    return dict(sorted((line[1], " ".join(line[2].split())) for line in found if line))
