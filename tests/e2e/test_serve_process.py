"""`qac serve` as a process: signals, slow and broken clients, kills while passages are added."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import toy_retrieval as toy

from qac_jax import cli
from qac_jax.live.index import LiveIndex


pytestmark = pytest.mark.slow

TOKEN = "0123456789abcdef0123456789abcdef"
TESTS = Path(__file__).parents[1]


class Server:
    """A process that serves, and requests to it."""

    def __init__(self, folder: Path, *flags: str, program: Sequence[str] = ()):
        self.log = folder.parent / "serve.log"
        words = program or [sys.executable, "-m", "qac_jax.cli", "serve", "--index", str(folder)]
        environment = {**os.environ, "QAC_SERVE_TOKEN": TOKEN}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*words, "--port", "0", "--no-warm", *flags], stderr=log, env=environment
            )
        end = time.monotonic() + 120
        while not (found := re.search(r"http://127.0.0.1:(\d+)", self.log.read_text())):
            assert time.monotonic() < end and self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        self.port = int(found[1])
        while True:  # it says where it will be just before it is
            try:
                assert self.ask("GET", "/health")[0] == 200
                return
            except ConnectionError:
                time.sleep(0.05)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        content = body if isinstance(body, bytes) or body is None else json.dumps(body)
        try:
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        return answer.status, json.loads(text) if text.startswith("{") else text

    def stop(self, how: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("serve")
    encoder = toy.save_encoder(place / "encoder")
    corpus = toy.write_collection(place / "data") / "corpus.jsonl"
    words = f"index {place}/live --add {corpus} --encoder {encoder}"
    assert cli.main(words.split()) == 0
    return place / "live"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    made = Server(folder, "--read_limit", "2", "--max_body", "1000000")
    yield made
    made.stop(signal.SIGKILL)


def raw(server: Server, content: bytes, wait: float) -> bytes:
    """What comes back to these bytes, and then silence."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as connection:
        connection.sendall(content)
        parts = []
        # Closed while we still send, the connection is reset.
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 16):
                parts.append(part)
    return b"".join(parts)


