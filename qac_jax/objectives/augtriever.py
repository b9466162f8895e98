"""AugTriever: unsupervised retrievers from pseudo-queries, by InBatch or MoCo (Meng et al., 2022).

**InBatch**: each pseudo-query against the texts of the batch, one way (query to text).

**MoCo**: against the keys of earlier batches. A second encoder, whose
parameters are an EMA of the first one's (`momentum`), encodes the texts; its keys have no gradient
and enter a first-in first-out queue.
One step in the order of the released code: the EMA is updated, keys are encoded with it,
logits are [own key | queue] / τ, then the keys enter the queue. Queue and momentum parameters are
collections of the objective's variables, so checkpoints hold them (the released code loses the
queue).

Both start from an encoder or a dual encoder, and export a dual encoder.

The features are those of the kind `augtriever` (`context`, the pseudo-query, and `passage`) or, for
fine-tuning, of `triples` (`query` and `passages`, the positive first). Where a strategy extracts
queries by the encoder itself (AugTriever's QExt-Self), the candidates are the feature `spans`
[B, S, L], and `extract` [B] is 1 for examples whose query is one of them: in every step the current
encoder scores span · document and the best span is the query, without a gradient through the
choice.
"""

import dataclasses
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.models.encoders import l2_normalize
from qac_jax.models.layers import Array, fold
from qac_jax.objectives import contrastive
from qac_jax.objectives.chunked import chunked_encode, first_rows, gathered
from qac_jax.objectives.contrastive import Ranked
from qac_jax.objectives.objective import Aux, Batch, Loss, Variables, example_keys
from qac_jax.objectives.towers import DualEncoderObjective, encoded_texts


_NAMES = tuple(
    name + suffix for name in ("query", "passages", "spans") for suffix in ("", "_length")
) + ("extract",)


@dataclasses.dataclass(frozen=True)
class PseudoQueries(DualEncoderObjective):
    """Vectors of pseudo-queries and texts, and all else that does not depend on the loss."""

    temperature: float = option(0.05, above=0)
    smoothing: float = option(0.0, at_least=0, below=1)
    normalize_query: bool = False
    normalize_passage: bool = False

    def export(self, variables: Variables) -> tuple[Any, Any]:
        """The model is normalised if passages are (a query's norm changes no ranking)."""
        return self._normalised(self.normalize_passage), variables["params"]

    def _normalised(self, also: bool) -> Any:
        config = self.model.config
        normalize = config.normalize or also
        return self.model.clone(config=dataclasses.replace(config, normalize=normalize))

    def verb(self, kind: str) -> str:
        return "finetune" if kind == "triples" else "pretrain"

    def prepare(self, batch: Batch, key: Array) -> Batch:
        """Either kind of examples under the same feature names, with dropout keys."""
        if "context" in batch:
            names = {"query": "context", "query_length": "context_length"}
            texts = {f"passages{end}": batch[f"passage{end}"][:, None] for end in ("", "_length")}
            batch = {**batch, **{ours: batch[name] for ours, name in names.items()}, **texts}
        kept = {name: batch[name] for name in _NAMES if name in batch}
        return {**kept, "keys": example_keys(key, batch["query"].shape[0])}

    def queries(self, params: Any, part: Batch, documents: Array) -> Array:
        """Vectors of the queries [B, D]; extracted ones are chosen by `documents` [B, D]."""
        ids, lengths, keys = part["query"], part["query_length"], part.get("keys")
        model = self.model
        if "spans" in part:
            ids, lengths = self._extracted(params, part, documents)
            # Which spans are read is not known when the room of packed texts is chosen.
            model = model.clone(runtime=dataclasses.replace(self.runtime, packed=()))
        vectors = model.apply({"params": params}, ids, lengths, keys=fold(keys, 0), side="query")
        return l2_normalize(vectors) if self.normalize_query else vectors

    def passages(self, params: Any, part: Batch) -> Array:
        read = {"params": params}, part["passages"], part["passages_length"], part.get("keys")
        vectors = encoded_texts(self.model, *read, first=1, side="passage")
        return l2_normalize(vectors) if self.normalize_passage else vectors

    def _extracted(self, params: Any, part: Batch, documents: Array) -> tuple[Array, Array]:
        """Ids and lengths of the queries, with the best spans where they are extracted.

        Spans are encoded with dropout, as in the released code.
        """
        spans, lengths, keys = part["spans"], part["spans_length"], part.get("keys")
        fixed, start = {"params": lax.stop_gradient(params)}, 1 + part["passages"].shape[1]
        vectors = encoded_texts(self.model, fixed, spans, lengths, keys, first=start, side="query")
        best = jnp.argmax(salience(vectors, lax.stop_gradient(documents)), axis=1)
        chosen = jnp.take_along_axis(spans, best[:, None, None], axis=1)[:, 0]
        chosen_length = jnp.take_along_axis(lengths, best[:, None], axis=1)[:, 0]
        both, extracted = (part["query"], chosen), part["extract"] > 0
        width = max(x.shape[1] for x in both)
        queries, chosen = (jnp.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in both)
        ids = jnp.where(extracted[:, None], chosen, queries)
        return ids, jnp.where(extracted, chosen_length, part["query_length"])


