"""The passages that get queries, and the queries that are kept, which the released codes do not do.

First by rules for each query (`Filter`), then, if given, by a retriever.
"""

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from qac_jax.artifacts import Artifact
from qac_jax.fields import Checked, option
from qac_jax.formats.records import Records
from qac_jax.formats.runs import Ranking
from qac_jax.retrieval.corpus import Searchable


Record = Mapping[str, Any]

_WORD = re.compile(r"\w+")
_TOGETHER = 1024
_QUESTION_WORDS = frozenset("what which who whom whose when where why how".split())
# Verbs that a question begins with.
_ASKING = frozenset(
    "is are was were am do does did can could will would shall should may might must has have had "
    "name list give describe explain define".split()
)


@dataclasses.dataclass(frozen=True)
class Filter(Checked):
    """Rules for leaving out queries of a passage."""

    drop_empty: bool = option(True, "drop texts without a word")
    drop_repeats: bool = option(True, "drop duplicate texts of a passage")
    well_formed: bool = option(
        False,
        "drop texts that are no questions: without a question word or verb, or with a "
        "repeated pair of words",
    )
    specific: float = option(
        0.0,
        "drop texts hardly likelier given their passage than given others: whose tokens' mean "
        "log-probability under the generator is higher by less than this (0: keep); the best tenth "
        "stays in any case, the most specific first",
        at_least=0,
    )
    round_trip: int = option(
        0, "drop texts for which --index ranks the passage below this rank (0: keep)", at_least=0
    )

    def __call__(self, contexts: Sequence[Record], dropped: Counter[str]) -> list[Record]:
        """The contexts that are kept, in order; `dropped` counts the others by reason."""
        kept, known = [], set()
        for context in contexts:
            words = plain(context["text"])
            if self.drop_empty and not words:
                dropped["empty"] += 1
            elif self.drop_repeats and words in known:
                dropped["repeated"] += 1
            elif self.well_formed and not is_question(words):
                dropped["not well-formed"] += 1
            else:
                known.add(words)
                kept.append(context)
        return kept


def plain(text: str) -> str:
    """Lower-cased words with single spaces, for comparing texts."""
    return " ".join(_WORD.findall(text.lower()))


def is_question(words: str) -> bool:
    """Whether plain text looks like a question: it begins with or contains a question word, has
    three words or more, and repeats no pair of words."""
    listed = words.split()
    pairs = list(itertools.pairwise(listed))
    if len(listed) < 3 or len(set(pairs)) < len(pairs) or any(a == b for a, b in pairs):
        return False
    return listed[0] in _ASKING or not _QUESTION_WORDS.isdisjoint(listed)


def specific(
    records: Sequence[Record],
    values: Sequence[Sequence[float]],
    least: float,
    dropped: Counter[str],
) -> list[dict[str, Any]]:
    """Queries whose specificity is at least `least`, the most specific of a passage first.

    The best tenth is kept in any case: few passages must not be left without a question.
    "what does the author want?" can be asked of every passage. The generator alone decides: a
    retriever that did would be measured by questions it chose.
    """
    filtered = []
    best = sorted(itertools.chain.from_iterable(values), reverse=True)
    least = min(least, best[(len(best) - 1) // 10]) if best else least
    for record, of in zip(records, values, strict=True):
        ranked = sorted(zip(of, record["contexts"], strict=True), key=lambda pair: -pair[0])
        kept = [context for value, context in ranked if value >= least]
        dropped["not specific"] += len(ranked) - len(kept)
        filtered.append({**record, "contexts": kept})
    return filtered


def found_again(
    records: Sequence[Record], index: Searchable, depth: int, dropped: Counter[str]
) -> list[dict[str, Any]]:
    """Round trip: queries for which the index ranks their own passage among the first `depth`."""
    texts = list(dict.fromkeys(c["text"] for r in records for c in r["contexts"]))
    run: dict[str, Ranking] = {}
    for start in range(0, len(texts), _TOGETHER):
        run |= index.run({text: text for text in texts[start : start + _TOGETHER]}, depth)
    filtered = []
    for record in records:
        kept = [c for c in record["contexts"] if record["_id"] in run[c["text"]].ids]
        dropped["not found again"] += len(record["contexts"]) - len(kept)
        filtered.append({**record, "contexts": kept})
    return filtered


def shown(artifact: Artifact) -> str:
    """Three passages and their contexts, as a preview."""
    records = Records(artifact)
    lines = []
    for place in range(min(3, len(records))):
        record = records[place * len(records) // 3]
        lines += [record["_id"], *(f"  {c['origin']}: {c['text']}" for c in record["contexts"])]
    return "\n".join(lines)
