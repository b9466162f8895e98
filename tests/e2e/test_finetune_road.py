"""Fine-tuned retrievers are used as they were trained, without a flag: embed, index, mine."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_retrieval as toy

from qac_jax import artifacts
from qac_jax.formats import records
from qac_jax.inference.encoder import Encoder
from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives.finetune import Finetune
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval.vectors import Vectors
from qac_jax.stages.embed import Embed
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train
from qac_jax.text import tokenizers


BERT = BertConfig(
    vocab_size=16384,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=16,
    max_positions=32,
)


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection, its passages, and triples that were read with prompts."""
    root = toy.collected(tmp_path_factory.mktemp("finetune"), 40, 16)
    triples = Tokenize.make(
        task="triples",
        passages=str(root / "passages"),
        queries=str(root / "data" / "queries.jsonl"),
        qrels=str(root / "data" / "qrels" / "test.tsv"),
        random_negatives=3,
        query_prompt="query: ",
        passage_prompt="passage: ",
        workers=1,
    )
    execute(triples, root / "triples")
    return root


def by_hand(module: Any, params: Any, rows: list[list[int]], side: str) -> np.ndarray:
    """One text at a time, without padding."""
    return np.concatenate(
        [
            module.apply({"params": params}, np.array([row]), np.array([len(row)]), side=side)
            for row in rows
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_a_retriever_reads_as_it_was_trained(tied: bool, road: Path) -> None:
    retriever = road / f"tied_{tied}"
    config = DualEncoderConfig(BERT, tied=tied, pooling="mean", normalize=True)
    stage = Train.make(
        objective=Finetune(DualEncoder(config, Runtime())),
        examples=str(road / "triples"),
        kind="triples",
        settings={"n_passages": 2},
        lengths={"query": 8, "passages": 14},
        steps=1,
        batch_size=8,
        learning_rate=1e-3,
    )
    execute(stage, retriever)
    encoder = Encoder.load(retriever)
    assert encoder.module.config == config
    assert encoder.limits == {"query": 8, "passage": 14}

    tokenizer = tokenizers.load()
    passages = list(records.Records(artifacts.load(road / "passages")))[:2]
    texts = {
        "passage": ["passage: " + tokenizers.text_of(tokenizer, p, "separate") for p in passages],
        "query": ["query: river stone lamp", "query: " + "winter garden " * 9],
    }
    params = encoder.runner.params
    embed = Embed(encoder=str(retriever), passages=str(road / "passages"))
    vectors = Vectors.of(execute(embed, road / f"vectors_{tied}"))
    for side, limit in (("passage", 14), ("query", 8)):
        rows = [
            [tokenizer.cls_id, *tokenizer.encode(text)[: limit - 2], tokenizer.sep_id]
            for text in texts[side]
        ]
        expected = by_hand(encoder.module, params, rows, side)
        if side == "passage":
            found = vectors.read(0, 2)
        else:
            questions = [text.removeprefix("query: ") for text in texts["query"]]
            found = encoder.encode(questions, "query")
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert any(tokenizer.sep_id in tokenizer.encode(text) for text in texts["passage"])
