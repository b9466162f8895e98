"""Downloading from a Hub on this machine: real HTTP, real huggingface_hub, our choice of files."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


BERT = b'{"model_type": "bert"}'
DENSE = b'{"in_features": 2, "out_features": 2}'
COMMITS = {"main": "a" * 40, "v1.0": "b" * 40}
REPOSITORIES: dict[str, dict[str, bytes]] = {
    "some/safe": {
        "config.json": BERT,
        "tokenizer.json": b"{}",
        "model.safetensors": b"safe",
        "pytorch_model.bin": b"not wanted",
        "onnx/model.onnx": b"not wanted",
        "onnx/config.json": BERT,
        "README.md": b"not wanted",
    },
    "some/mixed": {
        "config.json": BERT,
        "modules.json": b"[]",
        "model.safetensors": b"safe",
        "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
        "2_Dense/config.json": DENSE,
        "2_Dense/pytorch_model.bin": b"old",
        "pytorch_model.bin": b"not wanted",
    },
    "some/old": {"config.json": BERT, "vocab.txt": b"[PAD]", "pytorch_model.bin": b"old"},
}
# Asks for names one by one; "!" after a name: only its tokenizer.
PROGRAM = """
import json, sys
from qac_jax.errors import UserError
from qac_jax.hub import names
for text in sys.argv[1:]:
    try:
        place = names.folder(text.rstrip("!"), names.TOKENIZER if "!" in text else names.MODEL)
        files = sorted(str(p.relative_to(place)) for p in place.rglob("*") if p.is_file())
        print(json.dumps([place.name, files]))
    except UserError as error:
        print(json.dumps(str(error)))
"""


class Handler(BaseHTTPRequestHandler):
    """As much of the Hub as snapshot_download asks for."""

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        info = re.match(r"/api/models/(\w+/\w+)(?:/revision/([\w.]+))?(?:\?.*)?$", self.path)
        tree = re.match(r"/api/models/(\w+/\w+)/tree/(\w+)", self.path)
        file = re.match(r"/(\w+/\w+)/resolve/(\w+)/(.+)$", self.path)
        name = next((match[1] for match in (info, tree, file) if match), "")
        files = REPOSITORIES.get(name)
        if files is None:
            return self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if info:
            if (revision := info[2] or "main") not in COMMITS:
                return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            siblings = [{"rfilename": path} for path in files]
            facts = {"id": name, "sha": COMMITS[revision], "siblings": siblings}
            return self.answer(200, json.dumps(facts).encode())
        if tree:
            rows = [
                {"type": "file", "path": path, "size": len(body), "oid": _hash(body)}
                for path, body in files.items()
            ]
            return self.answer(200, json.dumps(rows).encode())
        assert file is not None
        body = files[file[3]]
        headers = {"ETag": f'"{_hash(body)}"', "X-Repo-Commit": file[2]}
        return self.answer(200, body, headers)

    do_HEAD = do_GET

    def answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _hash(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def asked(cache: Path, *names: str, **environment: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names],
        env={**os.environ, "HF_HUB_CACHE": str(cache), "NO_PROXY": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        cwd=cache.parent,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(names), done.stderr
    return lines


def test_downloads(address: str, tmp_path: Path) -> None:
    cache = tmp_path / "hub"
    online = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"}
    words, whole, tagged, mixed, old, revision, absent = asked(
        cache,
        *("some/safe!", "some/safe", "some/safe@v1.0", "some/mixed", "some/old"),
        *("some/safe@v9", "some/absent"),
        **online,
    )
    assert words == [COMMITS["main"], ["config.json", "tokenizer.json"]]
    assert whole == [COMMITS["main"], ["config.json", "model.safetensors", "tokenizer.json"]]
    assert tagged[0] == COMMITS["v1.0"]
    assert [file for file in mixed[1] if not file.endswith(".json")] == [
        "2_Dense/pytorch_model.bin",
        "model.safetensors",
    ]
    assert old[1] == ["config.json", "pytorch_model.bin", "vocab.txt"]
    assert "no folder some/safe@v9" in revision and "RevisionNotFound" in revision
    assert "no folder some/absent" in absent and "hf auth login" in absent

    # The same names without the Hub: by the flag, and with an address where nobody answers.
    names = ("some/safe", "some/safe@v1.0", "some/mixed", f"some/old@{COMMITS['main']}")
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    for environment in ({**online, "HF_HUB_OFFLINE": "1"}, nowhere):
        again = asked(cache, *names, "some/other", **environment)
        assert again[:4] == [whole, tagged, mixed, old]
        assert f"the Hub's cache {cache} does not hold" in again[4]
        assert "run `hf download some/other`" in again[4]
