"""A server over a toy index, asked in this process."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

from qac_jax.serving import app
from qac_jax.serving.engine import Engine
from qac_jax.serving.options import Serving, Traffic


TOKEN = "0123456789abcdef0123456789abcdef"
WRITER = {"Authorization": f"Bearer {TOKEN}"}


def asked(
    engine: Engine,
    questions: Callable[[httpx2.AsyncClient], Awaitable[Any]],
    *,
    settings: Serving | None = None,
    traffic: Traffic | None = None,
) -> Any:
    """What a coroutine with a client returns; the application ends with it."""

    async def run() -> Any:
        made = app.make(engine, settings, traffic)
        transport = httpx2.ASGITransport(app=made, raise_app_exceptions=True)
        base = "http://127.0.0.1:8080"
        async with (
            made.router.lifespan_context(made),
            httpx2.AsyncClient(transport=transport, base_url=base) as client,
        ):
            return await questions(client)

    return asyncio.run(run())


def one(engine: Engine, method: str, path: str, **request: Any) -> httpx2.Response:
    """One request and its answer."""
    given = {name: request.pop(name) for name in ("settings", "traffic") if name in request}
    return asked(engine, lambda client: client.request(method, path, **request), **given)
