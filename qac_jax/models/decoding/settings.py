"""How texts are continued: light to import, so that the command line can list the settings."""

from __future__ import annotations

import dataclasses

from qac_jax.errors import UserError, nearest
from qac_jax.fields import option


METHODS = ("sample", "greedy", "beam")
EARLY_STOPPING = ("no", "yes", "never")

_TOP_K = "draw from the k most probable tokens (0: all)"
_TOP_P = "and of those from the most probable of this mass (1: all)"


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Which tokens can be drawn: the `top_k` most probable, and of those a mass of `top_p`."""

    temperature: float = option(1.0, "sampling temperature")
    top_k: int = option(0, _TOP_K)
    top_p: float = option(1.0, _TOP_P)

    def __post_init__(self) -> None:
        if not self.temperature > 0.0:
            raise UserError(
                f"temperature={self.temperature} is not above 0; for the most probable token "
                "choose greedy decoding"
            )
        if self.top_k < 0:
            raise UserError(f"top_k={self.top_k}; expected 0 (off) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise UserError(f"top_p={self.top_p}; expected more than 0 and at most 1 (off)")


@dataclasses.dataclass(frozen=True)
class Decoding(Sampling):
    """How texts are generated, with Hugging Face's names where it has them.

    max_tokens counts generated tokens, the end included, the start token not: Hugging Face's
    max_length is one more. The defaults draw five samples of the top 25 tokens.
    """

    top_k: int = option(25, _TOP_K)
    top_p: float = option(0.95, _TOP_P)
    method: str = option("sample", "decoding method", choices=METHODS)
    max_tokens: int = option(64, "maximum length of a text in tokens, its end included")
    samples: int = option(5, "texts per passage and prompt")
    beams: int = option(4, "beam search: number of beams")
    length_penalty: float = option(1.0, "beam search: scores are divided by length to this power")
    early_stopping: str = option(
        "no", "beam search: when to stop, as Hugging Face's early_stopping", choices=EARLY_STOPPING
    )
    min_tokens: int = option(0, "minimum length of a text in tokens")
    no_repeat_ngram: int = option(0, "no n-gram of this size occurs twice (0: allowed)")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, valid in (("method", METHODS), ("early_stopping", EARLY_STOPPING)):
            value = getattr(self, name)
            if value not in valid:
                raise UserError(f"{name}={value!r} is not known; {nearest(str(value), valid)}")
        if self.max_tokens < 1 or self.samples < 1 or self.beams < 1:
            raise UserError(
                f"max_tokens={self.max_tokens}, samples={self.samples}, beams={self.beams}; "
                "expected 1 or more of each"
            )
        if self.method == "greedy" and self.samples > 1:
            raise UserError(
                f"samples={self.samples} of greedy decoding would all be the same; choose "
                "samples=1, or method='sample'"
            )
        if self.method == "beam" and self.samples > self.beams:
            raise UserError(
                f"samples={self.samples} are more than beams={self.beams}; search with more beams"
            )
        if min(self.min_tokens, self.no_repeat_ngram) < 0:
            raise UserError("min_tokens and no_repeat_ngram are counts; expected 0 or more")
