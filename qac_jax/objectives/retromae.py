"""RetroMAE: a text is reconstructed from its vector by a decoder of one layer (Xiao et al.,
2022, "RetroMAE: Pre-Training Retrieval-oriented Language Models Via Masked Auto-Encoder").

The encoder reads the text masked at a low rate, and its final [CLS] state is h. The decoder's
other input is so weak that h must hold the text (equation numbers are the paper's):

    basic     reads H = [h, e₁ + p₁, …, e_N + p_N] of the text masked at a high rate, and predicts
              the masked tokens (2, 3)
    enhanced  queries  H₁ = [h + p₀, h + p₁, …, h + p_N], keys and values
              H₂ = [h, e₁ + p₁, …, e_N + p_N] of the text unmasked (4);
              A = softmax(Q Kᵀ / √d + M) V  (5), where row i sees the tokens sampled for it, never
              itself, and every row but the first sees h (6); predicts all tokens of the text (7)

The rest of the decoder is BERT's layer: H₁ + A (or H + A), normalised, then the MLP. Predictions
are the encoder's own MLM head's, whose output matrix is the word embedding. The loss is the sum of
the encoder's MLM loss and the decoder's (Algorithm 1).

Trained on single texts (the feature `tokens`), a text is reconstructed from itself. On pairs
(`passage` and `context`, as for CoT-MAE) the context is reconstructed from the passage's vector:
query-as-context pre-training with this decoder.

The released models have the encoder and its MLM head, but no decoder that could be loaded:
`stored_heads` is empty.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from qac_jax.fields import option
from qac_jax.models import packing
from qac_jax.models.attention import attend, merge_heads, split_heads
from qac_jax.models.encoders import pooled
from qac_jax.models.heads import POOLINGS
from qac_jax.models.layers import Array, LayerNorm, Runtime, dense_of, dropout, fold, shard
from qac_jax.models.transformer import OUTPUT_SITE, Mlp, site
from qac_jax.objectives.masking import MaskedText, Masking
from qac_jax.objectives.mlm import Mlm, TokenLoss, mlm_loss, normalised, token_loss
from qac_jax.objectives.objective import Batch, Loss, Variables, example_keys, global_weights


DECODER = "decoder"
# Dropout keys of the decoder's input and of the decoder, apart from the encoder's.
_READ_SITE = 2 * OUTPUT_SITE
_DECODER_SITE = _READ_SITE + 1


class WholeText(NamedTuple):
    """Texts of which every token is predicted; examples first."""

    ids: Array  # [B, L]
    lengths: Array  # [B]
    weights: Array  # [B, L]; 0 for [CLS], [SEP] and padding
    keys: Array  # [B]; of the visible tokens


class Decoder(nn.Module):
    """A Transformer layer whose queries may come from another stream than its keys and values."""

    config: Any
    runtime: Runtime

    @nn.nowrap
    def example_inputs(self) -> tuple[Array, Array]:
        return (jnp.zeros((1, 2, self.config.hidden_size)),) * 2

    @nn.compact
    def __call__(
        self,
        queries: Array,
        context: Array,
        lengths: Any = None,
        visible: Array | None = None,
        keys: Any = None,
    ) -> Array:
        """queries and context [B, L, D], visible [B, L, L] (None: all) -> hidden [B, L, D].

        Where `lengths` is a Packed and `keys` are TokenKeys, all three are packed tokens.
        """
        config, runtime = self.config, self.runtime
        width, dtype = config.hidden_size, runtime.compute_dtype
        init = nn.initializers.normal(config.initializer_range)
        queries, context = queries.astype(dtype), context.astype(dtype)

        def project(source: Array, name: str, scale: float = 1.0) -> Array:
            x = dense_of(runtime, width, ("embed", "heads"), init, name=name)(source, scale)
            x = packing.unpack(shard(x, "batch", "length", "heads"), lengths, "heads")
            return split_heads(x, config.num_heads)

        mixed = attend(
            project(queries, "query", (width // config.num_heads) ** -0.5),
            project(context, "key"),
            project(context, "value"),
            lengths,
            runtime,
            visible=None if visible is None else visible[:, None],
            keys=keys,
            site=site(0, 0),
            rate=config.attention_dropout,
        )
        merged = packing.pack(merge_heads(mixed), lengths, "heads")
        mixed = dense_of(runtime, width, ("heads", "embed"), init, name="output")(merged)
        mixed = dropout(mixed, keys, site(0, 1), config.hidden_dropout)
        x = LayerNorm(config.layer_norm_eps, dtype, name="attention_norm")(queries + mixed)
        mlp = Mlp(config, runtime, config.intermediate_size, name="mlp")(x, keys, 0)
        x = LayerNorm(config.layer_norm_eps, dtype, name="mlp_norm")(x + mlp)
        return shard(x, "batch", "length", None)


@dataclasses.dataclass(frozen=True)
class RetroMae(Mlm):
    """The encoder's own MLM, and a decoder that reconstructs the text from its vector.

    decoder_masking: in basic decoding, what is masked and predicted; in enhanced decoding, what is
    hidden from each row. visible_sets: the number of sets of visible tokens sampled for a text, of
    which each row takes one at random (256 in the released code, 128 in FlagEmbedding's; 0: a
    separate set for every row). embeddings: e + p of the text as the encoder's embedding layer
    computes it, with token type, normalisation and dropout ("layer", as released), or as the sum
    alone ("sum"). pooling: how the vector is made, of models/heads.py; the paper's is [CLS].
    """

    masking: Masking = Masking(0.30)
    decoder_masking: Masking = Masking(0.50)
    enhanced: bool = True
    visible_sets: int = option(0, at_least=0)
    embeddings: str = option("layer", choices=("layer", "sum"))
    pooling: str = option("cls", choices=POOLINGS)

    @property
    def heads(self) -> Mapping[str, Decoder]:
        return {DECODER: Decoder(self.model.config, self.model.runtime)}

    def prepare(self, batch: Batch, key: Array) -> Batch:
        source, target = text_names(batch)
        vocabulary, count = self.vocabulary, len(batch[source])
        encoded, decoded, dropped = (example_keys(k, count) for k in jax.random.split(key, 3))

        def text(name: str, masking: Masking, keys: Array) -> MaskedText:
            return normalised([self.masked(batch, name, masking, keys)], examples=self.examples)[0]

        ready: Batch = {"encoded": text(source, self.masking, encoded), "keys": dropped}
        if not self.enhanced:
            return {**ready, "decoded": text(target, self.decoder_masking, decoded)}
        ids, lengths = batch[target], batch[f"{target}_length"]
        wanted = jnp.arange(ids.shape[1]) < lengths[:, None]
        wanted &= (ids != vocabulary.cls) & (ids != vocabulary.sep)
        weights = global_weights(wanted, self.examples)
        return {**ready, "decoded": WholeText(ids, lengths, weights, decoded)}

    def loss(self, variables: Variables, batch: Batch, key: Array, train: bool) -> Loss:
        module, keys, text = self.module, batch["keys"] if train else None, batch["encoded"]
        out = module.apply(variables, text.ids, text.lengths, keys=keys)
        of_encoder = mlm_loss(module, variables, out.last, text)
        vector = pooled(out, text.lengths, self.pooling).astype(out.last.dtype)
        of_decoder = self.decoder_loss(variables, vector, batch["decoded"], keys)
        more, further = self.further(variables, out.last, batch)
        aux = {
            "encoder_mlm_loss": jnp.sum(of_encoder.loss),
            "masked_accuracy": jnp.sum(of_encoder.accuracy),
            "decoder_loss": jnp.sum(of_decoder.loss),
            "decoder_accuracy": jnp.sum(of_decoder.accuracy),
            **further,
        }
        return aux["encoder_mlm_loss"] + aux["decoder_loss"] + more, aux

    def further(self, variables: Variables, hidden: Array, batch: Batch) -> Loss:
        """A further term of the loss given the encoder's hidden states, and scalars to log."""
        return jnp.zeros(()), {}

    def decoder_loss(
        self, variables: Variables, vector: Array, text: MaskedText | WholeText, keys: Array | None
    ) -> TokenLoss:
        """The decoder's loss given vectors [B, D]: sums over the tokens of each example, [B], or
        of each row of packed tokens."""
        module, ids, lengths = self.module, text.ids, text.lengths
        embedded = self._embedded(variables, ids, fold(keys, _READ_SITE))
        context = jnp.concatenate([vector[:, None], embedded[:, 1:].astype(vector.dtype)], axis=1)
        plan = packing.choose(self.runtime.packed, lengths, ids.shape[1])
        if isinstance(text, MaskedText):
            hidden = self._decoded(variables, context, context, lengths, None, keys, plan)
            hidden = hidden if plan is None else plan[0].unpack(hidden)
            return mlm_loss(module, variables, hidden, text)
        queries = vector[:, None] + self._positions(variables, ids.shape[1])
        visible = self.visible(ids, lengths, text.keys)
        hidden = self._decoded(variables, queries, context, lengths, visible, keys, plan)
        weights = text.weights
        if plan is not None:
            ids, weights = plan[0].of_tokens(ids), plan[0].of_tokens(weights)
        logits = module.apply(variables, hidden, padded=True, method="mlm_logits")
        return jax.vmap(token_loss)(logits, ids, weights)

    def _decoded(
        self,
        variables: Variables,
        queries: Array,
        context: Array,
        lengths: Array,
        visible: Array | None,
        keys: Array | None,
        plan: tuple[packing.Packed, Array] | None,
    ) -> Array:
        """The decoder's hidden states, of packed tokens where there is a plan for them."""
        decode, keys = partial(self.apply_head, DECODER, variables), fold(keys, _DECODER_SITE)
        if plan is None:
            return decode(queries, context, lengths, visible, keys)
        packed, fit = plan
        tokens = None if keys is None else packing.TokenKeys(keys, packed)
        hidden = decode(packed.pack(queries), packed.pack(context), packed, visible, tokens)
        return hidden + jnp.where(fit, 0.0, jnp.nan).astype(hidden.dtype)

    def visible(self, ids: Array, lengths: Array, keys: Array) -> Array:
        """M of (6): which positions each row of each text sees, bool [B, L, L].

        Padding is masked by the attention. [CLS] and [SEP] are never hidden.
        """
        length = ids.shape[1]
        sets = self.visible_sets or length
        numbered = jax.vmap(fold, (None, 0), 1)(keys, 1 + jnp.arange(sets))  # [B, sets]

        def hide(keys: Any) -> Array:
            return self.decoder_masking.select(ids, lengths, keys, self.vocabulary)

        hidden = jax.vmap(hide, 1, 1)(numbered)
        if self.visible_sets:
            draw: Any = partial(jax.random.randint, shape=(length,), minval=0, maxval=sets)
            chosen = jax.vmap(draw)(fold(keys, 0))
            hidden = jnp.take_along_axis(hidden, chosen[..., None], axis=1)
        place = jnp.arange(length)
        return (~hidden | (place == 0)) & (place != place[:, None])

    def _embedded(self, variables: Variables, ids: Array, keys: Array | None) -> Array:
        """e + p of every token, [B, L, D]."""
        if self.embeddings == "layer":
            return self.module.apply(variables, ids, keys=keys, method="embed")
        table = self.module.apply(variables, method="word_table")
        return jnp.take(table, ids, axis=0, mode="clip") + self._positions(variables, ids.shape[1])

    def _positions(self, variables: Variables, length: int) -> Array:
        """The encoder's position embeddings p₀, p₁, … [L, D]."""
        return self.module.apply(variables, length, method="position_vectors")


def text_names(features: Any) -> tuple[str, str]:
    """(the text that is encoded, the text that is reconstructed from its vector)."""
    return ("passage", "context") if "passage" in features else ("tokens", "tokens")
