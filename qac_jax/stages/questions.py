"""Steps that make training, validation and test questions, and keep them apart.

A folder in BEIR's layout may have judged queries for training, for testing, for both or for
neither; the stages after `collect` read the same files in all cases.
"""

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from qac_jax import fields, progress
from qac_jax.artifacts import Writer
from qac_jax.data.judged import generated_from
from qac_jax.errors import UserError
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.identities import id_hash
from qac_jax.formats.judgements import (
    by_query,
    judge_by_names,
    judge_by_places,
    judgements_file,
    read_asked,
    read_judgements,
    read_named,
    write_questions,
)
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records, write_records
from qac_jax.formats.registry import QUERIES
from qac_jax.pipeline.inputs import one_of, skip_bad_option
from qac_jax.pipeline.stage import FILE, Inputs, Plan, Plans, Ref, Stage, input, option, part
from qac_jax.queries import questions, splitting
from qac_jax.queries.questions import Collector, Questions, made_by
from qac_jax.queries.splitting import PARTS, TEST, TRAIN, VALIDATION, Splitting
from qac_jax.retrieval.corpus import read_passages
from qac_jax.retrieval.mining import plain


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collect(Stage):
    """Writes training and test queries with their judgements as files that every stage reads."""

    VERB = "collect"
    KIND = "questions"
    VERSION = 3
    GROUPS = (one_of("collection", "summaries"),)
    EXAMPLE = "qac step collect --collection data/mine --passages out/passages --out out/questions"

    collection: Ref = input("folder in BEIR's layout, judged or not", FILE, default="")
    passages: Ref = input("passages of the collection", "passages")
    contexts: Ref = input("queries of the passages", "contexts", default="", many=True)
    validation_contexts: Ref = input(
        "queries of passages kept for validation", "contexts", default=""
    )
    test_contexts: Ref = input("the same for the test", "contexts", default="")
    summaries: bool = option(False, "python_docs: docstrings' summaries are queries")
    chosen: Questions = part(Questions)

    def check(self) -> None:
        super().check()
        split = bool(self.validation_contexts)
        alone = self.summaries and (split or "," in self.contexts)
        if alone or not split and (self.test_contexts or self.contexts and not self.summaries):
            raise UserError(
                "--contexts and --test_contexts need --validation_contexts too; --summaries take "
                "one --contexts and nothing else"
            )

    def run(self, inputs: Inputs, out: Writer) -> None:
        folder, given = inputs.text("collection"), inputs.get("contexts", ())
        contexts = [Records(artifact) for artifact in given]
        collector = Collector(self.chosen, inputs.records("passages"), self.seed)
        removed: Mapping[str, Mapping[str, int]] = {}
        if self.validation_contexts:
            aside = {part: inputs.get_records(f"{part}_contexts") for part in (VALIDATION, TEST)}
            sets, removed = collector.of_split_corpus(folder, contexts, aside)
        elif self.summaries:
            sets = collector.of_docstrings(contexts[0] if contexts else None)
        else:
            sets = collector.of_folder(folder)
        for name, asked in sets.items():
            write_questions(out, name, asked.texts, asked.judged)
            out.info[name] = {"from": asked.origin, "queries": len(asked.texts)}
            if lost := removed.get(name):
                out.info[name]["removed"] = dict(lost)
            gone = "".join(f"; {count:,} removed: {why}" for why, count in (lost or {}).items())
            progress.say(f"collect: {len(asked.texts):,} {name} questions ({asked.origin}){gone}")
        if self.validation_contexts:
            made = {part: inputs.get(f"{part}_contexts") for part in (VALIDATION, TEST)}
            out.info["made_by"] = {TRAIN: [made_by(artifact) for artifact in given]} | {
                part: [made_by(artifact)] if artifact else []
                for part, artifact in made.items()
                if not sets[part].origin.endswith(".tsv")
            }
        out.count = sum(len(asked.texts) for asked in sets.values())


