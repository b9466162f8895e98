"""`qac step pairs`: collections with judged queries → texts that train a query generator."""

import dataclasses
import os
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.formats import documents
from qac_jax.formats.judgements import read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import write_records
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs(Stage):
    """Writes passages and the queries that they answer, as input and target texts.

    A record is {"_id", "before", "text", "after", "targets"}: where the whole is too long for the
    model only the text is truncated, so a prompt before or after it is never lost.
    """

    VERB = "pairs"
    KIND = "pairs"
    VERSION = 2
    EXAMPLE = "qac step pairs --collections data/squad,data/tales --out out/pairs"

    collections: Ref = input("folders in BEIR's layout", FILE, many=True)
    part: str = option(
        "train", "documents of training, or of dev and test", choices=("train", "held_out")
    )
    prefix: str = option("text2query: ", "text before every input of a query generator")
    title: str = option("none", "title before the text", choices=("none", "space"))
    at_most: int = option(0, "at most N drawn pairs of each collection (0: all)", at_least=0)

    def run(self, inputs: Inputs, out: Writer) -> None:
        counts: dict[str, int] = {}
        records: list[dict[str, Any]] = []
        for folder in map(os.fspath, inputs.paths("collections")):
            name = os.path.basename(os.path.normpath(folder))
            found = list(self._pairs(folder, name))
            if 0 < self.at_most < len(found):
                found = random.Random(f"{self.seed} {name}").sample(found, self.at_most)
            counts[name] = len(found)
            records += found
        if not records:
            raise UserError(
                f"{self.collections} gave no pairs for the part {self.part}; check the folders"
            )
        random.Random(f"{self.seed} pairs").shuffle(records)
        write_records(out, records, "pairs")
        out.info["from"] = counts
        progress.say("pairs: " + ", ".join(f"{count} of {name}" for name, count in counts.items()))

    def _pairs(self, folder: str, name: str) -> Iterator[dict[str, Any]]:
        """Of the documents with a dev or test question (held_out), or of all others (train)."""
        held_out = self.part == "held_out"
        unseen = _judged_queries(folder, ("dev", "test"))
        asked = _judged_queries(folder, ("test",) if held_out else ("train",))
        for document in documents.read("beir", folder):
            if any(p.id in unseen for p in document.passages) != held_out:
                continue
            for passage in document.passages:
                if passage.id in asked:
                    title = (passage.title or "").strip() if self.title == "space" else ""
                    yield {
                        "_id": f"{name}/{passage.id}",
                        "before": self.prefix,
                        "text": f"{title} {passage.text}" if title else passage.text,
                        "after": "",
                        "targets": asked[passage.id],
                    }


def _judged_queries(folder: str, splits: Sequence[str]) -> dict[str, list[str]]:
    """passage -> its questions in those of these splits that the folder has."""
    texts = {query.id: query.text for query in read_queries(os.path.join(folder, "queries.jsonl"))}
    questions_of: dict[str, list[str]] = defaultdict(list)
    for file in (os.path.join(folder, "qrels", f"{split}.tsv") for split in splits):
        for query, passage, grade in (
            read_judgements(file, queries=texts) if os.path.exists(file) else ()
        ):
            if grade > 0:
                questions_of[passage].append(texts[query])
    return questions_of
