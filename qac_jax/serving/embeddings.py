"""Vectors in the shapes of OpenAI's and of TEI's (Text Embeddings Inference) endpoints."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from qac_jax.serving.engine import EncodeRequest
from qac_jax.serving.problems import Problem
from qac_jax.serving.requests import known, shown, texts
from qac_jax.serving.settings import Limits


SIDES = ("query", "passage")
# What clients call the two sides; OpenAI's own requests do not say, and mean passages as a rule.
_INPUT_TYPES = {
    **{name: "query" for name in ("query", "search_query")},
    **{name: "passage" for name in ("passage", "document", "search_document")},
}


def own(body: Mapping[str, Any], limits: Limits) -> EncodeRequest:
    """{"texts": […], "side": "query"}"""
    known(body, {"texts", "side"})
    side = body.get("side", "passage")
    if side not in SIDES:
        raise Problem(422, f'"side" is {shown(side)}; expected query or passage')
    return EncodeRequest(_texts(body.get("texts"), "texts", limits), side)


def openai(body: Mapping[str, Any], limits: Limits) -> EncodeRequest:
    """{"input": "…", "model": "…"}, with "input_type": "query" for questions."""
    kind = body.get("input_type", "passage")
    if not isinstance(kind, str) or kind not in _INPUT_TYPES:
        raise Problem(422, f'"input_type" is {shown(kind)}; expected query or passage')
    if body.get("encoding_format", "float") not in ("float", "base64"):
        raise Problem(422, '"encoding_format" is neither float nor base64')
    given = body.get("input")
    if isinstance(given, list) and given and not isinstance(given[0], str):
        raise Problem(422, '"input" is tokens; this server takes texts')
    return EncodeRequest(_texts(given, "input", limits), _INPUT_TYPES[kind])


def tei(body: Mapping[str, Any], limits: Limits) -> EncodeRequest:
    """{"inputs": "…"}, with "prompt_name": "query" for questions."""
    side = body.get("prompt_name") or "passage"
    if not isinstance(side, str) or side not in _INPUT_TYPES:
        raise Problem(422, f'"prompt_name" is {shown(side)}; expected query or passage')
    if not isinstance(body.get("normalize", True), bool):
        raise Problem(422, '"normalize" is not true or false')
    return EncodeRequest(_texts(body.get("inputs"), "inputs", limits), _INPUT_TYPES[side])


def _texts(given: Any, name: str, limits: Limits) -> list[str]:
    return texts(given, name, limits.max_texts, limits.max_text)


def as_own(vectors: np.ndarray) -> dict[str, Any]:
    return {"vectors": vectors.tolist(), "dimension": vectors.shape[1]}


def as_openai(
    vectors: np.ndarray, body: Mapping[str, Any], model: str, tokens: int
) -> dict[str, Any]:
    """OpenAI's client asks for base64 by itself: float32, little-endian."""
    size = body.get("dimensions", vectors.shape[1])
    if size != vectors.shape[1]:
        raise Problem(422, f'"dimensions" is {shown(size)}; the vectors have {vectors.shape[1]}')
    packed = body.get("encoding_format") == "base64"
    values: list[Any] = vectors.tolist()
    if packed:
        values = [base64.b64encode(v.astype("<f4").tobytes()).decode() for v in vectors]
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": number, "embedding": value}
            for number, value in enumerate(values)
        ],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def as_tei(vectors: np.ndarray, body: Mapping[str, Any]) -> list[list[float]]:
    if body.get("normalize", True):
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(lengths > 0, lengths, 1)
    return vectors.tolist()
