"""Encoders with random weights made by transformers, and what must hold of each of them here."""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import golden_cases as golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.hub import backbones, huggingface, weights
from qac_jax.hub.backbones import Options
from qac_jax.models import backbone
from qac_jax.models.backbone import BackboneConfig
from qac_jax.models.layers import Runtime


LENGTHS = np.asarray([21, 9, 1], np.int32)
BF16 = 2e-2


@dataclasses.dataclass(frozen=True)
class Case:
    """An architecture of transformers: what its classes begin with, and a tiny configuration."""

    name: str
    config: Mapping[str, Any]
    words: int = 50
    pad: int = 1

    def model(self, kind: str, **more: Any) -> Any:
        """transformers' model with random weights, biases and norms too."""
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        sizes = {"vocab_size": self.words, "pad_token_id": self.pad, **self.config}
        raw = getattr(transformers, f"{self.name}Config")(**{**sizes, **more})
        model = getattr(transformers, self.name + kind)._from_config(
            raw, attn_implementation="eager"
        )
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                norm = "norm" in name.lower() and name.endswith("weight")
                parameter.copy_(1 + 0.1 * noise if norm else 0.15 * noise)
        return model.eval()

    def folder(self, path: Path, kind: str, **more: Any) -> tuple[Path, Any]:
        """Its folder, and the model."""
        model = self.model(kind, **more)
        model.save_pretrained(path)
        return path, model

    def texts(self) -> np.ndarray:
        """Right-padded ids of the lengths LENGTHS."""
        ids = np.random.default_rng(0).integers(5, self.words, (len(LENGTHS), LENGTHS.max()))
        return np.where(seen(), ids, self.pad).astype(np.int32)


def random_variables(module: Any) -> dict[str, Any]:
    """Parameters of any size but 0, biases too, so that none can be lost unseen."""
    shapes = backbones.new_parameters(module, abstract=True)
    rng = np.random.default_rng(0)

    def drawn(path: Any, x: Any) -> np.ndarray:
        noise = rng.normal(0, 0.4, x.shape).astype(np.float32)
        return noise + 1 if path[-1].key == "scale" else noise

    return {"params": jax.tree_util.tree_map_with_path(drawn, shapes)}


def seen() -> np.ndarray:
    """Which tokens are no padding."""
    return np.arange(LENGTHS.max()) < LENGTHS[:, None]


def asked(case: Case) -> dict[str, Any]:
    """What transformers' models are called with."""
    torch = pytest.importorskip("torch")
    return {
        "input_ids": torch.tensor(case.texts(), dtype=torch.long),
        "attention_mask": torch.tensor(seen(), dtype=torch.long),
    }


def check_hidden_states(case: Case, path: Path, scan: bool = False, **more: Any) -> None:
    """Hidden states, logits of words and of the first rows alone are those of PyTorch.

    In bfloat16 too, where the layers are a loop.
    """
    torch = pytest.importorskip("torch")
    folder, model = case.folder(path, "ForMaskedLM", **more)
    with torch.no_grad():
        expected = model(**asked(case), output_hidden_states=True)
    ids, states = case.texts(), tuple(range(len(expected.hidden_states)))
    for dtype, tolerance in (("float32", 2e-5), ("bfloat16", BF16))[: 1 if scan else 2]:
        module, given = huggingface.load(folder, Runtime(dtype=dtype, scan=scan))

        @jax.jit
        def run(given: Any, module: Any = module) -> Any:
            out = module.apply(given, ids, LENGTHS, hidden_states=states)
            logits = module.apply(given, out.last, method="mlm_logits")
            # Without padding, and only the first rows of the last layer.
            alone = module.apply(given, ids[1:2, : LENGTHS[1]], None, rows=2)
            return out, logits, alone.last

        out, logits, alone = run(given)
        check_states(out, expected.hidden_states, tolerance, dtype)
        last = expected.hidden_states[-1].numpy()
        if dtype == "float32":
            close(logits, expected.logits.numpy(), tolerance, "logits")
        assert scaled(alone, last[1:2, :2]) <= tolerance, f"{dtype} first rows"


def check_states(out: Any, expected: Any, tolerance: float, what: str) -> None:
    """Every hidden state, the last one by its name too."""
    for number, reference in enumerate(expected):
        close(out.hidden_states[number], reference.numpy(), tolerance, f"{what} state {number}")
    close(out.last, expected[-1].numpy(), tolerance, f"{what} last")


def close(actual: Any, reference: np.ndarray, tolerance: float, what: str) -> None:
    """Equal at all tokens within a share of the largest entry (at least 1)."""
    mask = seen()
    worst = scaled(np.asarray(actual, np.float32)[mask], reference[mask])
    assert worst <= tolerance, f"{what}: off by {worst:.3g}, at most {tolerance:.3g} is allowed"


def scaled(actual: Any, reference: np.ndarray) -> float:
    """The largest difference over max(1, largest entry)."""
    difference = np.abs(np.asarray(actual, np.float32) - reference).max()
    return float(difference / max(1.0, np.abs(reference).max()))


