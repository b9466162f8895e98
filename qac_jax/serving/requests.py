"""Bodies of requests, checked by pydantic, and what a request is answered when it is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import HTTPException
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from qac_jax.errors import UserError
from qac_jax.live import filters
from qac_jax.serving.options import Limits


_CONDITIONS, _VALUES = 32, 1000


class Problem(HTTPException):
    """An answer with an error: a status and one sentence without paths of this machine."""

    def __init__(self, status: int, sentence: str, **headers: str):
        super().__init__(status, sentence, {k.replace("_", "-"): v for k, v in headers.items()})
        self.sentence = sentence


def busy() -> Problem:
    return Problem(503, "the server is busy; try again in a second", Retry_After="1")


def _filter(where: Any) -> Any:
    """Raises ValueError for what is not a filter, or too large a one."""
    try:
        conditions = filters.parsed(where)
    except UserError as error:
        raise ValueError(str(error)) from error
    values = sum(len(c.value) if isinstance(c.value, list) else 1 for c in conditions)
    if len(conditions) > _CONDITIONS or values > _VALUES:
        raise ValueError(f"has too many conditions; at most {_CONDITIONS} with {_VALUES} values")
    return where


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is an empty text")
    return text


Text = Annotated[str, AfterValidator(_not_blank)]
Texts = Annotated[
    list[Text],
    Field(min_length=1),
    BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
]
Where = Annotated[
    dict[str, Any] | None,
    BeforeValidator(_filter),
    Field(description='a filter of metadata: {"lang": ["en", "de"], "year": {">=": 2020}}'),
]
# What clients call the two sides; OpenAI's own requests do not say, and mean passages as a rule.
Side = Literal["query", "search_query", "passage", "document", "search_document"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SearchRequest(_Strict):
    """One query, or several with the same settings."""

    query: Text | None = None
    queries: list[Text] | None = Field(None, min_length=1)
    k: int = Field(10, ge=1)
    offset: int = Field(0, ge=0)
    where: Where = None
    hybrid: float | None = Field(None, ge=0, le=1, description="weight of BM25's score")
    rerank: bool = False
    highlight: bool = False
    facets: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> SearchRequest:
        if (self.query is None) == (self.queries is None):
            raise ValueError('give "query" (a text) or "queries" (a list of texts)')
        return self

    def each(self, limits: Limits) -> list[SearchRequest]:
        """A request for each query."""
        texts = self.queries or [self.query or ""]
        check_texts(texts, limits.max_queries, limits.max_query)
        if self.offset + self.k > limits.max_k:
            raise Problem(422, f'"offset" + "k" is above {limits.max_k}; ask for fewer hits')
        if self.queries is None:
            return [self]
        return [self.model_copy(update={"query": text, "queries": None}) for text in texts]


class ExplainRequest(_Strict):
    """Why does this query find the passage of this id?"""

    query: Text
    id: Text


class EncodeRequest(_Strict):
    """Texts whose vectors are wanted."""

    texts: Texts
    side: Side = "passage"

    @property
    def one_side(self) -> Literal["query", "passage"]:
        """The encoder's own name of the side."""
        return "query" if self.side in ("query", "search_query") else "passage"


class OpenAIRequest(BaseModel):
    """As OpenAI's clients send it; "input_type" is "query" for questions."""

    input: Texts
    input_type: Side = "passage"
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class TeiRequest(BaseModel):
    """As clients of Text Embeddings Inference send it; "prompt_name" is "query" for questions."""

    inputs: Texts
    prompt_name: Side | None = None
    normalize: bool = True


class AddRequest(_Strict):
    """Passages: texts, or objects with "text" and perhaps "_id", "title" and metadata."""

    passages: list[str | dict[str, Any]] = Field(min_length=1)
    replace: bool = False

    def records(self, limits: Limits) -> list[dict[str, Any]]:
        records = [{"text": p} if isinstance(p, str) else p for p in self.passages]
        written = [json.dumps(record, ensure_ascii=False) for record in records]
        check_texts(written, limits.max_texts, limits.max_text)
        return records


class DeleteRequest(_Strict):
    """Ids of passages."""

    ids: Texts


class Hit(BaseModel):
    """A passage that was found; with "highlight" also its pieces, each with whether it matches."""

    id: str
    score: float
    title: str
    text: str
    metadata: dict[str, Any]


class Answer(BaseModel):
    """The hits of one query; of several, "answers" has one each."""

    query: str
    hits: list[Hit]
    version: int
    passages: int
    took_ms: float


def check_texts(texts: Sequence[str], most: int, longest: int) -> None:
    """Refuses too many texts, and too long ones."""
    if len(texts) > most:
        raise Problem(413, f"{len(texts)} texts; at most {most} a request")
    if (length := max(map(len, texts))) > longest:
        raise Problem(413, f"a text has {length} characters; at most {longest}")


def parsed(content: bytes | str) -> Any:
    """JSON in UTF-8 without NaN, halves of characters and numbers that no float holds."""
    try:
        value = json.loads(content, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
        json.dumps(value, ensure_ascii=False).encode()  # raises for halves of characters
        return value
    except (ValueError, RecursionError) as error:
        reason = "it is too deep" if isinstance(error, RecursionError) else str(error)[:100]
        raise Problem(400, f"this is not valid JSON ({reason}); send an object") from error


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"the number {text[:20]} is not finite")
    return value


def _whole(text: str) -> int:
    _finite(text)
    return int(text)


def problem(error: Mapping[str, Any]) -> Problem:
    """One of pydantic's errors as a sentence."""
    message = str(error["msg"]).removeprefix("Value error, ")
    name = ".".join(str(part) for part in error["loc"] if part != "body")
    if error["type"] == "extra_forbidden":
        return Problem(422, f'"{name[:80]}" is not a field of this request; see /openapi.json')
    given = "" if error["type"] in ("missing", "value_error") else f", not {_short(error['input'])}"
    start = f'"{name}": ' if name else ""
    return Problem(422, f"{start}{message[:1].lower()}{message[1:]}{given}; see /openapi.json")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
