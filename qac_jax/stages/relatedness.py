"""`qac evaluate --pairs` and `--votes`: how related contexts are to their passages."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qac_jax import progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import Inputs, Stage, artifact_input, option, source


if TYPE_CHECKING:
    from qac_jax.evaluation.relatedness import ContextPair
    from qac_jax.evaluation.votes import Item


PLOT, SHEET, KEY = "relatedness.svg", "sheet.csv", "key.csv"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relatedness(Stage):
    """The fields and the work of `evaluate` that are about pairs of passages and contexts."""

    pairs: str = artifact_input(
        "contexts (with --passages) or examples: how related they are to their passages",
        kind=("contexts", "examples"),
        default="",
    )
    cross_encoder: str = source("--pairs are scored by this cross-encoder too", "")
    at_most: int = option(1000, "passages of --pairs, drawn at random")
    sheet: str = option("", "a blind sheet for human judges is written to this CSV file")
    sheet_of: str = option(
        "pairs",
        "what is judged: the pairs, pseudo-labels (--labels), or titles (--passages)",
        choices=("pairs", "labels", "titles"),
    )
    sheet_items: int = option(200, "of each sort on the sheet")
    labels: str = artifact_input("pseudo-labels for the sheet", kind="negatives", default="")
    votes: str = source("filled sheets, one a judge, joined by commas", "")
    key: str = source("what the sheet's numbers are: key.csv of the folder of --sheet", "")

    @property
    def about_pairs(self) -> bool:
        """Whether this is what was asked for."""
        return bool(self.pairs or self.votes or self.sheet or self.labels)

    def plan_pairs(self) -> dict[str, Any]:
        self.check_pairs()
        if self.votes:
            return {"judges": len(self.votes.split(","))}
        return {"passages, at most": self.at_most, "sheet": self.sheet or None}

    def check_pairs(self) -> None:
        """Refuses what does not go together."""
        if self.votes:
            if not self.key:
                raise UserError(
                    "--votes needs to know what was judged; pass --key with key.csv of the folder "
                    "that the sheet was made in"
                )
            return
        needed = {"pairs": "pairs", "labels": "labels", "titles": "passages"}[self.sheet_of]
        if self.sheet and not getattr(self, needed):
            raise UserError(
                f"a sheet of {self.sheet_of} is made of --{needed}; give that, or another "
                "--sheet_of"
            )
        if self.at_most < 1 or self.sheet_items < 1:
            raise UserError(
                f"at_most={self.at_most} and sheet_items={self.sheet_items}; expected 1 or more"
            )
        if not self.pairs and not self.sheet:
            raise UserError("there is nothing to do with --labels alone; pass --sheet FILE")

    def run_pairs(self, inputs: Inputs, out: Writer) -> None:
        """Figures, plot and sheet of pairs, or the result of votes."""
        self.check_pairs()
        if self.votes:
            self._count_votes(out)
            return
        pairs: list[ContextPair] = []
        text: Callable[[int], str] = str
        if "pairs" in inputs:
            pairs, text, texts = self._pairs(inputs)
            self._measure(pairs, text, texts, out)
        if self.sheet:
            self._write_sheet(self._items(inputs, pairs, text), out)
        if not pairs:
            self._record(out, [], {})

    def summary_of_pairs(self, artifact: Artifact) -> str:
        """The table on the screen."""
        from qac_jax.evaluation import results
        from qac_jax.evaluation.significance import Comparison
        from qac_jax.report import tables

        if not artifact.info["mean"]:
            return ""
        found, facts = results.read(artifact)
        parts = [tables.figures({r.name: r.mean for r in found}, "context")]
        if facts.get("comparisons"):
            parts.append(tables.comparisons([Comparison(**c) for c in facts["comparisons"]]))
        if "kappa" in facts:
            parts.append(f"judges {facts['judges']}, Fleiss' kappa {facts['kappa']:.3f}")
        if PLOT in artifact.files:
            parts.append(f"plot: {artifact.file(PLOT)}")
        return "\n\n".join(parts)

    def _pairs(
        self, inputs: Inputs
    ) -> tuple[list[ContextPair], Callable[[int], str], Callable[[], Iterator[str]]]:
        """(pairs, a passage's text by its row, all texts)."""
        from qac_jax.evaluation import relatedness
        from qac_jax.formats.records import Records

        given = inputs["pairs"]
        assert isinstance(given, Artifact)
        if given.kind == "contexts":
            passages = inputs.get("passages")
            if not isinstance(passages, Artifact):
                raise UserError("--pairs of contexts needs --passages, which they are about")
            records = Records(passages)
            found = relatedness.from_contexts(records, Records(given), self.at_most, self.seed)
            return list(found), lambda row: records[row]["text"], lambda: _texts(records)
        texts, decoded = _decoded(given)
        found = relatedness.from_examples(texts, decoded, self.at_most, self.seed)
        return list(found), lambda row: texts[row], lambda: iter(texts)

    def _measure(
        self,
        pairs: Sequence[ContextPair],
        text: Callable[[int], str],
        texts: Callable[[], Iterator[str]],
        out: Writer,
    ) -> None:
        from qac_jax.evaluation import relatedness, significance
        from qac_jax.report import analyses

        places = relatedness.lexical(texts(), pairs) if pairs else []
        cosine: Any = ()
        odds: Any = ()
        encoder = getattr(self, "model", "") or getattr(self, "encoder", "")
        if encoder and pairs:
            from qac_jax.inference.encoder import Encoder

            cosine = relatedness.cosines(Encoder.load(encoder).encode, pairs, text)
        if self.cross_encoder and pairs:
            from qac_jax.inference.reranker import Reranker, probability

            reranker = Reranker.load(self.cross_encoder)
            scores = reranker.score([p.context for p in pairs], [text(p.passage) for p in pairs])
            odds = probability(scores)
        copies = [relatedness.copied(pair.context, text(pair.passage)) for pair in pairs]
        found = relatedness.measured(pairs, places, cosine, odds, copies)
        compared = [
            dataclasses.asdict(comparison)
            for measure in found[0].mean
            for comparison in significance.compare(
                {result.name: result.values(measure) for result in found}, measure, seed=self.seed
            )
        ]
        shares = relatedness.groups(pairs, places)
        with out.open(PLOT) as file:
            file.write(analyses.relatedness_svg(shares))
        self._record(out, found, {"comparisons": compared, "places": shares})

    def _items(
        self, inputs: Inputs, pairs: Sequence[ContextPair], text: Callable[[int], str]
    ) -> list[Item]:
        """What judges are asked about: so many of each sort."""
        from qac_jax.evaluation.votes import Item
        from qac_jax.formats.records import Records

        items: Iterator[Item]
        if self.sheet_of == "pairs":
            items = (Item(text(p.passage), p.context, p.sort, p.name) for p in pairs)
        elif self.sheet_of == "labels":
            items = _labelled(Records(_artifact(inputs, "labels")), inputs, self.seed)
        else:
            items = _titled(Records(_artifact(inputs, "passages")), self.seed)
        taken: dict[str, int] = {}
        kept = []
        for item in items:
            taken[item.sort] = taken.get(item.sort, 0) + 1
            if taken[item.sort] <= self.sheet_items:
                kept.append(item)
            elif min(taken.values()) > self.sheet_items:
                break
        if not kept:
            raise UserError(f"there are no {self.sheet_of} to put on a sheet; check the inputs")
        return kept

    def _write_sheet(self, items: Sequence[Item], out: Writer) -> None:
        from qac_jax.evaluation import votes

        sheet, key = io.StringIO(newline=""), io.StringIO(newline="")
        votes.write(sheet, key, items, self.seed)
        for name, content in ((SHEET, sheet), (KEY, key)):
            with out.open(name) as file:
                file.write(content.getvalue())
        with open(self.sheet, "w", newline="", encoding="utf-8") as file:
            file.write(sheet.getvalue())
        progress.say(f"{len(items)} items to judge: {self.sheet}; what they are: {out.path / KEY}")

    def _count_votes(self, out: Writer) -> None:
        from qac_jax.evaluation import votes
        from qac_jax.evaluation.results import Result

        key = votes.read_key(self.key)
        judges = [votes.read_votes(path.strip(), key) for path in self.votes.split(",")]
        found = [
            Result(
                sort,
                {"highly related": rate},
                {
                    str(number): {"highly related": sum(j[number] for j in judges) / len(judges)}
                    for number, of in key.items()
                    if of == sort
                },
                sum(of == sort for of in key.values()),
            )
            for sort, rate in votes.rates(key, judges).items()
        ]
        self._record(out, found, {"judges": len(judges), "kappa": votes.fleiss_kappa(judges)})

    def _record(self, out: Writer, found: Sequence[Any], facts: Mapping[str, Any]) -> None:
        from qac_jax.evaluation import results

        with out.open(results.FILE) as file:
            if found:
                results.write(file, found, facts)
            else:  # a sheet alone
                json.dump({"names": [], "mean": {}, "per_query": {}, **facts}, file)
        out.count = sum(result.queries for result in found)
        out.info["mean"] = {result.name: result.mean for result in found}


def _texts(records: Any) -> Iterator[str]:
    return (record["text"] for record in records)


def _artifact(inputs: Inputs, name: str) -> Artifact:
    found = inputs[name]
    assert isinstance(found, Artifact)
    return found


def _decoded(artifact: Artifact) -> tuple[list[str], list[dict[str, list[str]]]]:
    """The texts of token examples: every passage, and its contexts by feature."""
    import numpy as np

    from qac_jax.data.examples import Examples
    from qac_jax.data.kinds.mixed import CONTEXTS
    from qac_jax.text import tokenizers

    examples = Examples(artifact)
    features = [name for name in CONTEXTS.values() if name in examples.info["schema"]]
    if "passage" not in examples.info["schema"] or not features:
        raise UserError(
            f"{artifact.path} holds no pairs (its task is {examples.info['task']!r}); give "
            "examples of passage_query, passage_passage or mixed, or contexts"
        )
    decode = tokenizers.load(os.fspath(artifact.path / "tokenizer")).backend.decode_batch
    texts: list[str] = []
    found: list[dict[str, list[str]]] = []
    for first in range(0, examples.count, 1024):
        for record in examples.read(np.arange(first, min(first + 1024, examples.count))):
            texts += decode([list(map(int, record["passage"]))])
            of = {n: decode([list(map(int, ids)) for ids in record[n]]) for n in features}
            found.append(of)
    return texts, found


def _labelled(records: Any, inputs: Inputs, seed: int) -> Iterator[Item]:
    """Queries with a passage that is said to answer them, or said not to."""
    import random

    from qac_jax.evaluation.votes import Item
    from qac_jax.formats.records import Records

    passages = Records(_artifact(inputs, "passages")) if "passages" in inputs else None
    if passages is None:
        raise UserError("a sheet of labels shows passages; pass --passages")
    rng = random.Random(seed)
    order = list(range(len(records)))
    rng.shuffle(order)
    for number in order:
        record = records[number]
        if not record.get("query"):
            raise UserError("these labels hold no texts of queries; give those of qac label")
        for sort in ("positives", "negatives"):
            names = record.get(sort) or []
            if not names:
                continue
            (place,) = passages.positions([rng.choice(names)])
            if place is not None:
                yield Item(record["query"], passages[place]["text"], sort, record["_id"])


def _titled(records: Any, seed: int) -> Iterator[Item]:
    """Titles with a passage of theirs, and with one of another document."""
    import random

    from qac_jax.evaluation.votes import Item

    rng = random.Random(seed)
    order = list(range(len(records)))
    rng.shuffle(order)
    for number in order:
        record, other = records[number], records[rng.randrange(len(records))]
        if record.get("title"):
            yield Item(record["title"], record["text"], "own title", record["_id"])
            if other["doc"] != record["doc"]:
                yield Item(record["title"], other["text"], "title of another", record["_id"])
