"""Training, validation and test questions of a corpus that was split before they were made.

Judged questions of people are the test and the validation where a folder has them. Otherwise they
are generated about passages that were kept aside (`splitting`), a question a passage. They are
filtered by rules and by their generator, never by a system that they measure. A training question
with the text of a test or validation question is removed, and counted.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from qac_jax import progress
from qac_jax.data.judged import generated_id
from qac_jax.errors import UserError
from qac_jax.queries.collecting import GENERATED, TEST_SPLITS, Collector, JudgedQueries, Questions
from qac_jax.queries.filtering import plain
from qac_jax.queries.splitting import TEST, TRAIN, VALIDATION


if TYPE_CHECKING:
    from qac_jax.artifacts import Artifact
    from qac_jax.formats.records import Records


LOG = "query log without judgements"


@dataclasses.dataclass(frozen=True)
class QuestionSets:
    """Questions by their part, and how many were removed from each and why."""

    sets: dict[str, JudgedQueries]
    removed: dict[str, dict[str, int]]


def of_folder(
    collector: Collector,
    folder: str,
    training: Sequence[Records],
    validation: Records | None,
    test: Records | None,
    chosen: Questions,
) -> QuestionSets:
    """The questions of a folder in BEIR's layout, judged and generated ones."""
    log = unjudged(folder)
    judged = {} if log else collector.judged(folder)
    learned = judged.pop(TRAIN, None)
    asked = next((judged.pop(name) for name in TEST_SPLITS if name in judged), None)
    if asked is None and learned is not None:
        asked, learned = _divided(collector, learned)
    sets = {
        TEST: asked or _first_ones(test, TEST),
        VALIDATION: next(iter(judged.values()), None) or _first_ones(validation, VALIDATION),
        TRAIN: JudgedQueries({}, {}, ""),
    }
    if learned is not None:
        sets[TRAIN] += learned
    if training:
        sets[TRAIN] += _drawn(collector, generated(training, chosen.each), chosen.at_most)
    if log:
        progress.say(
            f"collect: {folder} has {len(log):,} queries without judgements; they are ranked by "
            "the teacher to train on, and measure nothing"
        )
        sets[TRAIN] += JudgedQueries(log, {name: {} for name in log}, LOG)
    removed = {
        VALIDATION: _without(sets, VALIDATION, (TEST,)),
        TRAIN: _without(sets, TRAIN, (TEST, VALIDATION)),
    }
    for name, questions in sets.items():
        if not questions.texts:
            raise UserError(
                f"there are no questions for {name}; add documents, judged queries, or another "
                "generator"
            )
    return QuestionSets(sets, removed)


def generated(contexts: Iterable[Records], each: int = 0) -> JudgedQueries:
    """Generated and extracted queries with their own passages as the relevant ones.

    `each`: at most N queries of each source for a passage (0: all). The same text of several
    passages, such as the title of their document, is one query.
    """
    found = JudgedQueries({}, {}, "")
    numbers: collections.Counter[str] = collections.Counter()
    origins: dict[str, None] = {}
    known: dict[str, str] = {}  # text -> id
    for records in contexts:
        for record in records:
            for context in record["contexts"][: each or None]:
                if not (words := plain(context["text"])):
                    continue
                name = known.setdefault(words, generated_id(record["_id"], numbers[record["_id"]]))
                numbers[record["_id"]] += 1
                origins[str(context.get("origin") or GENERATED)] = None
                found.texts.setdefault(name, context["text"])
                found.judged.setdefault(name, {})[record["_id"]] = 1
    return found._replace(origin=" and ".join(origins))


def _drawn(collector: Collector, questions: JudgedQueries, at_most: int) -> JudgedQueries:
    """At most N of them, by the hashes of their ids."""
    if not at_most or len(questions.texts) <= at_most:
        return questions
    chosen = frozenset(sorted(questions.texts, key=collector.place)[:at_most])
    return questions.only([name for name in questions.texts if name in chosen], questions.origin)


def unjudged(folder: str) -> dict[str, str]:
    """The queries of a folder that has queries and no judgements at all: a query log."""
    from qac_jax.formats.queries import read_queries
    from qac_jax.queries.collecting import judged_files

    files, queries = judged_files(folder)
    if files or not queries:
        return {}
    texts = {f"log:{query.id}": query.text for query in read_queries(queries)}
    return {name: text for name, text in texts.items() if plain(text)}


def made_by(artifact: Artifact) -> dict[str, Any]:
    """Who made the contexts of an artefact, how many, and which filters dropped how many."""
    fields, info = artifact.fields, artifact.info
    name = str(fields.get("generator") or fields.get("imported") or fields.get("method") or "")
    identity = artifact.record.get("inputs", {}).get("generator", "")
    facts: dict[str, Any] = {
        "verb": artifact.stage,
        "name": name.rstrip("/").rsplit("/", 1)[-1],
        "identity": identity[:12],
        "texts": info.get("texts", info.get("extracted")),
        "filtered": info.get("dropped") or {},
    }
    return {key: value for key, value in facts.items() if value not in (None, "")}


def _first_ones(contexts: Records | None, part: str) -> JudgedQueries:
    """The first generated question of each passage: the most specific, if they are sorted so."""
    if contexts is None:
        raise UserError(
            f"the folder has no judged questions for {part}; give generated ones, by "
            f"--{part}_contexts"
        )
    return generated([contexts], 1)


def _divided(collector: Collector, learned: JudgedQueries) -> tuple[JudgedQueries, JudgedQueries]:
    """Judged training queries as (test, training): a fixed share of them is for the test."""
    aside = [name for name in learned.judged if collector.is_kept(name)]
    rest = [name for name in learned.judged if not collector.is_kept(name)]
    if not aside or not rest:
        raise UserError(
            f"{len(learned.judged)} judged training queries are too few to test on some of them; "
            "add qrels/test.tsv, or remove qrels/"
        )
    share = f"{len(aside) / len(learned.judged):.0%}"
    return learned.only(aside, f"{share} of qrels/train.tsv"), learned.only(
        rest, "the rest of qrels/train.tsv"
    )


def _without(sets: dict[str, JudgedQueries], part: str, others: Iterable[str]) -> dict[str, int]:
    """Removes questions whose text other parts have too; how many, by the other part."""
    counts = {}
    for other in others:
        known = {plain(text) for text in sets[other].texts.values()}
        kept = [name for name, text in sets[part].texts.items() if plain(text) not in known]
        if lost := len(sets[part].texts) - len(kept):
            counts[f"the same text as a {other} question"] = lost
            sets[part] = sets[part].only(kept, sets[part].origin)
    return counts
