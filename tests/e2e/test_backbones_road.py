"""Every encoder from a folder to a retriever and a cross-encoder, with its own tokenizer.

Retrievers are used as they were trained, without a flag.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_configs
import toy_retrieval as toy
import toy_tokenizers
from hf_encoders import random_variables

from qac_jax import artifacts
from qac_jax.exporting.export import Export
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.hub import huggingface
from qac_jax.inference.encoder import Encoder
from qac_jax.inference.reranker import Reranker
from qac_jax.inference.settings import RerankerOptions
from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives.cross_encoder import Pointwise
from qac_jax.objectives.finetune import Finetune
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval.vectors import Vectors
from qac_jax.stages.embed import Embed
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train
from qac_jax.text import tokenizers


pytestmark = pytest.mark.slow
CONFIGS = toy_configs.every(48, num_layers=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.collected(tmp_path_factory.mktemp("backbones"))


def model_folder(name: str, path: Path) -> Path:
    module = CONFIGS[name].build(Runtime())
    tokenizer = toy_tokenizers.of(name, path / "tokenizer")
    return huggingface.save(path / "start", module, random_variables(module), tokenizer=tokenizer)


def examples(data: Path, out: Path, task: str, **settings: Any) -> str:
    given = {"queries": data / "data" / "queries.jsonl", "passages": data / "passages"}
    given |= {"qrels": data / "data" / "qrels" / "test.tsv"}
    places = {name: str(place) for name, place in given.items()}
    stage = Tokenize.make(task=task, random_negatives=2, workers=1, **places, **settings)
    return str(execute(stage, out / task).path)


def trained(path: Path, objective: Any, made: str, **settings: Any) -> Path:
    stage = Train.make(
        objective=objective, examples=made, steps=2, batch_size=8, learning_rate=1e-3, **settings
    )
    return Path(str(execute(stage, path).path))


TRIPLES = {"kind": "triples", "settings": {"n_passages": 2}}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_retriever(name: str, data: Path, tmp_path: Path) -> None:
    folder = model_folder(name, tmp_path)
    dual = DualEncoder(DualEncoderConfig(CONFIGS[name], pooling="mean"), Runtime())
    retriever = trained(
        tmp_path / "retriever",
        Finetune(dual),
        examples(data, tmp_path, "triples", tokenizer=str(folder)),
        init=str(folder),
        **TRIPLES,
        lengths={"query": 12, "passages": 24},
    )
    vectors = execute(
        Embed(encoder=str(retriever), passages=str(data / "passages")), tmp_path / "vectors"
    )
    assert np.isfinite(Vectors.of(vectors).read(0, 24)).all()
    exported = execute(Export(model=str(retriever)), tmp_path / "model")
    texts = [record["text"] for record in Records(artifacts.load(data / "passages"))][:4]
    np.testing.assert_allclose(
        Encoder.load(exported.path).encode(texts), Encoder.load(retriever).encode(texts), atol=1e-6
    )


@pytest.mark.parametrize("name", ["roberta", "modernbert"])
def test_a_cross_encoder(name: str, data: Path, tmp_path: Path) -> None:
    folder = model_folder(name, tmp_path)
    teacher = trained(
        tmp_path / "teacher",
        Pointwise(CrossEncoder(CONFIGS[name], Runtime(), labels=2)),
        examples(data, tmp_path, "cross_encoder", tokenizer=str(folder)),
        init=str(folder),
        kind="cross_encoder",
        lengths={"pair": 40},
    )
    exported = execute(Export(model=str(teacher)), tmp_path / "model")
    texts = [record["text"] for record in Records(artifacts.load(data / "passages"))][:12]
    queries = [q.text for q in read_queries(data / "data" / "queries.jsonl")]
    odds, again = (
        Reranker.load(place, RerankerOptions(max_length=40)).score(queries, texts)
        for place in (teacher, exported.path)
    )
    np.testing.assert_allclose(again, odds, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_a_retriever_reads_as_it_was_trained(tied: bool, data: Path, tmp_path: Path) -> None:
    """One text at a time by hand, without padding: prompts, titles and lengths are as they were."""
    bert = BertConfig(16384, 16, 1, 2, 16, 32)
    config = DualEncoderConfig(bert, tied=tied, pooling="mean", normalize=True)
    prompts = {"query_prompt": "query: ", "passage_prompt": "passage: "}
    retriever = trained(
        tmp_path / "retriever",
        Finetune(DualEncoder(config, Runtime())),
        examples(data, tmp_path, "triples", **prompts),
        **TRIPLES,
        lengths={"query": 8, "passages": 14},
    )
    encoder, tokenizer = Encoder.load(retriever), tokenizers.load()
    read = encoder.module.config
    assert (read.pooling, read.normalize, read.tied) == ("mean", True, tied)
    assert encoder.limits == {"query": 8, "passage": 14}
    passages = list(Records(artifacts.load(data / "passages")))[:2]
    titled = [tokenizers.text_of(tokenizer, passage, "separate") for passage in passages]
    assert any(tokenizer.sep_id in tokenizer.encode(text) for text in titled)
    questions = ["river stone lamp", "winter garden " * 9]
    embed = Embed(encoder=str(retriever), passages=str(data / "passages"))
    vectors = Vectors.of(execute(embed, tmp_path / "vectors")).read(0, 2)
    for side, texts, found in (
        ("passage", titled, vectors),
        ("query", questions, encoder.encode(questions, "query")),
    ):
        for text, vector in zip(texts, found, strict=True):
            ids = tokenizer.encode(f"{side}: {text}")[: encoder.limits[side] - 2]
            row = np.array([[tokenizer.cls_id, *ids, tokenizer.sep_id]])
            params, lengths = {"params": encoder.runner.params}, np.array([row.size])
            expected = encoder.module.apply(params, row, lengths, side=side)
            np.testing.assert_allclose(vector, expected[0], atol=1e-5)
