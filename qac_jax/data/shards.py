"""Making and writing examples: texts into token ids, records, and ArrayRecord files.

Sibling passages are drawn once, when they are stored (as in CoT-MAE's released code); all other
random choices are made in training.

The folder is a TFDS dataset (`tfds.builder_from_directory(folder).as_data_source("train")`), but
TFDS's own writer cannot resume an interrupted run and shuffles by hashes of keys; so the shards
are files of our artefact, one job each. Two runs give the same bytes.
"""

import itertools
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from etils import epath

from qac_jax.artifacts import arrays
from qac_jax.data.examples import LENGTHS, PREFIX, example_class
from qac_jax.data.judged import Judged
from qac_jax.data.kind import Building, DocumentKind, JudgedKind, Record, Stored
from qac_jax.errors import UserError
from qac_jax.formats.records import Records
from qac_jax.text import spans, tokenizers
from qac_jax.text.sentences import load as load_splitter
from qac_jax.text.tokenizers import text_of


FILES = ("dataset_info.json", "features.json")


def schema_of(vocab_size: int, stored: Stored) -> dict[str, str]:
    """Stored features and their dtypes; a list has a second feature, the lengths of its texts."""
    tokens = "uint16" if vocab_size <= 1 << 16 else "int32"
    schema = dict.fromkeys((*stored.texts, *stored.lists), tokens)
    schema |= dict.fromkeys([name + LENGTHS for name in stored.lists], "int32")
    return dict(sorted({**schema, **stored.others}.items()))


def shard_name(number: int, count: int) -> str:
    return f"{PREFIX}-{number:05d}-of-{count:05d}"


def write_shard(
    path: epath.PathLike, schema: Mapping[str, str], records: Iterable[Mapping[str, Any]]
) -> int:
    """Writes records of arrays, and lists of arrays or of ids, to a file; returns their number."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer, count = ArrayRecordWriter(os.fspath(path), "group_size:1"), 0
    for record in records:
        example = example_class()()
        for name, array in flat(record, schema).items():
            example.features.feature[name].bytes_list.value.append(array.tobytes())
        writer.write(example.SerializeToString(deterministic=True))
        count += 1
    writer.close()
    return count


def flat(record: Mapping[str, Any], schema: Mapping[str, str]) -> dict[str, np.ndarray]:
    """A list of texts as one array and their lengths (TFDS cannot read nested lists back)."""
    arrays: dict[str, np.ndarray] = {}
    for name, dtype in schema.items():
        if name + LENGTHS in schema:
            parts = record[name]
            arrays[name + LENGTHS] = np.fromiter(map(len, parts), np.int32, len(parts))
            together = np.concatenate(parts) if len(parts) else np.empty(0)
            arrays[name] = together.astype(dtype)
        elif name not in arrays:
            arrays[name] = np.asarray(record[name], dtype).reshape(-1)
    return arrays


def describe(folder: epath.PathLike, schema: Mapping[str, str], shards: Sequence[int]) -> None:
    """Writes TFDS's description (FILES) beside the finished shards."""
    folder = epath.Path(folder)
    files = [folder / shard_name(number, len(shards)) for number in range(len(shards))]
    split: dict[str, Any] = {
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "name": "train",
        "numBytes": str(sum(os.stat(file).st_size for file in files)),
        "shardLengths": [str(records) for records in shards],
    }
    info: dict[str, Any] = {"description": "Tokenised examples", "fileFormat": "array_record"}
    info |= {"name": "examples", "splits": [split], "version": "1.0.0"}
    # A record: raw bytes of one-dimensional arrays.
    classes, form = "tensorflow_datasets.core.features.", {"dimensions": ["-1"]}
    tensors = {}
    for name, dtype in sorted(schema.items()):
        tensor: dict[str, Any] = {"dtype": dtype, "encoding": "bytes", "shape": form}
        tensors[name] = {"pythonClassName": f"{classes}tensor_feature.Tensor", "tensor": tensor}
    kind = f"{classes}features_dict.FeaturesDict"
    features = {"featuresDict": {"features": tensors}, "pythonClassName": kind}
    (folder / FILES[0]).write_text(json.dumps(info, indent=2))
    (folder / FILES[1]).write_text(json.dumps(features, indent=4))


