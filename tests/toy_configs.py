"""A small configuration of every encoder."""

from typing import Any

from qac_jax.models.backbone import BackboneConfig
from qac_jax.models.bert import DistilBertConfig, ElectraConfig, MpnetConfig, RobertaConfig
from qac_jax.models.modernbert import ModernBertConfig
from qac_jax.models.t5 import T5EncoderConfig


SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 32,
}


def masking(length: int, **sizes: Any) -> dict[str, BackboneConfig]:
    """Those that predict masked words, for texts of this many tokens."""
    plain = SIZES | {"max_positions": length} | sizes
    shifted = plain | {"max_positions": length + 2}  # the first two rows belong to padding
    return {
        "roberta": RobertaConfig(**shifted, type_vocab_size=1),
        "distilbert": DistilBertConfig(**plain),
        "electra": ElectraConfig(**plain, embedding_size=8),
        "mpnet": MpnetConfig(**shifted),
        "modernbert": ModernBertConfig(**plain, window=4, pad_id=3),
    }


def every(length: int, **sizes: Any) -> dict[str, BackboneConfig]:
    """All of them."""
    small: dict[str, Any] = {
        "head_size": 4,
        "num_buckets": 8,
        "max_distance": 16,
        "initializer_factor": 0.2,
    }
    t5 = T5EncoderConfig(
        **SIZES | {"max_positions": length} | sizes, **small, feed_forward="gated-gelu"
    )
    return masking(length, **sizes) | {"t5_encoder": t5}
