"""Progress on a terminal and elsewhere; metrics that survive a kill."""

import io

from qac_jax import progress


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