Ids = Sequence[int]

# Queries (with their passages), and passages or pairs, that are tokenised in one call.
_QUERIES, _TOGETHER = 64, 512


@dataclass(frozen=True)
class DocumentContexts:
    passages: Sequence[Record]
    contexts: Sequence[Sequence[Record]]


class _Encoder:
    """A tokeniser with the settings of a stage; counts what is left out."""

    def __init__(self, building: Building):
        self.building = building
        self.tokenizer = tokenizers.load(building.tokenizer)
        self.left_out: dict[str, int] = {}

    def has(self, ids: Sequence[Any], otherwise: str) -> bool:
        """Whether `ids` is not empty; if it is, it is counted as left out."""
        if not ids:
            self.left_out[otherwise] = self.left_out.get(otherwise, 0) + 1
        return bool(ids)


class DocumentTexts(_Encoder):
    """The ids of documents' passages, contexts and siblings."""

    def passages(self, documents: Sequence[DocumentContexts]) -> list[list[Ids]]:
        prefix, title = self.building.texts.prefix, self.building.texts.title
        every = (p for d in documents for p in d.passages)
        texts = [prefix + text_of(self.tokenizer, p, title) for p in every]
        stream = iter(self.tokenizer.encode_batch(texts))
        return [[next(stream) for _ in d.passages] for d in documents]

    def contexts(self, documents: Sequence[DocumentContexts]) -> list[list[list[Ids]]]:
        origins = self.building.selection.origins
        return self.lists(
            [
                [[c["text"] for c in of if not origins or c["origin"] in origins] for of in every]
                for every in (document.contexts for document in documents)
            ]
        )

    def lists(self, texts: Sequence[Sequence[Sequence[str]]]) -> list[list[list[Ids]]]:
        """Ids of the texts of every passage of every document, empty ones left out."""
        stream = iter(self.tokenizer.encode_batch(_flat(_flat(texts))))
        return [[[ids for ids in (next(stream) for _ in of) if ids] for of in d] for d in texts]

    def sentences(self, documents: Sequence[DocumentContexts]) -> list[list[list[str]]]:
        """The sentences of the passages of each document, for kinds of one's own too."""
        splitter = load_splitter(self.building.siblings.splitter)
        return [[splitter.split(p["text"]) for p in d.passages] for d in documents]

    def siblings(
        self, documents: Sequence[DocumentContexts], bodies: Sequence[Sequence[Ids]]
    ) -> list[list[dict[str, list[Ids]]]]:
        """Other passages of the document for each passage, of every sort; none for a single one."""
        sorts, each = self.building.siblings.sorts, self.building.siblings.siblings
        draws = {"random": spans.random_sampled, "nearby": spans.nearby}
        overlaps = self._overlaps(documents) if "overlap" in sorts else None
        siblings = []
        for d, (document, body) in enumerate(zip(documents, bodies, strict=True)):
            of_passages = []
            for number, passage in enumerate(document.passages):
                rng = random.Random(f"{self.building.seed} {passage['_id']}")
                others: dict[str, list[Ids]] = {}
                for sort in (sort for sort in draws if sort in sorts):
                    drawn = {draws[sort](len(body), number, rng): None for _ in range(each)}
                    others[sort] = [body[i] for i in drawn if i != number and body[i]]
                if overlaps is not None:
                    others["overlap"] = overlaps[d][number]
                of_passages.append(others)
            siblings.append(of_passages)
        return siblings

    def _overlaps(self, documents: Sequence[DocumentContexts]) -> list[list[list[Ids]]]:
        """Texts that overlap each passage in whole sentences (CoT-MAE's `overlap`)."""
        chosen = self.building.siblings
        split = self.sentences(documents)
        counts = iter(self.tokenizer.count(_flat(_flat(split))))
        texts = []
        for document, parts in zip(documents, split, strict=True):
            together = _flat(parts)
            sizes = [next(counts) for _ in together]
            numbers = iter(range(len(together)))
            groups = [[next(numbers) for _ in part] for part in parts]
            of_passages = []
            for number, passage in enumerate(document.passages):
                rng = random.Random(f"{self.building.seed} {passage['_id']} overlap")
                drawn = (
                    spans.overlap(groups, number, sizes, chosen.overlap_tokens, rng)
                    for _ in range(chosen.siblings if groups[number] else 0)
                )
                different = dict.fromkeys(" ".join(together[i] for i in of) for of in drawn)
                of_passages.append(list(different))
            texts.append(of_passages)
        return self.lists(texts)


