"""`qac pretrain` on pairs: heads stay with the checkpoint and are taken up again."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
import toy_examples

from qac_jax import artifacts, cli
from qac_jax.hub import parameters


TINY = [
    "--gin.VOCAB_SIZE=100",
    "--gin.bert.BertConfig.hidden_size=16",
    "--gin.bert.BertConfig.num_layers=2",
    "--gin.bert.BertConfig.num_heads=2",
    "--gin.bert.BertConfig.intermediate_size=32",
    "--gin.PASSAGE_TOKENS=12",
    "--gin.CONTEXT_TOKENS=8",
]


@pytest.fixture(scope="module", autouse=True)
def compile_quickly() -> Iterator[None]:
    """Most of these tests' time is LLVM's; the program that it gets is the same."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> Path:
    return toy_examples.tokenized(tmp_path_factory.mktemp("pairs"), "passage_query").path


def pretrain(objective: str, examples: Path, out: Path, *more: str) -> artifacts.Artifact:
    command = ["pretrain", "--gin_file", f"objectives/{objective}.gin", *TINY]
    command += ["--examples", str(examples), "--steps", "3", "--batch_size", "16"]
    assert cli.main([*command, "--microbatch", "8", *more, "--out", str(out)]) == 0
    return artifacts.load(out, "parameters")


@pytest.mark.slow
def test_heads_stay_with_the_checkpoint(examples, tmp_path, capsys):
    first = pretrain("cotmae", examples, tmp_path / "first")
    _, exported = parameters.load(first)
    assert set(exported["params"]) == {"embeddings", "layers"}
    whole = parameters.load_whole(first)
    assert set(whole) == {"embeddings", "layers", "mlm_head", "mlm_decoder"}
    capsys.readouterr()
    held_out = ["--init", str(first.path), "--validation", str(examples)]
    again = pretrain("cotmae", examples, tmp_path / "second", *held_out)
    said = capsys.readouterr().err
    assert "are initialised" not in said and "are not used" not in said
    assert "validation/mlm_decoder_loss_other" in (again.path / "metrics.jsonl").read_text()
