"""Encoders of BERT's family in int8 on CPUs, by OpenVINO (`--precision int8`).

The matrix products of the layers, nearly all of the work, are of int8 numbers (XLA's own are hardly
faster than those of fp32 on CPUs). A product's weights have a scale for each output, what they
multiply has one, measured on passages that ship. There a few inputs are far larger than all others,
so each is divided by a factor that its weights are multiplied by (SmoothQuant; Xiao et al., 2023).
All else is fp32, and what follows the last hidden states is JAX's.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax import extras
from qac_jax.errors import UserError
from qac_jax.hub import weights
from qac_jax.inference.runner import Hidden
from qac_jax.models.backbone import BackboneConfig
from qac_jax.models.bert import FamilyConfig, MpnetConfig
from qac_jax.processes import cores
from qac_jax.text.tokenizers import ASSETS


_PASSAGES = ASSETS / "demo" / "wikipedia" / "corpus.jsonl"
_EVERY = 34  # passage is measured
_LONGEST = 128  # tokens of them
_SMOOTHED = 0.75  # how much of a factor's logarithm is its input's; the rest is its weights'
_STEPS = 255  # of int8
_LEAST = 1e-6  # of what is divided by
_ACTIVATIONS = {
    "gelu": lambda op, x: op.gelu(x, "erf"),
    "gelu_new": lambda op, x: op.gelu(x, "tanh"),
    "gelu_pytorch_tanh": lambda op, x: op.gelu(x, "tanh"),
    "relu": lambda op, x: op.relu(x),
}

# Of each product the largest of -x and of x for each of its inputs.
Reached = Sequence[np.ndarray]


def passages() -> list[dict[str, str]]:
    """Passages that are measured on, with titles."""
    lines = _PASSAGES.read_text(encoding="utf-8").splitlines()[::_EVERY]
    return [json.loads(line) for line in lines]


def encoder(
    config: BackboneConfig,
    params: Mapping[str, Any],
    samples: Iterable[tuple[np.ndarray, np.ndarray]],
    rows: int | None,
) -> Hidden:
    """The backbone in int8, measured on ids and token types; with `rows` its last layer computes
    the first `rows` positions alone."""
    known = not isinstance(config, MpnetConfig) and config.activation in _ACTIVATIONS
    if not isinstance(config, FamilyConfig) or not known:
        raise UserError(
            f"--precision int8 is for encoders of BERT's family, not for this "
            f"{config.display_name} with {config.activation}; leave it out"
        )
    measure = compiled(config, params)
    reached: list[np.ndarray] = []
    for ids, types in samples:
        batch = (np.asarray(part[None, :_LONGEST], np.int32) for part in (ids, types))
        found = measure(*batch, np.array([min(ids.size, _LONGEST)], np.int32))[1:]
        reached = list(map(np.maximum, found, reached or found))
    compute = compiled(config, params, rows, reached)
    return lambda *batch: compute(*batch)[0]


def compiled(
    config: FamilyConfig,
    params: Mapping[str, Any],
    rows: int | None = None,
    reached: Reached | None = None,
) -> Callable[..., list[np.ndarray]]:
    """The backbone in int8, or without `reached` in fp32, whose further results are what is."""
    ov = _openvino("openvino")
    model = _Graph(config, weights.looped(params), rows, reached).model(ov)
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": cores()}
    request = ov.Core().compile_model(model, "CPU", settings).create_infer_request()
    lock = threading.Lock()

    def compute(*batch: np.ndarray) -> list[np.ndarray]:
        with lock:
            return list(request.infer(dict(enumerate(batch))).values())

    return compute


def _openvino(name: str) -> Any:
    # Its import else tells Intel of itself over the network. Without this package it does not.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return extras.load(name, "int8", "--precision int8")


class _Graph:
    """The backbone as operations of OpenVINO."""

    def __init__(
        self, config: FamilyConfig, params: Any, rows: int | None, reached: Reached | None
    ):
        self.config, self.params, self.rows = config, params, rows
        self.reached = None if reached is None else iter(reached)
        self.op = _openvino("openvino.opset13")
        self.measured: list[Any] = []

    def model(self, ov: Any) -> Any:
        op, config, embeddings = self.op, self.config, self.params["embeddings"]
        ids, types = (op.parameter([-1, -1], np.int32) for _ in range(2))
        lengths = op.parameter([-1], np.int32)
        zero, one = self.whole(0), self.whole(1)
        places = op.range(zero, op.gather(op.shape_of(ids, "i32"), one, zero), one, "i32")

        def rows_of(name: str, numbers: Any, start: int = 0) -> Any:
            table = np.asarray(embeddings[name]["embedding"])[start:]
            return op.gather(self.real(table), numbers, zero)

        x = op.add(rows_of("word", ids), rows_of("position", places, config.first_position))
        if config.type_vocab_size:
            x = op.add(x, rows_of("type", types))
        x = self.norm(x, embeddings["norm"])
        if config.embedding_size != config.hidden_size:
            x = self.dense(x, embeddings["project"])[0]
        seen = op.less(op.unsqueeze(places, zero), op.unsqueeze(lengths, one))
        mask = op.select(seen, self.real(0.0), self.real(-1e9))
        mask = op.unsqueeze(mask, self.whole([1, 2]))
        for number in range(config.num_layers):
            last = number == config.num_layers - 1
            layer = self.params["layers"][str(number)]
            x = self.layer(x, mask, layer, self.rows if last else None)
        results = [op.result(found) for found in (x, *self.measured)]
        return ov.Model(results, [ids, types, lengths])

    def layer(self, x: Any, mask: Any, layer: Mapping[str, Any], rows: int | None) -> Any:
        op, attention, mlp = self.op, layer["attention"], layer["mlp"]
        width, heads = self.config.hidden_size, self.config.num_heads
        swap = self.whole([0, 2, 1, 3])
        three = self.dense(x, *(attention[name] for name in ("query", "key", "value")), rows=rows)
        parts = [op.reshape(y, self.whole([0, 0, heads, width // heads]), True) for y in three]
        mixed = op.scaled_dot_product_attention(*(op.transpose(y, swap) for y in parts), mask)
        mixed = op.reshape(op.transpose(mixed, swap), self.whole([0, 0, width]), True)
        x = op.add(self.first(x, rows), self.dense(mixed, attention["output"])[0])
        x = self.norm(x, layer["attention_norm"])
        hidden = _ACTIVATIONS[self.config.activation](op, self.dense(x, mlp["up"])[0])
        return self.norm(op.add(x, self.dense(hidden, mlp["down"])[0]), layer["mlp_norm"])

    def first(self, x: Any, rows: int | None) -> Any:
        """The first positions of x."""
        if rows is None:
            return x
        return self.op.slice(x, *(self.whole([number]) for number in (0, rows, 1, 1)))

    def norm(self, x: Any, params: Mapping[str, Any]) -> Any:
        op = self.op
        y = op.mvn(x, self.whole([-1]), True, self.config.layer_norm_eps, "inside_sqrt")
        return op.add(op.multiply(y, self.real(params["scale"])), self.real(params["bias"]))

    def dense(self, x: Any, *layers: Mapping[str, Any], rows: int | None = None) -> list[Any]:
        """Dense layers of one input; the first one's of its first positions."""
        op = self.op
        kernels = [np.asarray(layer["kernel"], np.float32) for layer in layers]
        if self.reached is None:
            axes = self.whole([0, 1])
            self.measured += [op.reduce_max(y, axes) for y in (op.negative(x), x)]
            made = [self.real(kernel) for kernel in kernels]
        else:
            ends = np.stack([next(self.reached), next(self.reached)])
            weighs = np.abs(np.concatenate(kernels, 1)).max(1)
            factor = np.maximum(ends.max(0), _LEAST) ** _SMOOTHED
            factor /= np.maximum(weighs, _LEAST) ** (1.0 - _SMOOTHED)
            low, high = np.maximum((ends / factor).max(1), _LEAST)
            # 0 is one of the steps, of which some are below it.
            below = np.clip(np.round(_STEPS * low / (low + high)), 1, _STEPS - 1)
            step = max(low / below, high / (_STEPS - below))
            around = [self.real(-step * below), self.real(step * (_STEPS - below))]
            x = op.multiply(x, self.real(1.0 / factor))
            x = op.fake_quantize(x, *around, *around, _STEPS + 1)
            made = [self.numbers(kernel * factor[:, None]) for kernel in kernels]
        found = []
        for number, (kernel, layer) in enumerate(zip(made, layers, strict=True)):
            read = self.first(x, None if number else rows)
            y = op.matmul(read, kernel, False, False)
            found.append(op.add(y, self.real(layer["bias"])))
        return found

    def numbers(self, kernel: np.ndarray) -> Any:
        """A kernel in int8, with a scale for each output."""
        scale = np.maximum(np.abs(kernel).max(0, keepdims=True), _LEAST) / (_STEPS // 2)
        numbers = self.op.constant(np.round(kernel / scale).astype(np.int8))
        return self.op.multiply(self.op.convert(numbers, "f32"), self.real(scale))

    def whole(self, numbers: Any) -> Any:
        return self.op.constant(np.asarray(numbers, np.int32))

    def real(self, numbers: Any) -> Any:
        return self.op.constant(np.asarray(numbers, np.float32))
