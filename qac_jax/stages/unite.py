"""`qac unite`: several judged collections → one, with part of its judgements withheld."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from typing import ClassVar

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import FILE, Inputs, Ref, Stage, input, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unite(Stage):
    """Merges collections into one corpus, whose ids begin with their folder's name, with judged,
    unjudged and test queries.

    The hash of a training query's id decides whether it is judged; the judgements of the unjudged
    ones are written apart, to evaluate pseudo-labels.
    """

    VERB: ClassVar[str] = "unite"
    KIND: ClassVar[str] = "questions"
    VERSION: ClassVar[int] = 2
    EXAMPLE: ClassVar[str] = "qac unite --collections data/squad,data/tales --out out/union"

    collections: Ref = input(
        "collections: folders in BEIR's layout", kinds=(FILE,), many=True, aliases=("folders",)
    )
    documents: str = option(
        "all",
        "all documents, or unseen: only those that no training query is judged on; their test "
        "queries are then split into judged and unjudged ones, and there is no test split",
        choices=("all", "unseen"),
    )
    judged: float = option(0.5, "share of the training queries that keep their judgements")
    train: int = option(0, "at most N training queries per collection (0: all)")
    test: int = option(0, "at most N test queries per collection (0: all)")

    def check(self) -> None:
        super().check()
        if not 0.0 < self.judged < 1.0:
            raise UserError(
                f"judged={self.judged} is not a share; expected more than 0 and less than 1"
            )

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.formats.judgements import (
            by_query,
            judgements_file,
            read_judgements,
            write_questions,
        )
        from qac_jax.formats.queries import read_queries
        from qac_jax.retrieval.corpus import read_passages

        folders = [os.fspath(folder) for folder in inputs.paths("collections")]
        names = [os.path.basename(os.path.normpath(folder)) for folder in folders]
        if len(set(names)) < len(names):
            raise UserError(
                f"two folders of {self.collections} have one name; ids need different ones"
            )
        unseen = self.documents == "unseen"
        kept = {folder: _only_tested(folder) for folder in folders} if unseen else {}
        with out.open("corpus.jsonl") as file:
            for name, folder in zip(names, folders, strict=True):
                for record in read_passages(folder, "beir"):
                    if unseen and record["_id"] not in kept[folder]:
                        continue
                    named = {**record, "_id": f"{name}/{record['_id']}"}
                    file.write(json.dumps(named, ensure_ascii=False) + "\n")
                    out.count += 1
        asked: dict[str, dict[str, str]] = {"judged": {}, "unjudged": {}, "test": {}}
        answered: dict[str, Mapping[str, int]] = {}
        for name, folder in zip(names, folders, strict=True):
            texts = {query.id: query.text for query in read_queries(folder)}
            splits = [("train", self.train), ("test", self.test)]
            for split, most in splits[1:] if unseen else splits:
                grades = by_query(read_judgements(judgements_file(folder, split)))
                if unseen:
                    grades = {q: of for q, of in grades.items() if kept[folder].issuperset(of)}
                chosen = sorted(grades, key=lambda q: self._place(f"drawn {q}"))[: most or None]
                for query in sorted(chosen):
                    known = self._place(query) < self.judged
                    part = (
                        split
                        if split == "test" and not unseen
                        else ("judged" if known else "unjudged")
                    )
                    asked[part][f"{name}/{query}"] = texts[query]
                    answered[f"{name}/{query}"] = {
                        f"{name}/{passage}": grade for passage, grade in grades[query].items()
                    }
        for part, texts in asked.items():
            write_questions(out, part, texts, answered)
        out.info["questions"] = {part: len(texts) for part, texts in asked.items()}
        progress.say(f"unite: {', '.join(f'{len(q):,} {part}' for part, q in asked.items())}")

    def summary(self, artifact: Artifact) -> str:
        return "\n".join(f"{n:<9} {c:>8,}" for n, c in artifact.info["questions"].items())

    def _place(self, query: str) -> float:
        """A number from 0 to 1, a hash of the query and the seed."""
        digest = hashlib.blake2b(f"{self.seed} {query}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2.0**64


def _only_tested(folder: str) -> frozenset[str]:
    """Passages of documents that are judged for test queries only."""
    from qac_jax.formats import documents
    from qac_jax.formats.judgements import judgements_file, read_judgements

    below = os.path.join(folder, "qrels")
    splits = [os.path.splitext(name)[0] for name in os.listdir(below)]
    asked = {s: {j.passage for j in read_judgements(judgements_file(folder, s))} for s in splits}
    if "test" not in asked:
        raise UserError(f"{folder} has no qrels/test.tsv; documents='unseen' needs test questions")
    others = set().union(*(passages for split, passages in asked.items() if split != "test"))
    kept: set[str] = set()
    for document in documents.read("beir", folder, skip_bad=None):
        names = {passage.id for passage in document.passages}
        if names & asked["test"] and not names & others:
            kept |= names
    return frozenset(kept)
