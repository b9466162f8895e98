"""Pre-training objectives with heads: groups of tokens, vectors, figures, and what is exported."""

import dataclasses
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_objectives import batch_for
from toy_pretraining import BERT, objectives

from qac_jax.errors import UserError
from qac_jax.hub import huggingface
from qac_jax.models.encoders import DualEncoderConfig, Tower
from qac_jax.models.layers import Runtime
from qac_jax.objectives.mlm import normalised
from qac_jax.objectives.objective import Objective
from qac_jax.training import train


def ready(name: str) -> tuple[Any, Any, Any]:
    """(objective, parameters, prepared batch)."""
    objective = objectives()[name]
    variables = nn.unbox(jax.jit(objective.init)(jax.random.key(0)))
    return objective, variables, jax.jit(objective.prepare)(batch_for(name), jax.random.key(1))


def test_means_are_over_groups_of_sequences() -> None:
    objective = objectives()["cocondenser"]
    texts = [jax.jit(objective.prepare)(batch_for("cocondenser"), jax.random.key(1))[n]
             for n in ("passage", "context")]  # fmt: skip
    counts = np.stack([(np.asarray(text.weights) > 0).sum(1) for text in texts], 1)
    whole = np.concatenate([np.asarray(t.weights).ravel() for t in normalised(texts)])
    assert set(np.unique(whole[whole > 0])) == {np.float32(1 / counts.sum())}
    grouped = normalised(texts, 4)  # four sequences are two pairs
    for place, text in enumerate(grouped):
        for row, weights in enumerate(np.asarray(text.weights)):
            tokens = counts.reshape(-1, 4).sum(1)[row // 2]
            np.testing.assert_allclose(weights.sum(), counts[row, place] / tokens / 8, rtol=1e-6)
    with pytest.raises(UserError, match="mlm_group=5 does not divide the 32 texts"):
        normalised(texts, 5)


@pytest.mark.parametrize("late_mlm", [True, False])
@pytest.mark.slow
def test_vectors_may_be_those_of_a_sentence_encoder(late_mlm: bool) -> None:
    objective = dataclasses.replace(
        objectives()["cocondenser"], pooling="mean", normalize=True, late_mlm=late_mlm
    )
    variables = nn.unbox(jax.jit(objective.init)(jax.random.key(0)))
    text = jax.jit(objective.prepare)(batch_for("cocondenser"), jax.random.key(1))["passage"]
    found = jax.jit(objective.predictions)(variables, text, None).vector
    tower = Tower(DualEncoderConfig(BERT, pooling="mean", normalize=True), Runtime())
    bert = objective.export(variables)[1]
    expected = tower.apply({"params": {"backbone": bert}}, text.ids, text.lengths)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.slow
def test_a_decoder_may_be_given_the_mean_of_the_tokens() -> None:
    objective, variables, batch = ready("cotmae")
    objective = dataclasses.replace(objective, pooling="mean", encoder_mlm=False)
    variables = jax.tree.map(lambda x: 10 * x, variables)  # or a vector hardly matters
    found = jax.jit(lambda v, b: objective.loss(v, b, jax.random.key(2), False)[1])(
        variables, batch
    )
    text = batch["encoded"][0]
    tower = Tower(DualEncoderConfig(BERT, pooling="mean"), Runtime())
    encoder = objective.export(variables)[1]
    vectors = tower.apply({"params": {"backbone": encoder}}, text.ids, text.lengths)
    plain = dataclasses.replace(objective, pooling="cls")
    for name, texts in batch["decoded"].items():
        decoded = plain.decoder_loss(name, variables, variables, vectors, texts[0], None)
        loss = found[f"{name}_decoder_loss"]
        np.testing.assert_allclose(loss, jnp.sum(decoded.loss), rtol=1e-5)
        of_others = plain.decoder_loss(
            name, variables, variables, jnp.roll(vectors, 1, 0), texts[0], None
        )
        assert abs(loss - jnp.sum(of_others.loss)) > 1e-3


@pytest.mark.slow
def test_validation_compares_own_and_other_vectors() -> None:
    objective, variables, batch = ready("cotmae")
    # New weights are so small that a vector hardly matters.
    variables = jax.tree.map(lambda x: 10 * x, variables)
    measure = jax.jit(lambda v, b: objective.loss(v, b, jax.random.key(2), False)[1])
    found = measure(variables, batch)
    for name in ("mlm", "causal"):
        assert found[f"{name}_decoder_loss"] != found[f"{name}_decoder_loss_other"]
    # The same vector for both.
    alike = jax.tree.map(lambda x: jnp.concatenate([x[:8], x[:8]]), batch)  # half a batch away
    same = measure(variables, alike)
    for name in ("mlm", "causal"):
        # XLA may fuse the two decoders in different ways: equal up to rounding, not to the bit.
        np.testing.assert_allclose(
            same[f"{name}_decoder_loss"], same[f"{name}_decoder_loss_other"], rtol=1e-6
        )


@pytest.mark.parametrize("name", ["cocondenser", "cotmae", "retromae", "dupmae"])
def test_the_objectives_keep_the_contract(name: str) -> None:
    objective = objectives()[name]
    assert isinstance(objective, Objective)
    assert objective.splittable == (name != "cocondenser")
    variables = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
    bert = jax.eval_shape(objective.model.init, jax.random.key(0), jnp.zeros((1, 2), int))
    assert set(objective.export(variables)[1]) == set(nn.unbox(bert)["params"])
    assert len(variables["params"]) > 3  # heads


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder": "casual"}, "did you mean 'causal'"),
        ({"window": 0}, "window=0 is not valid"),
        ({"mlm_layers": 0}, "mlm_layers = 0"),
        ({"pooling": "men"}, "did you mean 'mean'"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    names = ("cocondenser", "cotmae") if "pooling" in change else ("cotmae",)
    for name in names:
        with pytest.raises(UserError, match=message):
            dataclasses.replace(objectives()[name], **change)


def test_a_head_beside_the_weights_is_taken(tmp_path: Path) -> None:
    objective = objectives()["condenser"]
    params = nn.unbox(jax.jit(objective.init)(jax.random.key(5)))["params"]
    module, kept = train.exported(objective, params)
    heads = {"c_head": (objective.heads["head"], {"params": params["head"]})}
    folder = huggingface.save(tmp_path / "model", module, {"params": kept}, heads=heads)
    found = objective.stored_heads(folder)["head"]
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(params["head"]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert dataclasses.replace(objective, start_head="random").stored_heads(folder) == {}
    plain = huggingface.save(tmp_path / "plain", module, {"params": kept})
    assert objective.stored_heads(plain) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cocondenser", "retromae_pairs"])
def test_exported_encoders_load_in_transformers(name: str, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    objective = objectives()[name]
    params = nn.unbox(jax.jit(objective.init)(jax.random.key(5)))["params"]
    module, kept = train.exported(objective, params)
    folder = huggingface.save(tmp_path / "model", module, {"params": kept})
    batch = batch_for(name)
    ours = module.apply({"params": kept}, batch["passage"], batch["passage_length"]).cls
    theirs = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    mask = torch.tensor(
        np.arange(BERT.max_positions) < batch["passage_length"][:, None], dtype=torch.long
    )
    with torch.no_grad():
        output = theirs(torch.tensor(batch["passage"], dtype=torch.long), attention_mask=mask)
    np.testing.assert_allclose(ours, output.last_hidden_state[:, 0].numpy(), atol=2e-5)
