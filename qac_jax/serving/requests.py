"""Bodies of requests, which pydantic checks."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from qac_jax.errors import UserError
from qac_jax.live import filters


_CONDITIONS, _VALUES = 32, 1000


def _filter(where: dict[str, Any] | None) -> dict[str, Any] | None:
    """Raises ValueError for what is not a filter, or too large a one."""
    try:
        # SQLite takes neither NaN nor halves of characters.
        json.dumps(where, ensure_ascii=False, allow_nan=False).encode()
        conditions = filters.parsed(where)
    except (UserError, OverflowError) as error:
        raise ValueError(str(error)) from error
    if len(conditions) > _CONDITIONS or sum(len(c.queries) for c in conditions) > _VALUES:
        raise ValueError(f"has too many conditions; at most {_CONDITIONS} with {_VALUES} values")
    return where


# Limited in length, and not blank.
Query = Annotated[str, StringConstraints(max_length=8_000, pattern=r"\S")]
Text = Annotated[str, StringConstraints(max_length=100_000, pattern=r"\S")]
Where = Annotated[
    dict[str, Any] | None,
    AfterValidator(_filter),
    Field(description='a filter of metadata: {"lang": ["en", "de"], "year": {">=": 2020}}'),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SearchRequest(_Strict):
    query: Query
    k: int = Field(10, ge=1, le=1000)
    offset: int = Field(0, ge=0, le=1000)
    where: Where = None
    hybrid: float | None = Field(None, ge=0, le=1, description="weight of BM25's score")
    rerank: bool = False
    highlight: bool = False
    facets: bool = False

    @property
    def input(self) -> list[str]:
        """The texts that are encoded."""
        return [] if self.hybrid == 1 else [self.query]

    @property
    def input_type(self) -> str:
        return "query"


class ExplainRequest(_Strict):
    """Why does this query find the passage of this id?"""

    query: Query
    id: Query


class EmbeddingsRequest(BaseModel):
    """As OpenAI's clients send it; "input_type" is "query" for questions."""

    input: Annotated[
        list[Text],
        Field(min_length=1, max_length=256),
        BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
    ]
    input_type: Literal["query", "passage"] = "passage"
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class AddRequest(_Strict):
    """Passages: texts, or objects with "text" and perhaps "_id", "title" and metadata."""

    passages: list[Text | dict[str, Any]] = Field(min_length=1, max_length=256)
    replace: bool = False


class DeleteRequest(_Strict):
    """Ids of passages."""

    ids: list[Query] = Field(min_length=1, max_length=256)
