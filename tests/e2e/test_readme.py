"""Every command of the README, and of pages that go on from it, runs as it stands and in its order
on a small folder of documents, and prints what the README says."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import toy_retrieval as toy
from toy_process import devices, said

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


# Fences of commands with what they print, of Python, and numbers that may round otherwise.
_PRINTED = re.compile(r"^```bash\n(.*?)^```\n+```\n(.*?)^```", re.M | re.S)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
_NUMBER = re.compile(r"\d+\.\d+")


def test_the_page_has_its_commands() -> None:
    used = {ALIASES.get(words[1], words[1]) for words in map(shlex.split, COMMANDS)}
    # Which need a trained generator or teacher, a peer, several contexts, or do not end.
    assert {*VERBS} - used <= {"generate", "label", "bench", "serve"}, {*VERBS} - used
    assert len(COMMANDS) > 25
    assert len(README.split()) <= 1100 and _PRINTED.search(README) and _PYTHON.search(README)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_every_command_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.write_collection(tmp_path / "data" / "mine", 60, 24, train=12)
    notes = tmp_path / "data" / "notes"
    notes.mkdir()
    text = "# Lamps\n\n## Oil\n\nA lamp burns oil, which rises in its wick.\n"
    (notes / "lamps.md").write_text(text)
    (notes / "bees.md").write_text("# Bees\n\nBees make honey and keep it in combs of wax.\n")
    for name in ("gin_configs", "qac_jax"):
        (tmp_path / name).symlink_to(ROOT / name)
    # The recipe of docstrings is another test's; the page only wants its passages.
    first = (
        "qac prepare --format python_docs --packages stdlib --options 'kinds=function "
        "sections=first' --out out/docstrings/passages"
    )
    assert all(command.startswith("qac ") for command in COMMANDS)
    found = said((first, *COMMANDS), tmp_path, devices())
    for fence, printed in _PRINTED.findall(README):
        _compare(printed, "".join(found[command] for command in fence.splitlines()))
    monkeypatch.chdir(tmp_path)
    for block in _PYTHON.findall(README):
        _follow(block)
    shutil.rmtree(tmp_path / "out")


def _compare(printed: str, said: str) -> None:
    """Lines of the page stand in what was said, in their order; numbers are near."""
    lines = iter(said.splitlines())
    for line in printed.splitlines():
        same = (given for given in lines if _NUMBER.sub("", given) == _NUMBER.sub("", line))
        given = next(same, None)
        assert given is not None, f"not printed: {line}\n{said}"
        near = [float(number) for number in _NUMBER.findall(line)]
        assert [*map(float, _NUMBER.findall(given))] == pytest.approx(near, abs=2e-3)


def _follow(block: str) -> None:
    """Runs lines of Python; an expression has the value of the remark beside it."""
    scope: dict[str, object] = {}
    for line in block.splitlines():
        code, _, value = line.partition("  # ")
        if value.startswith(("'", "[")):
            assert repr(eval(code, scope)) == value
        else:
            exec(code, scope)
