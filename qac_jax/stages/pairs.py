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
from qac_jax.text import sentences


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
    prefix: str = option("text2query: ", "text before every input of a query generator")
    title: str = option("none", "questions: title before the text", choices=("none", "space"))
    at_most: int = option(0, "at most N drawn pairs of each source (0: all)", at_least=0)

    def environment(self) -> dict[str, str]:
        """Further dependencies of the result, beside settings and inputs."""
        return {"splitter": sentences.load().name} if self.targets == "label_free" else {}

    def check(self) -> None:
        super().check()
        if not (self.passages or self.collections):
            raise UserError("pairs needs --collections, --passages, or both; give one")

    def run(self, inputs: Inputs, out: Writer) -> None:
        counts: dict[str, int] = {}
        records: list[dict[str, Any]] = []
        for name, passages, asked in self._parts(inputs):
            if self.targets == "questions":
                titled = self.title == "space"
                made = generator_pairs.questions(passages, asked, self.prefix, titled=titled)
            else:
                made = generator_pairs.label_free(passages, sentences.load())
            found = list(made)
            if 0 < self.at_most < len(found):
                found = random.Random(f"{self.seed} {name}").sample(found, self.at_most)
            counts[name] = len(found)
            records += [{**record, "_id": f"{name}/{record['_id']}"} for record in found]
        if not records:
            raise UserError(
                f"{self.collections or self.passages} gave no pairs with {self.targets} for the "
                f"part {self.part}; check the folders"
            )
        random.Random(f"{self.seed} pairs").shuffle(records)
        write_records(out, records, "pairs")
        out.info["from"] = counts
        progress.say("pairs: " + ", ".join(f"{count} of {name}" for name, count in counts.items()))

    def _parts(self, inputs: Inputs) -> Iterator[tuple[str, Passages, dict[str, list[str]]]]:
        """Every source: its name, its passages of the part, and their questions."""
        held_out = self.part == "held_out"
        if "passages" in inputs:
            every = inputs.records("passages")
            yield "passages", [p for p in every if bool(p.get("held_out")) == held_out], {}
        for folder in map(os.fspath, inputs.paths("collections")):
            unseen = generator_pairs.judged_queries(folder, _HELD_OUT)
            asked = generator_pairs.judged_queries(folder, ["test" if held_out else "train"])
            passages: Passages = [
                {"_id": p.id, "doc": document.id, "title": p.title, "text": p.text}
                for document in documents.read("beir", folder)
                for p in document.passages
            ]
            theirs = {p["doc"] for p in passages if p["_id"] in unseen}
            ours = [p for p in passages if (p["doc"] in theirs) == held_out]
            yield os.path.basename(os.path.normpath(folder)), ours, asked
