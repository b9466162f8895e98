"""Tiny encoders and a tiny collection, for the tests of retrieval."""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hf_encoders import random_variables

from qac_jax import artifacts
from qac_jax.hub import huggingface
from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval import corpus
from qac_jax.retrieval.vectors import Vectors, shard_name
from qac_jax.stages import embed, index, prepare
from qac_jax.text import tokenizers


WORDS = (
    "river stone lamp winter garden copper violin harbour meadow signal ladder orchard thunder "
    "pepper canvas marble falcon whisper anchor lantern"
).split()


def save_encoder(folder: Path, *, tied: bool = True, **changes: Any) -> Path:
    """A sentence-transformers folder with random weights and the shipped vocabulary."""
    tokenizer = tokenizers.ASSETS / tokenizers.SHIPPED
    bert = BertConfig(tokenizers.load().vocab_size, 32, 2, 2, 48, 64)
    settings = {"pooling": "mean", "normalize": True, "tied": tied, **changes}
    module = DualEncoder(DualEncoderConfig(bert, **settings))
    return huggingface.save(folder, module, _drawn(module), tokenizer=tokenizer, max_length=48)


@functools.cache
def _drawn(module: DualEncoder) -> Any:
    shapes = (jnp.zeros((1, 4), jnp.int32), jnp.full(1, 4, jnp.int32))
    variables = jax.jit(module.init)(jax.random.key(0), *shapes)
    # Far from zero, or all vectors would be nearly the same.
    return jax.tree.map(lambda x: x * 12 if x.ndim > 1 else x, variables)


def save_cross_encoder(folder: Path, labels: int = 1, positions: int = 64) -> Path:
    """A Hugging Face folder with telling random weights and the shipped vocabulary."""
    bert = BertConfig(tokenizers.load().vocab_size, 16, 1, 2, 32, positions, pooler=True)
    module = CrossEncoder(bert, labels=labels)
    tokenizer = tokenizers.ASSETS / tokenizers.SHIPPED
    return huggingface.save(folder, module, random_variables(module), tokenizer=tokenizer)


def sentence(rng: np.random.Generator, words: int) -> str:
    return " ".join(rng.choice(WORDS, words)).capitalize() + "."


def write_collection(
    folder: Path, passages: int = 40, queries: int = 12, *, train: int = 0
) -> Path:
    """BEIR's layout; each query repeats some words of its passage. The first may be to train."""
    rng = np.random.default_rng(0)
    (folder / "qrels").mkdir(parents=True)
    corpus, questions, judgements = [], [], []
    for number in range(passages):
        text = sentence(rng, int(rng.integers(3, 60)))
        corpus.append({"_id": f"p{number}", "title": f"About {WORDS[number % 20]}", "text": text})
    for number in range(queries):
        passage = corpus[int(rng.integers(passages))]
        words = rng.permutation(passage["text"].split())[:4]
        questions.append({"_id": f"q{number}", "text": " ".join(words)})
        judgements.append(f"q{number}\t{passage['_id']}\t1")
    for name, records in (("corpus", corpus), ("queries", questions)):
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(text)
    for split, lines in (("train", judgements[:train]), ("test", judgements[train:])):
        if split == "test" or train:
            text = "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
            (folder / "qrels" / f"{split}.tsv").write_text(text)
    return folder


def collected(folder: Path, passages: int = 24, queries: int = 12) -> Path:
    """A collection (data), its passages as they are, and their BM25."""
    data, texts = str(write_collection(folder / "data", passages, queries)), folder / "passages"
    execute(prepare.Prepare.make(documents=data, format="beir", cut="none", workers=1), texts)
    execute(index.Bm25(passages=str(texts)), folder / "bm25")
    return folder


def indexed(folder: Path) -> Path:
    """A collection (toys) with an encoder, its passages, vectors and both indexes."""
    data, encoder = write_collection(folder / "toys"), str(save_encoder(folder / "encoder"))
    passages = str(folder / "passages")
    execute(prepare.Prepare.make(documents=str(data), format="beir"), folder / "passages")
    execute(embed.Embed(encoder=encoder, passages=passages), folder / "vectors")
    execute(index.Index(vectors=str(folder / "vectors")), folder / "index")
    execute(index.Bm25(passages=passages), folder / "bm25")
    return folder


def save_vectors(folder: Path, vectors: np.ndarray, shards: int = 3) -> Vectors:
    """Files of vectors that are no artefact."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, part in enumerate(np.array_split(vectors, shards)):
        paths.append(str(folder / shard_name(number, shards)))
        np.save(paths[-1], part)
    return Vectors(paths)


def write_vectors(folder: Path, array: np.ndarray, shards: int = 2, first: int = 0) -> Path:
    """An artefact of vectors without texts; its rows are called r0, r1, … from `first` on."""
    with artifacts.create(folder, kind="vectors") as out:
        for number, part in enumerate(np.array_split(array, shards)):
            out.write_array(shard_name(number, shards), part)
        out.count = corpus.write_ids(out, (f"r{first + row}" for row in range(len(array))))
        gone = {"path": str(folder / "texts"), "relative": "texts", "identity": ""}
        encoder = {"path": str(folder / "encoder"), "settings": {}}
        out.info.update(side="passage", texts=gone, encoder=encoder, dimension=array.shape[1])
    return folder


def brute_force(queries: np.ndarray, vectors: np.ndarray, k: int) -> tuple[Any, np.ndarray]:
    """Scores and rows by sorting everything; the earlier row first where scores are equal."""
    scores = queries.astype(np.float32) @ vectors.astype(np.float32).T
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, rows, 1), rows


def clustered(
    rng: np.random.Generator, rows: int, width: int, centres: np.ndarray | None = None
) -> np.ndarray:
    """Vectors of length 1 in clusters, as those of texts are."""
    if centres is None:
        centres = rng.normal(size=(max(rows // 50, 1), width))
    found = centres[rng.integers(0, len(centres), rows)] + 0.7 * rng.normal(size=(rows, width))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)