def check_gradients(case: Case, path: Path, **more: Any) -> None:
    """Gradients of an MLM loss, each within 2e-5 of PyTorch's largest entry."""
    torch = pytest.importorskip("torch")
    folder, model = case.folder(path, "ForMaskedLM", **more)
    rng = np.random.default_rng(1)
    masked = seen() & ((rng.random(seen().shape) < 0.4) | (np.arange(LENGTHS.max()) == 0))
    labels = np.where(masked, case.texts(), -100)
    expected_loss = model(**asked(case), labels=torch.tensor(labels, dtype=torch.long)).loss
    expected_loss.backward()
    theirs = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    module, given = huggingface.load(folder)

    def loss(given: Any) -> jax.Array:
        last = module.apply(given, case.texts(), LENGTHS).last
        logs = jax.nn.log_softmax(module.apply(given, last, method="mlm_logits"))
        picked = jnp.take_along_axis(logs, jnp.where(masked, labels, 0)[..., None], -1)[..., 0]
        return -jnp.where(masked, picked, 0).sum() / masked.sum()

    value, gradients = jax.jit(jax.value_and_grad(loss))(given)
    np.testing.assert_allclose(value, expected_loss.item(), rtol=1e-5)
    ours = backbones.loop_params(gradients)
    config = module.config
    written = weights.tensors_of(config.table(config.hf_base), ours)
    prefixes = {"encoder": config.hf_base, "model": ""}
    copies = {n.format(**prefixes): of.format(**prefixes) for n, of in config.hf_tied.items()}
    assert {copies.get(name, name) for name in theirs} == written.keys()
    # The gradient of a bias of keys is 0 but for rounding: it moves all scores of a row alike.
    zero = 1e-6 * max(np.abs(expected).max() for expected in theirs.values())
    for name, expected in theirs.items():
        actual = written[copies.get(name, name)]
        if np.abs(expected).max() < zero:
            assert np.abs(actual).max() < zero, name
        else:
            golden.assert_gradient(actual, expected, "float32", what=name)


def check_round_trip(case: Case, path: Path, kind: str, scan: bool = False, **more: Any) -> None:
    """Load, save, load with transformers: the same tensors, bit for bit, and configuration."""
    transformers = pytest.importorskip("transformers")
    folder, model = case.folder(path / "theirs", kind, **more)
    module, given = huggingface.load(folder, Runtime(scan=scan))
    saved = huggingface.save(path / "ours", module, given)
    assert_same(weights.read_folder(saved), weights.read_folder(folder))
    again, report = getattr(transformers, case.name + kind).from_pretrained(
        saved, output_loading_info=True
    )
    assert not any(report.values()), report
    states = ({n: t.numpy() for n, t in m.state_dict().items()} for m in (again, model))
    assert_same(*states)
    assert huggingface.load(saved, Runtime(scan=scan))[0] == module
    said = json.loads((saved / "config.json").read_text())
    assert said["architectures"] == [case.name + kind]
    before, after = model.config.to_dict(), again.config.to_dict()
    for name in (before.keys() & said.keys()) - {"architectures", "dtype"}:
        assert after[name] == before[name], name


def assert_same(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    """The same names and bytes."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].tobytes() == tensor.tobytes(), name


def check_classifier(case: Case, path: Path, **more: Any) -> None:
    """A sequence classifier's logits."""
    torch = pytest.importorskip("torch")
    folder, model = case.folder(path, "ForSequenceClassification", num_labels=2, **more)
    with torch.no_grad():
        expected = model(**asked(case)).logits.numpy()
    module, given = huggingface.load(folder)
    assert scaled(module.apply(given, case.texts(), LENGTHS), expected) <= 2e-5


def check_refusals(case: Case, path: Path, kind: str = "ForMaskedLM", **more: Any) -> None:
    """Any missing, an odd and a misshaped tensor are refused with their names."""
    folder, _ = case.folder(path, kind, **more)
    tensors = weights.read_folder(folder)
    file = folder / weights.SAFETENSORS

    def refused(changed: Mapping[str, np.ndarray], message: str) -> None:
        weights.write_file(file, changed)
        with pytest.raises(UserError, match=message):
            huggingface.load(folder)

    config = backbone.reading(json.loads((folder / "config.json").read_text()), BackboneConfig)
    assert config is not None
    for name in tensors:
        whole = config.hf_bases and name.endswith(config.hf_words)  # known by its words
        message = "hold no .* ends in" if whole else rf"lack 1 tensor .*: {re.escape(name)}"
        refused({n: t for n, t in tensors.items() if n != name}, message)
    refused(tensors | {"adapter.down": np.zeros(3, np.float32)}, r"hold 1 tensor .*adapter\.down")
    for name in (min(tensors), max(tensors)):
        odd = np.zeros((len(tensors[name]) + 1, *tensors[name].shape[1:]), np.float32)
        refused(tensors | {name: odd}, rf"{re.escape(name)} of .* has shape .*not fit")
    weights.write_file(file, tensors)
    huggingface.load(folder, options=Options(mlm_head=False))
