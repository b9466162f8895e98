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
_SEARCH = "Searches the passages of this index by meaning and by words; gives the best k."
_ADD = "Adds passages (texts, or records with _id, title, text and metadata); gives their ids."
_TOOLS: dict[str, tuple[type[Any], str, tuple[str, ...]]] = {
    "search": (SearchRequest, _SEARCH, ("query", "k", "where")),
    "add": (AddRequest, _ADD, ("passages", "replace")),
}
Run = Callable[[str, Any], Awaitable[Any]]  # of a tool by its name, with checked arguments


class Call(BaseModel):
    """A request of JSON-RPC, or a notification, which has no id."""

    jsonrpc: Literal["2.0"]
    method: str
    id: str | int | None = None
    params: dict[str, Any] = {}


async def answered(call: Call, run: Run, *, writes: bool) -> Response:
    """The answer to a call."""
    if call.id is None:
        return Response(status_code=202)
    tools, name = [*_TOOLS][: 1 + writes], call.params.get("name")
    result: dict[str, Any] = {}
    if call.method == "initialize":
        asked = call.params.get("protocolVersion")
        result["protocolVersion"] = asked if asked in _VERSIONS else _VERSIONS[0]
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


async def _called(name: str, given: Any, run: Run) -> dict[str, Any]:
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
