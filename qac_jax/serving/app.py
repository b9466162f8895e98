"""The application: what each path does. `make` builds it of an engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from qac_jax import __version__
from qac_jax.serving import embeddings, guard, page, problems, requests
from qac_jax.serving.batching import Batcher
from qac_jax.serving.engine import EncodeRequest, Engine, ExplainRequest
from qac_jax.serving.metrics import Metrics
from qac_jax.serving.openapi import described
from qac_jax.serving.problems import Problem
from qac_jax.serving.settings import Limits, Serving, Traffic


_log = logging.getLogger("qac_jax.serving")
# Changes that may wait for the one that is made.
_CHANGES = 16
_CLIENT_GONE = 499

Handler = Callable[[Request], Awaitable[Response]]


class App:
    """The handlers, and what they share."""

    def __init__(self, engine: Engine, settings: Serving, limits: Limits, traffic: Traffic):
        self.engine, self.limits, self.traffic = engine, limits, traffic
        self.settings, self.token = settings, settings.token() if engine.writable else ""
        self.hosts = settings.allowed_hosts()
        self.metrics = Metrics()
        self.batches: Batcher[Any, Any] = Batcher(
            engine.answer,
            most=traffic.max_batch,
            wait=traffic.wait_ms / 1000,
            queue=traffic.queue,
            seen=self.metrics.batch,
        )
        self.changes = 0
        self.one_change = asyncio.Lock()

    async def search(self, request: Request) -> Response:
        """One query or several."""
        if request.method == "GET":
            body: dict[str, Any] = _parameters(request)
        else:
            body = await self.body(request)
        wanted = requests.searches(body, self.limits)
        began = time.perf_counter()
        answers = await self.all_of([self.batches.submit(each) for each in wanted])
        took = round(1000 * (time.perf_counter() - began), 3)
        if "queries" in body:
            return _json({"answers": answers, "took_ms": took})
        return _json({**answers[0], "took_ms": took})

    async def explain(self, request: Request) -> Response:
        """Why a query finds a passage."""
        body = await self.body(request)
        requests.known(body, {"query", "id"})
        (query,) = requests.texts(body.get("query"), "query", 1, self.limits.max_query)
        (name,) = requests.texts(body.get("id"), "id", 1, self.limits.max_query)
        answers = await self.all_of([self.batches.submit(ExplainRequest(query, name))])
        return _json(answers[0])

    async def encode(self, request: Request) -> Response:
        wanted = embeddings.own(await self.body(request), self.limits)
        return _json(embeddings.as_own(await self.vectors(wanted)))

    async def openai(self, request: Request) -> Response:
        body = await self.body(request)
        wanted = embeddings.openai(body, self.limits)
        vectors = await self.vectors(wanted)
        tokens = await run_in_threadpool(self.engine.tokens, wanted)
        return _json(embeddings.as_openai(vectors, body, self.engine.name, tokens))

    async def tei(self, request: Request) -> Response:
        body = await self.body(request)
        wanted = embeddings.tei(body, self.limits)
        return _json(embeddings.as_tei(await self.vectors(wanted), body))

    async def models(self, request: Request) -> Response:
        del request
        model = {"id": self.engine.name, "object": "model", "created": 0, "owned_by": "qac_jax"}
        return _json({"object": "list", "data": [model]})

    async def info(self, request: Request) -> Response:
        """As TEI describes itself."""
        del request
        return _json(
            {
                "model_id": self.engine.name,
                "model_type": {"embedding": {"pooling": self.engine.pooling}},
                "max_client_batch_size": self.limits.max_texts,
                "version": __version__,
            }
        )

    async def add(self, request: Request) -> Response:
        guard.check_token(request, self.token)
        passages, replace = requests.passages(await self.body(request), self.limits)
        return _json(await self.change(lambda: self.engine.add(passages, replace)))

    async def delete(self, request: Request) -> Response:
        guard.check_token(request, self.token)
        body = await self.body(request)
        requests.known(body, {"ids"})
        ids = requests.texts(body.get("ids"), "ids", self.limits.max_texts, self.limits.max_query)
        return _json(await self.change(lambda: self.engine.delete(ids)))

    async def health(self, request: Request) -> Response:
        del request
        snapshot = self.engine.live.snapshot
        known = {"passages": len(snapshot), "version": snapshot.version}
        return _json({"status": "ok", **known, "weight": snapshot.settings.fusion.weight})

    async def figures(self, request: Request) -> Response:
        del request
        snapshot = self.engine.live.snapshot
        gauges = {
            "qac_waiting": ("Requests that wait for a batch.", len(self.batches)),
            "qac_passages": ("Passages of the index.", len(snapshot)),
            "qac_segments": ("Segments of the index.", len(snapshot.segments)),
            "qac_version": ("Changes of the index so far.", snapshot.version),
        }
        return Response(self.metrics.text(gauges), media_type="text/plain; version=0.0.4")

    async def api(self, request: Request) -> Response:
        del request
        return _json(described(self.limits))

    async def body(self, request: Request) -> dict[str, Any]:
        return await guard.body(request, self.limits, self.traffic)

    async def vectors(self, wanted: EncodeRequest) -> Any:
        answers = await self.all_of([self.batches.submit(wanted, len(wanted.texts))])
        return answers[0]

    async def all_of(self, work: list[Any]) -> list[Any]:
        """The answers of several items of batches, within the time that a request has."""
        try:
            async with asyncio.timeout(self.traffic.time_limit), asyncio.TaskGroup() as group:
                tasks = [group.create_task(each) for each in work]
        except TimeoutError as error:
            raise problems.too_slow(self.traffic.time_limit) from error
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        return [task.result() for task in tasks]

    async def change(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """One change after the other, finished even where its client has gone."""
        if self.changes >= _CHANGES:
            raise problems.busy()
        self.changes += 1

        async def made() -> dict[str, Any]:
            try:
                async with self.one_change:
                    return await run_in_threadpool(work)
            finally:
                self.changes -= 1

        return await asyncio.shield(asyncio.create_task(made()))

    def guarded(self, path: str, handler: Handler, *, shape: str = "") -> Handler:
        """The handler with all checks; errors become answers without paths or tracebacks."""

        async def answer(request: Request) -> Response:
            began = time.perf_counter()
            try:
                guard.check_host(request, self.hosts)
                response = await handler(request)
            except Problem as problem:
                response = _problem(problem, shape)
            except ClientDisconnect:
                response = Response(status_code=_CLIENT_GONE)
            except Exception:
                number = secrets.token_hex(4)
                _log.exception("error %s at %s", number, path)
                response = _problem(problems.unknown(number), shape)
            for name, value in guard.HEADERS.items():
                response.headers.setdefault(name, value)
            self.metrics.request(path, response.status_code, time.perf_counter() - began)
            return response

        return answer

    def routes(self) -> list[Route]:
        handlers: list[tuple[str, Handler, list[str], str]] = [
            ("/search", self.search, ["GET", "POST"], ""),
            ("/explain", self.explain, ["POST"], ""),
            ("/encode", self.encode, ["POST"], ""),
            ("/v1/embeddings", self.openai, ["POST"], ""),
            ("/v1/models", self.models, ["GET"], ""),
            ("/embed", self.tei, ["POST"], "tei"),
            ("/info", self.info, ["GET"], "tei"),
            ("/add", self.add, ["POST"], ""),
            ("/delete", self.delete, ["POST"], ""),
            ("/health", self.health, ["GET"], ""),
            ("/metrics", self.figures, ["GET"], ""),
            ("/openapi.json", self.api, ["GET"], ""),
            *((path, handler, ["GET"], "") for path, handler in page.handlers(self.settings.title)),
        ]
        return [
            Route(path, self.guarded(path, handler, shape=shape), methods=methods)
            for path, handler, methods, shape in handlers
        ]

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        del app
        yield
        async with self.one_change:  # the last change
            await self.batches.close()


def make(
    engine: Engine,
    settings: Serving | None = None,
    limits: Limits | None = None,
    traffic: Traffic | None = None,
) -> Starlette:
    """The application; its `state.app` has the metrics."""
    app = App(engine, settings or Serving(), limits or Limits(), traffic or Traffic())

    async def refused(request: Request, error: Exception) -> Response:
        async def handler(_: Request) -> Response:
            status = error.status_code if isinstance(error, HTTPException) else 500
            names = {404: "there is no such path", 405: "this path has another method"}
            raise Problem(status, f"{names.get(status, 'not possible')}; see /openapi.json")

        return await app.guarded("other", handler)(request)

    made = Starlette(
        routes=app.routes(), exception_handlers={HTTPException: refused}, lifespan=app.lifespan
    )
    made.state.app = app
    return made


def _parameters(request: Request) -> dict[str, Any]:
    """Those of a search's address: /search?q=…&k=5&hybrid=0.3"""
    given = dict(request.query_params)
    body: dict[str, Any] = {}
    for name, value in given.items():
        if name in ("q", "query"):
            body["query"] = value
            continue
        try:
            body[name] = json.loads(value)
        except ValueError:
            body[name] = value
    return requests.json_object(json.dumps(body).encode())


def _json(content: Any) -> Response:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Response(text.encode(), media_type="application/json")


def _problem(problem: Problem, shape: str) -> Response:
    response = _json(problem.body(shape))
    response.status_code = problem.status
    if problem.retry:
        response.headers["Retry-After"] = str(problem.retry)
    if problem.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
