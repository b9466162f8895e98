"""Pages of help that are short and complete, and progress on a terminal."""

import contextlib
import io

import pytest

from qac_jax import cli, fields, progress
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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_one_line_that_is_rewritten(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_TERMINAL_SECONDS", 0.0)
    stream = Terminal()
    with progress.Bar("embed", total=4, unit="texts", stream=stream) as bar:
        for _ in range(4):
            bar.advance(loss=0.5)
    shown = stream.getvalue()
    assert shown.count("\n") == 1 and shown.count("\r") == 5
    assert "ETA" in shown and "4/4 texts (100%)" in shown and "loss 0.5" in shown
