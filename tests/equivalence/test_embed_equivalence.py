"""Vectors do not depend on batches, devices, files or interruptions; parity with others."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
import toy_retrieval as toy

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.formats.records import Records
from qac_jax.inference.encoder import Encoder
from qac_jax.inference.runner import Runner, padded, token_batches
from qac_jax.inference.settings import EncoderOptions, Inference
from qac_jax.pipeline import stage
from qac_jax.retrieval.corpus import Ids
from qac_jax.retrieval.vectors import Vectors
from qac_jax.stages import embed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embed")
    toy.save_encoder(folder / "encoder", query_prompt="question: ", passage_prompt="text: ")
    toy.write_collection(folder / "collection")
    return folder


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return Encoder.load(folder / "encoder")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    rng = np.random.default_rng(1)
    return [toy.sentence(rng, int(rng.integers(1, 70))) for _ in range(50)] + ["", "one"]


def run(folder: Path, out: Path, **settings: object) -> artifacts.Artifact:
    given = {"encoder": str(folder / "encoder"), "shard_rows": 16, **settings}
    if not {"queries", "passages"} & set(given):
        given["passages"] = str(folder / "collection" / "corpus.jsonl")
    return stage.execute(embed.Embed.make(**given), out)


@pytest.fixture(scope="module")
def whole(folder: Path) -> artifacts.Artifact:
    return run(folder, folder / "whole")


def all_of(artifact: artifacts.Artifact) -> np.ndarray:
    vectors = Vectors.of(artifact)
    return vectors.read(0, len(vectors))


def test_batches_change_nothing(encoder, texts):
    expected = encoder.encode(texts)
    runner = dataclasses.replace(encoder.runner, inference=Inference(batch_tokens=128))
    found = dataclasses.replace(encoder, runner=runner).encode(texts)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    np.testing.assert_allclose(found[-1:], encoder.encode(["one"]), rtol=0, atol=2e-6)


def test_eight_devices_are_one(encoder, texts):
    one = Runner.of(encoder.runner.params, devices=jax.devices()[:1])
    alone = dataclasses.replace(encoder, runner=one)
    assert encoder.runner.mesh.size == 8
    rows = encoder.tokenize(texts)
    batch = padded(rows, encoder.batches(rows)[0], encoder.tokenizer.pad_id)
    assert len(encoder.apply(*batch).sharding.device_set) == 8
    np.testing.assert_allclose(encoder.encode(texts), alone.encode(texts), rtol=0, atol=2e-6)


@pytest.mark.slow
def test_sentence_transformers_gives_the_same(folder, encoder, texts):
    st = pytest.importorskip("sentence_transformers")
    theirs = st.SentenceTransformer(str(folder / "encoder"), device="cpu")
    for side, prompt in (("query", "question: "), ("passage", "text: ")):
        expected = theirs.encode(texts, prompt=prompt)
        np.testing.assert_allclose(encoder.encode(texts, side), expected, rtol=0, atol=2e-6)
    assert encoder.limits["passage"] == theirs.max_seq_length == 48


def test_settings_replace_what_the_folder_says(folder, texts):
    options = EncoderOptions(pooling="cls", normalize="no", max_length=8)
    changed = Encoder.load(folder / "encoder", options, prompts={"passage": ""})
    rows = changed.tokenize(texts[:3])
    assert max(map(len, rows)) == 8
    assert changed.tokenize(["river"])[0] == changed.framed(changed.tokenizer.encode("river"))
    lengths = np.linalg.norm(changed.encode(texts[:3]), axis=1)
    assert (abs(lengths - 1) > 0.01).all()
    with pytest.raises(UserError, match="max_length=65 .* 3 to 64"):
        Encoder.load(folder / "encoder", EncoderOptions(max_length=65))


def test_an_interrupted_run_goes_on_to_the_same(folder, whole, tmp_path, monkeypatch):
    encoded = Encoder.encode_tokens
    calls = []

    def stumbling(self, rows, *arguments, **named):
        calls.append(len(rows))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return encoded(self, rows, *arguments, **named)

    monkeypatch.setattr(Encoder, "encode_tokens", stumbling)
    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "out")
    with pytest.raises(UserError, match="is unfinished"):
        artifacts.load(tmp_path / "out")
    again = run(folder, tmp_path / "out")
    assert calls == [16, 16, 16, 8]  # the first file was kept, the second begun anew
    assert again.identity == whole.identity
    again.verify()


def test_ids_texts_and_lengths_go_with_the_rows(folder, whole, encoder):
    records = Records(artifacts.load(whole.path / "texts"))
    assert list(Ids(whole)) == [record["_id"] for record in records]
    number = 21
    text = f"{records[number]['title']} {records[number]['text']}"
    np.testing.assert_allclose(all_of(whole)[number], encoder.encode([text])[0], atol=2e-6)
    lengths = np.concatenate([np.load(p) for p in whole.matching("lengths-")])
    assert lengths[number] == len(encoder.tokenize([text])[0])
    assert (whole.count, whole.info["dimension"]) == (40, 32)


def test_half_precision(folder, whole, tmp_path):
    half = all_of(run(folder, tmp_path / "out", dtype="float16"))
    np.testing.assert_array_equal(half, all_of(whole).astype(np.float16), strict=True)


def test_an_artefact_of_passages_gives_the_same_vectors(folder, whole, tmp_path):
    found = run(folder, tmp_path / "out", passages=str(whole.path / "texts"), shard_rows=7)
    np.testing.assert_allclose(all_of(found), all_of(whole), rtol=0, atol=2e-6)
    assert not (found.path / "texts").exists()


def test_token_ids_as_input(folder, whole, encoder, tmp_path):
    records = Records(artifacts.load(whole.path / "texts"))
    lines = []
    for record in records:
        ids = encoder.tokenizer.encode(f"text: {record['title']} {record['text']}")
        lines.append(f'{{"_id": "{record["_id"]}", "tokens": {ids}}}\n')
    (tmp_path / "tokens.jsonl").write_text("".join(lines))
    found = run(folder, tmp_path / "out", passages=str(tmp_path / "tokens.jsonl"))
    np.testing.assert_allclose(all_of(found), all_of(whole), rtol=0, atol=2e-6)


def test_queries_take_the_other_prompt(folder, encoder, tmp_path):
    queries = folder / "collection" / "queries.jsonl"
    found = run(folder, tmp_path / "out", queries=str(queries))
    records = list(Records(artifacts.load(found.path / "texts")))
    expected = encoder.encode([record["text"] for record in records], "query")
    np.testing.assert_allclose(all_of(found), expected, rtol=0, atol=2e-6)
    assert found.info["side"] == "query"
    with pytest.raises(UserError, match="takes one of --passages, --queries"):
        stage.execute(embed.Embed(encoder="m", passages="i", queries="x"), tmp_path / "refused")


def test_batches_hold_every_text_once():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 257, 1000)
    found = list(token_batches(lengths, 4096, multiple=8, limit=256))
    rows = np.concatenate([batch.rows for batch in found])
    assert sorted(rows) == list(range(1000))
    for batch in found:
        assert len(batch.rows) <= batch.size and batch.size % 8 == 0
        assert lengths[batch.rows].max() <= batch.length
        assert batch.size * batch.length <= 4096 or batch.size == 8
    padding = sum(b.size * b.length for b in found) / lengths.sum()
    assert padding < 1.15
    assert len({(b.size, b.length) for b in found}) < 25
