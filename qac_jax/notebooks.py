"""Commands in notebooks: `%load_ext qac_jax.notebooks`, then `%qac prepare --documents …`.

They run in the notebook's own process: JAX starts once, and compiled programs are kept. IPython
replaces {NAME} by the variable's value before.
"""

from __future__ import annotations

import shlex
from typing import Any

from qac_jax import cli
from qac_jax.errors import UserError


def load_ipython_extension(shell: Any) -> None:
    """Called by IPython."""
    shell.register_magic_function(qac, magic_kind="line", magic_name="qac")


def qac(line: str) -> None:
    """The command `qac LINE`; raises UserError where it fails, so that the cells after it wait."""
    if code := cli.main(shlex.split(line)):
        raise UserError(f"qac ended with code {code}; what it printed last says why")
