"""`qac doctor`: every part, the extras, and the names that need no network."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import toy_hub

from qac_jax import extras
from qac_jax.errors import UserError
from qac_jax.hub import names
from qac_jax.stages import doctor
from qac_jax.stages.doctor import Check


def _fails() -> str:
    raise ImportError("no such library\nat all")


CHECKS = (
    Check("fine", lambda: "1.0", "install it"),
    Check("gone", _fails, "pip install gone", needed=False),
    Check("far", lambda: "2.0", "install that", apart=True),
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the Hub with folders of config files and empty weights."""
    cache = tmp_path / "hub"

    def add(name: str, config: dict[str, Any], *files: str, refs: tuple[str, ...]) -> None:
        folder = tmp_path / name.replace("/", "-")
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        for file in files:
            (folder / file).write_text("{}")
        toy_hub.add(cache, name, folder, refs=refs)

    bert = {"model_type": "bert", "architectures": ["BertModel"], **toy_hub.BERT}
    weights = "model.safetensors"
    add("a/encoder", bert, weights, "tokenizer.json", refs=("main", "v1.0"))
    add("a/judge", bert, weights, refs=("v2",))
    add("a/words", {"model_type": "bert"}, "tokenizer.json", refs=("main",))
    toy_hub.pin(monkeypatch, cache)
    return cache


def test_names_that_need_no_network(cache: Path) -> None:
    known = dict(names.known_names())
    usable = {name for name in known if not name.startswith("shipped:")}
    assert usable == {"a/encoder", "a/encoder@v1.0", "a/judge@v2"}
    assert {"shipped:qgen", "shipped:wordpiece-16k", "shipped:demo/questions.jsonl"} <= known.keys()
    assert all(Path(place).exists() for place in known.values())


@pytest.fixture
def few_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", CHECKS)
    monkeypatch.setattr(doctor, "_APART", """print('["far", ["ok", "2.0"]]')""")


def test_what_is_shown(cache: Path, few_checks: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run(as_json=True) == 0
    shown = json.loads(capsys.readouterr().out)
    states = {name: (one["state"], one["message"]) for name, one in shown["checks"].items()}
    gone = ("absent", "ImportError: no such library")
    assert states == {"fine": ("ok", "1.0"), "gone": gone, "far": ("ok", "2.0")}
    assert shown["checks"]["gone"]["remedy"] == "pip install gone"
    assert shown["broken"] == [] and shown["cache"] == str(cache)
    assert Path(shown["names"]["a/encoder"]).is_dir()
    assert doctor.run(as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ok", "fine", "1.0"] and "-> pip install gone" in lines[2]
    assert lines[-1] == "all needed parts work"


def test_a_part_that_ends_its_process(
    cache: Path,
    few_checks: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(doctor, "_APART", "import os; os._exit(3)")
    assert doctor.run(as_json=True) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["broken"] == ["far"]
    assert shown["checks"]["far"]["message"] == "its process ended with the code 3"


@pytest.mark.slow
def test_this_installation() -> None:
    program = (
        "import sys; from qac_jax import cli; code = cli.main(['doctor']); "
        "print('tensorflow' in sys.modules, code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False 0", done.stdout + done.stderr


def test_a_missing_module_names_its_extra() -> None:
    assert extras.load("json", "warc", "reading").dumps({}) == "{}"
    with pytest.raises(UserError, match=r"reading needs nowhere.*pip install 'qac_jax\[warc\]'"):
        extras.load("nowhere", "warc", "reading")