HEAD = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_broken_slow_and_large_requests(server: Server) -> None:
    whole = [
        raw(server, b"", 10),  # nothing, and the server closes
        raw(server, b"GET / HT", 10),  # half a line
        raw(server, HEAD + b"Content-Length: 50\r\n\r\n{", 10),  # half a body
        raw(server, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS", 10),
        raw(server, b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n", 10),
        raw(server, HEAD + b"Content-Length: 52428800\r\nConnection: close\r\n\r\n{", 10),
        raw(server, HEAD + b"Content-Length: -1\r\n\r\n{}", 10),
    ]
    assert whole[0] == b"" and b" 408 " in whole[2] and b" 413 " in whole[5]
    for answer in whole:
        assert b" 500 " not in answer and b"Traceback" not in answer
    assert server.ask("POST", "/search", b'{"query": "' + b"x" * 2_000_000 + b'"}')[0] == 413
    assert server.ask("GET", "/health")[0] == 200
    assert "Traceback" not in server.log.read_text()


def seconds_of_searches(server: Server, enough: Callable[[int], bool]) -> list[float]:
    taken: list[float] = []
    while not enough(len(taken)):
        began = time.perf_counter()
        assert server.ask("POST", "/search", {"query": f"copper lamp {len(taken)}"})[0] == 200
        taken.append(time.perf_counter() - began)
    return taken


def slower_under_attack(server: Server, seed: int) -> float:
    """The p99 of searches during 200 hostile exchanges, as times the quiet one."""
    lines: list[str] = []
    quiet = seconds_of_searches(server, lambda count: count >= 200)
    command = [sys.executable, str(TESTS / "toy_attack.py"), str(server.port), "200", str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attack:
        reader = threading.Thread(target=lambda: lines.extend(attack.stdout or ()))
        reader.start()
        meanwhile = seconds_of_searches(server, lambda _: attack.poll() is not None)
        reader.join()
    # The machine has other work, which may begin and end meanwhile: quiet is what it is around.
    quiet += seconds_of_searches(server, lambda count: count >= 200)
    ended = [json.loads(line) for line in lines]
    p99 = [float(np.percentile(each, 99)) for each in (quiet, meanwhile)]
    print(f"p99 {p99} of {len(meanwhile)} searches")
    assert len(ended) == 200 and len(meanwhile) > 50
    assert not [each for each in ended if each["status"] in (-1, 500)]
    slow = max(15, 50 * p99[0])
    assert not [each for each in ended if each["kind"] != "encode" and each["seconds"] > slow]
    return p99[1] / max(p99[0], 0.01)


def test_searches_are_answered_during_200_hostile_exchanges(folder: Path) -> None:
    server = Server(folder, "--read_limit", "1")

    def memory() -> int:
        return psutil.Process(server.process.pid).memory_info().rss >> 20

    for path, body in (
        ("/search", {"query": "copper " * 300, "k": 1000}),
        ("/v1/embeddings", {"input": ["copper " * 300] * 8}),
    ):
        while server.ask("POST", path, body)[0] != 200:  # compiled
            pass
    seconds_of_searches(server, lambda count: count >= 20)
    before = memory()
    # Whatever else holds the machine up for a moment is measured too: then it is done anew.
    assert any(slower_under_attack(server, seed) <= 5 for seed in (48, 49, 50))
    assert memory() - before < 300
    assert server.stop() == 0 and "Traceback" not in server.log.read_text()


def test_with_few_descriptors_nothing_is_an_error(folder: Path) -> None:
    command = [sys.executable, "-m", "qac_jax.cli", "serve", "--index", str(folder)]
    limited = ["bash", "-c", 'ulimit -n 64; exec "$@"', "bash", *command]
    server = Server(folder, program=limited)

    def status(path: str, body: Any) -> int:
        for _ in range(20):
            # Where twenty connect before it has sent its request, it is the one that goes.
            with contextlib.suppress(ConnectionResetError):
                return server.ask("POST", path, body)[0]
        return 0

    with contextlib.ExitStack() as crowd:
        crowd.callback(server.stop, signal.SIGKILL)
        for _ in range(200):
            link = crowd.enter_context(socket.socket())
            link.setblocking(False)
            link.connect_ex(("127.0.0.1", server.port))
        for path, body in (("/search", {"query": "lamp"}), ("/add", {"passages": ["A lamp."]})):
            assert [status(path, body) for _ in range(5)] == [200] * 5
        assert server.stop() == 0 and "Traceback" not in server.log.read_text()


@pytest.mark.skipif(not shutil.which("nginx"), reason="needs nginx (Debian: nginx-light)")
def test_the_proxy_of_deploy(folder: Path, tmp_path: Path) -> None:
    """deploy/nginx.conf with free ports and a certificate of our own."""
    name = "search.example.org"
    server = Server(folder, "--hosts", name)
    made = (
        f"req -x509 -nodes -newkey rsa:2048 -keyout privkey.pem -out fullchain.pem -subj /CN={name}"
    )
    command = ["openssl", *made.split(), "-addext", f"subjectAltName=DNS:{name}"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        plain, port = (each.getsockname()[1] for each in (first, second))
    site = (TESTS.parent / "deploy" / "nginx.conf").read_text()
    for old, new in (
        ("listen 80;", f"listen 127.0.0.1:{plain};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("127.0.0.1:8080", f"127.0.0.1:{server.port}"),
        (f"/etc/letsencrypt/live/{name}", str(tmp_path)),
    ):
        assert old in site
        site = site.replace(old, new)
    around = (
        f"daemon off; pid {tmp_path}/pid; error_log stderr; events {{}} http {{ access_log off;\n"
    )
    (tmp_path / "nginx.conf").write_text(f"{around}{site}}}\n")
    context = ssl.create_default_context(cafile=tmp_path / "fullchain.pem")
    context.check_hostname = False  # it is called by its address here

    def asked(path: str, host: str = name, safe: bool = True) -> tuple[int, Any]:
        link = http.client.HTTPConnection("127.0.0.1", plain, timeout=20)
        if safe:
            link = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=20)
        with contextlib.closing(link):
            link.request("GET", path, headers={"Host": host})
            answer = link.getresponse()
            return answer.status, answer.headers

    with subprocess.Popen(["nginx", "-p", tmp_path, "-c", tmp_path / "nginx.conf"]) as proxy:
        try:
            while proxy.poll() is None:
                with contextlib.suppress(ConnectionRefusedError):
                    assert asked("/", safe=False)[0] == 301
                    break
                time.sleep(0.05)
            status, headers = asked("/search?q=lamp")
            assert status == 200 and "Strict-Transport-Security" in headers
            assert [asked("/metrics")[0], asked("/", "rebound.example")[0]] == [403, 400]
        finally:
            proxy.terminate()
            server.stop()


def test_sigterm_finishes_what_it_took(folder: Path) -> None:
    server = Server(folder)
    answers: list[tuple[int, Any]] = []
    body = {"passages": [f"A new passage, number {n}." for n in range(100)]}
    thread = threading.Thread(target=lambda: answers.append(server.ask("POST", "/add", body)))
    thread.start()
    time.sleep(0.3)
    assert server.stop() == 0, server.log.read_text()
    thread.join()
    assert answers[0][0] == 200
    ids = answers[0][1]["ids"]
    assert (LiveIndex(folder).snapshot.rows_of(ids) >= 0).all()
    assert "stopped" in server.log.read_text()


def test_killed_servers_lose_nothing_that_they_acknowledged(folder: Path) -> None:
    known: list[str] = []
    for turn in range(3):
        server = Server(folder)
        if known:
            assert (LiveIndex(folder).snapshot.rows_of(known) >= 0).all()

        def client(server: Server = server) -> None:
            while True:
                try:
                    status, answer = server.ask("POST", "/add", {"passages": ["Once more."]})
                except (OSError, http.client.HTTPException, ValueError):
                    return
                if status == 200:
                    known.extend(answer["ids"])

        thread = threading.Thread(target=client)
        thread.start()
        before, end = len(known), time.monotonic() + 60
        while len(known) < before + 2 and time.monotonic() < end:
            time.sleep(0.05 + 0.07 * turn)
        server.stop(signal.SIGKILL)
        thread.join()
    assert len(known) > 3
    assert (LiveIndex(folder).snapshot.rows_of(known) >= 0).all()


def test_the_launch_script_serves_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its index becomes a living one, once; an index that is named is served as it is."""
    for extra in ("QAC_WITH_DEV", "QAC_WITH_BENCH"):  # would be installed
        monkeypatch.delenv(extra, raising=False)
    # A clone whose environment is installed already, as launch/setup.sh notes it.
    root = tmp_path / "clone"
    shutil.copytree(TESTS.parent / "launch", root / "launch")
    shutil.copy(TESTS.parent / "pyproject.toml", root)
    programs = root / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "qac").write_text(f'#!/bin/sh\nexec {sys.executable} -m qac_jax.cli "$@"\n')
    (programs / "qac").chmod(0o755)
    stamp = "cat pyproject.toml launch/constraints*.txt | cksum > .venv/.installed-base"
    subprocess.run(["bash", "-c", stamp], cwd=root, check=True)
    place, script = toy.indexed(root / "out" / "demo"), str(root / "launch" / "serve.sh")
    for program in ([script], [script, str(root / "out" / "demo_live")]):
        server = Server(place, program=program)
        status, answer = server.ask("POST", "/search", {"query": "copper lamp", "k": 3})
        assert status == 200 and len(answer["hits"]) == 3
        assert server.stop() == 0
    assert "is new" not in server.log.read_text() and (root / "out" / "demo_live").is_dir()
