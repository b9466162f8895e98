"""What every request passes: host, size, time, token; and the headers of every answer."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from qac_jax.serving import requests
from qac_jax.serving.problems import Problem
from qac_jax.serving.settings import Limits, Traffic


# A body larger than this is parsed beside the event loop.
_LARGE = 1 << 18

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
}


def check_host(request: Request, allowed: tuple[str, ...]) -> None:
    """Refuses names that are not the server's."""
    if not allowed:
        return
    given = request.headers.get("host", "")
    name = given[1 : given.find("]")] if given.startswith("[") else given.split(":")[0]
    if name.lower() not in allowed:
        raise Problem(421, "this server is not called by this name; give it by --hosts")


def check_token(request: Request, token: str) -> None:
    """Refuses writers without the token; compared in constant time."""
    if not token:
        raise Problem(403, "this server only reads; it needs a token to let others write")
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    same = secrets.compare_digest(given.strip().encode(), token.encode())
    if kind.lower() != "bearer" or not same:
        raise Problem(401, 'give the token: "Authorization: Bearer …"')


async def body(request: Request, limits: Limits, traffic: Traffic) -> dict[str, Any]:
    """The JSON object of a request, which may be neither too large nor too slow."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise Problem(415, 'send JSON, with "Content-Type: application/json"')
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > limits.max_body:
        raise _too_large(limits)
    chunks, size = [], 0
    try:
        async with asyncio.timeout(traffic.read_limit):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.max_body:
                    raise _too_large(limits)
                chunks.append(chunk)
    except TimeoutError as error:
        raise Problem(408, f"the body did not come within {traffic.read_limit:g} s") from error
    whole = b"".join(chunks)
    if size > _LARGE:
        return await run_in_threadpool(requests.json_object, whole)
    return requests.json_object(whole)


def _too_large(limits: Limits) -> Problem:
    return Problem(413, f"the body is larger than {limits.max_body:,} bytes; send less at a time")
