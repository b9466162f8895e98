"""No message advises a flag that the verb which says it lacks."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from qac_jax import cli, flags, verbs
from qac_jax.pipeline import recipe
from qac_jax.serving.settings import Limits, Serving, Traffic


ROOT = Path(cli.__file__).parent
_FLAG = re.compile(r"(?<![\w-])--[a-zA-Z][\w-]*")
_RAISED = ("UserError", "DataError", "BadRecord", "ValueError", "say", "_complain")
# Programs that are not ours, and what `--gin.NAME` begins with.
_FOREIGN = {"--no-deps", "--gin", "--logdir"}

STAGES = verbs.stages()
EVIDENCE = "evidence"
# Rooms below the stages: who can hear what they say. All others speak of flags of every verb.
HEARD: dict[str, tuple[str, ...]] = {
    "data/kind.py": ("tokenize",),
    "data/kinds/groups.py": ("tokenize",),
    "data/reading.py": ("pretrain", "finetune"),
    "evaluation/answers.py": ("evaluate", "mine", "label"),
    "evaluation/measure_names.py": ("evaluate",),
    "evaluation/votes.py": ("votes",),
    "formats/bad_lines.py": ("prepare", "tokenize", "generate"),
    "formats/readers/named.py": ("prepare", "bm25", "embed"),
    "hub/reading.py": ("tokenize",),
    "inference/loading_back.py": ("export",),
    "live/asking.py": ("search",),
    "live/command.py": ("index",),
    "live/runs.py": ("index",),
    "objectives/finetune.py": ("tokenize",),  # it says: tokenize with --teacher
    "objectives/towers.py": ("tokenize",),  # it names qac tokenize
    "pipeline/engine.py": ("prepare", "extract", "tokenize"),
    "queries/collecting.py": ("collect",),
    "retrieval/index.py": ("search", "mine", "generate"),
    "retrieval/memory.py": ("index",),
    "retrieval/reranking.py": ("search",),
    "retrieval/run_labels.py": ("label",),
    "retrieval/texts.py": ("bm25", "embed", "prepare"),
    "serving/run.py": ("serve",),
    "text/sentences.py": ("prepare", "pairs", "tokenize"),
    "training/distributed.py": ("pretrain", "finetune", "embed"),
    "training/estimate.py": ("pretrain", "finetune"),
    "training/packing.py": ("pretrain", "finetune"),
    "training/held_out.py": ("pretrain", "finetune"),
    "training/probe.py": ("pretrain", "finetune"),
    "training/settings.py": ("pretrain", "finetune"),
}
# Messages that name another verb together with its flag.
OF_OTHERS = re.compile(
    r"qac (?:search|label|prepare|run|split|tokenize)[^;,]*? --\w+|train one without --scores"
)


class Message(NamedTuple):
    file: str
    line: int
    text: str

    @property
    def flags(self) -> set[str]:
        return set(_FLAG.findall(OF_OTHERS.sub("", self.text))) - _FOREIGN


@functools.cache
def messages() -> tuple[Message, ...]:
    """Every sentence of the package that names a flag."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "--" not in text:
            continue
        name = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(text)):
            if said := " ".join(_said(node)):
                found.append(Message(name, getattr(node, "lineno", 0), said))
    return tuple(message for message in found if message.flags)


def _said(node: ast.AST) -> Iterator[str]:
    """The words of a call that speaks to the user, or of a `return` of such words."""
    if isinstance(node, ast.Call):
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if called not in _RAISED:
            return
    elif not (
        isinstance(node, ast.Return) and isinstance(node.value, ast.Constant | ast.JoinedStr)
    ):
        return
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


@functools.cache
def flags_of(verb: str) -> frozenset[str]:
    """The flags of a verb."""
    if verb == EVIDENCE:  # which is not one of `qac`
        source = (ROOT / "evidence/__main__.py").read_text(encoding="utf-8")
        return frozenset(re.findall(r'"(--\w+)"', source) + ["--data_dir"])
    parser = flags.parser(verb, "", "")
    flags.add_common(parser)
    if verb in STAGES:
        flags.add_field_flags(parser, STAGES[verb].load())
    if verb == "serve":
        for cls in (Serving, Limits, Traffic):
            flags.add_field_flags(parser, cls)
    known = {name for action in parser._actions for name in action.option_strings}
    # Flags that are not settings of a stage: of recipes, living indexes, a search on the screen.
    by_hand = {
        "run": ["recipes.py"],
        "index": ["live/command.py"],
        "search": ["live/asking.py", "live/command.py"],
    }
    for file in by_hand.get(verb, ()):
        known |= set(re.findall(r'"(--\w+)"', (ROOT / file).read_text()))
    return frozenset(known)


def heard_by(message: Message) -> tuple[str, ...]:
    """The verbs that may say this."""
    folder, _, file = message.file.partition("/")
    if folder == EVIDENCE:
        return (EVIDENCE,)
    if folder == "stages":
        module = f"qac_jax.stages.{file.removesuffix('.py')}"
        return tuple(verb.name for verb in STAGES.values() if verb.module == module)
    if "--where" in message.flags:  # filters of a living index
        return ("search",)
    if message.file in HEARD:
        return HEARD[message.file]
    if message.file in ("cli.py", "flags.py", "config.py", "recipes.py") or folder == "pipeline":
        return ("run",)
    return tuple(STAGES)


@pytest.mark.parametrize(
    "message",
    [m for m in messages() if not m.file.startswith(("bench/", "stages/inspect", "stages/doctor"))],
    ids=lambda m: f"{m.file}:{m.line}",
)
def test_verbs_have_the_flags_that_they_advise(message: Message) -> None:
    verbs_ = heard_by(message)
    assert verbs_
    for verb in verbs_:
        lacks = message.flags - flags_of(verb)
        assert not lacks, f"{message.file}:{message.line}: qac {verb} lacks {lacks}: {message.text}"


def test_benchmarks_have_the_flags_that_they_advise() -> None:
    fields = "".join((ROOT / "bench" / p.name).read_text() for p in (ROOT / "bench").glob("*.py"))
    for message in messages():
        if message.file.startswith("bench/"):
            for flag in message.flags:
                assert re.search(rf"^    {flag[2:]}\b.*[:=]", fields, re.M), message


def test_recipes_advise_bindings() -> None:
    prepare = STAGES["prepare"].load()
    said = recipe.in_gin("mend it, or pass --skip_bad N; --min_tokens; --out DIR; --other", prepare)
    assert said == (
        "mend it, or pass --gin.prepare.Prepare.skip_bad=N; --gin.prepare.Cutting.min_tokens; "
        "--out DIR; --other"
    )