class JudgedTexts(_Encoder):
    """The ids of queries and their passages; a passage that repeats is tokenised once."""

    def __init__(self, building: Building, passages: Records | None):
        super().__init__(building)
        self._passages = passages
        self._known: dict[Any, np.ndarray] = {}

    def queries(
        self, queries: Sequence[Judged], change: Callable[[Judged], Judged] = lambda judged: judged
    ) -> Iterator[tuple[Judged, Ids]]:
        """The queries (after `change`) with their ids."""
        prompt = self.building.texts.query_prompt
        for start in range(0, len(queries), _QUERIES):
            together = [change(judged) for judged in queries[start : start + _QUERIES]]
            self._learn(p for judged in together for p in judged.positives)
            self._learn(p for judged in together for p in judged.negatives)
            encoded = self.tokenizer.encode_batch([prompt + j.query for j in together])
            for judged, ids in zip(together, encoded, strict=True):
                if self.has(ids, "queries without tokens"):
                    yield judged, ids

    def ids(self, passages: Sequence[Any] | np.ndarray) -> list[np.ndarray]:
        return [self._known[passage] for passage in passages]

    def _learn(self, passages: Iterable[Any]) -> None:
        names = [passage for passage in dict.fromkeys(passages) if passage not in self._known]
        prompt, title = self.building.texts.passage_prompt, self.building.texts.title
        texts = [prompt + text_of(self.tokenizer, self._record(p), title) for p in names]
        for passage, ids in zip(names, self.tokenizer.encode_batch(texts), strict=True):
            self._known[passage] = np.array(ids, np.int32)

    def _record(self, passage: Any) -> Record:
        if not isinstance(passage, np.integer):
            return {"title": passage.title, "text": passage.text}
        assert self._passages is not None, "numbers of passages come with the passages"
        return self._passages[int(passage)]


def _flat(nested: Iterable[Iterable[Any]]) -> list[Any]:
    """The list with one level of nesting removed."""
    return list(itertools.chain.from_iterable(nested))


@dataclass(frozen=True, kw_only=True)
class Job:
    """Writes one file of records: of passages or pairs `start` to `stop`, or of judged queries.

    The documents of a job are those that begin in its passages. `places`: a .npy file with the
    position of each passage's contexts (-1: it has none); "": the same as the passages'. `sizes`:
    where the number of examples of each document goes.
    """

    kind: Any  # a Kind
    building: Building
    schema: Mapping[str, str]
    passages: Records | None = None
    pairs: Records | None = None
    queries: Sequence[Judged] = ()
    start: int = 0
    stop: int = 0
    contexts: Records | None = None
    places: str = ""
    sizes: str = ""

    @property
    def of_documents(self) -> bool:
        return isinstance(self.kind, DocumentKind) and self.pairs is None


