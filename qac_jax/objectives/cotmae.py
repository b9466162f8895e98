"""CoT-MAE: a context must be told from the vector of its passage (Wu et al., 2023).

The encoder reads a masked passage; a small decoder reads the passage's [CLS] vector and, of the
context, what little is left: masked at a high rate (`mlm`, the papers), or only the last few words
said so far (`causal`, the released recipe). Whatever else it predicts, the vector had to hold. In
query-as-context pre-training the context is a generated query; in the original it is a passage of
the same document, and both are encoded and both decoded (`symmetric`).
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qac_jax.errors import UserError, nearest
from qac_jax.models import flops
from qac_jax.models.backbone import BackboneOutput
from qac_jax.models.encoders import POOLINGS, pooled
from qac_jax.models.heads import BidirectionalHead, CausalDecoder
from qac_jax.models.layers import fold
from qac_jax.models.transformer import OUTPUT_SITE
from qac_jax.objectives.masked_text import MaskedText, masked, new_head, part, predicted, shared
from qac_jax.objectives.masking import Masking
from qac_jax.objectives.mlm import Mlm
from qac_jax.objectives.objective import Aux, Batch, Spec, Variables, example_keys
from qac_jax.objectives.token_loss import TokenLoss, token_loss


DECODERS = {"mlm": ("mlm",), "causal": ("causal",), "both": ("mlm", "causal")}
# Where the parameters of each decoder lie.
HEADS = {"mlm": "mlm_decoder", "causal": "causal_decoder"}
PASSAGE, CONTEXT = "passage", "context"
# Dropout keys of the decoders and of what they read, apart from the encoder's.
_SITES = {name: 2 * OUTPUT_SITE + 2 * i for i, name in enumerate(HEADS)}


class SaidText(NamedTuple):
    """A text said word by word; examples first."""

    ids: jax.Array  # [B, L]
    lengths: jax.Array  # [B]
    weights: jax.Array  # [B, L - 1]; of predicting token i + 1


@dataclasses.dataclass(frozen=True)
class CotMae(Mlm):
    """The encoder's own MLM on `passage`, and decoders that tell `context` from its vector.

    window: how many words the causal decoder sees, the present one included (-1: all before it);
    the vector it always sees. symmetric: each text is encoded, and decoded from the other's vector.
    encoder_mlm: whether the encoder's own predictions are trained. freeze: train decoders only.
    pooling: what stands for a passage, the papers' [CLS] ("cls") or the mean of its tokens.
    """

    masking: Masking = Masking(0.30, "cotmae_qc")
    decoder: str = "mlm"
    decoder_masking: Masking = Masking(0.45, "cotmae_qc")
    mlm_layers: int = 2
    mlm_coefficient: float = 1.0
    causal_layers: int = 1
    causal_coefficient: float = 1.0
    window: int = 3
    symmetric: bool = False
    encoder_mlm: bool = True
    freeze: bool = False
    pooling: str = "cls"

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise UserError(
                f"pooling={self.pooling!r} is not known; {nearest(self.pooling, POOLINGS)}"
            )
        if self.decoder not in DECODERS:
            raise UserError(
                f"decoder={self.decoder!r} is not known; {nearest(self.decoder, DECODERS)}"
            )
        if self.mlm_layers < 1 or self.causal_layers < 1:
            raise UserError(
                f"mlm_layers={self.mlm_layers} and causal_layers={self.causal_layers}; expected "
                "1 or more of each"
            )
        if self.window != -1 and self.window < 1:
            raise UserError(f"window={self.window} shows nothing; expected 1 or more, or -1 (all)")

    @property
    def decoders(self) -> dict[str, BidirectionalHead | CausalDecoder]:
        """The decoders that are trained."""
        config, runtime = self.model.config, self.model.runtime
        made: dict[str, BidirectionalHead | CausalDecoder] = {
            "mlm": BidirectionalHead(config, runtime, self.mlm_layers),
            "causal": CausalDecoder(config, runtime, self.causal_layers, self.window),
        }
        return {name: made[name] for name in DECODERS[self.decoder]}

    @property
    def ways(self) -> tuple[tuple[str, str], ...]:
        """(what is encoded, what is told from its vector)."""
        there = (PASSAGE, CONTEXT)
        return (there, there[::-1]) if self.symmetric else (there,)

    def init(self, key: jax.Array) -> Variables:
        encoder_key, *keys = jax.random.split(key, 1 + len(HEADS))
        params = dict(super().init(encoder_key)["params"])
        for (name, head), head_key in zip(self.decoders.items(), keys, strict=False):
            params[HEADS[name]] = new_head(head, self.model.config, head_key)
        return {"params": params}

    def prepare(self, batch: Batch, key: jax.Array) -> Batch:
        vocabulary, count = self.known_vocabulary, len(batch[PASSAGE])
        # For every way one key to mask what is encoded, one for what is decoded, one for dropout.
        keys = iter(jax.random.split(key, 3 * len(self.ways)))

        def text(masking: Masking, name: str) -> MaskedText:
            ids, lengths = batch[name], batch[f"{name}_length"]
            return masked(masking, vocabulary, ids, lengths, example_keys(next(keys), count))

        read = shared([text(self.masking, source) for source, _ in self.ways])
        mlm = shared([text(self.decoder_masking, target) for _, target in self.ways])
        targets = [(batch[name], batch[f"{name}_length"]) for _, name in self.ways]
        decoded = {"mlm": mlm, "causal": said(targets)}
        ready = {
            "encoded": read,
            "decoded": {name: decoded[name] for name in DECODERS[self.decoder]},
            "keys": [example_keys(next(keys), count) for _ in self.ways],
        }
        return ready

    def loss(
        self, variables: Variables, batch: Batch, key: jax.Array, train: bool
    ) -> tuple[jax.Array, Aux]:
        module = self.module
        encoder = part(variables, HEADS.values(), without=True)
        if self.freeze:
            encoder = jax.lax.stop_gradient(encoder)
        loss, aux = jnp.zeros(()), dict[str, jax.Array]()

        def add(name: str, value: jax.Array) -> None:
            aux[name] = aux.get(name, jnp.zeros(())) + value

        for way, text in enumerate(batch["encoded"]):
            keys = batch["keys"][way] if train else None
            out = module.apply(encoder, text.ids, text.lengths, keys=keys, rows=self._rows)
            vector = self.vector(out, text.lengths)
            if self.encoder_mlm:
                found = predicted(module, encoder, out.last, text)
                add("encoder_mlm_loss", jnp.sum(found.loss))
                add("masked_accuracy", jnp.sum(found.accuracy))
            for name, texts in batch["decoded"].items():
                target = texts[way]
                told = self.told(name, variables, encoder, vector, target, keys)
                add(f"{name}_decoder_loss", jnp.sum(told.loss))
                add(f"{name}_decoder_accuracy", jnp.sum(told.accuracy))
                if not train:
                    other = self.told(name, variables, encoder, _others(vector), target, None)
                    for measure, value in compared(told, other, target.weights).items():
                        add(f"{name}_decoder_{measure}", value / len(self.ways))
        if self.encoder_mlm:
            loss = loss + aux["encoder_mlm_loss"]
        for name, coefficient in self._coefficients().items():
            loss = loss + coefficient * aux[f"{name}_decoder_loss"]
        return loss, aux

    @property
    def _rows(self) -> int | None:
        """At how many tokens the last layer is wanted (None: all)."""
        return None if self.encoder_mlm or self.pooling != "cls" else 1

    def vector(self, out: BackboneOutput, lengths: jax.Array) -> jax.Array:
        """What stands for a whole passage."""
        return pooled(out, lengths, self.pooling).astype(out.last.dtype)

    def told(
        self,
        name: str,
        variables: Variables,
        encoder: Variables,
        vector: jax.Array,
        text: MaskedText | SaidText,
        keys: jax.Array | None,
    ) -> TokenLoss:
        """How well one decoder tells texts from vectors: sums of each example, [B]."""
        module, site = self.module, _SITES[name]
        # Embeddings are the encoder's; the place of [CLS] is the vector's and has none.
        embedded = module.apply(encoder, text.ids, keys=fold(keys, site), method="embed")
        hidden = self.decoders[name].apply(
            part(variables, HEADS[name]), vector, embedded, text.lengths, fold(keys, site + 1)
        )
        if isinstance(text, MaskedText):
            return predicted(module, encoder, hidden, text)
        logits = module.apply(encoder, hidden[:, :-1], padded=True, method="mlm_logits")
        return jax.vmap(token_loss)(logits, text.ids[:, 1:], text.weights)

    def encoder(self, variables: Variables) -> Variables:
        return super().encoder(part(variables, HEADS.values(), without=True))

    def flops(self, spec: Spec) -> float:
        """Model FLOPs of a training step over padded texts."""
        config = self.module.config
        total = flops.Flops({})
        for source, target in self.ways:
            texts, length = spec[source].shape
            load = flops.Load.padded(texts, length)
            count = texts * self.masking.max_predictions(length) * self.encoder_mlm
            total += config.flops(load, rows=self._rows, predictions=count)
            texts, length = spec[target].shape
            load = flops.Load.padded(texts, length)
            for name, head in self.decoders.items():
                count = texts * self._predictions(name, length)
                total += head.flops(load) + config.mlm_flops(count)
        return total.training()

    def activation_bytes(self, spec: Spec) -> float:
        """What the backward pass of one microbatch of these shapes keeps."""
        kept = partial(self.model.config.activation_bytes, self.model.runtime)
        total = 0.0
        for source, target in self.ways:
            texts, length = spec[source].shape
            count = texts * self.masking.max_predictions(length) * self.encoder_mlm
            total += kept(texts, length, predictions=count)
            texts, length = spec[target].shape
            for name, head in self.decoders.items():
                count = texts * self._predictions(name, length)
                layers = head.num_layers
                total += kept(texts, length, layers=layers, predictions=count)
        return total

    def _predictions(self, name: str, length: int) -> int:
        """Places of a text that a decoder predicts."""
        return length - 1 if name == "causal" else self.decoder_masking.max_predictions(length)

    def _coefficients(self) -> dict[str, float]:
        each = {"mlm": self.mlm_coefficient, "causal": self.causal_coefficient}
        return {name: each[name] for name in DECODERS[self.decoder]}


def said(texts: list[tuple[jax.Array, jax.Array]]) -> list[SaidText]:
    """Texts [(ids, lengths)] to be said word by word: [CLS] is given, all after it is predicted."""
    wanted = [jnp.arange(1, ids.shape[1]) < lengths[:, None] for ids, lengths in texts]
    total = sum(jnp.sum(mask, dtype=float) for mask in wanted)
    return [
        SaidText(ids, lengths, mask.astype(float) / jnp.maximum(total, 1.0))
        for (ids, lengths), mask in zip(texts, wanted, strict=True)
    ]


def compared(own: TokenLoss, other: TokenLoss, weights: jax.Array) -> dict[str, jax.Array]:
    """What the own vector gains over another passage's, of whole texts: for a paired test.

    A text's loss is the mean over its tokens. With n texts, t = gain / sqrt((gain_square - gain²)
    / (n - 1)).
    """
    tokens = jnp.sum(weights, axis=1)
    gain = (other.loss - own.loss) / jnp.where(tokens > 0, tokens, 1.0)
    return {
        "loss_other": jnp.sum(other.loss),
        "gain": jnp.mean(gain),
        "gain_square": jnp.mean(jnp.square(gain)),
        "better": jnp.mean((gain > 0).astype(gain.dtype)),
    }


def _others(vectors: jax.Array) -> jax.Array:
    """Another passage's vector for each: half a batch away, where it is of another document."""
    return jnp.roll(vectors, vectors.shape[0] // 2, axis=0)
