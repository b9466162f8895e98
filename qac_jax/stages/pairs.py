"""`qac step pairs`: collections or passages → texts that train a query generator."""

import dataclasses
import os
import random
from collections.abc import Iterator, Mapping
from typing import Any

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.formats import documents
from qac_jax.formats.records import write_records
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, option
from qac_jax.queries import generator_pairs
from qac_jax.queries.generator_pairs import check_prompts
from qac_jax.queries.prompts import PROMPTS
from qac_jax.text import sentences
from qac_jax.text.spans import SPLITTERS


Passages = list[Mapping[str, Any]]

# Splits of a collection whose documents are excluded from training.
_HELD_OUT = ("dev", "test")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs(Stage):
    """Writes input and target texts: judged queries for a query generator, or label-free ones."""

    VERB = "pairs"
    KIND = "pairs"
    VERSION = 2
    EXAMPLE = "qac step pairs --collections data/squad,data/tales --out out/pairs"

    passages: Ref = input("passages with titles, summaries (python_docs)", "passages", default="")
    collections: Ref = input("folders in BEIR's layout", FILE, default="", many=True)
    targets: str = option(
        "questions",
        "judged queries of a text, or its label-free targets (title, topic, summaries)",
        choices=("questions", "label_free"),
    )
    part: str = option(
        "train", "documents of training, or of dev and test", choices=("train", "held_out")
    )
    splits: tuple[str, ...] = option((), "splits of the queries (default: train; held_out: test)")
    prefix: str = option("text2query: ", "text before every input of a query generator")
    prompts: Mapping[str, Any] | None = option(None, "the four prompts, instead of AugTriever's")
    splitter: str = option(
        "auto", "sentence splitter, or a file of its parameters", shown=SPLITTERS
    )
    title: str = option("none", "questions: title before the text", choices=("none", "space"))
    at_most: int = option(0, "at most N drawn pairs of each source (0: all)", at_least=0)

    def environment(self) -> dict[str, str]:
        """What the result depends on beside settings and inputs."""
        free = self.targets != "questions"
        return {"splitter": sentences.load(self.splitter).name} if free else {}

    def run(self, inputs: Inputs, out: Writer) -> None:
        counts: dict[str, int] = {}
        records = list(self._records(inputs, counts))
        if not records:
            raise UserError(
                f"{self.collections or self.passages} gave no pairs with {self.targets} for the "
                f"part {self.part}; check the folders"
            )
        random.Random(f"{self.seed} pairs").shuffle(records)
        write_records(out, records, "pairs")
        out.info["from"] = counts
        progress.say("pairs: " + ", ".join(f"{count} of {name}" for name, count in counts.items()))

    def check(self) -> None:
        super().check()
        if not (self.passages or self.collections):
            raise UserError("pairs needs --collections, --passages, or both; give one")
        if self.prompts is not None:
            check_prompts(self.prompts)

    def _records(self, inputs: Inputs, counts: dict[str, int]) -> Iterator[dict[str, Any]]:
        titled, splitter = self.title == "space", sentences.load(self.splitter)
        for name, passages, asked in self._parts(inputs):
            if self.targets == "questions":
                made = generator_pairs.questions(passages, asked, self.prefix, titled=titled)
            else:
                made = generator_pairs.label_free(passages, splitter, self.prompts or PROMPTS)
            records = list(made)
            if self.at_most and len(records) > self.at_most:
                records = random.Random(f"{self.seed} {name}").sample(records, self.at_most)
            counts[name] = len(records)
            for record in records:
                record["_id"] = f"{name}/{record['_id']}"
                yield record

    def _parts(self, inputs: Inputs) -> Iterator[tuple[str, Passages, dict[str, list[str]]]]:
        """Every source: its name, its passages of the part, and their questions."""
        held_out = self.part == "held_out"
        if "passages" in inputs:
            every = inputs.records("passages")
            yield "passages", [p for p in every if bool(p.get("held_out")) == held_out], {}
        splits = tuple(self.splits) or (("test",) if held_out else ("train",))
        for folder in map(os.fspath, inputs.paths("collections")):
            there = _splits(folder)
            unseen = generator_pairs.judged_queries(folder, [s for s in _HELD_OUT if s in there])
            asked = generator_pairs.judged_queries(folder, [s for s in splits if s in there])
            seen, theirs = generator_pairs.documents_apart(_read(folder), unseen)
            yield os.path.basename(os.path.normpath(folder)), theirs if held_out else seen, asked


def _splits(folder: str) -> list[str]:
    below = os.path.join(folder, "qrels")
    if not os.path.isdir(below):
        raise UserError(f"{folder} has no folder qrels; expected a collection in BEIR's layout")
    return [os.path.splitext(name)[0] for name in os.listdir(below)]


def _read(folder: str) -> Passages:
    return [
        {"_id": p.id, "doc": document.id, "title": p.title, "text": p.text}
        for document in documents.read("beir", folder, skip_bad=None)
        for p in document.passages
    ]
