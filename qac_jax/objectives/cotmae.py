"""CoT-MAE: a context is reconstructed from the vector of its passage (Wu et al., 2023).

The encoder reads a masked passage. A small decoder reads the passage's [CLS] vector and a weakened
context: masked at a high rate (`mlm`, the papers), or only the last few words so far (`causal`, the
released recipe). Whatever else it predicts must come from the vector. In query-as-context
pre-training the context is a generated query; in the original it is a passage of the same document,
and both are encoded and both decoded (`symmetric`).
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.models.encoders import pooled
from qac_jax.models.heads import POOLINGS, BidirectionalHead, CausalDecoder
from qac_jax.models.layers import Array, fold
from qac_jax.models.transformer import OUTPUT_SITE
from qac_jax.objectives.chunked import first_rows
from qac_jax.objectives.masking import MaskedText, Masking
from qac_jax.objectives.mlm import Mlm, TokenLoss, mlm_loss, normalised, token_loss
from qac_jax.objectives.objective import Batch, Loss, Variables, example_keys, of_examples


DECODERS = {"mlm": ("mlm",), "causal": ("causal",), "both": ("mlm", "causal")}
# The subtree of each decoder's parameters.
HEADS = {"mlm": "mlm_decoder", "causal": "causal_decoder"}
# Dropout keys of the decoders and of what they read, apart from the encoder's.
_SITES = {name: 2 * OUTPUT_SITE + 2 * i for i, name in enumerate(HEADS)}


class CausalText(NamedTuple):
    """A text of which each token is predicted from those before it; examples first."""

    ids: Array  # [B, L]
    lengths: Array  # [B]
    weights: Array  # [B, L - 1]; of the prediction of token i + 1


@dataclasses.dataclass(frozen=True)
class CotMae(Mlm):
    """The encoder's own MLM on `passage`, and decoders that reconstruct `context` from its vector.

    window: the number of tokens that the causal decoder sees, the current one included (-1: all
    before it); it always sees the vector. symmetric: each text is encoded, and decoded from the
    other's vector. encoder_mlm: whether the encoder's own predictions are trained. freeze: train
    decoders only. pooling: how the vector is made, the papers' [CLS] ("cls"), the mean of the
    tokens ("mean") or another of models/heads.py.
    """

    masking: Masking = Masking(0.30, "cotmae_qc")
    decoder: str = option("mlm", choices=tuple(DECODERS))
    decoder_masking: Masking = Masking(0.45, "cotmae_qc")
    mlm_layers: int = option(2, at_least=1)
    mlm_coefficient: float = 1.0
    causal_layers: int = option(1, at_least=1)
    causal_coefficient: float = 1.0
    window: int = option(3, at_least=-1)
    symmetric: bool = False
    encoder_mlm: bool = True
    freeze: bool = False
    pooling: str = option("cls", choices=POOLINGS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.window:
            raise UserError("window=0 is not valid; expected 1 or more, or -1 (all)")

    @property
    def heads(self) -> Mapping[str, BidirectionalHead | CausalDecoder]:
        config, runtime = self.model.config, self.model.runtime
        made: dict[str, BidirectionalHead | CausalDecoder] = {
            "mlm": BidirectionalHead(config, runtime, self.mlm_layers),
            "causal": CausalDecoder(config, runtime, self.causal_layers, self.window),
        }
        return {HEADS[name]: made[name] for name in DECODERS[self.decoder]}

    def prepare(self, batch: Batch, key: Array) -> Batch:
        # (the text that is encoded, the text that is reconstructed from its vector)
        count, forth = len(batch["passage"]), ("passage", "context")
        directions = (forth, forth[::-1]) if self.symmetric else (forth,)
        # Keys of every direction: to mask the encoded and the decoded text, and of dropout.
        keys = iter([example_keys(k, count) for k in jax.random.split(key, 3 * len(directions))])
        encoded = [self.masked(batch, name, self.masking, next(keys)) for name, _ in directions]
        masked = [
            self.masked(batch, name, self.decoder_masking, next(keys)) for _, name in directions
        ]
        targets = [(batch[name], batch[f"{name}_length"]) for _, name in directions]
        decoded = {
            "mlm": normalised(masked, examples=self.examples),
            "causal": causal_texts(targets, self.examples),
        }
        return {
            "encoded": normalised(encoded, examples=self.examples),
            "decoded": {name: decoded[name] for name in DECODERS[self.decoder]},
            "keys": list(keys),
        }

    def loss(self, variables: Variables, batch: Batch, key: Array, train: bool) -> Loss:
        module = self.module
        # A frozen encoder is read without gradients; decoders read `variables` and still train.
        encoder = jax.lax.stop_gradient(variables) if self.freeze else variables
        loss, aux = jnp.zeros(()), dict[str, Array]()
        # The tokens at which the last layer is needed.
        rows = None if self.encoder_mlm or self.pooling != "cls" else 1

        def add(name: str, value: Array) -> None:
            aux[name] = aux.get(name, jnp.zeros(())) + value

        for direction, text in enumerate(batch["encoded"]):
            keys = batch["keys"][direction] if train else None
            out = module.apply(encoder, text.ids, text.lengths, keys=keys, rows=rows)
            vector = pooled(out, text.lengths, self.pooling).astype(out.last.dtype)
            if self.encoder_mlm:
                own = mlm_loss(module, encoder, out.last, text)
                add("encoder_mlm_loss", jnp.sum(own.loss))
                add("masked_accuracy", jnp.sum(own.accuracy))
            for name, texts in batch["decoded"].items():
                target = texts[direction]
                decoded = self.decoder_loss(name, variables, encoder, vector, target, keys)
                add(f"{name}_decoder_loss", jnp.sum(decoded.loss))
                add(f"{name}_decoder_accuracy", jnp.sum(decoded.accuracy))
                if not train:
                    swapped = _others(vector, self.examples)
                    other = self.decoder_loss(name, variables, encoder, swapped, target, None)
                    add(f"{name}_decoder_loss_other", jnp.sum(other.loss))
        if self.encoder_mlm:
            loss = loss + aux["encoder_mlm_loss"]
        coefficients = {"mlm": self.mlm_coefficient, "causal": self.causal_coefficient}
        for name in DECODERS[self.decoder]:
            loss = loss + coefficients[name] * aux[f"{name}_decoder_loss"]
        return loss, aux

    def decoder_loss(
        self,
        name: str,
        variables: Variables,
        encoder: Variables,
        vector: Array,
        text: MaskedText | CausalText,
        keys: Array | None,
    ) -> TokenLoss:
        """The loss of one decoder given the vectors: sums over the tokens of each example, [B]."""
        module, site = self.module, _SITES[name]
        # Embeddings are the encoder's; the vector takes the position of [CLS].
        embedded = module.apply(encoder, text.ids, keys=fold(keys, site), method="embed")
        inputs = vector, embedded, text.lengths, fold(keys, site + 1)
        hidden = self.apply_head(HEADS[name], variables, *inputs)
        if isinstance(text, MaskedText):
            return mlm_loss(module, encoder, hidden, text)
        logits = module.apply(encoder, hidden[:, :-1], padded=True, method="mlm_logits")
        return jax.vmap(token_loss)(logits, text.ids[:, 1:], text.weights)


def causal_texts(texts: list[tuple[Array, Array]], examples: int = 0) -> list[CausalText]:
    """Texts [(ids, lengths)] for causal decoding: every token after [CLS] is predicted, of the
    first `examples` (0: all)."""
    wanted = [
        (jnp.arange(1, ids.shape[1]) < lengths[:, None]) & of_examples(len(ids), examples)[:, None]
        for ids, lengths in texts
    ]
    total = sum(jnp.sum(mask, dtype=float) for mask in wanted)
    return [
        CausalText(ids, lengths, mask.astype(float) / jnp.maximum(total, 1.0))
        for (ids, lengths), mask in zip(texts, wanted, strict=True)
    ]


def _others(vectors: Array, examples: int = 0) -> Array:
    """Another passage's vector for each of the first `examples` (0: all): half a batch away,
    almost surely of another document."""
    real = first_rows(vectors, examples)
    others = jnp.roll(real, len(real) // 2, axis=0)
    return jnp.pad(others, ((0, len(vectors) - len(real)), (0, 0))) if examples else others
