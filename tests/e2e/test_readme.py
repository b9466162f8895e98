"""Every command of the README, and of pages that go on from it, runs as it stands and in its order
on a small folder of documents."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import toy_retrieval as toy

from qac_jax.cli import ALIASES, VERBS


ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Pages whose commands go on where the README's end.
PAGES = ("docs/steps.md", "docs/objectives.md", "docs/sharing.md", "docs/watching.md")

# Fences marked so need other hardware, the network or minutes: the demo and CI run them.
ELSEWHERE = "elsewhere"
# Left out below: a command with a name in capitals, a glob or an ellipsis shows a form.
_A_FORM = re.compile(r"…|\b[A-Z][A-Z0-9_]{2,}\b(?!=)|\bFILE\b|\bO\b")


def commands(page: str) -> Iterator[str]:
    """The commands of fences and of table cells, in the order of the page."""
    pattern = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```|`(qac [^`]*)`", re.M | re.S)
    for found in pattern.finditer(page):
        language, marks, fenced, inline = found.groups()
        if inline:
            yield inline
        elif language == "bash" and ELSEWHERE not in marks:
            yield from (line.strip() for line in fenced.splitlines() if line.strip())


def is_form(command: str) -> bool:
    bare = re.sub(r"--gin\.\w+=\S+", "", command)
    words = command.removeprefix("qac step ").removeprefix("qac ").split()
    named_only = len(words) == 1 and command not in ("qac doctor", "qac --help")
    return bool(_A_FORM.search(bare)) or named_only


COMMANDS = [
    command
    for page in (README, *((ROOT / name).read_text(encoding="utf-8") for name in PAGES))
    for command in commands(page)
    if not is_form(command)
]


# In one process: starting 50 would take longer than what they do.
_ONE_AFTER_THE_OTHER = """
import shlex, sys
from qac_jax import cli
for command in sys.stdin.read().splitlines():
    print(command, file=sys.stderr)
    if code := cli.main(shlex.split(command)[1:]):
        sys.exit(code)
"""


def test_the_page_has_its_commands() -> None:
    used = {ALIASES.get(words[1], words[1]) for words in map(shlex.split, COMMANDS)}
    # Which need a trained generator or teacher, a peer, several contexts, or do not end.
    assert {*VERBS} - used <= {"generate", "label", "bench", "serve"}, {*VERBS} - used
    assert len(COMMANDS) > 25


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_every_command_runs_as_it_stands(tmp_path: Path) -> None:
    toy.write_collection(tmp_path / "data" / "mine", 60, 24, train=12)
    (tmp_path / "data" / "notes").mkdir()
    (tmp_path / "data" / "notes" / "lamps.md").write_text("# Lamps\n\nA lamp burns oil.\n")
    for name in ("gin_configs", "qac_jax"):
        (tmp_path / name).symlink_to(ROOT / name)
    # The recipe of docstrings is another test's; the page only wants its passages.
    first = (
        "qac prepare --format python_docs --packages stdlib --options 'kinds=function "
        "sections=first' --out out/docstrings/passages"
    )
    assert all(command.startswith("qac ") for command in COMMANDS)
    done = subprocess.run(
        [sys.executable, "-c", _ONE_AFTER_THE_OTHER],
        input="\n".join((first, *COMMANDS)),
        cwd=tmp_path,
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    shutil.rmtree(tmp_path / "out")
