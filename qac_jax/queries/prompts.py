"""Prompts of a generator: text before and after the input, and a limit of generated tokens.

The four prompts of AugTriever's transferred query generation follow the text (paper, section 3.2).
The paper does not state their limits in tokens; these fit the published outputs, which stop in the
middle of words.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from qac_jax import fields
from qac_jax.errors import UserError
from qac_jax.fields import Checked, option


@dataclasses.dataclass(frozen=True)
class Prompt(Checked):
    """`before` + text + `after`; at most `max_tokens` tokens are generated."""

    before: str = ""
    after: str = ""
    max_tokens: int = option(64, at_least=1)


PROMPTS: dict[str, Prompt] = {
    "topic": Prompt(after=" What is the main topic of the above text?", max_tokens=16),
    "title": Prompt(after=" Please write a title of the text above.", max_tokens=32),
    "absum": Prompt(after=" Please write a short summary of the text above.", max_tokens=64),
    "exsum": Prompt(
        after=" Please use a sentence in the above text to summarize its content.", max_tokens=64
    ),
}


def named(
    prompts: Mapping[str, Any] | None, *, prefix: str, origin: str, max_tokens: int
) -> dict[str, Prompt]:
    """Origin -> prompt: those of `prompts`, or the prefix alone."""
    if prompts is None:
        name = origin or prefix.strip(" :") or "generated"
        return {name: Prompt(before=prefix, max_tokens=max_tokens)}
    if not prompts or not all(isinstance(prompt, Prompt) for prompt in prompts.values()):
        raise UserError(f"prompts = {prompts!r}; bind a name or more to @NAME/Prompt() each")
    return {origin + name: prompt for name, prompt in prompts.items()}


@fields.for_gin
def tqgen(names: Sequence[str] = tuple(PROMPTS)) -> dict[str, Prompt]:
    return {name: PROMPTS[name] for name in names}
