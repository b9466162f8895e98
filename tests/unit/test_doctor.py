"""`qac doctor`: every part, the extras, and the names that need no network."""

import json
from pathlib import Path

import pytest
import toy_hub

from qac_jax import extras
from qac_jax.errors import UserError
from qac_jax.hub import names
from qac_jax.stages import doctor
from qac_jax.stages.doctor import Check


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

    gone = Check("gone", lambda: extras.load("nowhere", "pdf", "reading"), "pip install gone")
    monkeypatch.setattr(doctor, "CHECKS", [*doctor.CHECKS, gone._replace(needed=False)])
    assert doctor.run() == 0
    shown = capsys.readouterr().out
    assert "-> pip install gone" in shown and "\na/encoder " in shown
    assert shown.endswith("all needed parts work\n")
    monkeypatch.setattr(doctor, "CHECKS", [gone])
    assert doctor.run() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "broken: gone"


def test_a_missing_module_names_its_extra() -> None:
    with pytest.raises(UserError, match=r"reading needs nowhere.*pip install 'qac_jax\[pdf\]'"):
        extras.load("nowhere", "pdf", "reading")
