"""`qac doctor`: every part, the extras, and the names that need no network."""

import json
import subprocess
import sys
from pathlib import Path

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


def test_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bert = {"model_type": "bert", "architectures": ["BertModel"], **toy_hub.BERT}
    for name, file in (("encoder", "model.safetensors"), ("words", "tokenizer.json")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(bert))
        (folder / file).write_text("{}")
        toy_hub.add(tmp_path / "hub", f"a/{name}", folder, refs=("main", "v1.0"))
    toy_hub.pin(monkeypatch, tmp_path / "hub")
    known = dict(names.known_names())
    usable = {name for name in known if not name.startswith("shipped:")}
    assert usable == {"a/encoder", "a/encoder@v1.0"}
    assert {"shipped:qgen", "shipped:wordpiece-16k", "shipped:demo/questions.jsonl"} <= known.keys()
    assert all(Path(place).exists() for place in known.values())

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
    assert extras.load("json", "pdf", "reading").dumps({}) == "{}"
    with pytest.raises(UserError, match=r"reading needs nowhere.*pip install 'qac_jax\[pdf\]'"):
        extras.load("nowhere", "pdf", "reading")
