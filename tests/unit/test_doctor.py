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


def test_what_is_shown(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", CHECKS)
    assert doctor.run() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ok", "fine", "1.0"]
    assert lines[1].split() == "absent gone ImportError: no such library".split()
    assert "-> pip install gone" in lines[2]
    assert any(line.startswith("a/encoder ") for line in lines)
    assert lines[-1] == "all needed parts work"
    monkeypatch.setattr(doctor, "CHECKS", [CHECKS[1]._replace(needed=True)])
    assert doctor.run() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "broken: gone"


@pytest.mark.slow
def test_this_installation() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qac_jax", "doctor"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_missing_module_names_its_extra() -> None:
    assert extras.load("json", "warc", "reading").dumps({}) == "{}"
    with pytest.raises(UserError, match=r"reading needs nowhere.*pip install 'qac_jax\[warc\]'"):
        extras.load("nowhere", "warc", "reading")
