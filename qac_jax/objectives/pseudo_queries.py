"""Training on texts and their pseudo-queries: what AugTriever's two objectives share.

The features are those of the kind `augtriever` (`context`, the pseudo-query, and `passage`) or, for
fine-tuning, of `triples` (`query` and `passages`, the positive first). Where a strategy extracts
queries by the encoder itself (AugTriever's QExt-Self), the candidates are the feature `spans`
[B, S, L], and `extract` [B] is 1 for examples whose query is one of them: in every step the current
encoder scores span · document and the best span is the query, without a gradient through the
choice.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.errors import UserError
from qac_jax.models.encoders import DualEncoder, l2_normalize
from qac_jax.models.layers import fold
from qac_jax.objectives.objective import Batch, example_keys
from qac_jax.objectives.towers import DualEncoderObjective


_NAMES = tuple(
    name + suffix for name in ("query", "passages", "spans") for suffix in ("", "_length")
) + ("extract",)


@dataclasses.dataclass(frozen=True)
class PseudoQueries(DualEncoderObjective):
    """Vectors of pseudo-queries and texts, and all else that does not depend on the loss."""

    temperature: float = 0.05
    smoothing: float = 0.0
    normalize_query: bool = False
    normalize_passage: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.smoothing < 1:
            raise UserError(
                f"smoothing={self.smoothing} is not a share of the target; expected 0 (none) to "
                "less than 1, such as 0.1"
            )

    @property
    def fills(self) -> bool:
        return True

    @property
    def encoder_module(self) -> DualEncoder:
        """The exported model: normalised if passages are (a query's norm changes no ranking)."""
        config = self.model.config
        normalize = config.normalize or self.normalize_passage
        return self.model.clone(config=dataclasses.replace(config, normalize=normalize))

    def verb(self, kind: str) -> str:
        return "finetune" if kind == "triples" else "pretrain"

    def prepare(self, batch: Batch, key: jax.Array) -> Batch:
        """Either kind of examples under the same feature names, with dropout keys."""
        features = dict(batch)
        if "context" in features:
            features["query"] = features["context"]
            features["query_length"] = features["context_length"]
            for name in ("passage", "passage_length"):
                features[name.replace("passage", "passages")] = features[name][:, None]
        kept = {name: features[name] for name in _NAMES if name in features}
        return {**kept, "keys": example_keys(key, features["query"].shape[0])}

    def queries(self, params: Any, part: Batch, documents: jax.Array) -> jax.Array:
        """Vectors of the queries [B, D]; extracted ones are chosen by `documents` [B, D]."""
        ids, lengths, keys = part["query"], part["query_length"], part.get("keys")
        reader = self
        if "spans" in part:
            ids, lengths = self._extracted(params, part, documents)
            # Which spans are read is not known when the room of packed texts is chosen.
            reader = self.with_packed(())
        vectors = reader._apply(params, ids, lengths, fold(keys, 0), "query")
        return l2_normalize(vectors) if self.normalize_query else vectors

    def passages(self, params: Any, part: Batch) -> jax.Array:
        """Vectors of the passages [B, P, D]."""
        size, per, length = part["passages"].shape
        vectors = self._apply(
            params,
            part["passages"].reshape(-1, length),
            part["passages_length"].reshape(-1),
            _own_keys(part.get("keys"), 1, per),
            "passage",
        )
        vectors = l2_normalize(vectors) if self.normalize_passage else vectors
        return vectors.reshape(size, per, -1)

    def _extracted(
        self, params: Any, part: Batch, documents: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Ids and lengths of the queries, with the best spans where they are extracted.

        Spans are encoded with dropout, as in the released code.
        """
        spans, lengths = part["spans"], part["spans_length"]
        size, count, longest = spans.shape
        start = 1 + part["passages"].shape[1]
        vectors = self._apply(
            lax.stop_gradient(params),
            spans.reshape(-1, longest),
            lengths.reshape(-1),
            _own_keys(part.get("keys"), start, count),
            "query",
        ).reshape(size, count, -1)
        best = jnp.argmax(salience(vectors, lax.stop_gradient(documents)), axis=1)
        chosen = jnp.take_along_axis(spans, best[:, None, None], axis=1)[:, 0]
        chosen_length = jnp.take_along_axis(lengths, best[:, None], axis=1)[:, 0]
        queries = part["query"]
        width = max(longest, queries.shape[1])
        queries, chosen = (jnp.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in (queries, chosen))
        extracted = part["extract"] > 0
        return (
            jnp.where(extracted[:, None], chosen, queries),
            jnp.where(extracted, chosen_length, part["query_length"]),
        )

    def _apply(
        self, params: Any, ids: jax.Array, lengths: jax.Array, keys: Any, side: str
    ) -> jax.Array:
        vectors = self.model.apply({"params": params}, ids, lengths, keys=keys, side=side)
        return jnp.asarray(vectors)


def salience(spans: jax.Array, documents: jax.Array) -> jax.Array:
    """span · document: spans [B, S, D], documents [B, D] -> [B, S]."""
    wide = jnp.promote_types(spans.dtype, jnp.float32)
    return jnp.einsum(
        "bsd,bd->bs", spans.astype(wide), documents.astype(wide), precision=lax.Precision.HIGHEST
    )


def _own_keys(keys: jax.Array | None, start: int, count: int) -> jax.Array | None:
    """Keys of `count` texts per example, numbered from `start`: [B * count]."""
    if keys is None:
        return None
    numbered: Any = jax.vmap(fold, (None, 0), 1)(keys, start + jnp.arange(count))
    return numbered.reshape(-1)
