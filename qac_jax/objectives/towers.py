"""What objectives of dual encoders share: initialisation, and vectors of queries and passages.

The features are those of the kind `triples`: `query` [B, L], `passages` [B, P, L] with the
positive first, and where titles are segments of their own `passages_types` [B, P, L].
"""

import dataclasses
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from qac_jax import progress
from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.models.encoders import DualEncoder, backbone_of
from qac_jax.models.layers import fold
from qac_jax.objectives.chunked import chunked_encode, gathered
from qac_jax.objectives.objective import Batch, Context, Objective, Variables, check_vocabulary


@dataclasses.dataclass(frozen=True)
class DualEncoderObjective(Objective):
    """A loss on vectors of queries and passages, in which the examples of a batch see one another.

    The whole dual encoder is exported.
    """

    packs: ClassVar[bool] = True

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
        if context.tokenizer is not None:
            size = self.model.config.backbone.vocab_size
            check_vocabulary(context.tokenizer.vocab_size, size)
        if not {"query", "passages"} <= lengths.keys():
            return bound
        changed: dict[str, Any] = {
            **context.reading,
            "query_length": lengths["query"],
            "passage_length": lengths["passages"],
        }
        if context.settings.get("title_types"):
            changed["title"] = "segments"
        before = self.model.config
        config = dataclasses.replace(before, **changed)
        prompts, trained = ((c.query_prompt, c.passage_prompt) for c in (config, before))
        if prompts != trained:
            config = dataclasses.replace(config, default_prompt_name="")
            if any(trained):
                progress.say(
                    f"the model to start from has the prompts {trained[0]!r} and {trained[1]!r} "
                    f"before queries and passages, these examples {prompts[0]!r} and "
                    f"{prompts[1]!r}, which it will have; qac tokenize has --query_prompt and "
                    "--passage_prompt"
                )
        if not config.include_prompt and (config.query_prompt or config.passage_prompt):
            raise UserError(
                "this model leaves prompts out of its pooling (include_prompt), which training "
                "does not support; train on examples without prompts, or start from another model"
            )
        return dataclasses.replace(bound, model=bound.model.clone(config=config))

    def start_from(self, module: Any, params: Any) -> tuple[Self, Any]:
        """From an encoder (for both towers), or from a dual encoder."""
        model, params = initialised(self.model, module, params)
        return dataclasses.replace(self, model=model), params

    def init(self, key: jax.Array) -> Variables:
        return self.model.init(key, jnp.zeros((1, 2), jnp.int32), jnp.ones(1, jnp.int32))


def initialised(model: DualEncoder, module: Any, params: Any) -> tuple[DualEncoder, Any]:
    """The model in the shape of a loaded module, and its parameters from it.

    An encoder, or that of a cross-encoder, initialises every tower; pooling and projection stay the
    model's. A dual encoder keeps its own; a tied one can initialise two towers.
    """
    tied = model.config.tied
    if isinstance(module, DualEncoder):
        if tied and not module.config.tied:
            raise UserError(
                "the parameters to start from are two towers, and the objective's model is one "
                "for both sides; set tied=False, or start from one tower"
            )
        config = dataclasses.replace(module.config, tied=tied)
        if tied or not module.config.tied:
            return model.clone(config=config, runtime=module.runtime), params
        tower = params["encoder"]
    elif (inside := backbone_of(module, params)) is not None:
        backbone, params = inside
        config = dataclasses.replace(model.config, backbone=backbone.with_parts())
        tower = {"backbone": params}
    else:
        raise UserError(
            f"a dual encoder cannot start from a {type(module).__name__}; give an encoder such as "
            "a BERT, or what was trained from one"
        )
    towers = {"encoder": tower} if tied else {"query": tower, "passage": tower}
    return model.clone(config=config, runtime=module.runtime), towers


def vectors(
    model: DualEncoder, variables: Variables, batch: Batch, keys: jax.Array | None, chunk: int
) -> tuple[jax.Array, jax.Array]:
    """Queries [B, D] and passages [B, P, D], `chunk` examples at a time (0: all at once).

    keys [B]: for dropout, one per example, from which each of its texts derives its own.
    """
    params = {"params": variables["params"]}
    if chunk:
        params = gathered(params)

    def encode(part: Batch) -> tuple[jax.Array, jax.Array]:
        own = part.get("keys")
        queries = model.apply(
            params, part["query"], part["query_length"], keys=fold(own, 0), side="query"
        )
        passages = encoded_texts(
            *(model, params, part["passages"], part["passages_length"], own),
            first=1,
            side="passage",
            types=part.get("passages_types"),
        )
        return queries, passages

    names = ("query", "query_length", "passages", "passages_length", "passages_types")
    parts = {name: batch[name] for name in names if name in batch}
    if keys is not None:
        parts["keys"] = keys
    return chunked_encode(encode, parts, chunk, model.runtime.kept)


def encoded_texts(
    model: DualEncoder,
    params: Any,
    ids: jax.Array,
    lengths: jax.Array,
    keys: jax.Array | None,
    *,
    first: int,
    side: str,
    types: jax.Array | None = None,
) -> jax.Array:
    """Vectors [B, P, D] of P texts [B, P, L] of every example, whose dropout keys [B] they number
    from `first` on."""
    size, per, length = ids.shape
    text_keys: Any = None
    if keys is not None:
        numbered: Any = jax.vmap(fold, (None, 0), 1)(keys, first + jnp.arange(per))
        text_keys = numbered.reshape(-1)
    found = model.apply(
        params,
        ids.reshape(-1, length),
        lengths.reshape(-1),
        None if types is None else types.reshape(-1, length),
        text_keys,
        side=side,
    )
    return jnp.reshape(found, (size, per, -1))
