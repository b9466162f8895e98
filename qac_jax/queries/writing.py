"""Records of an artefact of contexts, a shard at a time: generated, or imported, then filtered."""

from __future__ import annotations

import abc
import collections
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from qac_jax import progress
from qac_jax.errors import UserError
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.records import Records
from qac_jax.inference.generator import Generator, Request
from qac_jax.queries import filtering
from qac_jax.queries.contexts import belongs
from qac_jax.queries.filtering import Filter, Scorer
from qac_jax.queries.importing import read_contexts
from qac_jax.queries.prompts import Prompt
from qac_jax.retrieval.hits import Searchable
from qac_jax.retrieval.texts import passage_text
from qac_jax.text.titles import text_of


Record = dict[str, Any]
# Hears how many more requests are done, and how many tokens were said in them.
Report = Callable[[int, int], None]

_COMPLETE = "complete.json"
# Imported queries that wait in memory for being written to the files of their shards.
_WAITING = 100_000


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which passages are asked about, and which texts are kept."""

    part: str = "all"
    filter: Filter = Filter()
    index: Searchable | None = None
    judge: Scorer | None = None

    def takes(self, passage: Mapping[str, Any]) -> bool:
        return belongs(passage, self.part)


class Sources(abc.ABC):
    """What makes the texts of passages."""

    def __init__(self, passages: Records, selection: Selection):
        self.passages, self.selection = passages, selection

    @abc.abstractmethod
    def texts(
        self, passages: Sequence[Record], start: int, report: Report
    ) -> tuple[list[list[Record]], dict[str, int]]:
        """The contexts of each passage (the first is number `start`), and facts to sum up."""

    def shard(self, start: int, stop: int, report: Report) -> tuple[list[Record], Record]:
        """The records of passages start to stop - 1, and facts about them."""
        taken = [p for p in self.passages.range(start, stop) if self.selection.takes(p)]
        made, facts = self.texts(taken, start, report)
        dropped: collections.Counter[str] = collections.Counter()
        records: list[Record] = [
            {"_id": p["_id"], "contexts": self.selection.filter(contexts, p["text"], dropped)}
            for p, contexts in zip(taken, made, strict=True)
        ]
        if self.selection.index is not None:
            depth = self.selection.filter.round_trip
            records = filtering.found_again(records, self.selection.index, depth, dropped)
        if self.selection.judge is not None:
            texts = [passage_text(passage) for passage in taken]
            judge, least = self.selection.judge, self.selection.filter.min_probability
            records = filtering.scored_well(records, texts, judge, least, dropped)
        return records, {
            **facts,
            "texts": sum(map(len, made)),
            "kept": sum(len(record["contexts"]) for record in records),
            "dropped": dict(dropped),
        }


class Generation(Sources):
    """Texts that a T5 says under each of the prompts; those of a passage stand together."""

    def __init__(
        self,
        passages: Records,
        selection: Selection,
        generator: Generator,
        prompts: Mapping[str, Prompt],
        title: str,
    ):
        super().__init__(passages, selection)
        self._generator, self._prompts, self._title = generator, prompts, title

    def texts(
        self, passages: Sequence[Record], start: int, report: Report
    ) -> tuple[list[list[Record]], dict[str, int]]:
        tokens = 0

        def heard(requests: int, more: int) -> None:
            nonlocal tokens
            tokens += more
            report(requests, more)

        said = iter(self._generator.generate(list(self._requests(passages)), report=heard))
        found = [
            [
                {"text": text, "origin": origin, "score": score}
                for origin in self._prompts
                for text, score in next(said)
            ]
            for _ in passages
        ]
        return found, {"tokens": tokens}

    def _requests(self, passages: Sequence[Record]) -> Iterator[Request]:
        for passage in passages:
            text = text_of(self._generator.tokenizer, passage, self._title)
            for origin, prompt in self._prompts.items():
                yield Request(
                    name=f"{passage['_id']}\n{origin}",
                    text=text,
                    before=prompt.before,
                    after=prompt.after,
                    max_tokens=prompt.max_tokens,
                )


class Import(Sources):
    """Texts made elsewhere."""

    def __init__(self, passages: Records, selection: Selection, spool: Spool):
        super().__init__(passages, selection)
        self._spool = spool

    def texts(
        self, passages: Sequence[Record], start: int, report: Report
    ) -> tuple[list[list[Record]], dict[str, int]]:
        given = self._spool.shard(start)
        report(len(passages), 0)
        return [given.get(passage["_id"], []) for passage in passages], {}


class Spool:
    """Imported queries in the order of the passages: a file for each shard of the output.

    A file of queries may be in any order and larger than the memory.
    """

    def __init__(self, folder: os.PathLike[str], shard_passages: int):
        self._folder = os.fspath(folder)
        self._size = shard_passages
        self._waiting: dict[int, list[str]] = collections.defaultdict(list)

    def fill(self, path: str, passages: Records, origin: str, skip_bad: int) -> None:
        """Reads everything once; a spool that an interrupted run filled is used again."""
        done = os.path.join(self._folder, _COMPLETE)
        if os.path.exists(done):
            return
        os.makedirs(self._folder, exist_ok=True)
        for name in os.listdir(self._folder):
            os.unlink(os.path.join(self._folder, name))
        bad = BadLines(skip_bad)
        count = 0
        with progress.Bar("import", unit="lines") as bar:
            for line in read_contexts(path, bad, origin):
                (place,) = passages.positions([line.id])
                if place is None:
                    bad.add(f"passage {line.id!r} is not among the passages", line.place)
                    continue
                entry = json.dumps([line.id, line.contexts], ensure_ascii=False)
                self._waiting[place // self._size].append(entry)
                count += len(line.contexts)
                bar.advance()
                if bar.count % _WAITING == 0:
                    self._flush()
        self._flush()
        if not count:
            raise UserError(f"{path} holds no queries; check the file and its form")
        if bad.summary():
            progress.say(f"import: {bad.summary()}")
        with open(done, "w", encoding="utf-8") as file:
            json.dump({"queries": count}, file)

    def shard(self, start: int) -> dict[str, list[Record]]:
        """Passage id -> its contexts, of the shard that begins with passage number `start`."""
        found: dict[str, list[Record]] = collections.defaultdict(list)
        path = self._path(start // self._size)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                for line in file:
                    name, contexts = json.loads(line)
                    found[name] += contexts
        return found

    def _flush(self) -> None:
        for number, lines in self._waiting.items():
            with open(self._path(number), "a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
        self._waiting.clear()

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"import-{number:05d}.jsonl")


def summed(shards: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], str]:
    """What an artefact notes of all its shards, and a sentence about it."""
    total: collections.Counter[str] = collections.Counter()
    dropped: collections.Counter[str] = collections.Counter()
    for facts in shards:
        total.update({name: facts.get(name, 0) for name in ("texts", "tokens", "kept")})
        dropped.update(facts.get("dropped", {}))
    info: dict[str, Any] = {
        "texts": total["texts"],
        "kept": total["kept"],
        "dropped": dict(sorted(dropped.items())),
        "score": "mean log-likelihood of a token under the model, the end included",
    }
    if total["tokens"]:
        info["tokens"] = total["tokens"]
    left = ", ".join(f"{count:,} {reason}" for reason, count in sorted(dropped.items()))
    sentence = f"{total['kept']:,} of {total['texts']:,} texts kept"
    return info, sentence + (f" (left out: {left})" if left else "")
