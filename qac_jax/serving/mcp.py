"""Tools for agents by the Model Context Protocol: JSON-RPC over HTTP, an answer a request."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from fastapi import HTTPException
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ValidationError

from qac_jax import __version__
from qac_jax.serving.requests import AddRequest, SearchRequest


# The newest first, which is offered to those that ask for another one.
_VERSIONS = ("2025-06-18", "2025-03-26", "2024-11-05")
_TOOLS: dict[str, tuple[type[Any], str, tuple[str, ...]]] = {
    "search": (
        SearchRequest,
        "Searches the passages of this index by meaning and by words; gives the best k with ids, "
        "titles, texts and where they are from.",
        ("query", "k", "where"),
    ),
    "add": (
        AddRequest,
        "Adds passages (texts, or records with _id, title, text and metadata); gives their ids.",
        ("passages", "replace"),
    ),
}


class Call(BaseModel):
    """A request of JSON-RPC, or a notification, which has no id."""

    jsonrpc: Literal["2.0"]
    method: str
    id: str | int | None = None
    params: dict[str, Any] = {}


async def answered(
    call: Call, run: Callable[[str, Any], Awaitable[Any]], *, writes: bool
) -> Response:
    """The answer to a call; `run` takes the name of a tool and its checked arguments."""
    if call.id is None:
        return Response(status_code=202)
    tools = {name: tool for name, tool in _TOOLS.items() if writes or name != "add"}
    name = str(call.params.get("name"))
    if call.method == "initialize":
        asked = call.params.get("protocolVersion")
        result: dict[str, Any] = {
            "protocolVersion": asked if asked in _VERSIONS else _VERSIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "qac_jax", "version": __version__},
        }
    elif call.method == "ping":
        result = {}
    elif call.method == "tools/list":
        result = {"tools": [_described(name, *tool) for name, tool in tools.items()]}
    elif call.method == "tools/call" and name in tools:
        result = await _called(name, tools[name][0], call.params.get("arguments") or {}, run)
    else:
        unknown = (-32602, f"there is no tool {name[:80]!r}; tools/list names them")
        if call.method != "tools/call":
            unknown = (-32601, f"there is no method {call.method[:80]!r}")
        error = dict(zip(("code", "message"), unknown, strict=True))
        return JSONResponse({"jsonrpc": "2.0", "id": call.id, "error": error})
    return JSONResponse({"jsonrpc": "2.0", "id": call.id, "result": result})


def _described(name: str, model: type[Any], about: str, shown: tuple[str, ...]) -> dict[str, Any]:
    schema = model.model_json_schema()
    schema["properties"] = {field: schema["properties"][field] for field in shown}
    return {"name": name, "description": about, "inputSchema": schema}


async def _called(
    name: str, model: type[Any], given: Any, run: Callable[[str, Any], Awaitable[Any]]
) -> dict[str, Any]:
    """What an agent reads; it can mend its own faults, and not that it has no token."""
    try:
        result = await run(name, model.model_validate(given))
    except ValidationError as error:
        first = error.errors()[0]
        return _text(f"{'.'.join(map(str, first['loc']))[:80]}: {first['msg']}", True)
    except HTTPException as error:
        if error.status_code in (401, 403):
            raise
        return _text(error.detail, True)
    return {**_text(json.dumps(result, ensure_ascii=False)), "structuredContent": result}


def _text(text: str, wrong: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": wrong}
