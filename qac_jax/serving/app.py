"""The application over an engine, with tools for agents; `qac serve` runs it until SIGTERM."""

import asyncio
import atexit
import base64
import contextlib
import functools
import gc
import json
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import prometheus_client as prometheus
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query
from fastapi import Request as Asked
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.middleware import Middleware
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Json, ValidationError
from starlette.exceptions import HTTPException as AnyHTTPException

from qac_jax import __version__, artifacts, progress
from qac_jax.errors import UserError
from qac_jax.inference.reranker import Reranker
from qac_jax.inference.settings import RerankerOptions
from qac_jax.live import convert
from qac_jax.live.index import LiveIndex
from qac_jax.serving.batching import Batcher
from qac_jax.serving.engine import Engine, Request
from qac_jax.serving.guard import Admission, Guard, Protocol, refusal
from qac_jax.serving.options import Serving, Traffic
from qac_jax.serving.requests import (
    AddRequest,
    DeleteRequest,
    EmbeddingsRequest,
    ExplainRequest,
    SearchRequest,
    size,
)


_ASSETS = Path(__file__).parents[1] / "assets" / "page"
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
# Bytes of a body that asks, and of one with texts to encode.
_QUESTION, _TEXTS = 1 << 17, 1 << 20
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)

# Versions of the Model Context Protocol, the newest first: those who ask for another one get it.
_PROTOCOLS = ("2025-06-18", "2025-03-26", "2024-11-05")
_SEARCH_TOOL = "Searches the passages of this index by meaning and by words; gives the best k."
_ADD_TOOL = "Adds passages (texts, or records with _id, title, text and metadata); gives their ids."
_TOOLS: dict[str, tuple[type[Any], str, tuple[str, ...]]] = {
    "search": (SearchRequest, _SEARCH_TOOL, ("query", "k", "where")),
    "add": (AddRequest, _ADD_TOOL, ("passages", "replace")),
}
_Tool = Callable[[str, Any], Awaitable[Any]]  # of a tool by its name, with checked arguments


class Call(BaseModel):
    """A request of JSON-RPC, or a notification, which has no id."""

    jsonrpc: Literal["2.0"]
    method: str
    id: str | int | None = None
    params: dict[str, Any] = {}


class Server:
    """The state that the requests of an application share."""

    def __init__(self, engine: Engine, settings: Serving, traffic: Traffic):
        self.engine, self.traffic = engine, traffic
        self.admission = Admission(settings, traffic)
        self.registry = prometheus.CollectorRegistry()
        prometheus.disable_created_metrics()
        prometheus.ProcessCollector(registry=self.registry)
        own: Any = {"registry": self.registry, "namespace": "qac"}
        labels = ("path", "status")
        self.seconds = prometheus.Histogram("request_seconds", "By path and status.", labels, **own)
        sizes = prometheus.Histogram("batch_size", "Requests of a batch.", buckets=_SIZES, **own)
        batcher = functools.partial(
            Batcher, engine.answer, most=traffic.max_batch, queue=traffic.queue, seen=sizes.observe
        )
        # Two threads: searches do not wait for texts that are encoded, or for longer searches.
        self.searches, self.others = batcher(wait=traffic.wait_ms / 1000), batcher(wait=0)
        waiting = prometheus.Gauge("waiting", "Requests that wait for a batch.", **own)
        waiting.set_function(lambda: len(self.searches) + len(self.others))
        passages = prometheus.Gauge("passages", "Passages of the index.", **own)
        passages.set_function(lambda: len(engine.snapshot))

    async def answer(self, *items: Request) -> list[Any]:
        """Those of items, one after the other, within the time that a request has."""
        limit = self.traffic.time_limit
        try:
            async with asyncio.timeout(limit):
                return [await self._batches(item).submit(item, size(item.input)) for item in items]
        except TimeoutError as error:
            raise HTTPException(504, f"not answered within {limit:g} s; ask for less") from error

    def _batches(self, item: Request) -> Batcher:
        quick = isinstance(item, SearchRequest) and item.hurries
        return self.searches if quick else self.others


async def _refused(_: Asked, error: Any) -> JSONResponse:
    return refusal(error.status_code, error.detail, error.headers)


async def _invalid(_: Asked, error: Any) -> JSONResponse:
    """One of pydantic's errors as a sentence."""
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"][1:] or first["loc"]))[:80]
    return refusal(422, f'"{name}": {first["msg"]}; see /openapi.json')


async def _server(request: Asked) -> Server:
    return request.app.state.server


Here = Annotated[Server, Depends(_server)]


routes = APIRouter()
# The guard has asked for the token: this says so in /openapi.json.
writes = APIRouter(dependencies=[Depends(HTTPBearer(auto_error=False))])


