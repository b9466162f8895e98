"""A small generated corpus, and examples of every kind made of it by the real stage."""

import functools
import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers as hf

from qac_jax import artifacts
from qac_jax.data.examples import Examples, Rows
from qac_jax.formats import records
from qac_jax.pipeline.stage import execute
from qac_jax.stages.tokenize import Tokenize
from qac_jax.text import tokenizers


SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
KINDS: Mapping[str, Mapping[str, Any]] = {
    "passage_query": {"contexts": True},
    "passage_passage": {"siblings": 2},
    "mixed": {"contexts": True, "siblings": 2},
    "two_spans": {},
    "augtriever": {"contexts": True},
    "mlm": {},
    "seq2seq": {"contexts": True, "prefix": "ask: "},
    "triples": {"judged": True, "random_negatives": 9},
    "cross_encoder": {"judged": True, "random_negatives": 9},
    "cross_encoder_group": {"judged": True, "random_negatives": 5},
    "groups": {"groups": True},
}
# Settings that a kind cannot do without.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "augtriever": {"strategies": {"random_crop": 1.0, "anchor": 1.0, "topic": 1.0, "title": 1.0}},
    "triples": {"n_passages": 4},
    "cross_encoder_group": {"n_passages": 3},
    "groups": {"n_passages": 4, "n_queries": 3},
}


def words(rng: random.Random, count: int) -> str:
    stems = ("tide", "mill", "barley", "curve", "array", "shape", "index", "matrix", "storm")
    ends = ("", "s", "ing", "ed", "er", "less", "ness")
    return " ".join(rng.choice(stems) + rng.choice(ends) for _ in range(count))


def text(rng: random.Random, count: int) -> str:
    return " ".join(words(rng, rng.randint(3, 12)).capitalize() + "." for _ in range(count))


