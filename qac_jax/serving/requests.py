"""Requests: JSON bodies checked and brought to one form."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from qac_jax.errors import UserError, nearest
from qac_jax.live import filters
from qac_jax.serving.problems import Problem
from qac_jax.serving.settings import Limits


_DEEP = 100  # brackets in brackets
_CONDITIONS, _VALUES = 32, 1000


@dataclasses.dataclass(frozen=True)
class SearchRequest:
    """One query of a search."""

    query: str
    k: int = 10
    offset: int = 0
    where: Mapping[str, Any] | None = None
    hybrid: float | None = None
    rerank: bool = False
    highlight: bool = False
    facets: bool = False


_SEARCH = {field.name for field in dataclasses.fields(SearchRequest)} | {"queries"}


def json_object(body: bytes) -> dict[str, Any]:
    """A body that is a JSON object without NaN, infinities or halves of characters."""
    try:
        text = body.decode("utf-8")
        value = json.loads(text, parse_constant=_no_constant)
        if isinstance(value, dict | list) and _depth(value) > _DEEP:
            raise ValueError(f"more than {_DEEP} brackets in brackets")
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        reason = "" if isinstance(error, UnicodeError) else f" ({str(error)[:100]})"
        raise Problem(400, f"the body is not JSON in UTF-8{reason}; send an object") from error
    if not isinstance(value, dict):
        raise Problem(400, f"the body is a JSON {type(value).__name__}; send an object")
    return value


def _depth(value: Any) -> int:
    """How deep lists and objects lie in one another."""
    depth, level = 0, [value]
    while level and depth <= _DEEP:
        depth += 1
        inner = (part.values() if isinstance(part, dict) else part for part in level)
        level = [p for parts in inner for p in parts if isinstance(p, dict | list)]
    return depth


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def searches(body: Mapping[str, Any], limits: Limits) -> list[SearchRequest]:
    """The queries of a body, "query" or "queries", with the same settings."""
    known(body, _SEARCH)
    if ("query" in body) == ("queries" in body):
        raise Problem(422, 'give "query" (a text) or "queries" (a list of texts)')
    asked = "queries" if "queries" in body else "query"
    given = body[asked] if asked == "queries" else [body[asked]]
    queries = texts(given, asked, limits.max_queries, limits.max_query)
    settings = {name: body[name] for name in body if name not in ("query", "queries")}
    made = [SearchRequest(query, **settings) for query in queries]
    for request in made[:1]:
        _check(request, limits)
    return made


def _check(request: SearchRequest, limits: Limits) -> None:
    whole(request.k, "k", 1, limits.max_k)
    whole(request.offset, "offset", 0, limits.max_k - request.k)
    if request.hybrid is not None:
        weight = request.hybrid
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
            raise Problem(422, f'"hybrid" is {shown(weight)}; expected a number from 0 to 1')
    for name in ("rerank", "highlight", "facets"):
        if not isinstance(getattr(request, name), bool):
            raise Problem(422, f'"{name}" is not true or false')
    try:
        conditions = filters.parsed(request.where)
    except UserError as error:
        raise Problem(422, str(error)) from error
    values = sum(len(c.value) if isinstance(c.value, list) else 1 for c in conditions)
    if len(conditions) > _CONDITIONS or values > _VALUES:
        raise Problem(
            422, f'"where" has too many conditions; at most {_CONDITIONS} with {_VALUES} values'
        )
    for condition in conditions:
        for value in condition.value if isinstance(condition.value, list) else [condition.value]:
            if isinstance(value, int | float) and not math.isfinite(_float(value)):
                raise Problem(422, '"where" compares with a number that is too large')


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def known(body: Mapping[str, Any], names: set[str]) -> None:
    """Refuses what would be ignored."""
    for name in body:
        if name not in names:
            raise Problem(422, f"{shown(name)} is not a field; {nearest(name[:80], sorted(names))}")


def texts(given: Any, name: str, most: int, longest: int) -> list[str]:
    """A list of texts (or a single one), each not empty."""
    given = [given] if isinstance(given, str) else given
    if given == []:
        raise Problem(422, f'"{name}" is an empty list; give at least one text')
    if not isinstance(given, list) or not all(isinstance(t, str) for t in given):
        raise Problem(422, f'"{name}" is not a text or a list of texts')
    if len(given) > most:
        raise Problem(413, f'"{name}" has {len(given)} texts; at most {most} a request')
    for text in given:
        if len(text) > longest:
            raise Problem(413, f'"{name}" has a text of {len(text)} characters; at most {longest}')
        if not text.strip():
            raise Problem(422, f'"{name}" has an empty text')
    return given


def passages(body: Mapping[str, Any], limits: Limits) -> tuple[list[dict[str, Any]], bool]:
    """The passages of /add, and whether they replace those of their ids."""
    known(body, {"passages", "replace"})
    given, replace = body.get("passages"), body.get("replace", False)
    if not isinstance(given, list) or not given:
        raise Problem(422, '"passages" is not a list of texts or of objects with a "text"')
    if not isinstance(replace, bool):
        raise Problem(422, '"replace" is not true or false')
    if len(given) > limits.max_texts:
        raise Problem(413, f"{len(given)} passages; at most {limits.max_texts} a request")
    records = [{"text": each} if isinstance(each, str) else each for each in given]
    for number, record in enumerate(records):
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise Problem(422, f'passage {number} is not a text or an object with a "text"')
        if sum(map(len, _strings(record))) > limits.max_text:
            raise Problem(413, f"passage {number} is longer than {limits.max_text} characters")
    return records, replace


def _strings(value: Any) -> Sequence[str]:
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in _strings(part)]


def whole(value: Any, name: str, low: int, high: int) -> int:
    """A whole number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Problem(422, f'"{name}" is {shown(value)}; expected a whole number, {low} to {high}')
    return value


def shown(value: Any) -> str:
    """A value as it may stand in a sentence."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 80 else f"{text[:80]}…"