def jobs(count: int, files: int, **settings: Any) -> list[Job]:
    """Jobs of this many passages, pairs or queries, divided into `files` (0: by their number)."""
    queries = settings.pop("queries", ())
    if not files:  # enough for eight cores, and files of some 50 MB for large corpora
        records = count * 8 if queries else count
        files = max(1, min(8, records // 500), -(-records // 100_000))
    if files >= 100_000:  # five digits in their names
        raise UserError(f"shards = {files} is too many; give at most 99,999 (0: as needed)")
    edges = [count * number // files for number in range(files + 1)]
    return [
        Job(start=start, stop=stop, queries=queries[start:stop], **settings)
        for start, stop in itertools.pairwise(edges)
    ]


def write(job: Job, path: str) -> dict[str, Any]:
    texts: DocumentTexts | JudgedTexts
    if isinstance(job.kind, JudgedKind):
        texts = JudgedTexts(job.building, job.passages)
        records = job.kind.records(texts, job.queries)
    else:
        texts = DocumentTexts(job.building)
        records = _of_documents(job, texts) if job.of_documents else _of_pairs(job, texts)
    count = write_shard(path, job.schema, records)
    return {"records": count, "left_out": texts.left_out}


def _of_documents(job: Job, texts: DocumentTexts) -> Iterator[Record]:
    sizes = []
    for together in _grouped(job):
        for records in job.kind.records(texts, together):
            yield from records
            if records:
                sizes.append(len(records))
    arrays.save(job.sizes, np.array(sizes, np.int64))


def _of_pairs(job: Job, texts: DocumentTexts) -> Iterator[Record]:
    assert job.pairs is not None
    for start in range(job.start, job.stop, _TOGETHER):
        pairs = job.pairs.range(start, min(start + _TOGETHER, job.stop))
        yield from job.kind.of_pairs(texts, list(pairs))


def places(passages: Records, contexts: Records) -> np.ndarray | None:
    """The position of each passage's contexts (-1: none); None if they are in the same order."""
    if len(passages) == len(contexts):
        if all(a == b for a, b in zip(passages.ids(), contexts.ids(), strict=True)):
            return None
    return np.array([-1 if p is None else p for p in contexts.positions(passages.ids())], np.int64)


def _grouped(job: Job) -> Iterator[list[DocumentContexts]]:
    """Groups of documents, with enough passages for one efficient tokenisation call."""
    places = np.load(job.places, mmap_mode="r") if job.places else None
    part, contexts = job.building.selection.part, job.contexts

    def contexts_of(numbers: range) -> list[Sequence[Record]]:
        if contexts is None:
            return [()] * len(numbers)
        if places is None:
            return [r["contexts"] for r in contexts.range(numbers.start, numbers.stop)]
        found = places[numbers.start : numbers.stop].tolist()
        return [contexts[place]["contexts"] if place >= 0 else () for place in found]

    group: list[DocumentContexts] = []
    assert job.passages is not None
    for first, passages in documents(job.passages, job.start, job.stop):
        both = zip(passages, contexts_of(range(first, first + len(passages))), strict=True)
        taken = [
            (passage, of)
            for passage, of in both
            if part == "all" or bool(passage.get("held_out")) == (part == "held_out")
        ]
        if taken:
            group.append(DocumentContexts(*map(list, zip(*taken, strict=True))))
        if sum(len(document.passages) for document in group) >= _TOGETHER:
            yield group
            group = []
    if group:
        yield group


def documents(passages: Records, start: int, stop: int) -> Iterator[tuple[int, list[Record]]]:
    """(number of the first passage, all passages) of each document that begins in the range."""
    before = passages[start - 1]["doc"] if start else None
    stream = passages.range(start, len(passages))
    for document, group in itertools.groupby(stream, lambda passage: passage["doc"]):
        if start >= stop:
            return
        of_document: list[Record] = list(group)
        if document != before:  # which belongs to the shard before
            yield start, of_document
        before, start = None, start + len(of_document)
