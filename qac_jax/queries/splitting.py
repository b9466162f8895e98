"""Splits a corpus by document into passages for training, for validation and for the test.

It happens before anything is generated, so that the questions which choose and measure a retriever
are about passages whose generated queries trained nothing. A document falls into one part as a
whole: its passages repeat one another's names and subjects.

`check_leaks` looks whether anything that trains or expands knows a test question, or was made of a
passage that was kept aside.
"""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from qac_jax.data.judged import generated_from
from qac_jax.errors import UserError
from qac_jax.fields import Checked, option
from qac_jax.queries.filtering import plain


TEST, VALIDATION, TRAIN = "test", "validation", "train"
PARTS = (TRAIN, VALIDATION, TEST)

# With fewer documents than this the passages themselves are split.
_FEWEST = 10
# A part is at most this share of the corpus, however small the corpus is.
MOST = 0.25


@dataclasses.dataclass(frozen=True)
class Splitting(Checked):
    """How many passages are kept aside."""

    share: float = option(
        0.1, "share of the passages for validation, and as many for the test", above=0, below=0.5
    )
    at_least: int = option(
        100, "at least N passages each, but never more than a quarter", at_least=1
    )
    at_most: int = option(1000, "at most about N passages each")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at_least > self.at_most:
            raise UserError(f"at_least={self.at_least} is more than at_most={self.at_most}")

    def target(self, passages: int) -> int:
        wanted = max(round(self.share * passages), self.at_least)
        return min(wanted, self.at_most, int(MOST * passages))


def split(
    passages: Iterable[Mapping[str, Any]],
    settings: Splitting,
    *,
    aside: Iterable[str] = (VALIDATION, TEST),
    seed: int = 0,
) -> tuple[list[str], str]:
    """The part of each passage, by the hashes of their documents' ids, and whether documents or
    passages were split. `aside`: the parts that are needed; the rest is for training."""
    records = [(record["_id"], str(record.get("doc") or record["_id"])) for record in passages]
    by = "document" if len({document for _, document in records}) >= _FEWEST else "passage"
    groups = [document if by == "document" else name for name, document in records]
    left = dict(sorted(Counter(groups).items(), key=lambda item: _place(item[0], seed)))
    kinds, target = len(left), settings.target(len(records))
    part_of: dict[str, str] = {}
    # The test is the same with and without a validation part.
    for part in sorted(aside):
        taken = _taken(left, target)
        if not taken:
            raise UserError(
                f"{len(records)} passages of {kinds} {by}s are too few to keep some aside for "
                f"the {part}; add documents, or judged queries"
            )
        part_of |= dict.fromkeys(taken, part)
        left = {group: size for group, size in left.items() if group not in part_of}
    return [part_of.get(group, TRAIN) for group in groups], by


def _taken(sizes: Mapping[str, int], target: int) -> list[str]:
    """Groups in their order until they have `target` passages; none that would have half as many
    again."""
    taken: list[str] = []
    count = 0
    for group, size in sizes.items():
        if count < target and count + size <= target * 1.5:
            taken.append(group)
            count += size
    if not taken and len(sizes) > 1 and target:  # all are large: the smallest one
        taken = [min(sizes, key=lambda group: sizes[group])]
    return taken


def _place(name: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()


def texts_of(kind: str, records: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The texts of contexts, negatives or groups that train a model or expand an index, and the
    passage that each was made of. A query of people belongs to none: they may ask about any."""
    for record in records:
        if kind == "contexts":
            for context in record["contexts"]:
                yield context["text"], record["_id"]
        elif kind == "groups":
            for name, text in zip(record["query_ids"], record["queries"], strict=True):
                yield text, generated_from(name)
        else:
            yield record.get("query", ""), generated_from(record["_id"])


def check_leaks(
    used: Iterable[tuple[str, str, str]], asked: Mapping[str, str], aside: Iterable[str]
) -> dict[str, int]:
    """Raises UserError for a leak; otherwise says how much was compared.

    used: (text, the passage it was made of, where it is used). asked: the texts of validation and
    test questions by their ids. aside: the passages that they were generated from.
    """
    questions = {plain(text): name for name, text in asked.items()}
    kept_aside = frozenset(aside)
    count = 0
    for text, passage, where in used:
        count += 1
        if (words := plain(text)) and words in questions:
            raise UserError(
                f"{where} has the text of the question {questions[words]!r} that is kept for "
                f"validation or test: {text!r}; remove it there"
            )
        if passage in kept_aside:
            raise UserError(
                f"{where} has a query of the passage {passage!r}, whose questions are kept for "
                f"validation or test: {text!r}; make contexts of the training passages only"
            )
    return {"texts": count, "questions": len(questions), "passages": len(kept_aside)}
