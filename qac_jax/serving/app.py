"""The application over an engine, and `qac serve`, which runs it until SIGTERM."""

import asyncio
import base64
import contextlib
import functools
import json
import logging
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import jinja2
import numpy as np
import prometheus_client as prometheus
import uvicorn
from fastapi import Depends, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from qac_jax import __version__, progress
from qac_jax.errors import UserError
from qac_jax.serving import requests
from qac_jax.serving.batching import Batcher
from qac_jax.serving.engine import Engine
from qac_jax.serving.options import Limits, Serving, Traffic
from qac_jax.serving.requests import Problem


_log = logging.getLogger("qac_jax.serving")
_ASSETS = Path(__file__).parents[1] / "assets" / "page"
# Changes that may wait for the one that is made.
_CHANGES = 16
_CLIENT_GONE = 499
_TEI = ("/embed", "/info")
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
}
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)

Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class _LimitedRequest(Request):
    """A request whose body is JSON and neither too large nor too slow."""

    async def body(self) -> bytes:
        if not hasattr(self, "_content"):
            self._content = await self._read(self.app.state.limits, self.app.state.traffic)
        return self._content or b" "  # of an empty one FastAPI would not ask for `json`

    async def json(self) -> Any:
        value = requests.parsed(await self.body())
        if not isinstance(value, dict):
            raise Problem(400, f"the body is a JSON {type(value).__name__}; send an object")
        return value

    async def _read(self, limits: Limits, traffic: Traffic) -> bytes:
        if self.headers.get("content-type", "").split(";")[0].strip() != "application/json":
            raise Problem(415, 'send JSON, with "Content-Type: application/json"')
        too_large = Problem(
            413, f"the body is larger than {limits.max_body:,} bytes; send less at a time"
        )
        length = self.headers.get("content-length", "")
        if length.isdigit() and int(length) > limits.max_body:
            raise too_large
        content = bytearray()
        try:
            async with asyncio.timeout(traffic.read_limit):
                async for chunk in self.stream():
                    content += chunk
                    if len(content) > limits.max_body:
                        raise too_large
        except TimeoutError as error:
            raise Problem(408, f"the body did not come in {traffic.read_limit:g} s") from error
        except ClientDisconnect as error:
            raise Problem(_CLIENT_GONE, "the client has gone") from error
        return bytes(content)


class _Route(APIRoute):
    """Every request passes the same checks; every answer has the same headers and is counted."""

    def get_route_handler(self) -> Handler:
        handler = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            limited = _LimitedRequest(request.scope, request.receive)
            return await request.app.state.app.answered(self.path, handler, limited)

        return guarded