@routes.post("/search", max_body_size=_QUESTION)
async def search(body: SearchRequest, server: Here) -> JSONResponse:
    if body.rerank and server.engine.reranker is None:
        raise HTTPException(422, "this server has no cross-encoder; leave out rerank")
    began = time.perf_counter()
    (answer,) = await server.answer(body)
    return JSONResponse({**answer, "took_ms": round(1000 * (time.perf_counter() - began), 3)})


@routes.get("/search")
async def search_by_address(
    server: Here,
    q: str,
    k: int = 10,
    offset: int = 0,
    hybrid: float | None = None,
    highlight: bool = False,
    where: Annotated[Json | None, Query()] = None,
) -> JSONResponse:
    """/search?q=…&k=5&hybrid=0.3, and other fields of the body."""
    fields = {"query": q, "k": k, "offset": offset, "hybrid": hybrid, "highlight": highlight}
    return await search(SearchRequest.model_validate({**fields, "where": where}), server)


@routes.post("/explain", max_body_size=_QUESTION)
async def explain(body: ExplainRequest, server: Here) -> JSONResponse:
    """Why a query finds a passage: words in common and nearest sentences."""
    return JSONResponse((await server.answer(body))[0])


@routes.post("/v1/embeddings", max_body_size=_TEXTS)
async def embeddings(body: EmbeddingsRequest, server: Here) -> JSONResponse:
    """Vectors, as of OpenAI."""
    pieces = body.pieces(server.traffic.max_batch)
    answers = await server.answer(*pieces)
    vectors = np.concatenate([each for each, _ in answers])
    if body.dimensions not in (None, vectors.shape[1]):
        raise HTTPException(
            422, f'"dimensions" is {body.dimensions}; the vectors have {vectors.shape[1]}'
        )
    values: list[Any] = vectors.tolist()
    if body.encoding_format == "base64":  # OpenAI's client asks for it by itself
        values = [base64.b64encode(v.astype("<f4").tobytes()).decode() for v in vectors]
    tokens = sum(count for _, count in answers)
    return JSONResponse(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": number, "embedding": value}
                for number, value in enumerate(values)
            ],
            "model": server.engine.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )


@routes.get("/v1/models")
async def models(server: Here) -> JSONResponse:
    """The model, as of OpenAI."""
    model = {"id": server.engine.name, "object": "model", "created": 0, "owned_by": "qac_jax"}
    return JSONResponse({"object": "list", "data": [model]})


@routes.post("/mcp", max_body_size=_TEXTS)
async def agents(body: Call, request: Asked, server: Here) -> Response:
    """Tools for agents by the Model Context Protocol: search, and with the token add."""

    async def run(tool: str, given: Any) -> Any:
        if tool == "search":
            return (await server.answer(given))[0]
        server.admission.check_writer(request.headers.get("authorization", ""))
        return await run_in_threadpool(server.engine.add, given.passages, given.replace)

    return await _rpc(body, run, writes=bool(server.admission.writers))


@routes.api_route("/mcp", methods=["GET", "DELETE"], include_in_schema=False)
async def no_stream() -> Response:
    """There are no streams and no sessions."""
    return refusal(405, "send JSON-RPC by POST", {"Allow": "POST"})


async def _rpc(call: Call, run: _Tool, *, writes: bool) -> Response:
    """The answer to a call of JSON-RPC."""
    if call.id is None:
        return Response(status_code=202)
    tools, name = [*_TOOLS][: 1 + writes], call.params.get("name")
    result: dict[str, Any] = {}
    if call.method == "initialize":
        asked = call.params.get("protocolVersion")
        result["protocolVersion"] = asked if asked in _PROTOCOLS else _PROTOCOLS[0]
        result["capabilities"] = {"tools": {}}
        result["serverInfo"] = {"name": "qac_jax", "version": __version__}
    elif call.method == "tools/list":
        result["tools"] = [_described(tool, *_TOOLS[tool]) for tool in tools]
    elif call.method == "tools/call" and name in tools:
        result = await _called(name, call.params.get("arguments") or {}, run)
    elif call.method != "ping":
        code = -32602 if call.method == "tools/call" else -32601
        error = {"code": code, "message": f"there is no such method or tool; tools: {tools}"}
        return JSONResponse({"jsonrpc": "2.0", "id": call.id, "error": error})
    return JSONResponse({"jsonrpc": "2.0", "id": call.id, "result": result})


def _described(name: str, model: type[Any], about: str, shown: tuple[str, ...]) -> dict[str, Any]:
    schema = model.model_json_schema()
    schema["properties"] = {field: schema["properties"][field] for field in shown}
    return {"name": name, "description": about, "inputSchema": schema}