@dataclasses.dataclass(frozen=True)
class InBatch(PseudoQueries):
    """Queries against all texts of their group, extra negatives included.

    remote_key_grad=False is the released code's gather: a text of another device counts as a
    negative, but gets no gradient from it. `device_group` is then the number of consecutive
    examples on a device (128 in the paper's runs).
    """

    negatives_group: int = 0  # consecutive examples that see one another (0: all)
    remote_key_grad: bool = True
    device_group: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.remote_key_grad and self.device_group < 1:
            raise UserError(
                "remote_key_grad=False needs to know which texts are remote; set device_group to "
                "the examples of one device, such as 128"
            )

    def loss(self, variables: Variables, batch: Batch, key: Array, train: bool) -> Loss:
        params = variables["params"]
        params = gathered(params) if self.chunk else params

        def encode(part: Batch) -> tuple[Array, Array]:
            passages = self.passages(params, part)
            return self.queries(params, part, passages[:, 0]), passages

        features, kept = _features(batch, train), self.runtime.kept
        vectors = chunked_encode(encode, features, self.chunk, kept)
        queries, passages = first_rows(vectors, self.examples)
        ranked = self.rank(queries, passages, self.smoothing if train else 0.0)
        return jnp.mean(ranked.loss), {"accuracy": jnp.mean(ranked.correct)}

    def rank(self, queries: Array, passages: Array, smoothing: float = 0.0) -> Ranked:
        """queries [B, D] against passages [B, P, D], each query's own text first."""
        group = self.negatives_group
        options: Any = {"temperature": self.temperature, "smoothing": smoothing, "rows": self.rows}
        if self.remote_key_grad:
            return contrastive.in_batch(queries, passages, group=group, **options)
        one = partial(local_gradients, device_group=self.device_group, **options)
        return contrastive.in_groups(one, group, queries, passages)


