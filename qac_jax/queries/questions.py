"""The questions that a retriever is trained on, chosen by and tested on.

A folder in BEIR's layout has judged queries for training and testing, or for training alone: then
a fixed share of them is for tests.

Where the corpus was split before anything was generated (`splitting`), judged questions of people
are the test and the validation if there are any; otherwise questions are generated about passages
that were kept aside, one a passage. They are filtered by rules and by their generator, never by a
system that they measure. A training question with the text of a test or validation question is
removed, and counted.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from qac_jax import progress
from qac_jax.artifacts import Artifact
from qac_jax.data.judged import generated_id
from qac_jax.errors import UserError
from qac_jax.fields import Checked, option
from qac_jax.formats.files import find
from qac_jax.formats.identities import IdSet
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.queries.filtering import plain
from qac_jax.queries.splitting import TEST, TRAIN, VALIDATION


TEST_SPLITS = ("test", "dev", "validation")
GENERATED, LOG = "generated", "query log without judgements"


class JudgedQueries(NamedTuple):
    """Questions and their judgements: query id -> text, query id -> passage id -> grade."""

    texts: dict[str, str]
    judged: dict[str, dict[str, int]]
    origin: str

    def only(self, names: Sequence[str], origin: str) -> JudgedQueries:
        texts = {name: self.texts[name] for name in names}
        return JudgedQueries(texts, {name: self.judged[name] for name in names}, origin)

    def __add__(self, other: JudgedQueries) -> JudgedQueries:  # type: ignore[override]
        origin = " and ".join(filter(None, (self.origin, other.origin)))
        return JudgedQueries(self.texts | other.texts, self.judged | other.judged, origin)


@dataclasses.dataclass(frozen=True)
class Questions(Checked):
    """Which queries are for training and which for tests."""

    train: str = option(
        "auto",
        "training queries: judged (of a folder), or none (of docstrings: tests alone)",
        choices=("auto", "judged", "none"),
    )
    each: int = option(1, "generated training queries per passage", at_least=1)
    at_most: int = option(
        0, "with --validation_contexts: at most N generated training queries (0: all)", at_least=0
    )
    held_out: float = option(
        0.1,
        "share held out for tests (of passages, or judged queries) if there is no split",
        above=0,
        below=1,
    )


@dataclasses.dataclass(frozen=True)
class Collector:
    chosen: Questions
    passages: Records
    seed: int

    def of_docstrings(self, contexts: Records | None) -> dict[str, JudgedQueries]:
        """Training: summary lines and generated queries of modules that are not held out. Test:
        summary lines of the held-out modules (known-item search)."""
        train, test = (JudgedQueries({}, {}, "summary lines") for _ in range(2))
        held: set[str] = set()
        named: dict[tuple[str, str], str] = {}  # all passages of one docstring answer it
        for passage in self.passages:
            if passage.get("held_out"):
                held.add(passage["_id"])
            split = test if passage.get("held_out") else train
            text = " ".join(passage.get("summary", "").split()).rstrip(".")
            if text and (split is test or self.chosen.train != "none"):
                place = passage["doc"], passage["title"]
                name = named.setdefault(place, f"summary:{passage['_id']}")
                split.texts[name] = text
                split.judged.setdefault(name, {})[passage["_id"]] = 1
        if not (test.texts or train.texts):
            raise UserError("no passage has a summary line; give passages of --format python_docs")
        if contexts is not None and self.chosen.train != "none":
            made = JudgedQueries({}, {}, GENERATED)
            for record in contexts:
                texts = record["contexts"][: self.chosen.each]
                for number, context in enumerate(() if record["_id"] in held else texts):
                    name = generated_id(record["_id"], number)
                    made.texts[name], made.judged[name] = context["text"], {record["_id"]: 1}
            train = train + made
        return {TRAIN: train, TEST: test}

    def of_folder(self, folder: str) -> dict[str, JudgedQueries]:
        learned, tested, _ = self._parts(folder)
        if learned is None or tested is None:
            split = TRAIN if learned is None else TEST
            raise UserError(
                f"{folder} has no judged {split} queries (queries.jsonl and qrels/{split}.tsv); "
                "add them, or give generated ones by --contexts and --validation_contexts"
            )
        return {TRAIN: learned, TEST: tested}

    def of_split_corpus(
        self, folder: str, training: Sequence[Records], aside: Mapping[str, Records | None]
    ) -> tuple[dict[str, JudgedQueries], dict[str, dict[str, int]]]:
        """(questions by their part, how many were removed from each and why) where the corpus was
        split before anything was generated; `aside` are the contexts of test and validation."""
        log = unjudged(folder)
        learned, *others = (None, None, None) if log else self._parts(folder)
        sets = {}
        for part, known in zip((TEST, VALIDATION), others, strict=True):
            contexts = aside[part]
            # The first of each passage is the most specific, if they are sorted so.
            sets[part] = known or generated([contexts] if contexts else [], 1)
        sets[TRAIN] = learned or JudgedQueries({}, {}, "")
        if training:
            made, most = generated(training, self.chosen.each), self.chosen.at_most
            if most and len(made.texts) > most:
                kept = frozenset(sorted(made.texts, key=self._place)[:most])
                made = made.only([name for name in made.texts if name in kept], made.origin)
            sets[TRAIN] += made
        if log:
            progress.say(f"collect: {len(log):,} queries without judgements are only trained on")
            sets[TRAIN] += JudgedQueries(log, {name: {} for name in log}, LOG)
        removed = {
            VALIDATION: _without(sets, VALIDATION, (TEST,)),
            TRAIN: _without(sets, TRAIN, (TEST, VALIDATION)),
        }
        for name, questions in sets.items():
            if not questions.texts:
                raise UserError(f"there are no questions for {name}; add documents or queries")
        return sets, removed

    def _parts(self, folder: str) -> tuple[JudgedQueries | None, ...]:
        """Judged queries for training, for the test, and of another split.

        Where only training queries are judged, a fixed share of them is for the test.
        """
        judged = self._judged(folder)
        learned = judged.pop(TRAIN, None)
        tested = next((judged.pop(name) for name in TEST_SPLITS if name in judged), None)
        if tested is None and learned is not None:
            most = self.chosen.held_out * 2**32
            aside = [name for name in learned.judged if self._place(name) < most]
            rest = [name for name in learned.judged if self._place(name) >= most]
            if not aside or not rest:
                raise UserError(
                    f"{len(learned.judged)} judged training queries are too few to test on some of "
                    "them; add qrels/test.tsv, or remove qrels/"
                )
            share = len(aside) / len(learned.judged)
            tested = learned.only(aside, f"{share:.0%} of qrels/train.tsv")
            learned = learned.only(rest, "the rest of qrels/train.tsv")
        return learned, tested, next(iter(judged.values()), None)

    def _judged(self, folder: str) -> dict[str, JudgedQueries]:
        """The judged queries of every split; those without a passage in the corpus are left out."""
        files, queries = judged_files(folder)
        if bool(files) != bool(queries):
            there, absent = ("qrels/", "queries.jsonl") if files else ("queries.jsonl", "qrels/")
            progress.say(f"collect: {folder} has {there} but no {absent}, so it is not used")
        if not files or not queries:
            return {}
        texts = {query.id: query.text for query in read_queries(queries)}
        known = IdSet(self.passages.ids())
        splits = {}
        for split, file in files.items():
            grades = by_query(read_judgements(file))
            usable = {
                name: of
                for name, of in grades.items()
                if name in texts and any(g > 0 and p in known for p, g in of.items())
            }
            if not usable:
                raise UserError(
                    f"no query of {file} has a text in {queries} and a passage in the corpus; "
                    "check that their ids are the same"
                )
            if len(usable) < len(grades):
                lost = f"{len(grades) - len(usable):,} of {len(grades):,} queries of {file}"
                progress.say(f"collect: {lost} have no text or no passage and are left out")
            if split == TRAIN:  # only passages of the corpus can be trained on
                for name, of in usable.items():
                    usable[name] = {p: grade for p, grade in of.items() if p in known}
            origin = f"qrels/{split}.tsv"
            splits[split] = JudgedQueries({n: texts[n] for n in usable}, usable, origin)
        return splits

    def _place(self, name: str) -> int:
        """A number below 2^32, a hash of the seed and this id."""
        digest = hashlib.blake2b(f"{self.seed} {name}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little")


def judged_files(folder: str) -> tuple[dict[str, str], str | None]:
    """The files of judgements in a folder by their split, and its queries.jsonl."""
    files = {
        split: file
        for split in (TRAIN, *TEST_SPLITS)
        if (file := find(os.path.join(folder, "qrels"), f"{split}.tsv"))
    }
    return files, find(folder, "queries.jsonl")


def judged_parts(folder: str) -> dict[str, str]:
    """Which questions of a folder are judged: "test" and "validation" -> their file."""
    files, queries = judged_files(folder) if folder else ({}, None)
    if not files or not queries:
        return {}
    tests = [split for split in TEST_SPLITS if split in files]
    parts = {TEST: f"qrels/{tests[0] if tests else TRAIN}.tsv"}
    if validation := [split for split in tests[1:] if split != TEST]:
        parts[VALIDATION] = f"qrels/{validation[0]}.tsv"
    return parts


def generated(contexts: Iterable[Records], each: int) -> JudgedQueries:
    """Generated and extracted queries with their own passages as the relevant ones.

    `each`: at most N queries of each source for a passage. The same text of several passages, such
    as the title of their document, is one query.
    """
    found = JudgedQueries({}, {}, "")
    numbers: collections.Counter[str] = collections.Counter()
    origins: dict[str, None] = {}
    known: dict[str, str] = {}  # text -> id
    for records in contexts:
        for record in records:
            for context in record["contexts"][:each]:
                if not (words := plain(context["text"])):
                    continue
                name = known.setdefault(words, generated_id(record["_id"], numbers[record["_id"]]))
                numbers[record["_id"]] += 1
                origins[str(context.get("origin") or GENERATED)] = None
                found.texts.setdefault(name, context["text"])
                found.judged.setdefault(name, {})[record["_id"]] = 1
    return found._replace(origin=" and ".join(origins))


def unjudged(folder: str) -> dict[str, str]:
    """The queries of a folder that has queries and no judgements at all: a query log."""
    files, queries = judged_files(folder)
    if files or not queries:
        return {}
    return {f"log:{query.id}": query.text for query in read_queries(queries) if plain(query.text)}


def made_by(artifact: Artifact) -> dict[str, Any]:
    """Who made the contexts of an artefact, how many, and how many were left out and why."""
    fields, info = artifact.fields, artifact.info
    name = str(fields.get("generator") or fields.get("imported") or fields.get("method") or "")
    facts: dict[str, Any] = {
        "verb": artifact.stage,
        "name": name.rstrip("/").rsplit("/", 1)[-1],
        "identity": artifact.record.get("inputs", {}).get("generator", "")[:12],
        "texts": info.get("texts", info.get("extracted")),
        "filtered": info.get("dropped") or {},
    }
    return {key: value for key, value in facts.items() if value not in (None, "")}


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
