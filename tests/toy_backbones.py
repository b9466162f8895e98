"""Small encoders with random weights, made by transformers, and what every architecture must show.

A test module of one architecture makes a `Family` and calls these checks.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import golden_cases as golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.hub import backbones, huggingface, name_maps, weights
from qac_jax.models.layers import Runtime


VOCABULARY, LENGTH = 40, 9
LENGTHS = np.asarray([9, 4, 7])
HIDDEN = {"float32": 2e-5, "bfloat16": 2e-2}


@dataclasses.dataclass(frozen=True)
class Family:
    """transformers' classes begin with `name`; `settings` make a small configuration."""

    name: str
    settings: dict[str, Any]
    pad: int = 0

    def make(self, folder: Path, kind: str, **settings: Any) -> Any:
        """A model of the class `name` + kind with random weights, saved in the folder."""
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        if not hasattr(transformers, f"{self.name}{kind}"):
            pytest.skip(f"transformers has no {self.name}{kind}")
        config = getattr(transformers, f"{self.name}Config")(
            vocab_size=VOCABULARY, pad_token_id=self.pad, **self.settings | settings
        )
        model = getattr(transformers, f"{self.name}{kind}")(config).eval()
        torch.manual_seed(0)
        with torch.no_grad():  # biases and norms too, so that none can be lost unseen
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.08)
        model.save_pretrained(folder)
        return model

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids, right-padded, and their attention mask."""
        ids = np.random.default_rng(1).integers(5, VOCABULARY, (len(LENGTHS), LENGTH))
        mask = np.arange(LENGTH) < LENGTHS[:, None]
        return np.where(mask, ids, self.pad), mask


def theirs(model: Any, ids: np.ndarray, mask: np.ndarray, **options: Any) -> Any:
    import torch

    return model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask).long(), **options)


def check_hidden_states(family: Family, folder: Path, precision: str) -> None:
    """Every hidden state of every real token; padding changes nothing."""
    import torch

    model = family.make(folder, "Model")
    ids, mask = family.batch()
    with torch.no_grad():
        expected = theirs(model, ids, mask, output_hidden_states=True).hidden_states
    for scan in (False, True):
        module, variables = huggingface.load(folder, Runtime(dtype=precision, scan=scan))
        wanted = tuple(range(module.config.num_layers + 1))
        run = jax.jit(lambda v, m=module, w=wanted: m.apply(v, ids, LENGTHS, hidden_states=w))
        states = run(variables).hidden_states
        for number in wanted:
            difference = np.asarray(states[number], np.float32) - expected[number].numpy()
            worst = np.abs(difference[mask]).max()
            assert worst <= HIDDEN[precision], (number, scan, worst)


def check_gradients(family: Family, folder: Path) -> None:
    """Word logits, the loss of word predictions and the gradient of every tensor."""
    import torch

    model = family.make(folder, "ForMaskedLM")
    ids, mask = family.batch()
    labels = np.random.default_rng(2).integers(0, VOCABULARY, ids.shape)
    labels = np.where(mask & (np.arange(LENGTH) % 2 == 1), labels, -100)
    output = theirs(model, ids, mask)
    loss = torch.nn.functional.cross_entropy(
        output.logits.flatten(0, 1), torch.tensor(labels).flatten()
    )
    loss.backward()
    module, variables = huggingface.load(folder)
    assert module.config.mlm_head

    def ours(variables: Any) -> tuple[jax.Array, jax.Array]:
        last = module.apply(variables, ids, LENGTHS).last
        logits = module.apply(variables, last, method="mlm_logits")
        wanted = jnp.asarray(labels != -100)
        scores = jax.nn.log_softmax(logits)
        picked = jnp.take_along_axis(scores, jnp.where(wanted, labels, 0)[..., None], axis=-1)
        return -jnp.where(wanted, picked[..., 0], 0).sum() / wanted.sum(), logits

    (value, logits), gradients = jax.jit(jax.value_and_grad(ours, has_aux=True))(variables)
    np.testing.assert_allclose(value, loss.item(), rtol=1e-5)
    expected = output.logits.detach().numpy()
    np.testing.assert_allclose(logits[mask], expected[mask], rtol=0, atol=2e-5)
    table = backbones.saved_table(module.config)
    found = name_maps.write(table, jax.device_get(gradients["params"]))
    named = dict(model.named_parameters())
    compared = found.keys() & named.keys()
    largest = max(float(named[name].grad.abs().max()) for name in compared)
    for name in compared:
        reference = named[name].grad.numpy()
        if np.abs(reference).max() < 1e-6 * largest:  # 0 but for rounding: the keys' biases
            assert np.abs(found[name]).max() < 1e-6 * largest, name
        else:
            golden.assert_gradient(found[name], reference, "float32", what=name)
    without = {name for name in named.keys() - compared if named[name].grad is not None}
    assert all(name in type(module.config).hf_copies(module.config.hf_base, "") for name in without)


def check_round_trip(family: Family, folder: Path, kind: str) -> None:
    """Load, save, load in transformers: the same tensors, and the same configuration."""
    model = family.make(folder / "theirs", kind)
    module, variables = huggingface.load(folder / "theirs", Runtime(scan=True))
    out = huggingface.save(folder / "ours", module, variables)
    expected, actual = weights.read_folder(folder / "theirs"), weights.read_folder(out)
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].tobytes() == tensor.tobytes(), name
    again, report = type(model).from_pretrained(out, output_loading_info=True)
    assert not any(report.values()), report
    state = model.state_dict()
    assert again.state_dict().keys() == state.keys()
    assert all((tensor == state[name]).all() for name, tensor in again.state_dict().items())
    said = json.loads((out / "config.json").read_text())
    assert said["architectures"] == [f"{family.name}{kind}"]
    before, after = model.config.to_dict(), again.config.to_dict()
    for key in said.keys() - {"architectures", "dtype", "transformers_version"}:
        assert before.get(key, said[key]) == after.get(key), key
    assert type(again.config) is type(model.config)


def check_classifier(family: Family, folder: Path) -> None:
    """A sequence classifier is a cross-encoder with the same logits."""
    import torch

    model = family.make(folder, "ForSequenceClassification", num_labels=2)
    ids, mask = family.batch()
    with torch.no_grad():
        expected = theirs(model, ids, mask).logits.numpy()
    module, variables = huggingface.load(folder)
    logits = jax.jit(module.apply)(variables, ids, LENGTHS)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5)


def check_refusals(family: Family, folder: Path) -> None:
    """A missing, an odd and a misshaped tensor are refused with their names."""
    family.make(folder, "Model")
    tensors = weights.read_folder(folder)
    file = folder / weights.SAFETENSORS
    for name in tensors:
        if "word_embeddings" in name:  # what an encoder is recognised by
            continue
        weights.write_file(file, {n: t for n, t in tensors.items() if n != name})
        if "pooler" not in name:  # a part that may be missing as a whole
            with pytest.raises(UserError, match=f"lack 1 tensor .*{name}"):
                huggingface.load(folder)
    weights.write_file(file, tensors | {"adapter.down": np.zeros(3, np.float32)})
    with pytest.raises(UserError, match=r"hold 1 tensor .*adapter\.down"):
        huggingface.load(folder)
    name = "embeddings.position_embeddings.weight"
    rows, width = tensors[name].shape
    weights.write_file(file, tensors | {name: np.zeros((rows + 1, width), np.float32)})
    with pytest.raises(UserError, match=rf"{name}.*\({rows + 1}, {width}\).*does not fit config"):
        huggingface.load(folder)
