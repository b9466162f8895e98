"""`--precision int8` and `qac export --form openvino|onnx`, beside the same in fp32 by JAX."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import toy_retrieval as toy
from hf_encoders import random_variables

from qac_jax import Retriever, artifacts, cli
from qac_jax.errors import UserError
from qac_jax.exporting.export import Export
from qac_jax.formats.runs import read_run
from qac_jax.hub import huggingface
from qac_jax.inference import engines, int8
from qac_jax.inference.encoder import Encoder
from qac_jax.inference.reranker import Reranker
from qac_jax.inference.settings import EncoderOptions, Inference, RerankerOptions
from qac_jax.models.bert import (
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    FamilyConfig,
    MpnetConfig,
    RobertaConfig,
)
from qac_jax.models.encoders import CrossEncoder
from qac_jax.models.layers import Runtime
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval.index import Index


# To look for it is not to import it, which would tell Intel.
openvino = pytest.mark.skipif(find_spec("openvino") is None, reason="without the extra int8")
INT8 = Inference("int8")


@openvino
@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize("family", [BertConfig, RobertaConfig, DistilBertConfig, ElectraConfig])
def test_the_graph_in_fp32_is_the_network(family: type[FamilyConfig], rows: int | None) -> None:
    sizes: Any = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48}
    sizes |= {"embedding_size": 16} if family is ElectraConfig else {}
    config = family(50, max_positions=24, **sizes)
    module = config.build(Runtime())
    params = random_variables(module)["params"]
    rng = np.random.default_rng(0)
    ids, lengths = rng.integers(5, 50, (3, 20), np.int32), np.array([20, 11, 1], np.int32)
    types = (np.arange(20) > 7).astype(np.int32)[None].repeat(3, 0)
    given = types if config.token_types > 1 else np.zeros_like(types)
    expected = jax.jit(module.apply)({"params": params}, ids, lengths, given).last
    found = engines.openvino(int8.Graph(config, params, rows).model())(ids, given, lengths)[0]
    assert found.shape == (3, rows or 20, 32)
    for row, length in enumerate(lengths):
        stop = min(length, rows or 20)
        np.testing.assert_allclose(found[row, :stop], expected[row, :stop], rtol=0, atol=1e-4)


@openvino
@pytest.mark.parametrize("changes", [{}, {"tied": False, "title": "segments"}])
def test_int8_is_near_fp32(changes: dict[str, Any], tmp_path: Path) -> None:
    toy.save_encoder(tmp_path / "encoder", **changes)
    plain = Encoder.load(tmp_path / "encoder")
    small = Encoder.load(tmp_path / "encoder", inference=INT8)
    rng = np.random.default_rng(0)
    texts = [toy.sentence(rng, int(rng.integers(2, 40))) for _ in range(30)]
    titled = [plain.passage_text({"title": "Stone", "text": text}) for text in texts]
    for side, given in (("query", texts), ("passage", titled)):
        found, expected = (encoder.encode(given, side) for encoder in (small, plain))
        cosines = (found * expected).sum(1)
        assert cosines.mean() > 0.99 and 0.95 < cosines.min() < cosines.max() <= 1 + 1e-6
        assert np.abs(found - expected).max() > 1e-5
        # Whatever stands beside a text.
        alone = small.encode(given[:1], side)[0]
        np.testing.assert_allclose(alone, found[0], rtol=0, atol=1e-5)


@openvino
def test_the_road_from_passages_to_answers(tmp_path: Path) -> None:
    data = toy.write_collection(tmp_path / "toys")
    toy.save_encoder(tmp_path / "encoder")
    runs = {}
    for precision in ("int8", "float32"):
        at = tmp_path / precision
        for words in (
            f"embed --encoder {tmp_path}/encoder --passages {data}/corpus.jsonl "
            f"--precision {precision} --out {at}/vectors",
            f"index --vectors {at}/vectors --out {at}/index",
            f"search --index {at}/index --queries {data}/queries.jsonl --out {at}/run",
        ):
            assert cli.main(words.split()) == 0
        runs[precision] = read_run(at / "run" / "run.trec")
    index = Index(artifacts.load(tmp_path / "int8" / "index"))
    assert index.encoder.hidden and index.encoder.runner.inference == INT8
    retriever = Retriever.load(tmp_path / "encoder", precision="int8").index(toy.WORDS)
    assert retriever.encoder.hidden and retriever.search("copper", k=1)[0].text == "copper"
    same = [len({*runs["int8"][q].ids[:5]} & {*r.ids[:5]}) for q, r in runs["float32"].items()]
    assert np.mean(same) >= 4.5


@openvino
def test_rerankers_in_int8(tmp_path: Path) -> None:
    folder = toy.save_cross_encoder(tmp_path / "model")
    options, rng = RerankerOptions(max_length=32), np.random.default_rng(0)
    queries, passages = ([toy.sentence(rng, n) for _ in range(40)] for n in (3, 20))
    plain = Reranker.load(folder, options).score(queries, passages)
    small = Reranker.load(folder, options, INT8).score(queries, passages)
    assert np.corrcoef(plain, small)[0, 1] > 0.99 and np.abs(plain - small).max() > 1e-5


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="BERT's family, not for this MPNet"):
        int8.encoder(MpnetConfig(), {}, [], None)
    from qac_jax.inference.runner import dtype_of

    with pytest.raises(UserError, match="encoders and rerankers on CPUs"):
        dtype_of("int8")


@openvino
def test_a_first_position_in_int8_is_that_of_all(tmp_path: Path) -> None:
    folder = toy.save_encoder(tmp_path / "encoder", pooling="cls")
    encoder = Encoder.load(folder, inference=INT8)
    assert encoder.hidden
    ids = np.array(encoder.tokenize([" ".join(toy.WORDS)]), np.int32)
    batch = ids, np.zeros_like(ids), np.array([ids.size], np.int32)
    first = encoder.hidden["passage"](*batch)
    whole = Encoder.load(folder, EncoderOptions(pooling="mean"), INT8)
    assert whole.hidden and first.shape == (1, 1, 32)
    np.testing.assert_allclose(first, whole.hidden["passage"](*batch)[:, :1], rtol=0, atol=1e-5)


onnx = pytest.mark.skipif(
    not all(map(find_spec, ("onnx", "onnxruntime", "openvino"))), reason="without the extra onnx"
)
TOWERS: dict[str, Any] = {"tied": False, "title": "segments"}


@pytest.mark.parametrize(
    "form, changes",
    [
        pytest.param("openvino", TOWERS, marks=openvino),
        pytest.param("onnx", {"projection": 8}, marks=onnx),
    ],
)
def test_exported_graphs_make_our_vectors(
    form: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = toy.save_encoder(tmp_path / "encoder", **changes)
    texts = [toy.sentence(np.random.default_rng(n), 4 + n) for n in range(30)]
    expected = Encoder.load(model).encode(texts, "query")
    towers = ("query", "passage") if changes is TOWERS else (".",)
    for in_int8 in (False, True):
        out = tmp_path / str(in_int8)
        stage = Export(model=str(model), form=form, int8=in_int8)
        assert execute(stage, out).info["correlation"] > (0.99 if in_int8 else 0.99999)
        loaded = Retriever.load(out).encoder
        assert loaded.hidden and not Encoder.load(out, inference=Inference("float32")).hidden
        found = loaded.encode(texts, "query")
        assert (found * expected).sum(1).min() > 0.95
        assert (np.abs(found - expected).max() < 1e-5) is not in_int8
        for tower in towers:  # OpenVINO reads both forms
            file = out / tower / engines.FILES[form]
            inputs = engines.library("openvino").Core().read_model(file).inputs
            assert [each.any_name for each in inputs] == [*engines.INPUTS]


@pytest.mark.parametrize(
    "form, family, in_int8",
    [
        pytest.param("openvino", BertConfig, True, marks=openvino),
        pytest.param("openvino", ElectraConfig, False, marks=openvino),
        pytest.param("onnx", DistilBertConfig, False, marks=onnx),
        pytest.param("onnx", BertConfig, True, marks=onnx),
    ],
)
def test_exported_rerankers_score_as_ours(
    form: str, family: type[FamilyConfig], in_int8: bool, tmp_path: Path
) -> None:
    sizes: Any = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32}
    module = CrossEncoder(family(16384, max_positions=64, pooler=True, **sizes), labels=2)
    vocabulary = toy.tokenizers.ASSETS / toy.tokenizers.SHIPPED
    model, out = tmp_path / "model", tmp_path / "out"
    huggingface.save(model, module, random_variables(module), tokenizer=vocabulary)
    options, rng = RerankerOptions(max_length=32), np.random.default_rng(0)
    queries, passages = ([toy.sentence(rng, n) for _ in range(20)] for n in (3, 20))
    expected = Reranker.load(model, options).score(queries, passages)
    execute(Export(model=str(model), form=form, int8=in_int8), out)
    loaded = Reranker.load(out, options)
    found = loaded.score(queries, passages)
    assert loaded.logits and np.corrcoef(found, expected)[0, 1] > 0.99
    assert (np.abs(found - expected).max() < 1e-4) is not in_int8


def test_what_has_no_graph_is_refused(tmp_path: Path) -> None:
    model = toy.save_encoder(tmp_path / "encoder")
    with pytest.raises(UserError, match="there is no .*model.onnx; `qac export --model"):
        Encoder.load(model, inference=Inference("onnx"))
    with pytest.raises(UserError, match="--int8 needs --form openvino or --form onnx"):
        execute(Export(model=str(model), int8=True), tmp_path / "out")