@dataclasses.dataclass(frozen=True)
class MoCo(PseudoQueries):
    """Queries against their own key and a queue of earlier keys."""

    queue_size: int = option(16384, at_least=1)
    momentum: float = option(0.9995, at_least=0, at_most=1)
    in_batch_negatives: bool = False  # the other keys of the batch are negatives too
    # "cosine" normalises the keys in the queue too.
    similarity: str = option("dot", choices=("dot", "cosine"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model.config.tied:
            raise UserError(
                "MoCo's second encoder is an EMA of the first, so there are no two towers "
                "to train; set DualEncoderConfig.tied = True"
            )

    def export(self, variables: Variables) -> tuple[Any, Any]:
        """The encoder normalises its vectors where training compared by cosine."""
        normalised = self.normalize_passage or self.similarity == "cosine"
        return self._normalised(normalised), variables["params"]

    def init(self, key: Array) -> Variables:
        model_key, queue_key = jax.random.split(key)
        variables = super().init(model_key)
        # As in the released code: unit vectors, though real keys are longer.
        shape = (self.queue_size, self.model.config.width)
        keys = l2_normalize(jax.random.normal(queue_key, shape))
        return {
            **variables,
            **self.initial_state(variables["params"]),
            # Rows of the queue are sharded as the examples that they come from.
            "queue": {
                "keys": nn.LogicallyPartitioned(keys, ("batch", None)),
                "pointer": jnp.zeros((), jnp.int32),
            },
        }

    def initial_state(self, params: Any) -> Variables:
        """The second encoder begins as a copy of the first."""
        return {"momentum": jax.tree.map(jnp.copy, params)}

    def loss(self, variables: Variables, batch: Batch, key: Array, train: bool) -> Loss:
        params, ema = variables["params"], variables["momentum"]
        if train:
            ema = self.updated_ema(ema, params)
        whole, whole_ema = gathered((params, ema)) if self.chunk else (params, ema)

        def encode(part: Batch) -> tuple[Array, Array]:
            keys = lax.stop_gradient(self.passages(whole_ema, part)[:, 0])
            return self.queries(whole, part, keys), keys

        features, kept = _features(batch, train), self.runtime.kept
        vectors = chunked_encode(encode, features, self.chunk, kept)
        queries, keys = first_rows(vectors, self.examples)
        queue_keys = variables["queue"]["keys"]
        if self.examples:  # beside keys that are whole, or candidates would be sharded unequally
            queue_keys = gathered(queue_keys)
        ranked = self.rank(queries, keys, queue_keys, self.smoothing if train else 0.0)
        aux: Aux = {"accuracy": jnp.mean(ranked.correct)}
        if train:
            aux["state"] = {"momentum": ema, "queue": self.queued(variables["queue"], keys)}
        return jnp.mean(ranked.loss), aux

    def updated_ema(self, ema: Any, params: Any) -> Any:
        decay = self.momentum
        new = lax.stop_gradient(params)
        return jax.tree.map(lambda old, new: old * decay + new * (1.0 - decay), ema, new)

    def rank(
        self, queries: Array, keys: Array, queue_keys: Array, smoothing: float = 0.0
    ) -> Ranked:
        """queries [B, D], their keys [B, D], and the keys in the queue [Q, D]."""
        if self.similarity == "cosine":
            queries, keys, queue_keys = (l2_normalize(x) for x in (queries, keys, queue_keys))
        own = jnp.arange(queries.shape[0])
        candidates = jnp.concatenate([keys, queue_keys.astype(keys.dtype)])

        def others(row: Array) -> Array:
            in_batch = row[:, None] != own
            return jnp.pad(in_batch, ((0, 0), (0, queue_keys.shape[0])))

        return contrastive.softmax_loss(
            queries,
            candidates,
            own,
            temperature=self.temperature,
            smoothing=smoothing,
            excluded=None if self.in_batch_negatives else others,
            about=own,
            rows=self.rows,
        )

    def queued(self, queue: dict[str, Array], keys: Array) -> dict[str, Array]:
        """The queue with its oldest keys replaced by those of this batch."""
        size, new = self.queue_size, keys.shape[0]
        if size % new:
            raise UserError(
                f"queue_size={size} is not a multiple of the batch of {new} examples; choose a "
                "multiple of it, so that whole batches leave the queue"
            )
        # A selection by row instead of an update of a slice: rows stay on their devices.
        ages = (jnp.arange(size) - queue["pointer"]) % size
        entering = jnp.take(keys.astype(queue["keys"].dtype), ages % new, axis=0)
        return {
            "keys": jnp.where((ages < new)[:, None], entering, queue["keys"]),
            "pointer": (queue["pointer"] + new) % size,
        }


def local_gradients(queries: Array, passages: Array, device_group: int, **options: Any) -> Ranked:
    """All passages are candidates; each gets gradients from the queries of its device only."""
    size, per, width = passages.shape
    if size % device_group:
        raise UserError(
            f"device_group={device_group} does not divide the batch of {size} examples; choose a "
            "divisor of it"
        )
    flat = passages.reshape(-1, width)
    frozen = lax.stop_gradient(flat)
    device = jnp.arange(size * per) // (device_group * per)

    def one(number: Array, queries: Array) -> Ranked:
        candidates = jnp.where((device == number)[:, None], flat, frozen)
        positives = (number * device_group + jnp.arange(device_group)) * per
        return contrastive.softmax_loss(queries, candidates, positives, **options)

    cut = queries.reshape(size // device_group, device_group, width)
    ranked = jax.vmap(one)(jnp.arange(cut.shape[0]), cut)
    return jax.tree.map(lambda x: x.reshape(size), ranked)


def _features(batch: Batch, train: bool) -> Batch:
    """The features to encode; without keys there is no dropout."""
    return batch if train else {name: x for name, x in batch.items() if name != "keys"}


def salience(spans: Array, documents: Array) -> Array:
    """span · document: spans [B, S, D], documents [B, D] -> [B, S]."""
    wide = jnp.promote_types(spans.dtype, jnp.float32)
    return jnp.einsum(
        "bsd,bd->bs", spans.astype(wide), documents.astype(wide), precision=lax.Precision.HIGHEST
    )
