"""Rankings in a new order: a cross-encoder reads each query together with its passages.

    reranker = Reranker.load("out/teacher")
    odds = reranker.score(["a question", "a question"], ["a passage", "another"])
    probability(odds)

Scores are log-odds: they tell apart what a probability near 1 no longer does, and they are what
distillation wants.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from qac_jax.data.building import form_of
from qac_jax.data.form import Form
from qac_jax.errors import UserError, nearest
from qac_jax.formats.queries import shares, with_score
from qac_jax.formats.runs import Ranking, Run, ranked
from qac_jax.hub import huggingface
from qac_jax.inference import buckets
from qac_jax.inference.embed import tokenizer_of
from qac_jax.models.encoders import CrossEncoder, log_odds
from qac_jax.models.layers import Runtime
from qac_jax.text.tokenizers import Tokenizer


PRECISIONS = ("auto", "float32", "bfloat16")

# Tokens of one batch on one device, as for encoders.
_TOKENS = {"cpu": 4096}
_MANY_TOKENS = 65536
_AHEAD = 3
# Pairs whose tokens are in memory together.
_TOGETHER = 1 << 16

Texts = Callable[[Sequence[str]], Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a cross-encoder's folder is used."""

    max_length: int = 160  # tokens of a pair, special ones included; 0: all that the model takes
    truncation: str = "pop_longer"
    precision: str = "auto"
    batch_tokens: int = 0  # on one device; 0: by device


