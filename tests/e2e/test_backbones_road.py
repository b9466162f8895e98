"""Every encoder from a folder to a retriever and a cross-encoder, with its own tokenizer."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import toy_configs
import toy_retrieval as toy
import toy_tokenizers

from qac_jax import artifacts
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.hub import backbones, huggingface
from qac_jax.inference.encoder import Encoder
from qac_jax.inference.reranker import Reranker
from qac_jax.inference.settings import EncoderOptions, RerankerOptions
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives.cross_encoder import Pointwise
from qac_jax.objectives.finetune import Finetune
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval.vectors import Vectors
from qac_jax.stages.embed import Embed
from qac_jax.stages.export import Export
from qac_jax.stages.index import Index
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train


pytestmark = pytest.mark.slow
CONFIGS = toy_configs.every(48, num_layers=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.collected(tmp_path_factory.mktemp("backbones"))


def model_folder(name: str, path: Path) -> Path:
    module = CONFIGS[name].build(Runtime())
    shapes = backbones.new_parameters(module, abstract=True)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)
    tokenizer = toy_tokenizers.of(name, path / "tokenizer")
    return huggingface.save(path / "start", module, {"params": params}, tokenizer=tokenizer)


def examples(data: Path, task: str, folder: Path) -> str:
    stage = Tokenize.make(
        task=task,
        passages=str(data / "passages"),
        queries=str(data / "data" / "queries.jsonl"),
        qrels=str(data / "data" / "qrels" / "test.tsv"),
        random_negatives=2,
        tokenizer=str(folder),
        workers=1,
    )
    return str(execute(stage, folder.parent / task).path)


def trained(path: Path, objective: Any, made: str, **settings: Any) -> Path:
    stage = Train.make(
        objective=objective, examples=made, steps=2, batch_size=8, learning_rate=1e-3, **settings
    )
    return Path(str(execute(stage, path).path))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_retriever(name: str, data: Path, tmp_path: Path) -> None:
    folder = model_folder(name, tmp_path)
    dual = DualEncoder(DualEncoderConfig(CONFIGS[name], pooling="mean"), Runtime())
    retriever = trained(
        tmp_path / "retriever",
        Finetune(dual),
        examples(data, "triples", folder),
        init=str(folder),
        kind="triples",
        settings={"n_passages": 2},
        lengths={"query": 12, "passages": 24},
    )
    vectors = execute(
        Embed(encoder=str(retriever), passages=str(data / "passages")), tmp_path / "vectors"
    )
    assert np.isfinite(Vectors.of(vectors).read(0, 24)).all()
    index = execute(Index.make(vectors=str(vectors.path)), tmp_path / "index")
    queries = str(data / "data" / "queries.jsonl")
    run = execute(Search(index=str(index.path), queries=queries, k=5), tmp_path / "run")
    assert run.count == 12
    exported = execute(Export(model=str(retriever)), tmp_path / "model")
    assert set(exported.info["differences"]) >= {"qac_jax"}
    texts = [record["text"] for record in Records(artifacts.load(data / "passages"))][:4]
    np.testing.assert_allclose(
        Encoder.load(exported.path).encode(texts), Encoder.load(retriever).encode(texts), atol=1e-6
    )
    bare = Embed(
        encoder=str(folder),
        passages=str(data / "passages"),
        options=EncoderOptions(pooling="max", max_length=24),
    )
    assert execute(bare, tmp_path / "bare").count == 24


@pytest.mark.parametrize("name", ["roberta", "modernbert"])
def test_a_cross_encoder(name: str, data: Path, tmp_path: Path) -> None:
    folder = model_folder(name, tmp_path)
    teacher = trained(
        tmp_path / "teacher",
        Pointwise(CrossEncoder(CONFIGS[name], Runtime(), labels=2)),
        examples(data, "cross_encoder", folder),
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
