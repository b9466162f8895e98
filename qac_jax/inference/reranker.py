"""Reranking: a cross-encoder reads each query together with each of its passages.

    reranker = Reranker.load("out/teacher")
    odds = reranker.score(["a question", "a question"], ["a passage", "another"])
    probability(odds)

Scores are log-odds: near a probability of 1 they differ where probabilities round to the same
value, and distillation needs them.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from qac_jax.data.form import Form, form_of
from qac_jax.errors import UserError
from qac_jax.formats.queries import shares, with_score
from qac_jax.formats.runs import Ranking, Run, ranked
from qac_jax.hub import huggingface, names
from qac_jax.inference import engines
from qac_jax.inference.runner import Batch, Hidden, Runner, dtype_of, padded
from qac_jax.inference.settings import BY_DEVICE, USUAL_PAIRS, Inference, RerankerOptions
from qac_jax.models.encoders import CrossEncoder, log_odds
from qac_jax.models.layers import Runtime
from qac_jax.processes import prefetched
from qac_jax.text.tokenizers import Tokenizer


# Pairs whose tokens are in memory at a time.
_TOGETHER = 1 << 16

Texts = Callable[[Sequence[str]], Sequence[str]]
# The ids of a pair, and their token types.
Pair = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Reranker:
    """A cross-encoder with all that it needs to read pairs. Make it with `load`."""

    module: CrossEncoder
    runner: Runner
    tokenizer: Tokenizer
    form: Form
    max_length: int
    truncation: str
    hidden: Hidden | None = None  # in int8
    logits: Hidden | None = None  # of a graph in the folder

    @classmethod
    def load(
        cls,
        place: str | os.PathLike[str],
        options: RerankerOptions = USUAL_PAIRS,
        inference: Inference = BY_DEVICE,
    ) -> Self:
        """From an artefact of ours, or a Hugging Face folder of a sequence classifier."""
        folder = names.folder(place)
        runtime = Runtime(dtype=dtype_of(inference.precision, graphs=True), scan=True)
        module, variables = huggingface.load(folder, runtime)
        if not isinstance(module, CrossEncoder):
            raise UserError(
                f"{place} is a {type(module).__name__}, not a cross-encoder; give one that was "
                "trained with objectives/cross_encoder.gin, or a sequence classifier's folder"
            )
        tokenizer, longest = names.tokenizer_of(folder), module.config.max_length
        limit = options.max_length or longest
        if not 4 <= limit <= longest:
            raise UserError(
                f"max_length={limit} does not suit the cross-encoder; expected 4 to {longest} "
                "tokens of query and passage together"
            )
        tokenizer.check_fits(module.config.vocab_size, "model")
        form = Form(**form_of(tokenizer), crop="right")
        runner = Runner.of(variables["params"], inference)
        made = cls(module, runner, tokenizer, form, limit, options.truncation)
        if engine := engines.of(folder, inference.precision):
            return dataclasses.replace(made, logits=engines.load(folder, engine))
        if inference.precision != "int8":
            return made
        from qac_jax.inference import int8

        config, backbone = module.config, variables["params"]["backbone"]
        hidden = int8.encoder(config, backbone, made.samples(), config.pooler_rows)
        return dataclasses.replace(made, hidden=hidden)

    def samples(self) -> list[Pair]:
        """Pairs of passages that ship, with their titles as queries."""
        from qac_jax.inference import int8

        known = int8.passages()
        titles, texts = ([record[name] for record in known] for name in ("title", "text"))
        return self.tokenize(titles, texts)

    def score(
        self,
        queries: Sequence[str],
        passages: Sequence[str],
        standing: Sequence[float] | np.ndarray | None = None,
        *,
        advance: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """Log-odds (float32) of pairs of texts, in order.

        `standing` is each passage's share of the scores of a first ranking (`queries.shares`), for
        a model that reads it. `advance` is called with the number of pairs done.
        """
        if self.module.reads_scores:
            if standing is None:
                raise UserError(
                    "this cross-encoder reads the score that a first ranking gave each passage; "
                    "rerank a run with it (qac search --reranker, for labels qac label --scored), "
                    "or train one without --scores"
                )
            queries = list(map(with_score, queries, standing))
        starts = range(0, len(queries), _TOGETHER)

        def tokens(start: int) -> list[Pair]:
            stop = start + _TOGETHER
            return self.tokenize(queries[start:stop], passages[start:stop])

        scores = [self.score_tokens(rows, advance=advance) for rows in prefetched(tokens, starts)]
        return np.concatenate(scores) if scores else np.empty(0, np.float32)

    def score_tokens(
        self, rows: Sequence[Pair], *, advance: Callable[[int], None] | None = None
    ) -> np.ndarray:
        """As `score`, for pairs of token ids."""
        lengths = [len(ids) for ids, _ in rows]
        return self.runner.rows(
            self.runner.batches(lengths, self.max_length),
            lambda batch: self.apply(*padded_pairs(rows, batch, self.form.pad)),
            np.empty(len(rows), np.float32),
            advance,
        )

    def tokenize(self, queries: Sequence[str], passages: Sequence[str]) -> list[Pair]:
        """(ids, token types) of each pair. Repeated texts are tokenised once."""
        texts = list(dict.fromkeys([*queries, *passages]))
        ids = (np.array(ids, np.int32) for ids in self.tokenizer.encode_batch(texts))
        known = dict(zip(texts, ids, strict=True))
        return [
            self.form.two(known[query], known[passage], self.max_length, self.truncation)
            for query, passage in zip(queries, passages, strict=True)
        ]

    def apply(self, ids: np.ndarray, types: np.ndarray, lengths: np.ndarray) -> jax.Array:
        if self.logits is not None:
            return log_odds(jnp.asarray(self.logits(ids, types, lengths)))
        hidden = None if self.hidden is None else self.hidden(ids, types, lengths)
        arrays = self.runner.placed((ids, types, lengths, hidden))
        return _program(self.module)(self.runner.params, *arrays)


def probability(odds: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * np.asarray(odds, np.float64)))


def rerank(
    run: Mapping[str, Ranking], queries: Mapping[str, str], texts: Texts, reranker: Reranker
) -> Run:
    """The passages of every query in the cross-encoder's order, with its log-odds as scores."""
    pairs = [(query, name) for query, ranking in run.items() for name in ranking.ids]
    known = list(dict.fromkeys(name for _, name in pairs))
    text_of = dict(zip(known, texts(known), strict=True))
    standing = None
    if reranker.module.reads_scores and run:
        standing = np.concatenate([shares(ranking.scores) for ranking in run.values()])
    passages = [text_of[name] for _, name in pairs]
    odds = iter(reranker.score([queries[query] for query, _ in pairs], passages, standing))
    return {
        query: ranked(ranking.ids, np.array([next(odds) for _ in ranking.ids], np.float32))
        for query, ranking in run.items()
    }


def padded_pairs(
    rows: Sequence[Pair], batch: Batch, pad: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids, token types [size, length], lengths [size]) of one batch."""
    ids, lengths = padded([ids for ids, _ in rows], batch, pad)
    types, _ = padded([kinds for _, kinds in rows], batch, 0)
    return ids, types, lengths


@functools.lru_cache(maxsize=4)
def _program(module: CrossEncoder) -> Callable[..., jax.Array]:
    """Compiled once for all rerankers of one architecture."""

    def odds(
        params: Any, ids: jax.Array, types: jax.Array, lengths: jax.Array, hidden: jax.Array | None
    ) -> jax.Array:
        logits = module.apply({"params": params}, ids, lengths, types, hidden=hidden)
        return jnp.asarray(log_odds(logits), jnp.float32)

    return jax.jit(odds)
