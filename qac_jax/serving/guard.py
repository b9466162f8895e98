"""What stands before the application: who is admitted, and how much of it at one time."""

import asyncio
import base64
import contextlib
import ipaddress
import logging
import math
import secrets
import time
from typing import Any

import prometheus_client as prometheus
from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from qac_jax.serving.batching import busy
from qac_jax.serving.options import Serving, Traffic


_log = logging.getLogger("qac_jax.serving")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
}
# Whatever else is sent is written, with the token.
_ASKED = ("/search", "/explain", "/v1/embeddings", "/mcp")
# Bytes of a body that are not counted: the number of connections bounds them.
_SMALL = 1 << 16
# Brackets of a body that nobody has to vouch for: nested lists have 20 times its size in memory.
_BRACKETS = 50_000
# Seconds whose requests a client may send at once, and clients that are remembered.
_BURST, _CLIENTS = 10.0, 10_000


def refusal(status: int, sentence: str, headers: Any = None) -> JSONResponse:
    """As OpenAI's clients know it."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": sentence, "type": kind, "code": status}
    return JSONResponse({"error": error}, status, headers)


class Admission:
    """Whether a request is read at all."""

    def __init__(self, settings: Serving, traffic: Traffic):
        self.settings, self.traffic = settings, traffic
        self.writers, self._readers = settings.token(), settings.read_token()
        self._due: dict[str, float] = {}  # when a client may have sent what it has sent

    def check(self, scope: Scope) -> None:
        """Raises HTTPException before the body is read."""
        headers, path = Headers(scope=scope), scope["path"]
        if not self.settings.called(host := headers.get("host", "")):
            raise HTTPException(400, f"this server is not called {host[:200]!r}; --hosts names it")
        if path == "/health":
            return
        if self.traffic.rate and (wait := self._early(scope["client"])) > 0:
            after = {"Retry-After": str(math.ceil(wait))}
            raise HTTPException(429, f"more than {self.traffic.rate:g} requests a second", after)
        given = headers.get("authorization", "")
        if scope["method"] == "POST" and path not in _ASKED:
            self.check_writer(given)
        elif self._readers and not _same(given, self._readers, self.writers):
            # Basic, with the token as the password, is what browsers ask for by themselves.
            sentence = 'give the token of readers: "Authorization: Bearer …", or as the password'
            raise HTTPException(401, sentence, {"WWW-Authenticate": 'Basic realm="qac"'})

    def check_writer(self, given: str) -> None:
        """Raises HTTPException unless an Authorization has the token of writers."""
        if not self.writers:
            raise HTTPException(403, "this server only reads; a token would let others write")
        # A browser sends Basic by itself, whatever page asks it to.
        if given[:6].lower() == "basic " or not _same(given, self.writers):
            sentence = 'give the token: "Authorization: Bearer …"'
            raise HTTPException(401, sentence, {"WWW-Authenticate": "Bearer"})

    def _early(self, client: Any) -> float:
        """Seconds that a client must wait."""
        address, now = client[0] if client else "", time.monotonic()
        if ":" in address and "." not in address:  # a network of IPv6 is one client
            with contextlib.suppress(ValueError):
                address = str(ipaddress.IPv6Network(f"{address}/64", strict=False))
        gap, due = 1 / self.traffic.rate, max(self._due.pop(address, now), now)
        wait = due - now - _BURST
        self._due[address] = due if wait > 0 else due + gap
        if len(self._due) > _CLIENTS:
            del self._due[next(iter(self._due))]
        return wait


def _same(given: str, *tokens: str) -> bool:
    """Whether an Authorization has one of the tokens; compared in constant time."""
    scheme, _, text = given.partition(" ")
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            text = base64.b64decode(text).decode().partition(":")[2]
    found = text.strip().encode()
    return any([secrets.compare_digest(found, token.encode()) for token in tokens if token])


class Guard:
    """Around every request: whether it is admitted, the time and memory that its body may take, the
    headers of its answer, figures.

    An error of ours is answered by one sentence, without paths or a traceback.
    """

    def __init__(self, app: ASGIApp, admission: Admission, seconds: prometheus.Histogram):
        self.app, self.admission, self.seconds = app, admission, seconds
        self.held = 0  # bytes of large bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, read, counted, brackets, whole = time.perf_counter(), 0, 0, 0, 0, False
        traffic = self.admission.traffic
        end = asyncio.get_running_loop().time() + traffic.read_limit

        async def received() -> Message:
            nonlocal read, counted, brackets, whole
            if whole:  # this waits for the client to go
                return await receive()
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError as error:
                sentence = f"the body did not come in {traffic.read_limit:g} s"
                raise HTTPException(408, sentence) from error
            whole = not message.get("more_body")
            body = message.get("body", b"")
            read += len(body)
            brackets += body.count(b"[") + body.count(b"{")
            if brackets > _BRACKETS and scope["path"] in _ASKED:
                raise HTTPException(413, f"more than {_BRACKETS:,} brackets; send it in parts")
            if read > _SMALL:
                self.held += read - counted
                counted = read
            if self.held > 4 * traffic.max_body:
                raise busy("the server has many large requests; try again in a second")
            return message

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        async def refuse(error: HTTPException) -> None:
            await refusal(error.status_code, error.detail, error.headers)(scope, receive, sent)

        try:
            self.admission.check(scope)
            await self.app(scope, received, sent)
        except HTTPException as error:
            await refuse(error)
        except Exception:
            number = secrets.token_hex(4)
            _log.exception("error %s at %s", number, scope["path"])
            if not status:
                await refuse(HTTPException(500, f"the server's error {number}; see its log"))
        finally:
            self.held -= counted
        path = getattr(scope.get("route"), "path", "other")
        self.seconds.labels(path, status).observe(time.perf_counter() - began)


class Protocol(H11Protocol):
    """uvicorn's, for clients that are slow or many: each has some seconds to send the head of its
    next request and to take an answer, and of too many the one that is silent longest goes."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._late: asyncio.Handle = self.loop.call_soon(lambda: None)
        self._expect()
        # From `limit_concurrency` on, uvicorn itself refuses: when all wait for an answer.
        if len(self.connections) > (self.limit_concurrency or math.inf) - self.config.backlog:
            others: list[Any] = [each for each in self.connections if each is not self]
            if silent := [each for each in others if each.silent()]:
                min(silent, key=lambda each: each.since).transport.abort()

    def silent(self) -> bool:
        """Whether it is the client's turn."""
        answered = self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        return answered and not self.transport.is_closing()

    def on_response_complete(self) -> None:
        self._expect()
        super().on_response_complete()

    def _expect(self) -> None:
        self.since = self.loop.time()
        self._late.cancel()
        self._late = self.loop.call_later(self.timeout_keep_alive, self._close_unless, self.cycle)

    def _close_unless(self, known: Any) -> None:
        if self.cycle is known:  # no request since
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.cancel()
