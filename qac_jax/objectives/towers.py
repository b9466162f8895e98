"""The common part of dual encoders' objectives: initialisation, vectors of queries and passages.

The features are those of the kind `triples`: `query` [B, L], `passages` [B, P, L] with the
positive first, and where titles are segments of their own `passages_types` [B, P, L].
"""

import dataclasses
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.models.encoders import DualEncoder, backbone_of
from qac_jax.models.layers import Array, fold
from qac_jax.objectives.chunked import chunked_encode, first_rows, gathered
from qac_jax.objectives.objective import Batch, Context, Objective, Variables, example_keys


@dataclasses.dataclass(frozen=True)
class DualEncoderObjective(Objective):
    """A loss on vectors of queries and passages, in which the examples of a batch see one another.

    The whole dual encoder is exported.
    """

    fills: ClassVar[bool] = True

    model: DualEncoder
    temperature: float = option(1.0, above=0)  # usually 0.05 for cosines
    rows: int = 0  # queries whose scores are in memory together (0: all)
    chunk: int = dataclasses.field(default=0, kw_only=True)

    @property
    def splittable(self) -> bool:
        return False

    def bind(self, context: Context) -> Self:
        """The model records titles, prompts and token limits of its queries and passages."""
        bound, lengths = super().bind(context), context.lengths
        if not {"query", "passages"} <= lengths.keys():
            return bound
        changed: dict[str, Any] = dict(context.reading)
        changed |= {"query_length": lengths["query"], "passage_length": lengths["passages"]}
        if context.settings.get("title_types"):
            changed["title"] = "segments"
        before, config = self.model.config, dataclasses.replace(self.model.config, **changed)
        prompts = config.query_prompt, config.passage_prompt
        if prompts != (before.query_prompt, before.passage_prompt):
            config = dataclasses.replace(config, default_prompt_name="")
        if not config.include_prompt and any(prompts):
            raise UserError(
                "this model leaves prompts out of its pooling (include_prompt), which training "
                "does not support; train on examples without prompts, or start from another model"
            )
        return dataclasses.replace(bound, model=bound.model.clone(config=config))

    def start_from(self, module: Any, params: Any) -> tuple[Self, Any]:
        """The objective in the shape of a loaded module, and its parameters from it.

        An encoder, or that of a cross-encoder, initialises every tower; pooling and projection stay
        the model's. A dual encoder keeps its own; a tied one can initialise two towers.
        """
        model, tied = self.model, self.model.config.tied
        if isinstance(module, DualEncoder):
            if tied and not module.config.tied:
                raise UserError(
                    "the parameters to start from are two towers, and the objective's model is one "
                    "for both sides; set tied=False, or start from one tower"
                )
            config = dataclasses.replace(module.config, tied=tied)
            if not tied and module.config.tied:
                params = {"query": params["encoder"], "passage": params["encoder"]}
        elif (inside := backbone_of(module, params)) is not None:
            config = dataclasses.replace(model.config, backbone=inside[0].with_parts())
            tower = {"backbone": inside[1]}
            params = {"encoder": tower} if tied else {"query": tower, "passage": tower}
        else:
            raise UserError(
                f"a dual encoder cannot start from a {type(module).__name__}; give an encoder such "
                "as a BERT, or what was trained from one"
            )
        model = model.clone(config=config, runtime=module.runtime)
        return dataclasses.replace(self, model=model), params

    def init(self, key: Array) -> Variables:
        return self.model.init(key, *self.model.example_inputs())


@dataclasses.dataclass(frozen=True)
class Triples(DualEncoderObjective):
    """Losses of queries against passages of the batch, each query's positive first."""

    mask_duplicates: bool = True  # copies of a query's positive are not negatives
    negatives_group: int = 0  # consecutive queries that see each other's passages (0: all)

    def prepare(self, batch: Batch, key: Array) -> Batch:
        """The same texts with dropout keys, and numbers that are equal for equal passages."""
        prepared = {**batch, "keys": example_keys(key, batch["query"].shape[0])}
        if self.mask_duplicates:
            prepared["numbers"] = passage_numbers(batch["passages"], batch["passages_length"])
        return prepared

    def encoded(
        self, variables: Variables, batch: Batch, train: bool
    ) -> tuple[Array, Array, Array | None]:
        """Vectors of the examples' queries [B, D] and passages [B, P, D], and their numbers."""
        keys = batch["keys"] if train else None
        found = vectors(self.model, variables, batch, keys, self.chunk)
        (queries, passages), numbers = first_rows((found, batch.get("numbers")), self.examples)
        return queries, passages, numbers


def vectors(
    model: DualEncoder, variables: Variables, batch: Batch, keys: Array | None, chunk: int
) -> tuple[Array, Array]:
    """Queries [B, D] and passages [B, P, D], `chunk` examples at a time (0: all at once).

    keys [B]: for dropout, one per example, from which each of its texts derives its own.
    """
    params: Any = {"params": variables["params"]}
    params = gathered(params) if chunk else params

    def encode(part: Batch) -> tuple[Array, Array]:
        own = part.get("keys")
        texts = part["query"], part["query_length"]
        queries = model.apply(params, *texts, keys=fold(own, 0), side="query")
        texts, types = (part["passages"], part["passages_length"]), part.get("passages_types")
        passages = encoded_texts(model, params, *texts, own, first=1, side="passage", types=types)
        return queries, passages

    names = ("query", "query_length", "passages", "passages_length", "passages_types")
    parts = {name: batch[name] for name in names if name in batch}
    if keys is not None:
        parts["keys"] = keys
    return chunked_encode(encode, parts, chunk, model.runtime.kept)


def encoded_texts(
    model: DualEncoder,
    params: Any,
    ids: Array,
    lengths: Array,
    keys: Array | None,
    *,
    first: int,
    side: str,
    types: Array | None = None,
) -> Array:
    """Vectors [B, P, D] of P texts [B, P, L] of every example, whose dropout keys [B] they number
    from `first` on."""
    size, per, length = ids.shape
    if keys is not None:
        numbered: Any = jax.vmap(fold, (None, 0), 1)(keys, first + jnp.arange(per))
        keys = numbered.reshape(-1)
    types = None if types is None else types.reshape(-1, length)
    flat = ids.reshape(-1, length), lengths.reshape(-1), types, keys
    return jnp.reshape(model.apply(params, *flat, side=side), (size, per, -1))


# Odd multipliers of the hash that identifies a passage.
_TOKEN, _PLACE = 0x9E3779B1, 0x85EBCA77


def passage_numbers(ids: Array, lengths: Array) -> Array:
    """A number for each passage of [..., L], the same for the same tokens: uint32 [...].

    Two different passages collide once in 4e9 pairs, which costs one negative.
    """
    place = jnp.arange(ids.shape[-1], dtype=jnp.uint32)
    mixed = (ids.astype(jnp.uint32) + jnp.uint32(1)) * jnp.uint32(_TOKEN)
    mixed = (mixed ^ (mixed >> 15)) * (jnp.uint32(2) * place * jnp.uint32(_PLACE) + jnp.uint32(1))
    mixed = mixed ^ (mixed >> 13)
    real = place < lengths[..., None].astype(jnp.uint32)
    return jnp.sum(jnp.where(real, mixed, jnp.uint32(0)), axis=-1, dtype=jnp.uint32)
