"""Commands in notebooks: `%load_ext qac_jax.notebooks`, then a cell that begins with `%%qac`.

    %%qac
    prepare --documents {FOLDER} --out out/passages
    bm25 --passages out/passages \\
        --out out/bm25

A command may go on after a backslash; {NAME} is the variable's value. They run in the notebook's
own process: JAX starts once, and compiled programs are kept.
"""

import shlex
from typing import Any

from qac_jax import cli
from qac_jax.errors import UserError


def load_ipython_extension(shell: Any) -> None:
    """Called by IPython."""

    def cell(line: str, text: str) -> None:
        del line
        for command in text.replace("\\\n", " ").splitlines():
            qac(shell.var_expand(command))

    shell.register_magic_function(cell, magic_kind="cell", magic_name="qac")


def qac(command: str) -> None:
    """Runs `qac COMMAND`; raises UserError where it fails, so that the cells after it wait."""
    words = shlex.split(command, comments=True)
    if words and (code := cli.main(words)):
        raise UserError(f"qac {words[0]} ended with code {code}; the line above says why")
