"""The server's description in OpenAPI 3.1, at /openapi.json."""

from __future__ import annotations

from typing import Any

from qac_jax import __version__
from qac_jax.serving.settings import Limits


Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_TRUTH: Json = {"type": "boolean", "default": False}
_NUMBERS: Json = {"type": "array", "items": {"type": "number"}}
_TEXTS: Json = {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_WHERE = (
    'A filter of metadata: {"lang": "en"}, {"lang": ["en", "de"]}, {"year": {">=": 2020}}, '
    '{"draft": null}'
)


def described(limits: Limits) -> Json:
    """Paths with their requests and answers."""
    search = {
        "query": {**_TEXT, "maxLength": limits.max_query},
        "queries": {"type": "array", "items": _TEXT, "maxItems": limits.max_queries},
        "k": {"type": "integer", "minimum": 1, "maximum": limits.max_k, "default": 10},
        "offset": {"type": "integer", "minimum": 0, "default": 0},
        "where": {"type": "object", "description": _WHERE},
        "hybrid": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "description": "Weight of BM25's score; left out: that of the index.",
        },
        "rerank": _TRUTH,
        "highlight": _TRUTH,
        "facets": _TRUTH,
    }
    passage = _object({"_id": _TEXT, "title": _TEXT, "text": _TEXT}, ["text"], more=True)
    passages = {"type": "array", "items": {"oneOf": [_TEXT, passage]}}
    paths = {
        "/search": _post("Search", _object(search), "Answer")
        | {"get": {**_answered("Search", "Answer"), "parameters": _parameters()}},
        "/explain": _post("Why a query finds a passage", _object({"query": _TEXT, "id": _TEXT})),
        "/encode": _post(
            "Vectors of texts",
            _object({"texts": _TEXTS, "side": {"enum": ["query", "passage"]}}, ["texts"]),
        ),
        "/v1/embeddings": _post(
            "Vectors, as of OpenAI", _object({"input": _TEXTS, "model": _TEXT}, ["input"])
        ),
        "/v1/models": {"get": _answered("The model, as of OpenAI")},
        "/embed": _post("Vectors, as of TEI", _object({"inputs": _TEXTS}, ["inputs"])),
        "/info": {"get": _answered("The model, as of TEI")},
        "/add": _post(
            "Add passages", _object({"passages": passages, "replace": _TRUTH}, ["passages"])
        ),
        "/delete": _post("Delete passages by their ids", _object({"ids": _TEXTS}, ["ids"])),
        "/health": {"get": _answered("Whether the server answers")},
        "/metrics": {"get": _answered("Figures for Prometheus", media="text/plain")},
    }
    for path in ("/add", "/delete"):
        paths[path]["post"]["security"] = [{"token": []}]
    return {
        "openapi": "3.1.0",
        "info": {"title": "qac_jax", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {"Answer": _answer(), "Problem": _problem()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _object(properties: Json, required: list[str] | None = None, more: bool = False) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": required or [],
        "additionalProperties": more,
    }


def _answer() -> Json:
    hit = _object(
        {"id": _TEXT, "score": {"type": "number"}, "title": _TEXT, "text": _TEXT}, more=True
    )
    return _object(
        {
            "query": _TEXT,
            "hits": {"type": "array", "items": hit},
            "version": {"type": "integer"},
            "passages": {"type": "integer"},
            "took_ms": {"type": "number"},
        },
        more=True,
    )


def _problem() -> Json:
    error = _object({"message": _TEXT, "type": _TEXT, "code": {"type": "integer"}})
    return _object({"error": error}, ["error"])


def _parameters() -> list[Json]:
    kinds = {"q": _TEXT, "k": {"type": "integer"}, "hybrid": {"type": "number"}}
    return [
        {"name": name, "in": "query", "required": name == "q", "schema": schema}
        for name, schema in kinds.items()
    ]


def _post(summary: str, schema: Json, answer: str = "") -> Json:
    content = {"application/json": {"schema": schema}}
    return {
        "post": {
            **_answered(summary, answer),
            "requestBody": {"required": True, "content": content},
        }
    }


def _answered(summary: str, answer: str = "", media: str = "application/json") -> Json:
    schema: Json = {"$ref": f"#/components/schemas/{answer}"} if answer else {}
    problem = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        "summary": summary,
        "responses": {
            "200": {"description": "done", "content": {media: {"schema": schema}}},
            "default": {"description": "not done, and why", "content": problem},
        },
    }
