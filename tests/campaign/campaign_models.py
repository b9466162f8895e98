"""Model folders of others with one thing wrong: refused in a sentence, or used."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from campaign_inputs import mutated
from campaign_lab import LIMIT, Lab, Outcome

from qac_jax import artifacts


_VALUES: list[Any] = [
    "x", -1, 0, 1, 10**12, 1.5, None, [], {}, True, float("nan"), [1, "a"], {"a": -1}, "../../mine",
    "/etc/passwd", "a" * 5000,
]  # fmt: skip
_NESTED = b"[" * 200_000
MODELS = {"config": 3, "tokenizer": 2, "weights": 3, "files": 1}


def feed(lab: Lab, name: str, number: int, rng: random.Random) -> Outcome:
    """Encodes passages by a model folder that is wrong in one way."""
    del number
    outcome, bad = Outcome(), lab.work / "bad"
    shutil.rmtree(bad, ignore_errors=True)
    shutil.copytree(lab.work / "ref/exported", bad)
    for own in (artifacts.COMMIT, artifacts.LOCK):  # a folder from elsewhere
        (bad / own).unlink(missing_ok=True)
    _WAYS[name](bad, rng)
    shutil.rmtree(lab.work / "bad_out", ignore_errors=True)
    command = ["embed", "--model", "bad", "--passages", "ref/more"]
    outcome.of_input(lab.run(command, out="bad_out", limit=LIMIT))
    return outcome


def _config(bad: Path, rng: random.Random) -> None:
    """One value of one of the JSON files, or its text."""
    file = rng.choice([p for p in sorted(bad.rglob("*.json")) if p.name != "tokenizer.json"])
    if rng.random() < 0.25:
        file.write_bytes(
            rng.choice([b"", b"[]", b"null", _NESTED, mutated(file.read_bytes(), rng)])
        )
        return
    content = json.loads(file.read_text())
    _change(content, rng)
    file.write_text(json.dumps(content))


def _change(content: Any, rng: random.Random) -> None:
    """Another value somewhere in it, or one less."""
    while isinstance(content, dict | list) and content:
        keys = list(content) if isinstance(content, dict) else range(len(content))
        key = rng.choice(keys)
        if rng.random() < 0.5 and isinstance(content[key], dict | list):
            content = content[key]
        elif rng.random() < 0.15:
            del content[key]
            return
        else:
            content[key] = rng.choice(_VALUES)
            return


def _tokenizer(bad: Path, rng: random.Random) -> None:
    if rng.random() < 0.3:  # without tokenizer.json the vocabulary is read
        (bad / "tokenizer.json").unlink()
        file = bad / "vocab.txt"
        file.write_bytes(rng.choice([b"", b"\n" * 50, mutated(file.read_bytes(), rng)]))
        return
    file = bad / "tokenizer.json"
    if rng.random() < 0.4:
        file.write_bytes(mutated(file.read_bytes(), rng))
        return
    content = json.loads(file.read_text())
    way = rng.randrange(4)
    vocabulary = content["model"]["vocab"]
    if way == 0:
        shift = rng.choice([10**6, -5, 2**31, 2**40])
        content["model"]["vocab"] = {word: value + shift for word, value in vocabulary.items()}
    elif way == 1:
        content["model"]["vocab"] = dict.fromkeys(vocabulary, 5)
    elif way == 2:
        content["model"]["vocab"] = {w: n for w, n in vocabulary.items() if not w.startswith("[")}
    else:
        _change(content, rng)
    file.write_text(json.dumps(content))


def _weights(bad: Path, rng: random.Random) -> None:
    file = bad / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, body = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    name = rng.choice([key for key in header if key != "__metadata__"])
    tensor, way = header[name], rng.randrange(9)
    if way == 0:
        file.write_bytes(raw[: rng.randrange(len(raw))])
        return
    if way == 1:
        file.write_bytes(rng.choice([2**63 - 1, 2**40, 0]).to_bytes(8, "little") + raw[8:])
        return
    if way == 2:
        content = bytearray(raw)
        for _ in range(rng.randint(1, 5)):
            content[rng.randrange(8 + length)] ^= 1 << rng.randrange(8)
        file.write_bytes(bytes(content))
        return
    if way == 3:
        body = b"\xff" * len(body)  # no numbers
    elif way == 4:
        tensor["data_offsets"] = rng.choice([[-8, 8], [0, 2**50], [8, 0], [0, 0], ["a"], None])
    elif way == 5:
        tensor["shape"] = rng.choice([[2**31] * 3, [-1, -1], [], [0], ["a"], None, [2**62]])
    elif way == 6:
        tensor["dtype"] = rng.choice(["Q99", "F8_E4M3", "I64", "BOOL", 3, None])
    elif way == 7:
        del header[name]
    else:
        header[rng.choice(["../" + name, "x" * 5000, name + ".x", ""])] = header.pop(name)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + body)


def _files(bad: Path, rng: random.Random) -> None:
    """A file away, another in its place, or the weights in parts that are elsewhere."""
    file = rng.choice([path for path in sorted(bad.rglob("*")) if path.is_file()])
    way = rng.randrange(4)
    if way == 0:
        file.unlink()
    elif way == 1:
        file.unlink()
        file.mkdir()
    elif way == 2:
        file.unlink()
        file.symlink_to(rng.choice(["/etc/passwd", "/dev/null", str(file), "../../mine"]))
    else:
        (bad / "model.safetensors").unlink()
        parts: Any = rng.choice([
            {"weight_map": {"a": "../../x.safetensors"}}, {"weight_map": {"a": "/etc/passwd"}}, [],
            {"weight_map": {"a": "model.safetensors.index.json"}}, {"weight_map": {"a": 3}},
            {"weight_map": None}, {}, {"weight_map": {"a": ".."}}, {"weight_map": {"a": ""}},
        ])  # fmt: skip
        (bad / "model.safetensors.index.json").write_text(json.dumps(parts))


_WAYS = {"config": _config, "tokenizer": _tokenizer, "weights": _weights, "files": _files}