FILE_NAME = "queries.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample(Stage):
    """Draws queries from the union of several sources, such as PAIR's 1.8 million unlabelled ones,
    by the hashes of their texts. An id begins with the name of its file or folder. Small sources
    are taken whole, and of the others equally many: of the union at random nearly all would be of
    the largest."""

    VERB = "sample"
    KIND = "questions"
    VERSION = 2
    EXAMPLE = "qac step sample --queries orcas.tsv,squad.jsonl --count 1800000 --out out/unlabelled"

    queries: Ref = input("files or folders of queries", FILE, many=True)
    count: int = option(0, "number of queries to draw (0: all)", at_least=0)
    format: str = option("auto", "format of the files", choices=("auto", *QUERIES.names()))
    skip_bad: int = skip_bad_option()

    def run(self, inputs: Inputs, out: Writer) -> None:
        sources = dict(sorted(_by_name(inputs.paths("queries")).items()))
        bad = BadLines(self.skip_bad)
        read, known = 0, np.zeros(0, np.uint64)
        own: list[np.ndarray] = []  # of each source the hashes that no earlier one has, in order
        for name, path in sources.items():
            hashes = np.fromiter((h for h, _, _ in self._all({name: path}, bad)), np.uint64)
            own.append(np.setdiff1d(hashes, known))
            read, known = read + len(hashes), np.union1d(known, hashes)
        repeated = read - len(known)
        shares = even_shares([len(hashes) for hashes in own], self.count or len(known))
        some = (hashes[:share].tolist() for hashes, share in zip(own, shares, strict=True))
        chosen = set(itertools.chain.from_iterable(some))
        by_source = dict.fromkeys(sources, 0)
        with out.open(FILE_NAME) as file:
            for value, name, query in self._all(sources, BadLines(self.skip_bad)):
                if value in chosen:
                    chosen.remove(value)  # its text may come again
                    record = {"_id": f"{name}/{query.id}", "text": query.text}
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
                    by_source[name] += 1
                    out.count += 1
        bad.report(out, self.VERB)
        out.info.update(questions=by_source, read=read, repeated=repeated, skipped=len(bad))
        drawn = ", ".join(f"{count:,} of {name}" for name, count in by_source.items())
        progress.say(f"sample: {out.count:,} of {read:,} queries ({drawn})")

    def _all(self, sources: Mapping[str, str], bad: BadLines) -> Iterator[tuple[int, str, Any]]:
        """(hash of seed and text, name of the source, query) of every query."""
        for name, path in sources.items():
            for query in read_queries(path, self.format, bad=bad):
                yield id_hash(f"{self.seed} {plain(query.text)}"), name, query


