"""Bodies of requests, which pydantic checks."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    StringConstraints,
)

from qac_jax.errors import UserError
from qac_jax.live import filters


_CONDITIONS, _VALUES = 32, 1000
# Characters that fill a batch as a question does, and all of the texts of a request.
_QUESTION, _CHARACTERS = 512, 500_000
# A search of more characters or hits is answered beside the others, which do not wait for it.
_LONG, _DEEP = 512, 100


def _filter(where: dict[str, Any] | None) -> dict[str, Any] | None:
    """Raises ValueError for what is not a filter, or too large a one."""
    try:
        conditions = filters.parsed(where) if len(where or ()) <= _CONDITIONS else ()
    except UserError as error:
        raise ValueError(str(error)) from error
    if len(where or conditions) > _CONDITIONS or sum(len(c.queries) for c in conditions) > _VALUES:
        raise ValueError(f"has too many conditions; at most {_CONDITIONS} with {_VALUES} values")
    return where


def _bounded(texts: list[str]) -> list[str]:
    if (count := sum(map(len, texts))) > _CHARACTERS:
        raise ValueError(f"has {count:,} characters; at most {_CHARACTERS:,} in a request")
    return texts


def size(texts: Sequence[str]) -> int:
    """How much of a batch these fill, where a question is 1."""
    return sum(1 + len(text) // _QUESTION for text in texts) or 1


# One error is enough, of thousands that wrong items make.
_FEW = (Field(min_length=1, max_length=256), FailFast())
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


class _Question(_Strict):
    query: Query

    @property
    def input(self) -> list[str]:
        """The texts that are encoded."""
        return [self.query]

    @property
    def input_type(self) -> str:
        return "query"


class SearchRequest(_Question):
    k: int = Field(10, ge=1, le=1000)
    offset: int = Field(0, ge=0, le=1000)
    where: Where = None
    hybrid: float | None = Field(None, ge=0, le=1, description="weight of BM25's score")
    rerank: bool = False
    highlight: bool = False
    facets: bool = False

    @property
    def input(self) -> list[str]:
        return [] if self.hybrid == 1 else [self.query]

    @property
    def hurries(self) -> bool:
        """Whether it takes no longer than most do."""
        short = len(self.query) <= _LONG and self.offset + self.k <= _DEEP
        return short and not self.rerank


class ExplainRequest(_Question):
    """Why does this query find the passage of this id?"""

    id: Query


class EmbeddingsRequest(BaseModel):
    """As OpenAI's clients send it; "input_type" is "query" for questions."""

    input: Annotated[
        list[Text],
        *_FEW,
        BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
        AfterValidator(_bounded),
    ]
    input_type: Literal["query", "passage"] = "passage"
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None

    def pieces(self, most: int) -> Iterator[Self]:
        """Requests of some of the texts each, none of which fills more than a batch."""
        texts: list[str] = []
        for text in self.input:
            if texts and size([*texts, text]) > most:
                yield self.model_copy(update={"input": texts})
                texts = []
            texts.append(text)
        yield self.model_copy(update={"input": texts})


class AddRequest(_Strict):
    """Passages: texts, or objects with "text" and perhaps "_id", "title" and metadata."""

    passages: Annotated[list[Text | dict[str, Any]], *_FEW]
    replace: bool = False


class DeleteRequest(_Strict):
    """Ids of passages."""

    ids: Annotated[list[Query], *_FEW]
