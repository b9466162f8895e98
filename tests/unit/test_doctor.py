"""`qac doctor`: every part, the extras, and the names that need no network."""

import pytest

from qac_jax import extras
from qac_jax.errors import UserError
from qac_jax.stages import look


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