async def _called(name: str, given: Any, run: _Tool) -> dict[str, Any]:
    """What an agent reads; it can mend its own faults, and not that it has no token."""
    found: dict[str, Any] = {}
    try:
        result = await run(name, _TOOLS[name][0].model_validate(given))
        text, found = json.dumps(result, ensure_ascii=False), {"structuredContent": result}
    except ValidationError as error:
        text = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
    except HTTPException as error:
        if error.status_code in (401, 403):
            raise
        text = error.detail
    return {"content": [{"type": "text", "text": text}], "isError": not found, **found}


# These wait for the disk in threads of their own, and are finished even where the client has gone.


@writes.post("/add")
def add(body: AddRequest, server: Here) -> JSONResponse:
    """Adds passages, with the token."""
    return JSONResponse(server.engine.add(body.passages, body.replace))


@writes.post("/delete")
def delete(body: DeleteRequest, server: Here) -> JSONResponse:
    """Deletes passages by their ids, with the token."""
    return JSONResponse(server.engine.delete(body.ids))


@routes.get("/health")
@routes.head("/health", include_in_schema=False)
async def health(server: Here) -> JSONResponse:
    """Whether the server answers."""
    found = server.engine.snapshot
    known = {"passages": len(found), "version": found.version}
    return JSONResponse({"status": "ok", **known, "weight": found.settings.fusion.weight})


@routes.get("/metrics")
def metrics(server: Here) -> Response:
    """Figures for Prometheus."""
    text = prometheus.generate_latest(server.registry)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def make(
    engine: Engine, settings: Serving | None = None, traffic: Traffic | None = None
) -> FastAPI:
    """The application."""
    settings, traffic = settings or Serving(), traffic or Traffic()
    server = Server(engine, settings, traffic)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.gather(server.searches.close(), server.others.close())

    made = FastAPI(
        title="qac_jax",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # pages that ask other servers
        redoc_url=None,
        middleware=[Middleware(Guard, admission=server.admission, seconds=server.seconds)],
        exception_handlers={
            AnyHTTPException: _refused,
            RequestValidationError: _invalid,
            ValidationError: _invalid,
        },
    )
    made.state.server = server
    made.include_router(routes)
    made.include_router(writes, max_body_size=traffic.max_body)
    page = HTMLResponse(
        (_ASSETS / "search.html").read_text(encoding="utf-8"),
        headers={"Content-Security-Policy": _PAGE_POLICY, "Cache-Control": "no-cache"},
    )
    made.add_api_route("/", lambda: page, methods=["GET", "HEAD"], include_in_schema=False)
    made.mount("/", StaticFiles(directory=_ASSETS))
    return made


def run(settings: Serving, traffic: Traffic) -> int:
    """`qac serve`; returns the exit code."""
    if not settings.index:
        raise UserError("there is nothing to serve; give --index FOLDER")
    import jax

    from qac_jax import hardware

    hardware.keep_programs()
    # Each shape of a query takes about a second, and there are some twenty.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    logging.basicConfig(format="serve: %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.INFO)  # which says where it listens
    settings.token(), settings.read_token()  # refused before the index is loaded
    engine = Engine(_opened(settings))
    if settings.reranker:
        engine.reranker = Reranker.load(settings.reranker, RerankerOptions(max_length=0))
    if settings.warm:
        progress.say("serve: compiling the shapes of queries (seconds; the first time a minute)")
    engine.compile(traffic.max_batch, now=settings.warm)
    progress.say(f"serve: {len(engine.live):,} passages")
    connections, beyond = traffic.within()
    gc.freeze()  # what a model is made of is not looked through again and again
    sys.setswitchinterval(0.001)  # searches and the loop wait for a thread that encodes at most so
    config = uvicorn.Config(
        make(engine, settings, traffic),
        host=settings.host,
        port=settings.port,
        http=Protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=connections,
        backlog=beyond,
        timeout_keep_alive=max(1, round(traffic.read_limit)),
        timeout_graceful_shutdown=max(1, round(traffic.grace)),
        h11_max_incomplete_event_size=1 << 16,
    )
    # uvicorn stops at these signals and raises them once more; that is not a failure.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, frame: None)
    uvicorn.Server(config).run()
    progress.say("serve: stopped")
    return 0


def _opened(settings: Serving) -> LiveIndex:
    """A living index as it is; of another one a copy, which nobody can write to."""
    if convert.is_living(settings.index):
        return LiveIndex(settings.index, encoder=settings.encoder)
    source = artifacts.load(settings.index, convert.KINDS)
    if settings.token():
        raise UserError(
            f"{settings.index} cannot change; serve it without a token, or make a living index of "
            f"it: qac index NEW_FOLDER --add {settings.index}"
        )
    progress.say(f"serve: copying {source.count:,} passages; changes need a living index")
    folder = tempfile.mkdtemp(prefix="qac_jax-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return convert.living(source, Path(folder) / "live", moved=settings.encoder)
