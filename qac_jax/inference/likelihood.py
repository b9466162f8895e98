"""Salience by a model: span · document of a dual encoder, or a T5's likelihood of the span.

**Encoder** (QExt-Self; in training the current encoder does it, on the device).

**Likelihood** (QExt-PLM): how probable the span is for a T5 that read the document, as the sum
("sum") or mean ("mean") of its tokens' log-probabilities; padding never counts. "released" is what
the code of the paper computes: the sum counts padding up to the
longest span of its batch as words that are said, so short spans pay for their brevity.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from qac_jax.data.form import form_of
from qac_jax.errors import UserError, nearest
from qac_jax.inference.encoder import Encoder
from qac_jax.inference.generator import Generator
from qac_jax.models.decoding.decode import Decoding
from qac_jax.models.t5 import T5, shift_right


LIKELIHOODS = ("sum", "mean", "released")

# Documents of one batch on one device: scores of every word at every place are what needs room.
_TEXTS = {"cpu": 4}
_MANY_TEXTS = 32
# Every length is a program to compile.
_STEP = 8


@dataclasses.dataclass(frozen=True)
class EncoderSalience:
    """span · document."""

    encoder: Encoder

    def __call__(
        self, documents: Sequence[str], spans: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        return self.compare(*self.vectors(documents, spans))

    def vectors(
        self, documents: Sequence[str], spans: Sequence[Sequence[str]]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Vectors of the documents, and of the spans of each."""
        whole = self.encoder.encode(documents, "passage")
        flat = self.encoder.encode([span for of in spans for span in of], "query")
        return whole, np.split(flat, np.cumsum([len(of) for of in spans])[:-1])

    def compare(
        self, documents: Sequence[np.ndarray] | np.ndarray, spans: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """span · document of vectors."""
        return [part @ vector for part, vector in zip(spans, documents, strict=True)]


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """log p(span | document) under a T5."""

    generator: Generator
    kind: str = "sum"
    document_tokens: int = 192  # its end included
    span_tokens: int = 32  # an end is not said
    texts: int = 0  # documents a batch and device (0: by device)

    def __post_init__(self) -> None:
        if self.kind not in LIKELIHOODS:
            raise UserError(
                f"likelihood={self.kind!r} is not known; {nearest(self.kind, LIKELIHOODS)}"
            )
        if self.document_tokens < 2 or self.span_tokens < 1:
            raise UserError(
                f"document_tokens={self.document_tokens}, span_tokens={self.span_tokens}; "
                "expected 2 or more, and 1 or more"
            )

    @classmethod
    def load(cls, place: str | os.PathLike[str], *, precision: str = "auto", **options: Any) -> Any:
        """With the T5 of a folder or an artefact."""
        return cls(Generator.load(place, Decoding(), precision=precision), **options)

    def __call__(
        self, documents: Sequence[str], spans: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        tokenizer, mesh = self.generator.tokenizer, self.generator.mesh
        form = form_of(tokenizer)
        room = self.document_tokens - len(form["before"]) - len(form["after"])
        read = [
            [*form["before"], *ids[:room], *form["after"]]
            for ids in tokenizer.encode_batch(list(documents))
        ]
        said = iter(tokenizer.encode_batch([span for of in spans for span in of]))
        targets = [[next(said)[: self.span_tokens] for _ in of] for of in spans]
        longest = max((len(ids) for of in targets for ids in of), default=1)
        width = min(self.span_tokens, -(-max(longest, 1) // _STEP) * _STEP)
        length = min(self.document_tokens, -(-max(map(len, read)) // 32) * 32) if read else 0
        count = max(map(len, spans), default=0)
        size = (self.texts or _TEXTS.get(jax.default_backend(), _MANY_TEXTS)) * mesh.size
        program = _program(self.generator.module)
        cut = NamedSharding(mesh, PartitionSpec("data"))
        found: list[np.ndarray] = []
        for start in range(0, len(read) if count else 0, size):
            part = slice(start, start + size)
            ids, lengths = _padded([*read[part]], size, length, tokenizer.pad_id)
            flat = [ids for of in targets[part] for ids in [*of, *[[]] * (count - len(of))]]
            words, sizes = _padded(flat, size * count, width, tokenizer.pad_id)
            limits = np.full_like(sizes, longest) if self.kind == "released" else sizes
            scores = program(
                self.generator.params,
                *jax.device_put((ids, np.maximum(lengths, 1)), cut),
                *jax.device_put(
                    (words.reshape(size, count, width), limits.reshape(size, count)), cut
                ),
            )
            total = np.asarray(scores, np.float64)
            sizes = sizes.reshape(size, count)
            if self.kind == "mean":
                total = total / np.maximum(sizes, 1)
            # A span without tokens says nothing, though nothing is easily said.
            total = np.where(sizes > 0, total, -np.inf)
            found += [row[: len(of)] for row, of in zip(total, targets[part], strict=False)]
        return found or [np.zeros(0) for _ in spans]


@functools.lru_cache(maxsize=4)
def _program(module: T5) -> Callable[..., jax.Array]:
    """Sums of log-probabilities [B, S] over the first `limits` [B, S] tokens of spans [B, S, T]."""

    def sums(
        params: Any, ids: jax.Array, lengths: jax.Array, spans: jax.Array, limits: jax.Array
    ) -> jax.Array:
        size, count, width = spans.shape
        variables = {"params": params}
        memory = module.apply(variables, ids, lengths, method="encode")
        given = shift_right(spans, module.config.start_id).reshape(size, count * width)
        hidden = module.apply(
            variables, given, memory, lengths, beside=count, method="decode_hidden"
        )
        logits = module.apply(variables, hidden, method="logits")
        flat = spans.reshape(size, count * width)
        picked = jnp.take_along_axis(logits, flat[..., None], axis=-1)[..., 0]
        each = (picked - jax.nn.logsumexp(logits, axis=-1)).reshape(spans.shape)
        counted = jnp.arange(width) < limits[..., None]
        return jnp.sum(jnp.where(counted, each, 0.0), axis=-1)

    return jax.jit(sums)


def _padded(
    rows: Sequence[Sequence[int]], size: int, length: int, pad: int
) -> tuple[np.ndarray, np.ndarray]:
    ids = np.full((size, length), pad, np.int32)
    lengths = np.zeros(size, np.int32)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        lengths[place] = len(row)
    return ids, lengths