@dataclasses.dataclass(frozen=True)
class Reranker:
    """A cross-encoder with all that it needs to read pairs. Make it with `load`."""

    module: CrossEncoder
    params: Any  # on the devices
    tokenizer: Tokenizer
    form: Form
    max_length: int
    truncation: str
    batch_tokens: int
    mesh: jax.sharding.Mesh

    @classmethod
    def load(cls, place: str | os.PathLike[str], settings: Settings | None = None) -> Reranker:
        """From an artefact of ours, or a Hugging Face folder of a sequence classifier."""
        settings = settings or Settings()
        folder = huggingface.resolve(place)
        dtype = _precision(settings.precision)
        module, variables = huggingface.load(folder, Runtime(dtype=dtype, scan=True))
        if not isinstance(module, CrossEncoder):
            raise UserError(
                f"{place} is a {type(module).__name__}, not a cross-encoder; give one that was "
                "trained with objectives/cross_encoder.gin, or a sequence classifier's folder"
            )
        return cls.of(module, variables["params"], tokenizer_of(folder), settings)

    @classmethod
    def of(
        cls,
        module: CrossEncoder,
        params: Any,
        tokenizer: Tokenizer,
        settings: Settings | None = None,
    ) -> Reranker:
        """From a module and its parameters."""
        settings = settings or Settings()
        longest = module.config.max_length
        limit = settings.max_length or longest
        if not 4 <= limit <= longest:
            raise UserError(
                f"max_length={limit} does not suit the cross-encoder; expected 4 to {longest} "
                "tokens of query and passage together"
            )
        if tokenizer.vocab_size > module.config.vocab_size:
            raise UserError(
                f"the tokenizer {tokenizer.name} has {tokenizer.vocab_size} pieces and the model "
                f"{module.config.vocab_size} rows for them; give the tokenizer it was "
                "trained with"
            )
        devices = jax.local_devices()
        mesh = jax.make_mesh((len(devices),), ("data",), (AxisType.Auto,), devices=devices)
        return cls(
            module=module,
            params=jax.device_put(params, NamedSharding(mesh, PartitionSpec())),
            tokenizer=tokenizer,
            form=Form(**form_of(tokenizer), crop="right"),
            max_length=limit,
            truncation=settings.truncation,
            batch_tokens=settings.batch_tokens or _TOKENS.get(jax.default_backend(), _MANY_TOKENS),
            mesh=mesh,
        )

    def score(
        self,
        queries: Sequence[str],
        passages: Sequence[str],
        standing: Sequence[float] | np.ndarray | None = None,
        *,
        advance: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """Log-odds (float32) of pairs of texts, in order; `standing` is each passage's share of
        a first ranking (`queries.shares`), for a model that reads it. `advance` hears how many are
        done."""
        if self.module.reads_scores:
            if standing is None:
                raise UserError(
                    "this cross-encoder reads the score that a first ranking gave each passage; "
                    "rerank a run with it (qac search --rerank, for labels qac label --scored), or "
                    "train one without --scores"
                )
            queries = list(map(with_score, queries, standing))
        found = [
            self._scored(queries[i : i + _TOGETHER], passages[i : i + _TOGETHER], advance)
            for i in range(0, len(queries), _TOGETHER)
        ]
        return np.concatenate(found) if found else np.empty(0, np.float32)

    def _scored(
        self,
        queries: Sequence[str],
        passages: Sequence[str],
        advance: Callable[[int], None] | None,
    ) -> np.ndarray:
        rows = self.tokenize(queries, passages)
        odds = np.empty(len(rows), np.float32)
        waiting: collections.deque[tuple[buckets.Batch, jax.Array]] = collections.deque()

        def take() -> None:
            batch, found = waiting.popleft()
            odds[batch.rows] = np.asarray(found)[: len(batch.rows)]
            if advance is not None:
                advance(len(batch.rows))

        for batch in self.batches(rows):
            # JAX computes in the background: the host pads the next batches meanwhile.
            waiting.append((batch, self.apply(*padded(rows, batch, self.form.pad))))
            if len(waiting) >= _AHEAD:
                take()
        while waiting:
            take()
        return odds

    def tokenize(
        self, queries: Sequence[str], passages: Sequence[str]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """(ids, token types) of each pair. A text is tokenised once, however often it is there."""
        texts = list(dict.fromkeys([*queries, *passages]))
        known = {
            text: np.array(ids, np.int32)
            for text, ids in zip(texts, self.tokenizer.encode_batch(texts), strict=True)
        }
        form, limit, truncation = self.form, self.max_length, self.truncation
        return [
            form.two(known[query], known[passage], limit, truncation)
            for query, passage in zip(queries, passages, strict=True)
        ]

    def batches(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> Iterator[buckets.Batch]:
        """How pairs are cut into padded batches, by length."""
        devices = self.mesh.size
        return buckets.batches(
            [len(ids) for ids, _ in rows],
            self.batch_tokens * devices,
            multiple=devices,
            limit=self.max_length,
        )

    def apply(self, ids: np.ndarray, types: np.ndarray, lengths: np.ndarray) -> jax.Array:
        """One padded batch; its rows are cut over the devices."""
        cut = NamedSharding(self.mesh, PartitionSpec("data"))
        return _program(self.module)(self.params, *jax.device_put((ids, types, lengths), cut))


def probability(odds: np.ndarray) -> np.ndarray:
    """Log-odds as probabilities."""
    return 0.5 * (1.0 + np.tanh(0.5 * np.asarray(odds, np.float64)))


def rerank(
    run: Mapping[str, Ranking],
    queries: Mapping[str, str],
    texts: Texts,
    reranker: Reranker,
    *,
    advance: Callable[[int], None] | None = None,
) -> Run:
    """The same passages of every query, in the cross-encoder's order and with its log-odds."""
    asked: list[str] = []
    names: list[str] = []
    for query, ranking in run.items():
        asked += [queries[query]] * len(ranking.ids)
        names += ranking.ids
    found = dict(zip(known := list(dict.fromkeys(names)), texts(known), strict=True))
    standing = None
    if reranker.module.reads_scores and run:
        standing = np.concatenate([shares(ranking.scores) for ranking in run.values()])
    odds = reranker.score(asked, [found[name] for name in names], standing, advance=advance)
    result: Run = {}
    start = 0
    for query, ranking in run.items():
        result[query] = ranked(ranking.ids, odds[start : start + len(ranking.ids)])
        start += len(ranking.ids)
    return result


def padded(
    rows: Sequence[tuple[np.ndarray, np.ndarray]], batch: buckets.Batch, pad: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids, token types [size, length], lengths [size]); rows beyond its pairs are empty ones."""
    ids = np.full((batch.size, batch.length), pad, np.int32)
    types = np.zeros((batch.size, batch.length), np.int32)
    lengths = np.ones(batch.size, np.int32)
    for place, row in enumerate(batch.rows):
        tokens, kinds = rows[row]
        ids[place, : len(tokens)] = tokens
        types[place, : len(tokens)] = kinds
        lengths[place] = len(tokens)
    return ids, types, lengths


@functools.lru_cache(maxsize=4)
def _program(module: CrossEncoder) -> Callable[..., jax.Array]:
    """Compiled once for all rerankers of one shape."""

    def odds(params: Any, ids: jax.Array, types: jax.Array, lengths: jax.Array) -> jax.Array:
        logits = module.apply({"params": params}, ids, lengths, types)
        return jnp.asarray(log_odds(logits), jnp.float32)

    return jax.jit(odds)


def _precision(name: str) -> str:
    if name not in PRECISIONS:
        raise UserError(f"precision={name!r} is not known; {nearest(name, PRECISIONS)}")
    if name != "auto":
        return name
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"
