"""RoBERTa and XLM-R: a BERT whose positions begin after the padding's, without token types.

Liu et al., 2019; Conneau et al., 2020. Parameters are a BERT's (bert.py). The first token of a text
has the row pad_id + 1 of the position embeddings, so that 514 rows are 512 positions. Token types
have a row (or more) that is added to every token; no tokenizer of the family gives another one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax.models.architecture import register
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.layers import Array, Runtime
from qac_jax.models.tensor_names import Slot, Table, dense, norm, under


@register
@dataclasses.dataclass(frozen=True)
class RobertaConfig(BertConfig):
    """A RoBERTa's architecture. max_positions counts the rows before the first position too."""

    vocab_size: int = 50265
    pad_id: int = 1

    display_name: ClassVar = "RoBERTa"
    model_types: ClassVar[tuple[str, ...]] = ("roberta",)
    hf_class: ClassVar = "Roberta"
    hf_bases: ClassVar[tuple[str, ...]] = ("roberta.",)
    hf_parts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "pooler": ("{encoder}pooler.",),
        "mlm_head": ("{model}lm_head.",),
    }
    # A sequence classifier has a dense layer of its own instead.
    hf_ignored: ClassVar[tuple[str, ...]] = ("roberta.pooler.*",)

    def build(self, runtime: Runtime) -> Roberta:
        return Roberta(self, runtime)

    @property
    def token_types(self) -> int:
        return 0

    @property
    def first_position(self) -> int:
        return self.pad_id + 1

    @property
    def max_length(self) -> int:
        return self.max_positions - self.first_position

    def to_hf(self, labels: int | None = None) -> dict[str, Any]:
        return super().to_hf(labels) | {"bos_token_id": 0, "eos_token_id": 2}

    @classmethod
    def hf_copies(cls, encoder: str, model: str) -> Mapping[str, str]:
        return {
            f"{model}lm_head.decoder.weight": f"{encoder}{cls.hf_words}",
            f"{model}lm_head.decoder.bias": f"{model}lm_head.bias",
        }

    def table(self, encoder: str = "", model: str = "") -> Table:
        found = super().table(encoder, model)
        if self.mlm_head:
            found |= dense("mlm_head/dense", f"{model}lm_head.dense")
            found |= norm("mlm_head/norm", f"{model}lm_head.layer_norm")
            found["mlm_head/bias"] = Slot(f"{model}lm_head.bias")
        return found

    def classifier_table(self, encoder: str = "", model: str = "") -> Table:
        found = self.with_parts().table(encoder, model)
        found |= dense("pooler", f"{model}classifier.dense")
        return under("backbone", found) | dense("classifier", f"{model}classifier.out_proj")


@register
@dataclasses.dataclass(frozen=True)
class XlmRobertaConfig(RobertaConfig):
    """An XLM-R's architecture: a RoBERTa with another vocabulary."""

    vocab_size: int = 30522

    display_name: ClassVar = "XLM-R"
    model_types: ClassVar[tuple[str, ...]] = ("xlm-roberta",)
    hf_class: ClassVar = "XLMRoberta"


class Roberta(Bert):
    """ids [B, L] right-padded, lengths [B] (None: no padding) -> BackboneOutput."""

    config: RobertaConfig
    runtime: Runtime = Runtime()

    mlm_activation: ClassVar = "gelu"

    def position_vectors(self, length: int) -> Array:
        """What the embeddings add for the first `length` positions: [length, D]."""
        start = self.config.first_position
        return self.embeddings.position.table[start : start + length]
