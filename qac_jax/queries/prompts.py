"""What a generator is asked about a text: words before it, words behind it, and how much it says.

The four prompts of AugTriever's transferred query generation stand behind the text (paper, section
3.2). Their published outputs stop in the middle of words, so each had a limit in tokens; the
figures here are the ones that fit those outputs, which no paper states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from qac_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Prompt:
    """`before` + text + `after`; at most `max_tokens` are said."""

    before: str = ""
    after: str = ""
    max_tokens: int = 64

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UserError(f"max_tokens={self.max_tokens} of a prompt; expected 1 or more")


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
    """Origin -> prompt: the given ones, or the prefix alone."""
    if prompts is None:
        name = origin or prefix.strip(" :") or "generated"
        return {name: Prompt(before=prefix, max_tokens=max_tokens)}
    for name, prompt in prompts.items():
        if not isinstance(prompt, Prompt):
            raise UserError(
                f"prompts[{name!r}] = {prompt!r} is not a Prompt; bind it to @{name}/Prompt()"
            )
    if not prompts:
        raise UserError("prompts names no prompt; bind at least one, or leave it out")
    return {origin + name: prompt for name, prompt in prompts.items()}
