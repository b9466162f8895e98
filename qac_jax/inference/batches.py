"""Models as classes that engines of data call on batches, such as Ray Data's `map_batches`.

    texts = ray.data.read_parquet("passages.parquet")
    texts.map_batches(qac_jax.Encoder, fn_constructor_args=["shipped:minilm"], compute=…)

A batch has columns by name, of arrays or lists. The answer has one column more. The model is loaded
once, where the class is made, which is in the engine's process.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from qac_jax.errors import UserError, nearest
from qac_jax.inference import encoder, generator, reranker
from qac_jax.inference.settings import EncoderOptions, RerankerOptions
from qac_jax.models.decoding.settings import Decoding


Batch = Mapping[str, Any]


def _column(batch: Batch, name: str) -> list[str]:
    if name not in batch:
        raise UserError(f"the batch has no column {name!r}; {nearest(name, batch)}")
    wrong = next((text for text in batch[name] if not isinstance(text, str)), "")
    if wrong != "":
        raise UserError(f"column {name!r} holds {wrong!r}; expected texts: fill or drop such rows")
    return list(batch[name])


class Encoder:
    """Adds the column `into`, vectors (float32 [rows, width]) of the column `text`.

    A column `title` is read with the text of a passage, as `qac embed` does. side: "query" for
    questions. Options: title, pooling, normalize, max_length.
    """

    def __init__(
        self,
        model: str,
        *,
        text: str = "text",
        into: str = "vector",
        side: str = "passage",
        **options: Any,
    ):
        self.encoder = encoder.Encoder.load(model, EncoderOptions(**options))
        self.text, self.into, self.side = text, into, side

    def __call__(self, batch: Batch) -> dict[str, Any]:
        texts = _column(batch, self.text)
        if self.side == "passage" and "title" in batch:
            records = zip(_column(batch, "title"), texts, strict=True)
            texts = [self.encoder.passage_text({"title": t, "text": x}) for t, x in records]
        return {**batch, self.into: self.encoder.encode(texts, self.side)}


class Generator:
    """Adds the column `into`: a list of generated texts for each row's `text`.

    Sampling depends on the seed and on the column `_id`, or where there is none on the text, not on
    the batches. Options: those of `Decoding`, such as samples, max_tokens, top_p.
    """

    def __init__(
        self,
        model: str,
        *,
        text: str = "text",
        into: str = "queries",
        prefix: str = "",
        seed: int = 0,
        max_input: int = 512,
        **options: Any,
    ):
        self.generator = generator.Generator.load(
            model, Decoding(**options), seed=seed, max_input=max_input
        )
        self.text, self.into, self.prefix = text, into, prefix

    def __call__(self, batch: Batch) -> dict[str, Any]:
        texts = _column(batch, self.text)
        names: Iterable[Any] = batch.get("_id", texts)
        asked = [
            generator.Request(str(name), text, self.prefix)
            for name, text in zip(names, texts, strict=True)
        ]
        made = self.generator.generate(asked)
        return {**batch, self.into: [[one.text for one in each] for each in made]}


class Reranker:
    """Adds the column `into`: log-odds that a row's `text` answers its `query`.

    Options: max_length (tokens of a pair), truncation.
    """

    def __init__(
        self,
        model: str,
        *,
        query: str = "query",
        text: str = "text",
        into: str = "score",
        **options: Any,
    ):
        self.reranker = reranker.Reranker.load(model, RerankerOptions(**options))
        self.query, self.text, self.into = query, text, into

    def __call__(self, batch: Batch) -> dict[str, Any]:
        pairs = _column(batch, self.query), _column(batch, self.text)
        return {**batch, self.into: self.reranker.score(*pairs)}