@functools.cache
def vocabulary(folder: Path) -> str:
    """A lower-cased WordPiece of a hundred pieces."""
    rng = random.Random(0)
    lines = [text(rng, 5).lower() for _ in range(300)]
    letters = sorted({letter for line in lines for letter in line} - {" "})
    backend = hf.Tokenizer(hf.models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
    # Numbered beforehand, so that every run gives the same pieces.
    first = [*SPECIALS, *letters, *(f"##{letter}" for letter in letters)]
    trainer = hf.trainers.WordPieceTrainer(
        vocab_size=100, min_frequency=2, special_tokens=first, show_progress=False
    )
    backend.train_from_iterator(lines, trainer)
    vocab = tokenizers.wordpiece(backend.get_vocab(with_added_tokens=False))
    roles = {token.strip("[]").lower(): token for token in SPECIALS}
    tokenizers.Tokenizer(vocab, roles, "toy").save(folder / "tokenizer")
    return str(folder / "tokenizer")


def passages(folder: Path, documents: int = 60) -> None:
    """Documents of one to nine passages, with titles and anchors."""
    rng = random.Random(1)
    found = []
    for document in range(documents):
        title = words(rng, 2)
        for position in range(rng.randint(1, 9)):
            body = text(rng, rng.randint(1, 9))
            anchors = [[w, w] for w in body.split()[: rng.randint(0, 4)]]
            record: dict[str, Any] = {
                "_id": f"d{document}#{position}",
                "doc": f"d{document}",
                "text": body,
            }
            record |= {"title": title if document % 3 else "", "anchors": anchors}
            found.append(record | {"position": position})
    written(folder / "passages", "passages", found)


def contexts(folder: Path) -> None:
    """None to four generated queries a passage, of two origins."""
    rng = random.Random(2)
    found = []
    for name in passages_of(folder).ids():
        given = [
            {"text": words(rng, rng.randint(1, 6)), "origin": rng.choice(("qgen", "topic"))}
            for _ in range(rng.randint(0, 4))
        ]
        found.append({"_id": name, "contexts": given})
    written(folder / "contexts", "contexts", found)


def of_strategies(folder: Path, names: Sequence[str]) -> artifacts.Artifact:
    """Examples of AugTriever whose passages have texts of these strategies."""
    rng = random.Random(6)
    found = [
        {"_id": passage, "contexts": [{"text": words(rng, 3), "origin": name} for name in names]}
        for passage in passages_of(folder).ids()
    ]
    given = written(folder / "of_strategies", "contexts", found)
    return tokenized(folder, "augtriever", "strategies", contexts=given)


def judgements(folder: Path) -> None:
    """Queries and one to three relevant passages of each."""
    rng = random.Random(3)
    names = list(passages_of(folder).ids())
    queries, qrels = [], ["query-id\tcorpus-id\tscore"]
    for number in range(len(names)):
        queries.append(json.dumps({"_id": f"q{number}", "text": words(rng, 4)}))
        for name in rng.sample(names, rng.randint(1, 3)):
            qrels.append(f"q{number}\t{name}\t1")
    (folder / "queries.jsonl").write_text("\n".join(queries) + "\n")
    (folder / "qrels.tsv").write_text("\n".join(qrels) + "\n")


def asked(folder: Path) -> dict[str, Any]:
    """The queries and judgements of the folder, as inputs of `tokenize`."""
    return {"queries": str(folder / "queries.jsonl"), "qrels": str(folder / "qrels.tsv")}


def groups(folder: Path) -> str:
    """Three to five passages, with two to four queries and scores of all pairs."""
    rng = random.Random(4)
    every = list(passages_of(folder))
    found = []
    for number in range(30):
        chosen = rng.sample(every, rng.randint(3, 5))
        queries = [words(rng, 3) for _ in range(rng.randint(2, 4))]
        of = [{"title": p["title"], "text": p["text"]} for p in chosen]
        scores, lexical = (
            [[round(rng.random(), 3) for _ in chosen] for _ in queries] for _ in range(2)
        )
        own = [rng.randrange(len(chosen)) for _ in queries]
        numbers = {"scores": scores, "lexical": lexical, "own": own}
        found.append({"_id": f"g{number}", "queries": queries, "passages": of, **numbers})
    return written(folder / "groups", "groups", found)


def tokenized(folder: Path, kind: str, name: str = "", **more: Any) -> artifacts.Artifact:
    """The examples of a kind, from the toy corpus in `folder` (made when it is not there)."""
    if not (folder / "passages").exists():
        passages(folder)
        contexts(folder)
        judgements(folder)
    wants = dict(KINDS[kind])
    fields: dict[str, Any] = {"passages": str(folder / "passages"), "task": kind}
    fields |= {"tokenizer": vocabulary(folder), "splitter": "shipped", "workers": 1, "shards": 2}
    if wants.pop("contexts", False):
        fields["contexts"] = str(folder / "contexts")
    if wants.pop("judged", False):
        fields |= asked(folder)
    if wants.pop("groups", False):
        del fields["passages"]
        fields["pairs"] = groups(folder)
    stage = Tokenize.make(**{**fields, **wants, **more})
    return execute(stage, folder / f"examples_{name or kind}")


def written(folder: Path, kind: str, found: Iterable[Mapping[str, Any]]) -> str:
    """An artefact of these records."""
    with artifacts.create(folder, kind=kind) as writer:
        records.write_records(writer, found, kind)
    return str(folder)


def passages_of(folder: Path) -> records.Records:
    return records.Records(artifacts.load(folder / "passages"))


def stored(path: Any) -> list[dict[str, Any]]:
    """Every record of examples, as lists."""
    source = Examples(path)
    return [
        {
            name: [part.tolist() for part in v] if isinstance(v, Rows) else v.tolist()
            for name, v in r.items()
        }
        for r in source.read(np.arange(source.count))
    ]


class MemoryExamples:
    """Records in memory that a loader reads as it does those of an artefact."""

    def __init__(
        self,
        records: Sequence[Mapping[str, Any]],
        info: Mapping[str, Any],
        documents: Sequence[int] | np.ndarray | None = None,
    ):
        self._records, self.info, self.count = list(records), info, len(records)
        self.documents = None if documents is None else np.asarray(documents)
        self.identity = hashlib.sha256(repr((self._records, dict(info))).encode()).hexdigest()

    def read(self, indices: np.ndarray) -> Sequence[Mapping[str, Any]]:
        return [self._records[i] for i in indices]