class App:
    """A method for each path, and the state that they share."""

    def __init__(self, engine: Engine, settings: Serving, limits: Limits, traffic: Traffic):
        self.engine, self.limits, self.traffic = engine, limits, traffic
        self.token = settings.token() if engine.writable else ""
        self.hosts = settings.allowed_hosts()
        self.changes = 0
        self.one_change = asyncio.Lock()
        self.registry = prometheus.CollectorRegistry()
        prometheus.disable_created_metrics()
        prometheus.ProcessCollector(registry=self.registry)
        self.requests = self._measure(
            prometheus.Counter, "requests", "Requests by path and status.", ("path", "status")
        )
        self.seconds = self._measure(
            prometheus.Histogram, "request_seconds", "Seconds of a request.", ("path",)
        )
        histogram = functools.partial(self._measure, prometheus.Histogram)
        sizes = histogram("batch_size", "Texts of a batch.", buckets=_SIZES)
        took = histogram("batch_seconds", "Seconds of a batch.")
        self.batches = Batcher(
            engine.answer,
            most=traffic.max_batch,
            wait=traffic.wait_ms / 1000,
            queue=traffic.queue,
            seen=lambda size, seconds: (sizes.observe(size), took.observe(seconds)),
        )
        gauge = functools.partial(self._measure, prometheus.Gauge)
        gauge("waiting", "Requests that wait for a batch.").set_function(self.batches.__len__)
        gauge("passages", "Passages of the index.").set_function(lambda: len(engine.snapshot))
        gauge("version", "Changes of the index.").set_function(lambda: engine.snapshot.version)

    def _measure(self, kind: Any, name: str, about: str, *rest: Any, **options: Any) -> Any:
        return kind(f"qac_{name}", about, *rest, registry=self.registry, **options)

    async def search(self, body: requests.SearchRequest) -> Response:
        began = time.perf_counter()
        answers = await self.all_of([self.batches.submit(each) for each in body.each(self.limits)])
        took = {"took_ms": round(1000 * (time.perf_counter() - began), 3)}
        return _json({"answers": answers, **took} if body.queries else {**answers[0], **took})

    async def search_by_address(self, request: Request) -> Response:
        """/search?q=…&k=5&hybrid=0.3, and other fields of the body."""
        given: dict[str, Any] = dict(request.query_params)
        if "q" in given:
            given["query"] = given.pop("q")
        if "where" in given:
            given["where"] = requests.parsed(given["where"])
        try:
            body = requests.SearchRequest.model_validate(given, strict=False)
        except ValidationError as error:
            raise requests.problem(error.errors()[0]) from error
        return await self.search(body)

    async def explain(self, body: requests.ExplainRequest) -> Response:
        """Why a query finds a passage: words in common and nearest sentences."""
        requests.check_texts([body.query, body.id], 2, self.limits.max_query)
        return _json((await self.all_of([self.batches.submit(body)]))[0])

    async def encode(self, body: requests.EncodeRequest) -> Response:
        vectors = await self.vectors(body)
        return _json({"vectors": vectors.tolist(), "dimension": vectors.shape[1]})

    async def openai(self, body: requests.OpenAIRequest) -> Response:
        """Vectors, as of OpenAI."""
        wanted = requests.EncodeRequest(texts=body.input, side=body.input_type)
        vectors = await self.vectors(wanted)
        if body.dimensions not in (None, vectors.shape[1]):
            raise Problem(
                422, f'"dimensions" is {body.dimensions}; the vectors have {vectors.shape[1]}'
            )
        values: list[Any] = vectors.tolist()
        if body.encoding_format == "base64":  # OpenAI's client asks for it by itself
            values = [base64.b64encode(v.astype("<f4").tobytes()).decode() for v in vectors]
        tokens = await run_in_threadpool(self.engine.tokens, wanted)
        return _json(
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": number, "embedding": value}
                    for number, value in enumerate(values)
                ],
                "model": self.engine.name,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    async def tei(self, body: requests.TeiRequest) -> Response:
        """Vectors, as of Text Embeddings Inference."""
        vectors = await self.vectors(
            requests.EncodeRequest(texts=body.inputs, side=body.prompt_name or "passage")
        )
        if body.normalize:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.where(lengths > 0, lengths, 1)
        return _json(vectors.tolist())

    async def models(self) -> Response:
        """The model, as of OpenAI."""
        model = {"id": self.engine.name, "object": "model", "created": 0, "owned_by": "qac_jax"}
        return _json({"object": "list", "data": [model]})

    async def info(self) -> Response:
        """The model, as of Text Embeddings Inference."""
        return _json(
            {
                "model_id": self.engine.name,
                "model_type": {
                    "embedding": {"pooling": self.engine.live.encoder.module.config.pooling}
                },
                "max_client_batch_size": self.limits.max_texts,
                "version": __version__,
            }
        )

    async def add(self, body: requests.AddRequest, credentials: Credentials) -> Response:
        """Adds passages, with the token."""
        self.check_token(credentials)
        passages = body.records(self.limits)
        return _json(await self.change(lambda: self.engine.add(passages, body.replace)))

    async def delete(self, body: requests.DeleteRequest, credentials: Credentials) -> Response:
        """Deletes passages by their ids, with the token."""
        self.check_token(credentials)
        requests.check_texts(body.ids, self.limits.max_texts, self.limits.max_query)
        return _json(await self.change(lambda: self.engine.delete(body.ids)))

    async def health(self) -> Response:
        """Whether the server answers."""
        found = self.engine.snapshot
        weight = found.settings.fusion.weight
        known = {"passages": len(found), "version": found.version, "weight": weight}
        return _json({"status": "ok", **known})

    async def metrics(self) -> Response:
        """Figures for Prometheus."""
        text = await run_in_threadpool(prometheus.generate_latest, self.registry)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def vectors(self, wanted: requests.EncodeRequest) -> np.ndarray:
        requests.check_texts(wanted.texts, self.limits.max_texts, self.limits.max_text)
        return (await self.all_of([self.batches.submit(wanted, len(wanted.texts))]))[0]

    async def all_of(self, work: list[Awaitable[Any]]) -> list[Any]:
        """The answers of several items of batches, within the time that a request has."""
        try:
            async with asyncio.timeout(self.traffic.time_limit):
                return await asyncio.gather(*work)
        except TimeoutError as error:
            limit = self.traffic.time_limit
            raise Problem(504, f"not answered within {limit:g} s; ask for less") from error

    async def change(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """One change after the other, finished even where its client has gone."""
        if self.changes >= _CHANGES:
            raise requests.busy()
        self.changes += 1

        async def made() -> dict[str, Any]:
            try:
                async with self.one_change:
                    return await run_in_threadpool(work)
            finally:
                self.changes -= 1

        return await asyncio.shield(asyncio.create_task(made()))

    def check_token(self, given: HTTPAuthorizationCredentials | None) -> None:
        """Refuses writers without the token; compared in constant time."""
        if not self.token:
            raise Problem(403, "this server only reads; it needs a token to let others write")
        text = given.credentials.strip() if given else ""
        if not secrets.compare_digest(text.encode(), self.token.encode()):
            sentence = 'give the token: "Authorization: Bearer …"'
            raise Problem(401, sentence, WWW_Authenticate="Bearer")

    def check_host(self, request: Request) -> None:
        """Refuses names that are not the server's."""
        given = request.headers.get("host", "")
        name = given[1 : given.find("]")] if given.startswith("[") else given.split(":")[0]
        if self.hosts and name.lower() not in self.hosts:
            raise Problem(421, "this server is not called by this name; give it by --hosts")

    async def answered(self, path: str, handler: Handler, request: Request) -> Response:
        """The handler's answer, or that of an error: one sentence without paths or tracebacks."""
        began = time.perf_counter()
        try:
            self.check_host(request)
            response = await handler(request)
        except RequestValidationError as error:
            response = _problem(requests.problem(error.errors()[0]), path)
        except Problem as problem:
            response = _problem(problem, path)
        except Exception:
            number = secrets.token_hex(4)
            _log.exception("error %s at %s", number, path)
            response = _problem(Problem(500, f"the server's error {number}; see its log"), path)
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        self.requests.labels(path, response.status_code).inc()
        self.seconds.labels(path).observe(time.perf_counter() - began)
        return response

    async def refused(self, request: Request, error: Exception) -> Response:
        """The answer of paths that are not there."""

        async def handler(_: Request) -> Response:
            status = error.status_code if isinstance(error, HTTPException) else 500
            names = {404: "there is no such path", 405: "this path has another method"}
            raise Problem(status, f"{names.get(status, 'not possible')}; see /openapi.json")

        return await self.answered("other", handler, request)

    @contextlib.asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        yield
        async with self.one_change:  # the last change
            await self.batches.close()


def make(
    engine: Engine,
    settings: Serving | None = None,
    limits: Limits | None = None,
    traffic: Traffic | None = None,
) -> FastAPI:
    """The application."""
    settings = settings or Serving()
    app = App(engine, settings, limits or Limits(), traffic or Traffic())
    made = FastAPI(
        title="qac_jax",
        version=__version__,
        lifespan=app.lifespan,
        openapi_url=None,  # its own route would pass no checks
        exception_handlers={HTTPException: app.refused},
    )
    made.router.route_class = _Route
    made.state.app, made.state.limits, made.state.traffic = app, app.limits, app.traffic
    parameters = [
        {"name": name, "in": "query", "required": name == "q", "schema": {"type": kind}}
        for name, kind in (("q", "string"), ("k", "integer"), ("hybrid", "number"))
    ]
    answers: dict[str, Any] = {"response_model": requests.Answer}
    by_address = {**answers, "openapi_extra": {"parameters": parameters}}
    made.add_api_route("/search", app.search, methods=["POST"], **answers)
    made.add_api_route("/search", app.search_by_address, **by_address)
    for method, path, handler in (
        ("POST", "/explain", app.explain),
        ("POST", "/encode", app.encode),
        ("POST", "/v1/embeddings", app.openai),
        ("GET", "/v1/models", app.models),
        ("POST", "/embed", app.tei),
        ("GET", "/info", app.info),
        ("POST", "/add", app.add),
        ("POST", "/delete", app.delete),
        ("GET", "/health", app.health),
        ("GET", "/metrics", app.metrics),
    ):
        made.add_api_route(path, handler, methods=[method])

    async def described() -> Response:
        return _json(made.openapi())

    made.add_api_route("/openapi.json", described, include_in_schema=False)
    made.add_api_route("/health", app.health, methods=["HEAD"], include_in_schema=False)
    for name, kind in (("html", "text/html"), ("css", "text/css"), ("js", "text/javascript")):
        path = "/" if name == "html" else f"/search.{name}"
        file = _file(f"search.{name}", kind, settings.title)
        made.add_api_route(path, file, methods=["GET", "HEAD"], include_in_schema=False)
    return made


def _file(name: str, kind: str, title: str) -> Callable[[], Awaitable[Response]]:
    """A file of the page, which asks nobody but this server."""
    text = (_ASSETS / name).read_text(encoding="utf-8")
    if kind == "text/html":
        text = jinja2.Environment(autoescape=True).from_string(text).render(title=title)
    headers = {"Content-Security-Policy": _PAGE_POLICY, "Cache-Control": "no-cache"}

    async def answer() -> Response:
        return Response(text, headers=headers, media_type=kind)

    return answer


def _json(content: Any, status: int = 200) -> Response:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Response(text.encode(), status, media_type="application/json")


def _problem(problem: Problem, path: str) -> Response:
    """As OpenAI's clients know it, or TEI's."""
    status, sentence = problem.status_code, problem.sentence
    ours = status >= 500
    if path in _TEI:
        kind = "Overloaded" if status == 503 else "Backend" if ours else "Validation"
        response = _json({"error": sentence, "error_type": kind}, status)
    else:
        kind = "server_error" if ours else "invalid_request_error"
        error = {"message": sentence, "type": kind, "code": status}
        response = _json({"error": error}, status)
    response.headers.update(problem.headers or {})
    return response


def run(settings: Serving, limits: Limits, traffic: Traffic) -> int:
    """`qac serve`; returns the exit code."""
    if not settings.index:
        raise UserError("there is nothing to serve; give --index FOLDER")
    import jax

    from qac_jax import hardware

    hardware.keep_programs()
    # Each shape of a query takes about a second, and there are some twenty.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    logging.basicConfig(format="serve: %(message)s")
    bound = _bound(settings)
    settings.token()  # refused before the index is loaded
    engine = Engine.load(settings)
    if settings.warm:
        progress.say("serve: compiling the shapes of queries (seconds; the first time a minute)")
    engine.compile(traffic.max_batch, now=settings.warm)
    config = uvicorn.Config(
        make(engine, settings, limits, traffic),
        http=_protocol(traffic.read_limit),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(traffic.read_limit)),
        timeout_graceful_shutdown=max(1, round(traffic.grace)),
        h11_max_incomplete_event_size=1 << 16,
    )
    address, port = bound.getsockname()[:2]
    host = f"[{address}]" if ":" in address else address
    # The line that says where it is comes when it listens.
    progress.say(f"serve: {len(engine.live):,} passages at http://{host}:{port}")
    # uvicorn stops at these signals and raises them once more; that is not a failure.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, frame: None)
    asyncio.run(uvicorn.Server(config).serve(sockets=[bound]))
    progress.say("serve: stopped")
    return 0


def _bound(settings: Serving) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        # asyncio sends without Nagle's delay (40 ms an answer) only where the protocol is named.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((settings.host, settings.port))
        bound.listen(512)
        return bound
    except OSError as error:
        raise UserError(
            f"{settings.host}:{settings.port} cannot be listened at ({error.strerror}); choose "
            "another --host or --port"
        ) from error


def _protocol(seconds: float) -> type[H11Protocol]:
    """uvicorn's h11 with a limit for clients that connect and do not send a whole request."""

    class Protocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(seconds, self._close_if_silent)

        def _close_if_silent(self) -> None:
            if self.cycle is None and not self.transport.is_closing():
                self.transport.close()

    return Protocol
