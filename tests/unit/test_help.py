"""Pages of help that are short and complete."""

import contextlib

import pytest

from qac_jax import cli, fields
from qac_jax.cli import ALIASES, VERBS


STAGES = {name: verb for name, verb in VERBS.items() if verb.target}


def page(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with contextlib.suppress(SystemExit):
        assert cli.main([*arguments]) == 0
    return capsys.readouterr().out


def test_the_page_of_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in [*VERBS, *ALIASES]:
        shown = page(capsys, verb, "--help")
        assert len(shown.splitlines()) <= 60 and f"usage: qac {ALIASES.get(verb, verb)}" in shown
        if verb not in ("bench", "step"):
            assert "example: qac " in shown


def test_the_whole_page_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """Closed settings with what they may be, required inputs as such, all of `fields.flat`."""
    for verb in [name for name in STAGES if name != "search"]:
        whole = " ".join(page(capsys, verb, "--help", "all").split())
        for name, leaf in fields.flat(STAGES[verb].load()).items():
            if fields.converter(leaf.hint) is None and not fields.is_input(leaf.field):
                continue
            assert f"--{name}" in whole
            if listed := [str(value) for value in fields.choices(leaf.field) or () if value != ""]:
                assert f"[{', '.join(listed)}]" in whole, name
            if leaf.field.default == fields.REQUIRED:
                assert "required: " in whole