def even_shares(sizes: Sequence[int], total: int) -> list[int]:
    """Shares of `total` as equal as the sizes allow."""
    shares, left = [0] * len(sizes), total
    for done, place in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[place] = min(sizes[place], left // (len(sizes) - done))
        left -= shares[place]
    return shares


def _by_name(paths: Sequence[epath.Path]) -> dict[str, str]:
    """Files or folders by their names, with which the ids in them will begin."""
    named = {os.path.basename(os.path.normpath(path)).split(".")[0]: str(path) for path in paths}
    if len(named) < len(paths):
        raise UserError("two of the files have one name, with which ids begin; rename one of them")
    return named


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split(Stage):
    """Keeps one part of the passages: the hash of a passage's document says which.

    A part whose questions people judged (qrels/ of --collection) is not kept aside: it is empty,
    and its passages are for training.
    """

    VERB = "split"
    KIND = "passages"
    EXAMPLE = "qac step split --passages out/passages --part test --out out/test"

    passages: Ref = input("passages to split", "passages")
    collection: Ref = input("folder with qrels/ of judged test or dev questions", FILE, default="")
    part: str = option("train", "the part to keep", choices=PARTS)
    settings: Splitting = fields.part(Splitting)

    def plan(self, inputs: Plans) -> Plan:
        count = inputs.get("passages", {}).get("count")
        aside = self.settings.target(count) if count else 0
        # Of two parts that are kept aside; where questions are judged, one of them is empty.
        kept = aside if self.part != "train" else (count or 0) - 2 * aside
        return {"part": self.part, "count": kept or None}

    def run(self, inputs: Inputs, out: Writer) -> None:
        judged = questions.judged_parts(inputs.text("collection"))
        aside = [name for name in (VALIDATION, TEST) if name not in judged]
        records = inputs.records("passages")
        parts, by = splitting.split(records, self.settings, aside=aside, seed=self.seed)
        write_records(out, (r for r, name in zip(records, parts, strict=True) if name == self.part))
        counts = {name: parts.count(name) for name in PARTS}
        out.info.update(part=self.part, by=by, counts=counts, judged=judged)
        why = "" if out.count else f"; its questions are {judged.get(self.part)}"
        progress.say(f"split: {out.count:,} of {len(records):,} passages, by {by}{why}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judge(Stage):
    """Writes SPLIT_queries.jsonl and SPLIT.tsv for every split of a file of questions.

    A passage answers a question if its title, or an alias of it, is one of the question's names.
    """

    VERB = "judge"
    KIND = "questions"
    EXAMPLE = "qac step judge --questions questions.jsonl --passages out/passages --out out/natural"

    questions: Ref = input('JSON lines {"_id", "text", "relevant": [names], "split"}', FILE)
    passages: Ref = input("passages whose titles or aliases are matched with the names", "passages")

    def run(self, inputs: Inputs, out: Writer) -> None:
        asked = read_named(inputs.text("questions"))
        judged = judge_by_names(asked, inputs.records("passages"))
        answered = [question for question in asked if judged[question.id]]
        if not answered:
            raise UserError(
                f"no passage of {self.passages} has a name that answers a question of "
                f"{self.questions}"
            )
        progress.say(f"judge: passages answer {len(answered):,} of {len(asked):,} questions")
        for split in sorted({question.split for question in answered}):
            texts = {question.id: question.text for question in answered if question.split == split}
            write_questions(out, split, texts, judged)
            out.info[split] = {"queries": len(texts)}
        out.info["left_out"] = len(asked) - len(answered)
        out.count = len(answered)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ask(Stage):
    """Questions of one's own and the passages that answer them, in BEIR's layout as a test.

    An answer is the id of a passage or document, or a file's path or name: then any passage of it
    answers. Of a folder in BEIR's layout its test questions are taken, and nothing else.
    """

    VERB = "ask"
    KIND = "questions"
    VERSION = 2
    EXAMPLE = "qac step ask --questions mine.tsv --passages out/passages --out out/asked"

    questions: Ref = input("two columns, question and answer, or JSON lines, or a folder", FILE)
    passages: Ref = input("passages among which the answers are", "passages")

    def run(self, inputs: Inputs, out: Writer) -> None:
        path = inputs.text("questions")
        if os.path.isdir(path):
            judged = by_query(read_judgements(judgements_file(path, TEST)))
            texts = {query.id: query.text for query in read_queries(path) if query.id in judged}
        else:
            records = inputs.records("passages")
            texts, judged = judge_by_places(read_asked(path), records, os.path.basename(path))
        write_questions(out, TEST, texts, judged, beir=True)
        out.count = len(texts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unite(Stage):
    """Merges collections into one corpus, whose ids begin with their folder's name, with judged,
    unjudged and test queries; judgements of the unjudged ones serve to evaluate pseudo-labels."""

    VERB = "unite"
    KIND = "questions"
    VERSION = 2
    EXAMPLE = "qac step unite --collections data/squad,data/tales --out out/union"

    collections: Ref = input("collections: folders in BEIR's layout", FILE, many=True)
    judged: float = option(0.5, "share of training queries that stay judged", above=0, below=1)
    train: int = option(0, "at most N training queries per collection (0: all)", at_least=0)
    test: int = option(0, "at most N test queries per collection (0: all)", at_least=0)

    def run(self, inputs: Inputs, out: Writer) -> None:
        folders = _by_name(inputs.paths("collections"))
        with out.open("corpus.jsonl") as file:
            for name, folder in folders.items():
                for record in read_passages(folder, "beir"):
                    named = {**record, "_id": f"{name}/{record['_id']}"}
                    file.write(json.dumps(named, ensure_ascii=False) + "\n")
                    out.count += 1
        asked: dict[str, dict[str, str]] = {"judged": {}, "unjudged": {}, "test": {}}
        answered: dict[str, Mapping[str, int]] = {}
        for name, folder in folders.items():
            texts = {query.id: query.text for query in read_queries(folder)}
            for split, most in (("train", self.train), ("test", self.test)):
                judgements = read_judgements(judgements_file(folder, split), queries=texts)
                grades = by_query(judgements)
                chosen = sorted(grades, key=lambda q: self._place(f"drawn {q}"))[: most or None]
                for query in sorted(chosen):
                    part = "judged" if self._place(query) < self.judged else "unjudged"
                    part = "test" if split == "test" else part
                    asked[part][f"{name}/{query}"] = texts[query]
                    of = {f"{name}/{passage}": grade for passage, grade in grades[query].items()}
                    answered[f"{name}/{query}"] = of
        for part, texts in asked.items():
            write_questions(out, part, texts, answered)
        out.info["questions"] = {part: len(texts) for part, texts in asked.items()}
        progress.say(f"unite: {', '.join(f'{len(q):,} {part}' for part, q in asked.items())}")

    def _place(self, query: str) -> float:
        """A number from 0 to 1, a hash of the query and the seed."""
        digest = hashlib.blake2b(f"{self.seed} {query}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2.0**64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaks(Stage):
    """Compares everything that trains a model or expands an index with the questions kept aside."""

    VERB = "leaks"
    KIND = "leaks"
    EXAMPLE = "qac step leaks --questions out/questions --training out/groups --out out/leaks"

    questions: Ref = input("questions of qac step collect", "questions")
    aside: Ref = input("passages kept aside", "passages", default="", many=True)
    training: Ref = input("training data", "contexts", "negatives", "groups", many=True)

    def run(self, inputs: Inputs, out: Writer) -> None:
        questions = inputs.artifact("questions")
        asked = {
            f"{part} {query.id}": query.text
            for part in (TEST, VALIDATION)
            if part in questions.info
            for query in read_queries(questions.file(f"{part}_queries.jsonl"))
        }
        aside = {name for artifact in inputs.get("aside", ()) for name in Records(artifact).ids()}
        counts = splitting.check_leaks(self._used(inputs), asked, aside)
        out.write_json("leaks.json", {"leaks": 0, **counts})
        out.info.update(counts)
        out.count = counts["texts"]
        progress.say(
            f"leaks: none of {counts['texts']:,} texts is one of {counts['questions']:,} questions "
            f"or was made of one of {counts['passages']:,} passages kept aside"
        )

    def _used(self, inputs: Inputs) -> Iterator[tuple[str, str, str]]:
        for query in read_queries(inputs.artifact("questions").file("train_queries.jsonl")):
            yield query.text, generated_from(query.id), "training"
        for artifact in inputs["training"]:
            for text, passage in splitting.texts_of(artifact.kind, Records(artifact)):
                yield text, passage, artifact.path.name
