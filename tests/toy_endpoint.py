"""A server of OpenAI's protocol that answers as a test says, with faults before the answers."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Endpoint(ThreadingHTTPServer):
    def __init__(self, answer: Callable[[str], str]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        # A status, headers and a text; None: the connection ends.
        self.faults: list[tuple[int, dict[str, str], str] | None] = []
        self.asked, self.bodies, self.keys = list[str](), list[Any](), list[str | None]()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.name = f"openai:{self.url}#toy"


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.keys.append(self.headers.get("authorization"))
        if self.server.faults:
            if fault := self.server.faults.pop(0):
                self._send(*fault)
            return
        prompt = body["messages"][0]["content"]
        self.server.asked.append(prompt)
        self.server.bodies.append(body)
        choice = {"message": {"content": self.server.answer(prompt)}}
        used = {"prompt_tokens": 30, "completion_tokens": 10}
        self._send(200, {}, json.dumps({"choices": [choice], "usage": used}))

    def _send(self, status: int, headers: dict[str, str], text: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(text.encode()))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def serving(answer: Callable[[str], str]) -> Iterator[Endpoint]:
    with Endpoint(answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield server
        finally:
            server.shutdown()
