"""SIGTERM and SIGINT while training: finish the step, save, print how to resume."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

import jax
from jax.experimental import multihost_utils

from qac_jax import processes
from qac_jax.errors import Interrupted


class Saved(Interrupted):
    """Training stopped on a signal after saving. SIGTERM is how schedulers end a job: exit 0."""

    def __init__(self, signal_number: int, step: int, total_steps: int):
        super().__init__(signal_number)
        if signal_number == signal.SIGTERM:
            self.exit_code = 0
        name = signal.Signals(signal_number).name
        self.args = (
            f"{name}: saved at step {step} of {total_steps}; continue with: {processes.command()}",
        )


class Watch:
    """Whether a signal has been received; checked once per step."""

    def __init__(self) -> None:
        self.number = 0

    def stop(self, step: int) -> bool:
        """True on every process at the same step.

        Hosts of one run get SIGTERM at different moments; JAX agrees on a step for them.
        """
        if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
            self.number = signal.SIGTERM
        return bool(self.number)

    def pass_on(self) -> None:
        """Leaves a signal that stopped nothing to what comes next."""
        if self.number:
            processes.received.append(self.number)


@contextlib.contextmanager
def watch() -> Iterator[Watch]:
    """Records signals inside the context; a second one has its usual effect at once.

    One that comes after the last step ends nothing here: the result is written, and the next stage
    of a recipe does not begin.
    """
    signals = Watch()
    # With several processes SIGTERM belongs to JAX's own notifier, which notifies all of them.
    if jax.process_count() > 1 or threading.current_thread() is not threading.main_thread():
        yield signals
        signals.pass_on()
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _: object) -> None:
        signals.number = number
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield signals
    finally:
        restore()
    signals.pass_on()
