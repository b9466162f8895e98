"""How documents are cut into passages: light to import, for stages that list the settings."""

from __future__ import annotations

from dataclasses import dataclass

from qac_jax.errors import UserError
from qac_jax.fields import option


# Sentence splitters by name (sentences.py); a file of learned parameters is another.
SPLITTERS = ("auto", "punkt_tab", "shipped")


CUTS = ("auto", "sentences", "lines", "none")


@dataclass(frozen=True)
class Cutting:
    """How documents are cut into passages."""

    cut: str = option(
        "auto",
        "where a passage may end; auto: at sentences, but the passages of judged collections "
        "stay whole",
        choices=CUTS,
    )
    max_tokens: int = option(144, "maximum passage length in tokens, without special tokens")
    overshoot: bool = option(
        False,
        "end a passage after the sentence that exceeds --max_tokens (QAC's released code), "
        "instead of before it",
    )
    short_span_probability: float = option(0.15, "share of passages with a random shorter length")
    min_tokens: int = option(
        0, "merge shorter passages with a neighbour; drop those that stay shorter"
    )

    def check(self) -> None:
        """Refuses sizes that leave no room for a passage."""
        if self.max_tokens < 8:
            raise UserError(f"max_tokens={self.max_tokens} is too small; expected at least 8")
        if not 0 <= self.short_span_probability <= 1:
            raise UserError(
                f"short_span_probability={self.short_span_probability} is not a probability; "
                f"expected 0 to 1"
            )
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise UserError(
                f"min_tokens={self.min_tokens} is not between 0 and max_tokens={self.max_tokens}"
            )
