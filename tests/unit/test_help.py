"""`--help` lists what every closed setting may be, and says so in one way."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from qac_jax import cli, fields, flags, verbs
from qac_jax.errors import UserError
from qac_jax.evaluation import metrics
from qac_jax.evaluation.metrics import MEASURES
from qac_jax.retrieval.bm25 import Analyzer, stemmers
from qac_jax.training import mesh, optimizers
from qac_jax.training import options as settings


# Settings that are closed, whatever else is found to be.
CLOSED = {
    "prepare": ("format", "splitter", "cut"),
    "tokenize": ("task", "training_format", "sorts", "strategies", "title", "part"),
    "pretrain": ("kind", "crop", "rules", "precision"),
    "embed": ("format", "pooling", "normalize", "precision", "dtype", "side", "title"),
    "bm25": ("stemmer", "preset", "variant", "format"),
    "extract": ("method", "likelihood"),
    "index": ("method",),
    "fuse": ("normalization",),
    "search": ("truncation", "precision"),
    "evaluate": ("protocol", "over", "measures"),
    "export": ("form", "dtype"),
}
REFUSED = re.compile(r"not known|is not one of|unknown|valid names|did you mean|expected some of")
# As a class refuses a value of its own: nearest(self.name, …), self.name not in …
CHECKED = r"nearest\((?:str\()?self\.{0}\b|self\.{0} not in\b|in self\.{0}:"
NONSENSE = "no such value"


def every_class() -> Iterator[tuple[str, Any]]:
    for name, verb in verbs.stages().items():
        yield name, verb.load()
    for name, target in cli.BENCHMARKS.items():
        yield f"bench {name}", cli._load(target)


CLASSES = dict(every_class())


def listed(leaf: fields.Leaf) -> tuple[str, ...]:
    shown = fields.choices(leaf.field) or leaf.field.metadata.get("shown", ())
    return tuple(str(value) for value in shown if value != "")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The help of every verb, in one line each."""
    made = {}
    for name, cls in CLASSES.items():
        parser = flags.parser(name, "", "")
        flags.add_field_flags(parser, cls)
        made[name] = " ".join(parser.format_help().split())
    return made


def refuses(leaf: fields.Leaf) -> bool:
    """Whether the class that has a setting refuses a word that means nothing."""
    words = (NONSENSE,) if "tuple" in str(leaf.hint) else NONSENSE
    required = {
        f.name: f"a {f.name}"
        for f in dataclasses.fields(leaf.owner)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    try:
        made = leaf.owner(**{**required, leaf.name: words})
        # A check may want more than the settings, or look up what fields.check has refused.
        with contextlib.suppress(TypeError, KeyError):
            getattr(made, "check", lambda: None)()
    except UserError as error:
        return REFUSED.search(str(error)) is not None and NONSENSE in str(error)
    return False


@pytest.mark.parametrize("verb", CLASSES)
def test_closed_settings_are_listed(verb: str, pages: dict[str, str]) -> None:
    for name, leaf in fields.flat(CLASSES[verb]).items():
        if fields.role(leaf.field) == "input" or "str" not in str(leaf.hint):
            continue
        if fields.converter(leaf.hint) is None:
            continue
        choices = listed(leaf)
        source = inspect.getsource(leaf.owner)
        closed = name in CLOSED.get(verb, ()) or refuses(leaf)
        if closed or re.search(CHECKED.format(name), source):
            assert choices, f"{verb} --{name} is refused by a list that --help does not show"
        if choices:
            assert f"[{', '.join(choices)}]" in pages[verb], (verb, name)


def test_what_gin_binds_is_listed_too(pages: dict[str, str]) -> None:
    for verb in ("pretrain", "finetune"):
        named = ("cotmae", "retromae", "bert_base", "lasttoken")
        for name in (*named, *settings.OPTIMIZERS, *settings.SCHEDULES):
            assert name in pages[verb]


def test_names_are_explained_where_they_are_taken(pages: dict[str, str]) -> None:
    for verb in ("embed", "pretrain", "label", "export"):
        assert "owner/name[@revision]" in pages[verb]
    for name in ("hf", "ir_datasets", "tfds"):
        assert f"{name}:NAME" in pages["prepare"] and f", {name}, " in pages["prepare"]
    assert "owner/name" not in pages["fuse"]


def test_values_are_checked_one_by_one() -> None:
    @dataclasses.dataclass
    class Some:
        sorts: tuple[str, ...] = fields.option((), choices=lambda: ("random", "nearby"))

    fields.check(Some(("random", "nearby")))
    with pytest.raises(UserError, match="Some.sorts = 'nearbye' is not one of .*mean 'nearby'"):
        fields.check(Some(("random", "nearbye")))


def test_the_lists_are_those_that_are_meant() -> None:
    assert tuple(mesh.RULES) == settings.RULES
    for name in settings.OPTIMIZERS:
        for schedule in settings.SCHEDULES:
            optimizers.Optimizer(name=name, schedule_name=schedule)
    for name in settings.SCHEDULES:
        optimizers.schedule(name, 1.0, 10, 1)
    assert "english" in stemmers()
    Analyzer(stemmers()[-1])
    names = [measure.replace("K", "10") for measure in MEASURES]
    metrics.check(names)
    known = {*metrics._OWN, *metrics._TREC, *metrics._TREC_WHOLE, *metrics._TREC_CUT}
    assert {re.sub("[@_]10$", "", name) for name in names} == known


def test_a_help_page_has_no_holes() -> None:
    """Percent signs are text, and what has a default says it as a flag would take it."""
    parser = flags.parser("tokenize", "", "")
    flags.add_field_flags(parser, CLASSES["tokenize"])
    page = " ".join(parser.format_help().split())
    assert "(default random,nearby,overlap)" in page and "%%" not in page


@pytest.mark.parametrize("verb", [*verbs.stages(), *cli._OTHERS])
def test_the_page_of_every_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What users see: it says what the verb does, shows an example, and lists closed options."""
    with contextlib.suppress(SystemExit):
        assert cli.main([verb, "--help"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert page.startswith(f"usage: qac {verb}") and "example: qac " in page
    if verb not in verbs.stages() or verb == "search":  # which has a page of its own
        return
    for leaf in fields.flat(verbs.stages()[verb].load()).values():
        if listed(leaf) and fields.converter(leaf.hint) is not None:
            assert f"[{', '.join(listed(leaf))}]" in page, leaf.name


@pytest.mark.parametrize("name", cli.BENCHMARKS)
def test_the_page_of_every_benchmark(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", name, "--help"])
    assert ended.value.code == 0 and f"usage: qac bench {name}" in capsys.readouterr().out
