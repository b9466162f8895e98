"""Pages of help that are short and complete; `qac doctor`: every part, and the extras."""

import contextlib

import pytest

from qac_jax import cli, extras, fields
from qac_jax.cli import ALIASES, VERBS
from qac_jax.errors import UserError
from qac_jax.stages import look


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


def test_what_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    gone = look.Check("gone", lambda: extras.load("nowhere", "pdf", "reading"), "pip install gone")
    monkeypatch.setattr(look, "CHECKS", [*look.CHECKS, gone._replace(needed=False)])
    assert look.doctor() == 0
    shown = capsys.readouterr().out
    assert "-> pip install gone" in shown
    assert shown.endswith("all needed parts work\n")
    monkeypatch.setattr(look, "CHECKS", [gone])
    assert look.doctor() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "broken: gone"


def test_a_missing_module_names_its_extra() -> None:
    with pytest.raises(UserError, match=r"reading needs nowhere.*pip install 'qac_jax\[pdf\]'"):
        extras.load("nowhere", "pdf", "reading")
