"""How texts are continued: light to import, so that the command line can list the settings."""

import dataclasses

from qac_jax.errors import UserError
from qac_jax.fields import Checked, option


METHODS = ("sample", "greedy", "beam")
EARLY_STOPPING = ("no", "yes", "never")

_TOP_K = "draw from the k most probable tokens (0: all)"
_TOP_P = "and of those from the most probable of this mass (1: all)"


@dataclasses.dataclass(frozen=True)
class Sampling(Checked):
    """Which tokens can be drawn: the `top_k` most probable, and of those a mass of `top_p`."""

    temperature: float = option(1.0, "sampling temperature", above=0)
    top_k: int = option(0, _TOP_K, at_least=0)
    top_p: float = option(1.0, _TOP_P, above=0, at_most=1)


@dataclasses.dataclass(frozen=True)
class Decoding(Sampling):
    """How texts are generated, with Hugging Face's names where it has them.

    max_tokens counts generated tokens, the end included, the start token not: Hugging Face's
    max_length is one more. The defaults draw five samples of the top 25 tokens.
    """

    top_k: int = option(25, _TOP_K, at_least=0)
    top_p: float = option(0.95, _TOP_P, above=0, at_most=1)
    method: str = option("sample", "decoding method", choices=METHODS)
    max_tokens: int = option(64, "maximum length of a text in tokens, its end included", at_least=1)
    samples: int = option(5, "texts per passage and prompt", at_least=1)
    beams: int = option(4, "beam search: number of beams", at_least=1)
    length_penalty: float = option(1.0, "beam search: scores are divided by length to this power")
    early_stopping: str = option(
        "no", "beam search: when to stop, as Hugging Face's early_stopping", choices=EARLY_STOPPING
    )
    min_tokens: int = option(0, "minimum length of a text in tokens", at_least=0)
    no_repeat_ngram: int = option(0, "no n-gram of this size occurs twice (0: allowed)", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method == "greedy" and self.samples > 1:
            raise UserError(
                f"samples={self.samples} of greedy decoding would all be the same; choose "
                "samples=1, or method='sample'"
            )
        if self.method == "beam" and self.samples > self.beams:
            raise UserError(
                f"samples={self.samples} are more than beams={self.beams}; search with more beams"
            )
